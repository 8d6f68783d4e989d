#include "weft/base/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

namespace weft {
namespace {

// What a Progress writes, through a pipe.
class Pipe {
 public:
  Pipe() {
    if (pipe(fds_) != 0) throw std::runtime_error("pipe");
  }
  ~Pipe() {
    close(fds_[0]);
    close(fds_[1]);
  }
  int fd() const { return fds_[1]; }
  std::string take() {
    // One byte more than was written, so that read never waits.
    (void)!::write(fds_[1], "\x1e", 1);
    std::string out;
    char c = 0;
    while (::read(fds_[0], &c, 1) == 1 && c != '\x1e') out += c;
    return out;
  }

 private:
  int fds_[2] = {};
};

ProgressOptions options(const Pipe& pipe, FakeClock& clock, bool terminal) {
  ProgressOptions o;
  o.fd = pipe.fd();
  o.terminal = terminal;
  o.clock = &clock;
  return o;
}

TEST(Progress, PlainLinesComeAtIntervalsAndAtTheEnd) {
  Pipe pipe;
  FakeClock clock;
  Progress p("step", 10, "steps", options(pipe, clock, false));
  for (int i = 1; i <= 6; ++i) {
    clock.advance(4);
    p.update(i);
  }
  EXPECT_EQ(pipe.take(), "step 3/10 steps  4.00s/step  28.0s left\nstep 6/10 steps  4.00s/step  16.0s left\n");
  clock.advance(4);
  p.update(10, "done");
  p.finish();
  p.finish();
  p.update(11);
  EXPECT_EQ(pipe.take(), "step 10/10 steps  2.80s/step  done\n");
}

TEST(Progress, TerminalLineIsRedrawnInPlace) {
  Pipe pipe;
  FakeClock clock;
  Progress p("load", 100, "files", options(pipe, clock, true));
  clock.advance(1);
  p.update(50, "long note");
  p.update(51, "too soon");
  EXPECT_EQ(pipe.take(), "\rload 50/100 files  50 files/s  1.00s left  long note");
  clock.advance(1);
  p.update(100);
  EXPECT_EQ(pipe.take(), "\rload 100/100 files  50 files/s" + std::string(22, ' '));
  p.print("hello");
  EXPECT_EQ(pipe.take(), "\r" + std::string(30, ' ') + "\rhello\n\rload 100/100 files  50 files/s");
  p.finish();
  EXPECT_EQ(pipe.take(), "\rload 100/100 files  50 files/s\n");
}

TEST(Progress, WorkDoneBeforeIsNotInTheRate) {
  Pipe pipe;
  FakeClock clock;
  ProgressOptions o = options(pipe, clock, true);
  o.start = 90;
  Progress p("step", 100, "steps", o);
  EXPECT_FALSE(p.seconds_left());
  clock.advance(10);
  p.update(95);
  EXPECT_EQ(p.rate(), 0.5);
  EXPECT_EQ(p.seconds_left(), 10.0);
}

TEST(Progress, UnknownTotalShowsNoTimeLeft) {
  Pipe pipe;
  FakeClock clock;
  Progress p("read", 0, "rows", options(pipe, clock, true));
  clock.advance(2);
  p.update(5000);
  EXPECT_EQ(pipe.take(), "\rread 5000 rows  2.5k rows/s");
}

TEST(Progress, AClosedOutputIsNoError) {
  FakeClock clock;
  ProgressOptions o;
  o.fd = -1;
  o.clock = &clock;
  Progress p("x", 2, "y", o);
  clock.advance(20);
  p.update(1);
  p.finish();
  EXPECT_EQ(p.rate(), 0.05);
}

TEST(Progress, DurationsAndQuantities) {
  EXPECT_EQ(format_duration(0.421), "0.42s");
  EXPECT_EQ(format_duration(9.996), "10.0s");
  EXPECT_EQ(format_duration(59.96), "1m 00s");
  EXPECT_EQ(format_duration(3725), "1h 02m");
  EXPECT_EQ(format_duration(90000), "1d 01h");
  EXPECT_EQ(format_duration(std::nan("")), "?");
  EXPECT_EQ(format_quantity(0.01234), "0.0123");
  EXPECT_EQ(format_quantity(-1234), "-1.23k");
  EXPECT_EQ(format_quantity(4560000), "4.56M");
}

}  // namespace
}  // namespace weft
