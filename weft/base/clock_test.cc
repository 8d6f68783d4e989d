#include "weft/base/clock.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(Clock, RealNeverGoesBack) {
  double last = real_clock().now();
  for (int i = 0; i < 1000; ++i) {
    const double now = real_clock().now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(Clock, RealSleepsAtLeastAsLong) {
  const double start = real_clock().now();
  real_clock().sleep(0.01);
  real_clock().sleep(-1);
  EXPECT_GE(real_clock().now() - start, 0.01);
}

TEST(Clock, FakeMovesOnlyWhenTold) {
  FakeClock clock(5);
  EXPECT_EQ(clock.now(), 5);
  clock.advance(1.5);
  EXPECT_EQ(clock.now(), 6.5);
  clock.sleep(0.25);
  clock.sleep(-3);
  EXPECT_EQ(clock.now(), 6.75);
}

}  // namespace
}  // namespace weft
