#pragma once
// Time in seconds on a clock that never goes back; only differences mean something. Code that decides by time takes a Clock&,
// so that its tests move time themselves.

#include <atomic>
#include <chrono>
#include <thread>

namespace weft {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual double now() const = 0;          // seconds
  virtual void sleep(double seconds) = 0;  // zero or less returns at once
};

class RealClock final : public Clock {
 public:
  double now() const override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  void sleep(double seconds) override {
    if (seconds > 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
};

// Stands still until told; sleeping moves it. May be read from other threads while one thread moves it.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(double start = 0) : now_(start) {}
  double now() const override { return now_.load(); }
  void sleep(double seconds) override {
    if (seconds > 0) advance(seconds);
  }
  void advance(double seconds) { now_.store(now_.load() + seconds); }

 private:
  std::atomic<double> now_;
};

// The process's clock; lives as long as the process.
inline Clock& real_clock() {
  static RealClock clock;
  return clock;
}

}  // namespace weft
