#include "weft/train/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "weft/base/error.h"
#include "weft/io/tensorboard.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() : dir_(::testing::TempDir() + "weft_metrics_" + std::to_string(getpid())) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  ~MetricsTest() override { std::filesystem::remove_all(dir_); }
  std::string file() const { return dir_ + "/metrics.jsonl"; }
  std::string content() const {
    std::ifstream in(file());
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
  }
  static MetricsRow row(double value) {
    MetricsRow r;
    r.set("reward/mean", value);
    return r;
  }

  std::string dir_;
};

TEST_F(MetricsTest, RowsAreWrittenInOrder) {
  MetricsRow r;
  r.set("b", 0.1);
  r.set("a", std::numeric_limits<double>::infinity());
  r.set("b", 0.5);
  MetricsLog log(dir_, {});
  log.write(1, r, 100.5);
  EXPECT_EQ(content(), "{\"step\":1,\"wall_time\":100.5,\"b\":0.5,\"a\":null}\n");
  EXPECT_THROW(log.write(0, r, 101), InternalError);
}

TEST_F(MetricsTest, ResumeKeepsRowsUpToItsStep) {
  {
    MetricsLog log(dir_, {});
    for (int i = 0; i <= 4; ++i) log.write(i, row(i), i);
  }
  std::ofstream(file(), std::ios::app) << "{\"step\": 5, \"rew";
  {
    MetricsLog log(dir_, {.metric_aliases = "none", .resume_step = 3, .tensorboard = false});
    log.write(4, row(40), 4);
  }
  const MetricsHistory history = read_metrics(file());
  EXPECT_EQ(history.last_step, 4);
  ASSERT_EQ(history.series.at("reward/mean").size(), 5u);
  EXPECT_EQ(history.series.at("reward/mean")[3].value, 3);
  EXPECT_EQ(history.series.at("reward/mean")[4].value, 40);
  {
    MetricsLog log(dir_, {.metric_aliases = "none", .resume_step = 9, .tensorboard = false});
    log.write(9, row(9), 9);
  }
  EXPECT_EQ(read_metrics(file()).series.at("reward/mean").size(), 6u);
  MetricsLog anew(dir_, {});
  EXPECT_EQ(content(), "");
}

TEST_F(MetricsTest, ARowCutShortByACrashIsDroppedOnResume) {
  std::ofstream(file()) << "{\"step\": 1}\n{\"step\": 2, \"rew";
  MetricsLog log(dir_, {.metric_aliases = "none", .resume_step = 2, .tensorboard = false});
  EXPECT_EQ(content(), "{\"step\": 1}\n");
}

TEST_F(MetricsTest, ReadingLeavesOutARowStillBeingWritten) {
  std::ofstream(file()) << "{\"step\": 1, \"a\": 2}\n{\"step\": 2, \"a\": 3";
  EXPECT_EQ(read_metrics(file()).series.at("a").size(), 1u);
}

TEST_F(MetricsTest, HostileFilesAreTypedErrors) {
  for (const char* text :
       {"[]\n", "{\"a\": 1}\n", "{\"step\": 1.5}\n", "{\"step\": 1, \"a\": \"x\"}\n", "{\"step\": 1\n", "\xff\n"}) {
    std::ofstream(file()) << text;
    EXPECT_THROW(read_metrics(file()), FileError) << text;
  }
  EXPECT_ANY_THROW(read_metrics(dir_ + "/none.jsonl"));
}

TEST_F(MetricsTest, AliasesAreWrittenBesideAndToTensorboard) {
  {
    MetricsLog log(dir_, {.metric_aliases = "trl", .resume_step = {}, .tensorboard = true});
    log.write(7, row(0.25), 1);
  }
  EXPECT_EQ(read_metrics(file()).series.at("reward")[0].value, 0.25);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/tensorboard")) files.push_back(entry.path().string());
  ASSERT_EQ(files.size(), 1u);
  std::map<std::string, float> scalars;
  for (const auto& event : read_tensorboard_file(files[0])) {
    for (const auto& [name, value] : event.scalars) {
      EXPECT_EQ(event.step, 7);
      scalars[name] = value;
    }
  }
  EXPECT_THAT(scalars, ElementsAre(Pair("reward", 0.25f), Pair("reward/mean", 0.25f)));
}

TEST(Metrics, AliasNames) {
  EXPECT_EQ(metric_alias("reward/mean", "verl"), "critic/rewards/mean");
  EXPECT_EQ(metric_alias("reward/last_number/mean", "trl"), "rewards/last_number/mean");
  EXPECT_EQ(metric_alias("val/gsm8k/last_number/mean@4", "verl"), "val-core/gsm8k/acc/mean@4");
  EXPECT_EQ(metric_alias("actor/entropy", "trl"), "entropy");
  EXPECT_EQ(metric_alias("actor/entropy", "verl"), std::nullopt);
  EXPECT_EQ(metric_alias("reward/mean", "none"), std::nullopt);
}

TEST(Metrics, ConsoleLineShowsWhatTheRowHas) {
  MetricsRow r;
  r.set("actor/lr", 1e-6);
  r.set("reward/mean", 0.5123);
  r.set("parity/max_abs_diff", 0);
  r.set("other", 1);
  r.set("val/x/acc/mean@1", 0.75);
  EXPECT_EQ(format_metrics_line(r), "reward 0.512  lr 1e-06  parity 0  val/x/acc/mean@1 0.75");
  EXPECT_EQ(format_metrics_line({}), "");
}

}  // namespace
}  // namespace weft
