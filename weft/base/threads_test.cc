#include "weft/base/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace weft {
namespace {

TEST(Threads, CoverEveryIndexOnce) {
  for (int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    for (int64_t n : {0, 1, 2, 5, 64, 1001})
      for (int64_t grain : {1, 3, 100}) {
        std::vector<std::atomic<int>> hits(n);
        parallel_for(n, grain, [&](int64_t b, int64_t e) {
          for (int64_t i = b; i < e; ++i) hits[i]++;
        });
        for (auto& h : hits) EXPECT_EQ(h.load(), 1);
      }
  }
  set_num_threads(0);
}

TEST(Threads, NestedCallsRunInline) {
  set_num_threads(2);
  std::atomic<int> count{0};
  parallel_for(4, 1, [&](int64_t b, int64_t e) {
    for (int64_t i = b; i < e; ++i) parallel_for(10, 1, [&](int64_t c, int64_t d) { count += static_cast<int>(d - c); });
  });
  EXPECT_EQ(count.load(), 40);
  set_num_threads(0);
}

TEST(Threads, ExceptionReachesTheCaller) {
  set_num_threads(2);
  EXPECT_THROW(parallel_for(8, 1, [](int64_t b, int64_t) { if (b == 3) throw std::runtime_error("x"); }), std::runtime_error);
  std::atomic<int> count{0};
  parallel_for(8, 1, [&](int64_t b, int64_t e) { count += static_cast<int>(e - b); });
  EXPECT_EQ(count.load(), 8);
  set_num_threads(0);
}

TEST(Threads, WorkersFlushDenormals) {
  set_num_threads(2);
  std::atomic<int> bad{0};
  std::jthread([&] {  // of its own: the flag would stay with this one
    set_denormals_flushed();
    parallel_for(64, 1, [&](int64_t, int64_t) { if (!denormals_flushed()) bad++; });
  }).join();
  EXPECT_EQ(bad.load(), 0);
  set_num_threads(0);
}

}  // namespace
}  // namespace weft
