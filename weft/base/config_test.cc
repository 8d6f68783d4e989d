#include "weft/base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "weft/base/error.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Sample {
  bool shuffle = true;
  int64_t n = 8;
  double temperature = 1.0;
  std::string path;
  std::string bypass = "auto";
  std::vector<std::string> files;
  std::vector<int64_t> ids;
  std::vector<double> betas = {0.9, 0.999};
  ConfigTable extra;
  std::string mode = "vanilla";
  std::string threshold = "2.0";

  void visit(ConfigFields& f) {
    f.add("model.path", path, "Checkpoint directory.").required();
    f.add("data.train_files", files, "JSONL files.");
    f.add("data.shuffle", shuffle, "Shuffle rows.");
    f.add("data.extra", extra, "Anything.");
    f.add("rollout.n", n, "Samples of a prompt.").range(1, 1024);
    f.add("rollout.temperature", temperature, "Temperature.").range(0, 100);
    f.add("rollout.stop_token_ids", ids, "Token ids.").range(0, 1e9);
    f.add("actor.optim.betas", betas, "Decay rates.").range(0, 1);
    f.add("actor.bypass_mode", bypass, "Skip a pass.").one_of({"auto", "true", "false"});
    f.add("actor.threshold", threshold, "A bound or two.").accept_number();
    f.add("actor.loss_mode", mode, "Loss.").one_of({"vanilla"});
  }
};

const ConfigNames kNames{{{"num_generations", "rollout.n"}, {"actor_rollout_ref.rollout.n", "rollout.n"}},
                         {{"server", "weft serve is not built yet"}, {"actor.loss_mode=gspo", "GSPO is not built yet"}}};

struct Bound {
  Sample sample;
  ConfigFields fields;
  Bound() { sample.visit(fields); }
  void read(const std::string& text) { read_config_text(text, "r.toml", fields, kNames); }
  void set(const std::string& text) { apply_config_override(text, fields, kNames); }
  std::string read_error(const std::string& text) {
    try {
      read(text);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "no error";
  }
  std::string set_error(const std::string& text) {
    try {
      set(text);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "no error";
  }
};

TEST(Config, ReadsEveryType) {
  Bound b;
  b.read(
      "[model]\npath = 'dir'\n[data]\ntrain_files = ['a', 'b']\nshuffle = false\nextra = {b = 1, a = [true, 'x', {k = 0.5}]}\n"
      "[rollout]\nn = 4\ntemperature = 1\nstop_token_ids = [1, 2]\n[actor]\nbypass_mode = true\noptim.betas = [0.5, 1]\n");
  EXPECT_EQ(b.sample.path, "dir");
  EXPECT_THAT(b.sample.files, ElementsAre("a", "b"));
  EXPECT_FALSE(b.sample.shuffle);
  EXPECT_EQ(b.sample.n, 4);
  EXPECT_EQ(b.sample.temperature, 1.0);
  EXPECT_THAT(b.sample.ids, ElementsAre(1, 2));
  EXPECT_THAT(b.sample.betas, ElementsAre(0.5, 1.0));
  EXPECT_EQ(b.sample.bypass, "true");
  EXPECT_THAT(b.sample.extra.json, HasSubstr(R"("a":[true,"x",{"k":0.5}])"));
  EXPECT_EQ(b.fields.find("rollout.n")->origin(), "r.toml:8:1");
  EXPECT_TRUE(b.fields.find("rollout.n")->given());
  EXPECT_FALSE(b.fields.find("actor.loss_mode")->given());
}

TEST(Config, OneStringMakesAList) {
  Bound b;
  b.read("data.train_files = 'only.jsonl'");
  EXPECT_THAT(b.sample.files, ElementsAre("only.jsonl"));
}

TEST(Config, StringsTakeNumbersOnlyWhereTheyMay) {
  Bound b;
  b.read("actor.threshold = 1.5");
  EXPECT_EQ(b.sample.threshold, "1.5");
  b.read("actor.threshold = '0.5_2.0'");
  EXPECT_EQ(b.sample.threshold, "0.5_2.0");
  b.set("actor.threshold=3");
  EXPECT_EQ(b.sample.threshold, "3");
  EXPECT_THAT(b.read_error("model.path = 3"), HasSubstr("must be a string"));
}

TEST(Config, PrintoutReadsBackToTheSameValues) {
  Bound a;
  a.read(R"(model.path = "q\"uo\\te\nnew\u0001"
data.train_files = ["ü", ""]
data.extra = {"odd key" = "x", n = {m = 1e-7, big = 9223372036854775807}}
rollout.temperature = 0.1
actor.optim.betas = [0.3333333333333333, 1e-300]
)");
  const std::string text = print_config(a.fields);
  Bound b;
  b.read(text);
  EXPECT_EQ(print_config(b.fields), text);
  EXPECT_EQ(b.sample.path, "q\"uo\\te\nnew\x01");
  EXPECT_EQ(b.sample.betas, a.sample.betas);
  EXPECT_EQ(b.sample.extra.json, a.sample.extra.json);
  EXPECT_THAT(text, HasSubstr("[actor.optim]"));
  EXPECT_THAT(text, HasSubstr("# Samples of a prompt. (1 to 1024)\nn = 8\n"));
  EXPECT_THAT(text, HasSubstr("[default 1.0]\ntemperature = 0.1\n"));
}

TEST(Config, OverridesReadTomlAndBareStrings) {
  Bound b;
  b.set("rollout.n=2");
  b.set("model.path=/some/dir with space");
  b.set("data.train_files=a.jsonl");
  b.set("rollout.stop_token_ids=[3]");
  b.set("data.extra.enable_thinking=false");
  b.set("data.extra.deep.word=plain");
  b.set("actor.bypass_mode=false");
  b.set("rollout.temperature = 2");
  EXPECT_EQ(b.sample.n, 2);
  EXPECT_EQ(b.sample.path, "/some/dir with space");
  EXPECT_THAT(b.sample.files, ElementsAre("a.jsonl"));
  EXPECT_THAT(b.sample.ids, ElementsAre(3));
  EXPECT_EQ(b.sample.extra.json, R"({"enable_thinking":false,"deep":{"word":"plain"}})");
  EXPECT_EQ(b.sample.bypass, "false");
  EXPECT_EQ(b.sample.temperature, 2);
  b.set("data.train_files=[a.jsonl, b#1.jsonl]");
  EXPECT_THAT(b.sample.files, ElementsAre("a.jsonl", "b#1.jsonl"));
  b.set("data.train_files=['x', 'y']");
  EXPECT_THAT(b.sample.files, ElementsAre("x", "y"));
  b.set("model.path=2024");
  EXPECT_EQ(b.sample.path, "2024");
  b.set("model.path=\"quoted\"");
  EXPECT_EQ(b.sample.path, "quoted");
}

TEST(Config, UnknownKeysAreLookedUpInTheAliasTableFirst) {
  Bound b;
  EXPECT_EQ(b.read_error("num_generations = 4"), "r.toml:1:1: unknown key 'num_generations': weft: rollout.n");
  EXPECT_THAT(b.read_error("[grpo]\nnum_generations = 4"),
              HasSubstr("r.toml:2:1: unknown key 'grpo.num_generations': weft: rollout.n"));
  EXPECT_THAT(b.read_error("actor_rollout_ref.rollout.n = 4"), HasSubstr("weft: rollout.n"));
  EXPECT_THAT(b.read_error("actor_rollout_ref.rollout.temperature = 4"), HasSubstr("weft: rollout.temperature"));
  EXPECT_THAT(b.set_error("rollout.temprature=1"), HasSubstr("did you mean 'rollout.temperature'?"));
  EXPECT_THAT(b.set_error("temperature=1"), HasSubstr("did you mean 'rollout.temperature'?"));
  EXPECT_THAT(b.set_error("rollout.zzzzzzzzzzzz=1"), HasSubstr("there are: rollout.n, rollout.temperature"));
  EXPECT_THAT(b.set_error("zzzzzzzzzzzzzzzz=1"), HasSubstr("there are: model, data, rollout, actor"));
}

TEST(Config, NotBuiltYetSaysSo) {
  Bound b;
  EXPECT_EQ(b.read_error("[server]\nport = 1"), "r.toml:1:2: server: weft serve is not built yet");
  EXPECT_THAT(b.set_error("server.port=1"), HasSubstr("weft serve is not built yet"));
  EXPECT_THAT(b.read_error("actor.loss_mode = 'gspo'"),
              HasSubstr("r.toml:1:19: actor.loss_mode = \"gspo\": GSPO is not built yet"));
}

TEST(Config, TypeErrorsNameLineAndColumn) {
  Bound b;
  EXPECT_EQ(b.read_error("[rollout]\nn = 'four'"), "r.toml:2:5: rollout.n = 'four': must be an integer");
  EXPECT_THAT(b.read_error("rollout.n = 1.5"), HasSubstr("must be an integer"));
  EXPECT_THAT(b.read_error("rollout.n = 0"), HasSubstr("rollout.n = 0: must be 1 to 1024"));
  EXPECT_THAT(b.read_error("data.shuffle = 1"), HasSubstr("must be true or false"));
  EXPECT_THAT(b.read_error("data.train_files = [1]"), HasSubstr("must be a list of strings"));
  EXPECT_THAT(b.read_error("data.train_files = [['a']]"), HasSubstr("must be a list of strings"));
  EXPECT_THAT(b.read_error("rollout.temperature = inf"), HasSubstr("must be finite"));
  EXPECT_THAT(b.read_error("rollout.temperature = 1979-05-27"), HasSubstr("must be a number"));
  EXPECT_THAT(b.read_error("actor.bypass_mode = 3"), HasSubstr("one of: auto, true, false"));
  EXPECT_THAT(b.read_error("actor.bypass_mode = 'maybe'"), HasSubstr("one of: auto, true, false"));
  EXPECT_THAT(b.read_error("data.extra = 3"), HasSubstr("must be a table"));
  EXPECT_THAT(b.read_error("data.extra.x = nan"), HasSubstr("nan and inf"));
  EXPECT_THAT(b.read_error("rollout = 3"), HasSubstr("'rollout' is a section"));
  EXPECT_THAT(b.set_error("rollout.n=many"), HasSubstr("override rollout.n=many: rollout.n = 'many': must be an integer"));
  EXPECT_THAT(b.set_error("rollout.n"), HasSubstr("must be section.key=value"));
  EXPECT_THAT(b.set_error("data.train_files=[a"), HasSubstr("not a list"));
  EXPECT_THAT(b.set_error("data.extra..x=1"), HasSubstr("no key of a table"));
}

TEST(Config, AllErrorsOfAFileAreReportedTogether) {
  Bound b;
  const std::string text = b.read_error("rollout.n = 'x'\nmodle.path = 'y'\n");
  EXPECT_THAT(text, StartsWith("r.toml:1:13: rollout.n"));
  EXPECT_THAT(text, HasSubstr("r.toml:2:7: unknown key 'modle.path'; did you mean 'model.path'?"));
}

TEST(Config, SyntaxErrorsNameLineAndColumn) {
  Bound b;
  EXPECT_THAT(b.read_error("[model]\npath = \n"), HasSubstr("r.toml:2:"));
  EXPECT_THAT(b.read_error("[model]\npath = 'a'\npath = 'b'\n"), HasSubstr("r.toml:3:"));
  EXPECT_THAT(b.read_error("a = \"\xff\""), HasSubstr("r.toml:1:"));
}

TEST(Config, HostileNestingIsRefused) {
  Bound b;
  std::string deep = "a";
  for (int i = 0; i < 100000; ++i) deep += ".a";
  EXPECT_THAT(b.read_error(deep + " = 1"), HasSubstr("dots"));
  EXPECT_THAT(b.read_error("[" + deep + "]"), HasSubstr("dots"));
  EXPECT_THAT(b.set_error("data.extra." + deep + "=1"), HasSubstr("no key of a table"));
  EXPECT_THAT(b.read_error("x = " + std::string(100000, '[')), HasSubstr("r.toml:1:"));
  EXPECT_THAT(b.read_error(std::string(2 << 20, '#')), HasSubstr("bytes"));
  // Dots in strings and comments count nothing.
  b.read("model.path = '" + std::string(50000, '.') + "' # " + std::string(50000, '.'));
  EXPECT_EQ(b.sample.path.size(), 50000u);
}

TEST(Config, RequiredKeysAreNamedTogether) {
  Bound b;
  try {
    check_required(b.fields);
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_THAT(e.what(), HasSubstr("model.path (Checkpoint directory.)"));
  }
  b.set("model.path=x");
  check_required(b.fields);
}

TEST(Config, ReadsFilesAndRefusesWhatIsNone) {
  Bound b;
  const std::string path = ::testing::TempDir() + "weft_config_test.toml";
  std::ofstream(path) << "rollout.n = 3\n";
  read_config_file(path, b.fields, kNames);
  EXPECT_EQ(b.sample.n, 3);
  std::remove(path.c_str());
  EXPECT_THROW(read_config_file(path, b.fields, kNames), UsageError);
  EXPECT_THROW(read_config_file(::testing::TempDir(), b.fields, kNames), UsageError);
}

TEST(Config, EditDistanceCountsSwapsOnce) {
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("temprature", "temperature"), 1);
  EXPECT_EQ(edit_distance("ab", "ba"), 1);
}

TEST(Config, KeysAreRegisteredOnce) {
  Sample sample;
  ConfigFields fields;
  fields.add("a.b", sample.n, "x");
  EXPECT_THROW(fields.add("a.b", sample.n, "x"), InternalError);
  EXPECT_THROW(fields.add("a", sample.n, "x"), InternalError);
  EXPECT_THROW(fields.add("a.b.c", sample.n, "x"), InternalError);
}

}  // namespace
}  // namespace weft
