#include "weft/comm/launch.h"

#include <gtest/gtest.h>

#include "weft/base/threads.h"

namespace weft {
namespace {

TEST(Launch, EachRankRunsOnceWithItsThreadsAndDenormalsFlushed) {
  std::atomic<int> seen{0};
  CommOptions options;
  options.threads_per_rank = 3;
  run_ranks(4, options, [&](Communicator& world) {
    EXPECT_EQ(world.size(), 4);
    EXPECT_EQ(world.axis(), "world");
    EXPECT_EQ(num_threads(), 3);
    EXPECT_TRUE(denormals_flushed());
    seen.fetch_add(1 << (8 * world.rank()));
  });
  EXPECT_EQ(seen.load(), 0x01010101);
}

TEST(Launch, OneRankRunsInTheCallingThread) {
  const auto caller = std::this_thread::get_id();
  run_ranks(1, {}, [&](Communicator& world) {
    EXPECT_EQ(world.size(), 1);
    EXPECT_TRUE(std::this_thread::get_id() == caller);
  });
}

TEST(Launch, TheErrorOfARankIsThrownWithItsCodeAndFreesItsPeers) {
  try {
    run_ranks(3, {}, [&](Communicator& world) {
      if (world.rank() == 1) throw UsageError("no such recipe");
      world.barrier().wait();
    });
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "no such recipe");
  }
}

}  // namespace
}  // namespace weft
