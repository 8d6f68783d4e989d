#include "weft/base/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace weft {
namespace {

class Signals : public testing::Test {
 protected:
  Signals() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    clear_stop_request();
  }
  ~Signals() override {
    clear_stop_request();
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGHUP}) ::signal(signal, SIG_DFL);
  }
};

TEST_F(Signals, FirstSetsTheFlag) {
  install_stop_signals();
  EXPECT_FALSE(stop_requested());
  EXPECT_STREQ(stop_signal_name(), "a signal of another rank");
  raise(SIGTERM);
  EXPECT_TRUE(stop_requested());
  EXPECT_EQ(stop_signal(), SIGTERM);
  EXPECT_STREQ(stop_signal_name(), "SIGTERM");
}

TEST_F(Signals, ClearMakesTheNextAFirstOne) {
  install_stop_signals();
  raise(SIGINT);
  clear_stop_request();
  EXPECT_FALSE(stop_requested());
  raise(SIGUSR1);
  EXPECT_EQ(stop_signal(), SIGUSR1);
}

TEST_F(Signals, SecondExitsAtOnce) {
  const auto twice = [](int first, int second) {
    install_stop_signals();
    raise(first);
    raise(second);
    _exit(0);
  };
  EXPECT_EXIT(twice(SIGINT, SIGINT), testing::ExitedWithCode(130), "");
  EXPECT_EXIT(twice(SIGUSR1, SIGTERM), testing::ExitedWithCode(143), "");
}

TEST_F(Signals, RequestCountsAsTheFirst) {
  const auto after_request = [] {
    install_stop_signals();
    request_stop(SIGUSR1);
    raise(SIGTERM);
    _exit(0);
  };
  EXPECT_EXIT(after_request(), testing::ExitedWithCode(143), "");
}

}  // namespace
}  // namespace weft
