#include "weft/env/process_reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <csignal>
#include <fstream>
#include <functional>
#include <set>

#include "weft/base/log.h"
#include "weft/base/signals.h"
#include "weft/base/subprocess.h"
#include "weft/env/reward_registry.h"
#include "weft/env/test_support.h"

namespace weft {
namespace {

using test::message_of;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// What python3 stands for, looked up once: version managers put a slow script in front of it.
const std::string& interpreter() {
  static const std::string path = [] {
    SubprocessOptions options;
    options.argv = {"python3", "-c", "import sys; print(sys.executable)"};
    Subprocess program(options);
    std::string line;
    program.read_line(&line, 60);
    return line;
  }();
  return path;
}

class ProcessReward : public testing::Test {
 protected:
  ProcessReward() {
    std::string pattern = (std::filesystem::temp_directory_path() / "weft_reward_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    options_.processes = 1;
    options_.python = interpreter();
    options_.time_limit_s = 20;
    set_log_level(LogLevel::kWarn);
  }
  ~ProcessReward() override {
    std::filesystem::remove_all(folder_);
    set_log_level(LogLevel::kInfo);
  }

  std::string write(const std::string& name, const std::string& text) {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }
  std::unique_ptr<RewardFunction> python(const std::string& text, const std::string& function = "f") {
    return make_python_reward(write("r.py", text), function, options_);
  }
  std::unique_ptr<RewardFunction> shell(const std::string& script) {
    return make_command_reward("sh", {"/bin/sh", "-c", script}, options_);
  }

  std::filesystem::path folder_;
  RewardProcessOptions options_;
};

std::vector<RewardRequest> rows(int64_t n, int64_t samples = 1) {
  std::vector<RewardRequest> all;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t s = 0; s < samples; ++s) {
      RewardRequest r;
      r.prompt = "p" + std::to_string(i);
      r.completion = "c" + std::to_string(i);
      r.prompt_ids = {1, 2};
      r.completion_ids.assign(static_cast<size_t>(i + 1), 7);
      r.ground_truth_json = std::to_string(i);
      r.data_source = "unit";
      r.row_json = "{\"prompt\": \"p\", \"level\": " + std::to_string(10 * i) + "}";
      r.file = "d.jsonl";
      r.row_number = 100 + i;
      r.sample_index = s;
      all.push_back(r);
    }
  return all;
}

std::vector<double> values(const std::vector<RewardValue>& scores) {
  std::vector<double> result;
  for (const auto& score : scores) result.push_back(score.applicable ? score.value : -1000);
  return result;
}

TEST_F(ProcessReward, TrlSignatureGetsColumns) {
  const auto reward = python(R"(
def f(prompts, completions, completion_ids, level, ground_truth, **kwargs):
    assert prompts == ["p0", "p1", "p2"] and completions[2] == "c2", (prompts, completions)
    assert kwargs["data_source"] == ["unit"] * 3 and kwargs["prompt_ids"] == [[1, 2]] * 3
    assert "prompt" not in kwargs
    return [len(i) + l + g for i, l, g in zip(completion_ids, level, ground_truth)]
)");
  EXPECT_EQ(reward->name(), "f");
  EXPECT_THAT(values(reward->score(rows(3))), ElementsAre(1, 13, 25));
  EXPECT_THAT(values(reward->score(rows(3))), ElementsAre(1, 13, 25));
  EXPECT_TRUE(reward->score({}).empty());
}

TEST_F(ProcessReward, TrlConversationsAndAsync) {
  const auto reward = python(R"(
async def f(prompts, completions):
    return [float(p[-1]["content"] == "hi" and c == [{"role": "assistant", "content": "c0"}]) for p, c in zip(prompts, completions)]
)");
  auto all = rows(1);
  all[0].messages_json = "[{\"role\": \"user\",\n \"content\": \"hi\"}]";
  EXPECT_THAT(values(reward->score(all)), ElementsAre(1));
}

TEST_F(ProcessReward, VerlSignatureGivesScoreAndExtras) {
  const auto reward = python(R"(
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "unit" and solution_str == "c%d" % ground_truth and extra_info == {"level": 5}
    if ground_truth == 0:
        return 0.25
    return {"score": True, "acc": ground_truth, "pred": "text", "bad": float("inf")}
)",
                             "");
  auto all = rows(2);
  for (auto& r : all) r.row_json = R"({"extra_info": {"level": 5}})";
  const auto scores = reward->score(all);
  EXPECT_THAT(values(scores), ElementsAre(0.25, 1));
  EXPECT_EQ(scores[1].extra.size(), 2u);
  EXPECT_EQ(scores[1].extra.at("acc"), 1);
  EXPECT_TRUE(std::isinf(scores[1].extra.at("bad")));
}

TEST_F(ProcessReward, NoneNanAndInfinity) {
  const auto reward = python(R"(
def f(completions, **columns):
    return [None, float("nan"), float("inf"), -float("inf"), {"score": None, "x": 2}, 10**400]
)");
  const auto scores = reward->score(rows(6));
  EXPECT_FALSE(scores[0].applicable);
  EXPECT_TRUE(scores[1].applicable && std::isnan(scores[1].value));
  EXPECT_EQ(scores[2].value, INFINITY);
  EXPECT_EQ(scores[3].value, -INFINITY);
  EXPECT_FALSE(scores[4].applicable);
  EXPECT_EQ(scores[4].extra.at("x"), 2);
  EXPECT_EQ(scores[5].value, INFINITY);
}

TEST_F(ProcessReward, ArraysAndScalarsOfLibrariesAreNumbers) {
  const auto reward = python(R"(
class Scalar:
    def item(self): return 0.5
class Array:
    def tolist(self): return [Scalar(), 2]
def f(completions): return Array()
)");
  EXPECT_THAT(values(reward->score(rows(2))), ElementsAre(0.5, 2));
}

TEST_F(ProcessReward, PrintsDoNotBreakTheProtocol) {
  set_log_level(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  {
    const auto reward = python(R"(
import os, sys
print("at import")
def f(completions):
    print("printed")
    sys.__stdout__.write("{}\n")
    os.write(1, b"raw\n")
    os.system("echo from a child")
    assert sys.stdin.read() == ""
    return [1] * len(completions)
)");
    EXPECT_THAT(values(reward->score(rows(2))), ElementsAre(1, 1));
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), AllOf(HasSubstr("weft: f: at import\n"), HasSubstr("weft: f: printed\n"),
                                                            HasSubstr("weft: f: raw\n"), HasSubstr("weft: f: from a child\n")));
}

TEST_F(ProcessReward, TextsArriveWhole) {
  const auto reward = python(R"(
def f(completions, big):
    return [float(c == "\u00e9\u2028\U0001f600\n\"\\\x00" and b == 12345678901234567890123) for c, b in zip(completions, big)]
)");
  auto all = rows(1);
  all[0].completion = std::string("é\xe2\x80\xa8😀\n\"\\\0", 13);
  all[0].row_json = "{\"big\": 12345678901234567890123}";
  EXPECT_THAT(values(reward->score(all)), ElementsAre(1));
}

TEST_F(ProcessReward, ExceptionShowsTracebackAndRow) {
  const auto reward = python(R"(
def deeper(x):
    return 1 / x
def f(solution_str, ground_truth):
    return deeper(ground_truth - 1)
)");
  const std::string text = message_of([&] { reward->score(rows(3)); });
  EXPECT_THAT(text, AllOf(HasSubstr("d.jsonl: row 101, sample 0"), HasSubstr("r.py:f"), HasSubstr("return 1 / x"),
                          HasSubstr("ZeroDivisionError"), Not(HasSubstr("score_row"))));
  EXPECT_THROW(reward->score(rows(3)), RewardError);  // the process lives on
  EXPECT_THAT(values(reward->score(rows(1))), ElementsAre(-1));
}

TEST_F(ProcessReward, LongTracebackKeepsItsEnd) {
  const auto reward = python("def f(completions):\n    raise ValueError('x\\n' * 50 + 'the end')\n");
  const std::string text = message_of([&] { reward->score(rows(2)); });
  EXPECT_THAT(text, AllOf(HasSubstr("rows 100 to 101 (2 completions)"), HasSubstr("the end"), HasSubstr("...\n")));
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 20);
}

TEST_F(ProcessReward, CrashNamesRowAndTheNextCallStartsAnew) {
  const auto reward = python(R"(
import os, sys
def f(solution_str, ground_truth):
    if ground_truth == 1:
        print("last words", file=sys.stderr)
        os.kill(os.getpid(), 11)
    if ground_truth == 2:
        os._exit(3)
    return 4
)");
  EXPECT_THAT(message_of([&] { reward->score(rows(2)); }),
              AllOf(HasSubstr("row 101"), HasSubstr("signal 11"), HasSubstr("last words")));
  const auto all = rows(3);
  EXPECT_THAT(message_of([&] { reward->score(std::span(all).subspan(2)); }), AllOf(HasSubstr("row 102"), HasSubstr("exit code 3")));
  EXPECT_THAT(values(reward->score(rows(1))), ElementsAre(4));
}

TEST_F(ProcessReward, TimeLimitKillsAndNamesRow) {
  options_.time_limit_s = 0.8;
  const auto reward = python(R"(
import subprocess
def f(solution_str, ground_truth):
    if ground_truth == 1:
        subprocess.run(["sleep", "100"])
    return 1
)");
  EXPECT_THAT(message_of([&] { reward->score(rows(2)); }),
              AllOf(HasSubstr("row 101"), HasSubstr("longer than 0.8 s"), HasSubstr("reward.timeout")));
  EXPECT_THAT(values(reward->score(rows(1))), ElementsAre(1));
}

TEST_F(ProcessReward, SlowIsNotAHang) {
  const auto reward = python("import time\ndef f(solution_str):\n    time.sleep(0.2)\n    return 1\n");
  EXPECT_THAT(values(reward->score(rows(2))), ElementsAre(1, 1));
}

TEST_F(ProcessReward, SlowImportHasItsOwnLimit) {
  options_.load_time_limit_s = 0.3;
  EXPECT_THAT(message_of([&] { python("import time\ntime.sleep(100)\n"); }),
              AllOf(HasSubstr("importing it took longer than 0.3 s"), HasSubstr("reward.load_time_limit")));
}

TEST_F(ProcessReward, WrongCountAndNonNumbers) {
  EXPECT_THAT(message_of([&] { python("def f(completions): return [1]")->score(rows(2)); }),
              AllOf(HasSubstr("1 values for 2 completions"), HasSubstr("rows 100 to 101")));
  EXPECT_THAT(message_of([&] { python("def f(completions): return 3.0")->score(rows(2)); }), HasSubstr("3.0 (float), not a list"));
  EXPECT_THAT(message_of([&] { python("def f(completions): return [1, 'x']")->score(rows(2)); }),
              AllOf(HasSubstr("d.jsonl: row 101, sample 0"), HasSubstr("'x' (str), not a number")));
  EXPECT_THAT(message_of([&] { python("def f(solution_str): return {'acc': 1}")->score(rows(1)); }),
              AllOf(HasSubstr("row 100"), HasSubstr("without 'score'")));
}

TEST_F(ProcessReward, MissingColumnIsNamed) {
  EXPECT_THAT(message_of([&] { python("def f(completions, hardness): return [1]")->score(rows(1)); }),
              AllOf(HasSubstr("needs 'hardness'"), HasSubstr("level")));
}

TEST_F(ProcessReward, MissingFileAndFunctionSayWhatIsThere) {
  write("other.py", "");
  EXPECT_THAT(message_of([&] { make_python_reward((folder_ / "no.py").string(), "f", options_); }),
              AllOf(HasSubstr("no.py"), HasSubstr("other.py")));
  EXPECT_THROW(make_python_reward("no/such/folder/no.py", "f", options_), FileError);
  EXPECT_THAT(message_of([&] { python("from json import dumps\ndef g(completions): pass\ndef h(): pass\nclass C: pass\n"); }),
              AllOf(HasSubstr("no function 'f'"), HasSubstr("it has: g, h"), Not(HasSubstr("dumps"))));
  EXPECT_THAT(message_of([&] { python("def f(a, b): pass"); }), AllOf(HasSubstr("f(a, b)"), HasSubstr("completions")));
  EXPECT_THAT(message_of([&] { python("import no_such_module_here"); }), AllOf(HasSubstr("r.py"), HasSubstr("ModuleNotFoundError")));
  EXPECT_THAT(message_of([&] { python("def f(:"); }), HasSubstr("SyntaxError"));
  EXPECT_THAT(message_of([&] { python("raise SystemExit(3)"); }), HasSubstr("SystemExit"));
  options_.python = "no-such-python";
  EXPECT_THROW(python("def f(completions): pass"), SystemError);
}

TEST_F(ProcessReward, NeighbourModulesAndPathsThatAreNotUtf8) {
  const std::filesystem::path inner = folder_ / "d\xff\xe9";
  std::filesystem::create_directory(inner);
  std::ofstream((inner / "helper_module.py").string()) << "VALUE = 6\n";
  std::ofstream((inner / "r\xfe.py").string()) << "import helper_module\ndef f(solution_str): return helper_module.VALUE\n";
  const auto reward = RewardRegistry().make((inner / "r\xfe.py").string() + ":f", options_);
  EXPECT_THAT(values(reward->score(rows(1))), ElementsAre(6));
}

TEST_F(ProcessReward, PoolKeepsOrderAndGroups) {
  options_.processes = 3;
  const auto batch = python(R"(
def f(completions, row_seen=None, completion_ids=None, ground_truth=None):
    # every group that arrives is whole: four samples of each row
    assert all(ground_truth.count(g) == 4 for g in ground_truth), ground_truth
    return [g * 100 + len(completions) for g in ground_truth]
)");
  const auto grouped = values(batch->score(rows(5, 4)));
  ASSERT_EQ(grouped.size(), 20u);
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(std::floor(grouped[i] / 100), static_cast<double>(i / 4));
  EXPECT_LT(grouped[0], 20);  // it was split

  const auto single = python(R"(
import os, time
def f(solution_str, ground_truth):
    time.sleep(0.02 * (ground_truth % 3))
    return {"score": ground_truth, "pid": os.getpid()}
)");
  const auto scores = single->score(rows(20));
  std::set<double> pids;
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(scores[i].value, static_cast<double>(i));
    pids.insert(scores[i].extra.at("pid"));
  }
  EXPECT_GT(pids.size(), 1u);
}

TEST_F(ProcessReward, OneOfThePoolFailing) {
  options_.processes = 2;
  const auto reward = python("def f(solution_str, ground_truth):\n    return 1 // (ground_truth - 5)\n");
  EXPECT_THAT(message_of([&] { reward->score(rows(8)); }), HasSubstr("row 105"));
  EXPECT_EQ(reward->score(rows(4)).size(), 4u);
}

TEST_F(ProcessReward, CommandSpeaksTheSameLines) {
  const auto reward = shell(R"(n=0; while read -r line; do n=$((n+1));
case "$line" in *'"fields": {"prompt": "p", "level": 10}'*) ;; *) echo nonsense; continue;; esac
echo "{\"id\": $n, \"scores\": [null, {\"score\": $n, \"acc\": true}]}"; done)");
  EXPECT_EQ(reward->name(), "sh");
  EXPECT_THAT(values(reward->score(rows(2))), ElementsAre(-1000, 1));
  const auto scores = reward->score(rows(2));
  EXPECT_EQ(scores[1].value, 2);
  EXPECT_EQ(scores[1].extra.at("acc"), 1);
}

// A first signal does not wait for the time limit: this test would last ten minutes.
TEST_F(ProcessReward, AStopEndsTheWait) {
  options_.time_limit_s = 600;
  auto reward = python("import time\ndef f(completions, **k):\n    time.sleep(600)\n");
  request_stop(SIGTERM);
  EXPECT_THROW(reward->score(rows(1)), StoppedError);
  clear_stop_request();
}

TEST_F(ProcessReward, CommandThatBreaksTheProtocol) {
  const auto of = [&](const std::string& answer) {
    return message_of([&] { shell("while read -r line; do echo '" + answer + "'; done")->score(rows(2)); });
  };
  EXPECT_THAT(of("hello"), AllOf(HasSubstr("'hello'"), HasSubstr("not a JSON object"), HasSubstr("rows 100 to 101")));
  EXPECT_THAT(of("[1, 2]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(of(R"({"id": 2, "scores": [1, 2]})"), HasSubstr("id 2 to request 1"));
  EXPECT_THAT(of(R"({"scores": [1, 2]})"), HasSubstr("id null"));
  EXPECT_THAT(of(R"({"id": 1})"), HasSubstr("no list 'scores'"));
  EXPECT_THAT(of(R"({"id": 1, "scores": [1]})"), HasSubstr("1 values for 2"));
  EXPECT_THAT(of(R"({"id": 1, "scores": [1, "x"]})"), AllOf(HasSubstr("row 101"), HasSubstr("\"x\", not a number")));
  EXPECT_THAT(of(R"({"id": 1, "error": "told so", "row": 1})"), AllOf(HasSubstr("row 101"), HasSubstr("told so")));
  EXPECT_THAT(of(R"({"id": 1, "error": 5, "row": 7})"), AllOf(HasSubstr("rows 100 to 101"), HasSubstr("5")));
  EXPECT_THAT(message_of([&] { shell("exit 4")->score(rows(1)); }), HasSubstr("exit code 4"));
  EXPECT_THROW(make_command_reward("c", {}, options_), UsageError);
  EXPECT_THROW(make_command_reward("c", {"no-such-program-here"}, options_), SystemError);
}

TEST_F(ProcessReward, NothingIsLeftRunning) {
  const std::string mark = (folder_ / "pid").string();
  {
    const auto reward =
        python("import os\nopen(" + ("'" + mark + "'") + ", 'w').write(str(os.getpid()))\ndef f(solution_str): return 1\n");
    reward->score(rows(1));
  }
  int64_t pid = 0;
  std::ifstream(mark) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_FALSE(std::filesystem::exists("/proc/" + std::to_string(pid)));
}

}  // namespace
}  // namespace weft
