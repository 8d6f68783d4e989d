#include "weft/base/arena.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "weft/base/error.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string store_dir() { return fs::temp_directory_path().string(); }

int64_t resident_bytes() {
  std::ifstream in("/proc/self/statm");
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// Of several sizes, none a whole number of pages.
struct Filled {
  explicit Filled(const std::string& name, bool huge = true) : arena(name, huge) {
    for (int64_t n : {int64_t{4'000'001}, int64_t{3}, int64_t{900'100}, int64_t{70'000}, int64_t{0}, int64_t{2'000'000}}) {
      parts.emplace_back(static_cast<unsigned char*>(arena.allocate(n)), n);
      fill(parts.size() - 1);
    }
  }
  void fill(size_t i) {
    for (int64_t j = 0; j < parts[i].second; ++j) parts[i].first[j] = value(i, j);
  }
  static unsigned char value(size_t i, int64_t j) {
    return static_cast<unsigned char>(static_cast<int64_t>(i) * 37 + j * 11 + j / 4096 + 1);
  }
  int64_t wrong() const {
    int64_t n = 0;
    for (size_t i = 0; i < parts.size(); ++i)
      for (int64_t j = 0; j < parts[i].second; ++j) n += parts[i].first[j] != value(i, j);
    return n;
  }
  Arena arena;
  std::vector<std::pair<unsigned char*, int64_t>> parts;
};

TEST(Arena, AllocationsAreAlignedApartAndZero) {
  Arena arena("test.memory");
  std::vector<std::pair<char*, int64_t>> parts;
  for (int64_t n : {1, 64, 65, 0, 1 << 20, 3 << 20, 5, 4095}) {
    char* p = static_cast<char*>(arena.allocate(n));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0U);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(p[i], 0) << n;
    for (const auto& [q, m] : parts) EXPECT_TRUE(p + n <= q || q + m <= p) << n << " overlaps " << m;
    std::memset(p, 1, static_cast<size_t>(n));
    parts.emplace_back(p, n);
  }
  EXPECT_EQ(arena.bytes(), 64 + 64 + 128 + 64 + (1 << 20) + (3 << 20) + 64 + 4096);
}

// At least 99 % of what is named goes, and 50 cycles leave what they found (1 %).
TEST(Arena, PagesGoAndReturn) {
  for (const bool keep : {false, true})
    for (const bool huge : {false, true}) {
      Arena arena("test.memory", huge);
      std::vector<std::pair<void*, size_t>> parts;
      const auto fill = [&] {
        for (const auto& [data, size] : parts) std::memset(data, 7, size);
      };
      for (size_t size : {size_t{30'000'001}, size_t{50}, size_t{900'100}})
        parts.emplace_back(arena.allocate(static_cast<int64_t>(size)), size);
      fill();
      const int64_t named = arena.bytes(), awake = resident_bytes();
      for (int cycle = 0; cycle < 50; ++cycle) {
        const int64_t before = resident_bytes();
        if (keep && cycle % 10 == 0)
          arena.store(store_dir());
        else if (keep)
          continue;  // the disk is slow
        else
          arena.discard();
        EXPECT_GE(static_cast<double>(before - resident_bytes()), 0.99 * static_cast<double>(named)) << keep << huge << cycle;
        arena.wake();
        if (!keep) fill();
      }
      EXPECT_NEAR(static_cast<double>(resident_bytes()), static_cast<double>(awake), 0.01 * static_cast<double>(awake))
          << keep << huge;
    }
}

TEST(Arena, PagesThatWereNeverWrittenCostNothing) {
  Arena arena("rollout.kv_cache", false);
  char* const p = static_cast<char*>(arena.allocate(int64_t{1} << 36));
  EXPECT_EQ(arena.resident_bytes(), 0);
  for (int64_t at : {0, 5000, 1 << 30}) p[at] = 1;
  EXPECT_EQ(arena.resident_bytes(), 3 * sysconf(_SC_PAGESIZE));
}

TEST(Arena, WhatIsStoredReturnsWhereItWas) {
  Filled f("actor.optimizer");
  for (int cycle = 0; cycle < 3; ++cycle) {
    f.arena.store(store_dir());
    EXPECT_EQ(f.arena.state(), Arena::State::kStored);
    EXPECT_EQ(f.arena.resident_bytes(), 0);
    EXPECT_THROW(f.arena.require(), ValueError);
    f.arena.wake();
    f.arena.require();
    EXPECT_GE(f.arena.resident_bytes(), 6'900'000);
    EXPECT_EQ(f.wrong(), 0);
    f.parts[2].first[7] ^= 1;
    EXPECT_EQ(f.wrong(), 1);
    f.parts[2].first[7] ^= 1;
  }
  EXPECT_GE(f.arena.traffic().stored, 3 * 6'900'000);
  EXPECT_EQ(f.arena.traffic().read, f.arena.traffic().stored);
  EXPECT_EQ(f.arena.losses(), 0);
  (void)f.arena.allocate(5'000'000);  // grows between
  f.arena.store(store_dir());
  f.arena.wake();
  EXPECT_EQ(f.wrong(), 0);
}

TEST(Arena, WhatIsDiscardedMustBeFilled) {
  Filled f("rollout.weights");
  f.arena.discard();
  EXPECT_EQ(f.arena.losses(), 1);
  try {
    f.arena.require();
    FAIL();
  } catch (const ValueError& e) {
    EXPECT_EQ(std::string(e.what()), "rollout.weights is asleep: wake it first");
  }
  EXPECT_THROW((void)f.arena.allocate(1), ValueError);
  EXPECT_THROW(f.arena.store(store_dir()), ValueError);
  EXPECT_THROW(f.arena.filled(), ValueError);
  f.arena.wake();
  EXPECT_EQ(f.arena.state(), Arena::State::kEmpty);
  try {
    f.arena.require();
    FAIL();
  } catch (const ValueError& e) {
    EXPECT_NE(std::string(e.what()).find("rollout.weights has been woken after its contents were discarded"), std::string::npos);
  }
  EXPECT_THROW(f.arena.store(store_dir()), ValueError);
  for (const auto& [data, n] : f.parts)
    for (int64_t j = 0; j < n; ++j) ASSERT_EQ(data[j], 0);
  f.arena.filled();
  f.arena.require();
}

TEST(Arena, DiscardingLosesWhatWasStored) {
  Filled f("rollout.weights");
  f.arena.store(store_dir());
  f.arena.discard();
  f.arena.wake();
  EXPECT_EQ(f.arena.state(), Arena::State::kEmpty);
}

TEST(Arena, AFailedStoreLosesNothing) {
  Filled f("actor.optimizer");
  EXPECT_THROW(f.arena.store("/nowhere/at/all"), SystemError);
  EXPECT_EQ(f.wrong(), 0);
  // A disk that fills up: as the limit of a file's size.
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  auto* const handler = signal(SIGXFSZ, SIG_IGN);
  rlimit small = old;
  small.rlim_cur = 1'000'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    f.arena.store(store_dir());
  } catch (const SystemError& e) {
    message = e.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  signal(SIGXFSZ, handler);
  EXPECT_NE(message.find("cannot keep actor.optimizer (7.0 MB) here"), std::string::npos) << message;
  f.arena.require();
  EXPECT_EQ(f.wrong(), 0);
  f.arena.store(store_dir());
  f.arena.wake();
  EXPECT_EQ(f.wrong(), 0);
}

TEST(Arena, AFileThatCannotBeReadIsAnError) {
  Filled f("actor.optimizer");
  f.arena.store(store_dir());
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    const std::string to = fs::read_symlink(entry.path(), none).string();
    if (to.starts_with(store_dir()) && to.ends_with("(deleted)")) {
      EXPECT_EQ(truncate(entry.path().c_str(), 5'000'000), 0);
    }
  }
  EXPECT_THROW(f.arena.wake(), SystemError);
  EXPECT_FALSE(f.arena.has_memory());
  EXPECT_THROW(f.arena.require(), ValueError);
}

TEST(ArenaDeathTest, DiscardedMemoryIsUnreadable) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Filled f("rollout.weights");
  const volatile unsigned char* const p = f.parts[0].first;
  EXPECT_EXIT(
      {
        f.arena.discard();
        (void)*p;
        _exit(0);
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

}  // namespace
}  // namespace weft
