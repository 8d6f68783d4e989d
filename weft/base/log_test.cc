#include "weft/base/log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/this_rank.h"

namespace weft {
namespace {

class Log : public testing::Test {
 protected:
  ~Log() override { set_log_level(LogLevel::kInfo); }
};

TEST_F(Log, WritesPrefixAndLevel) {
  testing::internal::CaptureStderr();
  log_info("step {} of {}", 3, 10);
  log_warn("slow");
  log_error("disk {}", "full");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "weft: step 3 of 10\nweft: warning: slow\nweft: error: disk full\n");
}

TEST_F(Log, LevelHidesWhatIsBelow) {
  testing::internal::CaptureStderr();
  log_debug("hidden at start");
  set_log_level(LogLevel::kError);
  log_info("hidden");
  log_warn("hidden");
  log_error("shown");
  set_log_level(LogLevel::kQuiet);
  log_error("hidden");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "weft: error: shown\n");
}

TEST_F(Log, LinesOfThreadsStayWhole) {
  testing::internal::CaptureStderr();
  const std::string body(300, 'x');
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) log_info("{}", body);
    });
  for (auto& thread : threads) thread.join();
  std::istringstream lines(testing::internal::GetCapturedStderr());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) ASSERT_EQ(line, "weft: " + body);
  EXPECT_EQ(count, 200);
}

// A file for each of two ranks.
class RankLog : public Log {
 protected:
  RankLog() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-log-XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
  }
  ~RankLog() override {
    close_rank_logs();
    std::filesystem::remove_all(dir_);
  }
  void open() {
    for (const int rank : {0, 1}) open_rank_log(dir_ + "/run/logs", rank);
  }
  // The lines of a rank's file without their times, whose form it checks.
  std::vector<std::string> lines(int rank) const {
    std::ifstream in(fmt::format("{}/run/logs/rank_{}.log", dir_, rank));
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) {
      EXPECT_GT(line.size(), 25u) << line;
      EXPECT_TRUE(line[4] == '-' && line[10] == 'T' && line[19] == '.' && line.substr(23, 2) == "Z ") << line;
      out.push_back(line.substr(std::min<size_t>(line.size(), 25)));
    }
    return out;
  }
  static void as_rank(int rank, const std::function<void()>& fn) {
    std::thread([&] {
      set_this_rank(rank);
      fn();
    }).join();
  }
  using Lines = std::vector<std::string>;
  std::string dir_;
};

TEST_F(RankLog, EachRankHasItsFileAndTheTerminalShowsWhatMatters) {
  open();
  testing::internal::CaptureStderr();
  as_rank(0, [] { log_info("loading"); });
  as_rank(1, [] {
    log_info("loading");
    log_debug("hidden");
    log_warn("slow disk");
    log_error("torn\nlast operations");
  });
  log_info("of no rank");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "weft: loading\nweft: rank 1: warning: slow disk\nweft: rank 1: error: torn\nlast operations\nweft: of no rank\n");
  EXPECT_EQ(lines(0), (Lines{"rank 0: loading", "rank 0: of no rank"}));
  EXPECT_EQ(lines(1), (Lines{"rank 1: loading", "rank 1: warning: slow disk", "rank 1: error: torn", "rank 1: last operations"}));
}

TEST_F(RankLog, ARankWithoutAFileIsHeardOnTheTerminal) {
  testing::internal::CaptureStderr();
  as_rank(2, [] { log_info("loading"); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "weft: rank 2: loading\n");
}

TEST_F(RankLog, OpeningAgainAppends) {
  open();
  as_rank(1, [] { log_info("first run"); });
  close_rank_logs();
  open();
  as_rank(1, [] { log_info("second run"); });
  EXPECT_EQ(lines(1), (Lines{"rank 1: first run", "rank 1: second run"}));
}

TEST_F(RankLog, LinesBeforeItIsOpenedAreKept) {
  testing::internal::CaptureStderr();
  hold_rank_log(1);
  as_rank(1, [] {
    log_info("loading");
    log_warn("slow disk");
  });
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/run"));
  open();
  as_rank(1, [] { log_info("loaded"); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "weft: rank 1: warning: slow disk\n");
  EXPECT_EQ(lines(1), (Lines{"rank 1: loading", "rank 1: warning: slow disk", "rank 1: loaded"}));
}

TEST_F(RankLog, TheTwoPlacesCanBeWrittenAlone) {
  open();
  testing::internal::CaptureStderr();
  write_log_file(1, LogLevel::kError, "rank 0 threw");
  write_log_file(7, LogLevel::kError, "nobody's");
  write_log_terminal(LogLevel::kError, "rank 0 threw");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "weft: error: rank 0 threw\n");
  EXPECT_EQ(lines(1), (Lines{"rank 1: error: rank 0 threw"}));
}

TEST_F(RankLog, AFileThatCannotBeOpenedIsAnError) {
  std::ofstream(dir_ + "/run") << "a file where a directory should be";
  EXPECT_THROW(open_rank_log(dir_ + "/run/logs", 0), SystemError);
}

TEST_F(RankLog, AnErrorIsToldOnce) {
  EXPECT_FALSE(error_was_told("torn"));
  set_error_told("torn");
  EXPECT_TRUE(error_was_told("torn"));
  close_rank_logs();
  EXPECT_FALSE(error_was_told("torn"));
}

}  // namespace
}  // namespace weft
