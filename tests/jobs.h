#pragma once
// For tests of whole jobs: `weft train` on the tiny model, on two ranks that are threads of the program or processes of mpirun.

#include <signal.h>

#include "weft/base/clock.h"
#include "weft/base/subprocess.h"
#include "weft/train/test_runs.h"

namespace weft {

// How the two ranks of a job come to be.
enum class Ranks { kThreads, kProcesses };

inline bool with_mpi() { return std::string_view(WEFT_MPIRUN) != ""; }
inline std::vector<Ranks> all_kinds() {
  return with_mpi() ? std::vector{Ranks::kThreads, Ranks::kProcesses} : std::vector{Ranks::kThreads};
}

// A job under way.
class Job {
 public:
  Job(Ranks ranks, const std::vector<std::string>& words) : Job(command(ranks, words)) {}
  // Any command, such as an mpirun of ranks that are not alike.
  explicit Job(std::vector<std::string> argv) {
    SubprocessOptions options;
    options.stderr_lines = 400;
    options.argv = std::move(argv);
    began_ = real_clock().now();
    program_ = std::make_unique<Subprocess>(options);
  }
  static std::vector<std::string> mpirun() {
    return {WEFT_MPIRUN, "--allow-run-as-root", "--oversubscribe", "--quiet", "--bind-to", "none"};
  }
  // Of the program, or of mpirun.
  pid_t pid() const { return static_cast<pid_t>(program_->pid()); }

  // Lets it run until `done` or until it has ended.
  void run_until(const std::function<bool()>& done) {
    while (!done() && take(0.005) != PipeStatus::kClosed) {
    }
  }
  void run_for(double seconds) {
    const double end = real_clock().now() + seconds;
    run_until([&] { return real_clock().now() >= end; });
  }
  // Its exit code. One that does not end is killed, which fails the test.
  int finish() {
    const double end = real_clock().now() + 90;
    while (real_clock().now() < end && take(1) != PipeStatus::kClosed) {
    }
    EXPECT_TRUE(program_->finish(10)) << "does not end:\n" << output();
    seconds_ = real_clock().now() - began_;
    return program_->exit_code();
  }
  // Standard output, then standard error.
  std::string output() const { return output_ + program_->stderr_tail(); }
  double seconds() const { return seconds_; }

 private:
  static std::vector<std::string> command(Ranks ranks, const std::vector<std::string>& words) {
    std::vector<std::string> argv = ranks == Ranks::kProcesses ? mpirun() : std::vector<std::string>();
    if (ranks == Ranks::kProcesses) argv.insert(argv.end(), {"-n", "2"});
    argv.push_back(WEFT_PROGRAM);
    argv.insert(argv.end(), words.begin(), words.end());
    return argv;
  }
  PipeStatus take(double seconds) {
    std::string line;
    const PipeStatus status = program_->read_line(&line, seconds);
    if (status == PipeStatus::kDone) output_ += line + "\n";
    return status;
  }

  std::unique_ptr<Subprocess> program_;
  std::string output_;
  double began_ = 0, seconds_ = 0;
};

class JobTest : public RunTest {
 protected:
  JobTest() {
    // Differs within most groups; what it does with a question can be changed.
    dir_.write("reward.py",
               "import os, time\n"
               "def even(prompts, completions, **columns):\n"
               "    bad = os.environ.get('WEFT_TEST_BAD')\n"
               "    for prompt in prompts:\n"
               "        if bad == 'throw:' + prompt: raise ValueError('no reward for ' + prompt)\n"
               "        if bad == 'sleep:' + prompt: time.sleep(40)\n"
               "    return [sum(c in '02468' for c in x) / (1 + len(x)) for x in completions]\n");
    dir_.write("r.toml",
               fmt::format("[model]\npath = \"{}\"\n[data]\ntrain_files = [\"{}\"]\ntrain_batch_size = 4\nshuffle = false\n"
                           "max_prompt_length = 16\nmax_response_length = 5\n[rollout]\nn = 3\n"
                           "[actor]\nmini_batch_size = 2\n[actor.optim]\nlr = 0.01\n"
                           "[reward]\nfuncs = [\"{}:even\"]\nworkers = 1\n"
                           "[trainer]\nruns_dir = \"{}\"\nlogger = [\"console\"]\nthreads = 1\nsave_samples = false\n",
                           tiny_model(), dir_.file("train.jsonl"), dir_.file("reward.py"), dir_.file("runs")));
  }
  ~JobTest() override { ::unsetenv("WEFT_TEST_BAD"); }

  // What the reward does where it sees the prompt of this row: "throw" or "sleep". Rows 0 to 3 are step 1's, of which rank 1 has
  // 2 and 3.
  void spoil(const std::string& how, int row) {
    const auto prompt = nlohmann::json::parse(arithmetic_rows(1, row)).at("prompt").get<std::string>();
    ::setenv("WEFT_TEST_BAD", (how + ":" + prompt).c_str(), 1);
  }

  std::vector<std::string> words(const std::string& run, int64_t steps, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {"train", dir_.file("r.toml"), "actor.mesh=fsdp=2", "trainer.run_name=" + run,
                                      fmt::format("trainer.total_training_steps={}", steps)};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Job start(Ranks ranks, const std::string& run, int64_t steps, const std::vector<std::string>& more = {}) const {
    return Job(ranks, words(run, steps, more));
  }
  // To its end, with success.
  void train(Ranks ranks, const std::string& run, int64_t steps, const std::vector<std::string>& more = {}) const {
    Job job = start(ranks, run, steps, more);
    EXPECT_EQ(job.finish(), kExitDone) << job.output();
  }

  std::string log(const std::string& run, int rank) const {
    const std::string path = run_file(run, fmt::format("logs/rank_{}.log", rank));
    return std::filesystem::exists(path) ? read_bytes(path) : "";
  }
  // From the rank's log; 0 before it has started.
  pid_t process_of(const std::string& run, int rank) const {
    const std::string text = log(run, rank), before = "process ";
    const size_t at = text.rfind(before);
    return at == std::string::npos ? 0 : static_cast<pid_t>(std::strtol(text.c_str() + at + before.size(), nullptr, 10));
  }
  // At least one step is over.
  bool has_metrics(const std::string& run) const {
    std::error_code none;
    const auto size = std::filesystem::file_size(run_file(run, "metrics.jsonl"), none);
    return !none && size > 0;
  }
  bool has_checkpoint(const std::string& run) const { return std::filesystem::exists(run_file(run, "checkpoints/latest")); }
  int64_t latest_step(const std::string& run) const {
    const std::string latest = read_bytes(run_file(run, "checkpoints/latest"));
    return std::strtoll(latest.c_str() + latest.rfind('_') + 1, nullptr, 10);
  }
};

inline int count_of(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

}  // namespace weft
