#include "weft/base/log.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

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

}  // namespace
}  // namespace weft
