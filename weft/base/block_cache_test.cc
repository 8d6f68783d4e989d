#include "weft/base/block_cache.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

namespace weft {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(BlockCache, GivesAgainWhatWasGivenBack) {
  trim_block_cache();
  const BlockCacheBytes before = block_cache_bytes();
  void* large = take_block(40 * kMiB);
  void* small = take_block(5 * kMiB - 100);
  EXPECT_EQ(block_cache_bytes().live - before.live, static_cast<int64_t>(46 * kMiB));  // whole huge pages
  std::memset(small, 1, 5 * kMiB - 100);
  give_block(small, 5 * kMiB - 100);
  EXPECT_EQ(block_cache_bytes().kept, static_cast<int64_t>(6 * kMiB));
  void* again = take_block(6 * kMiB);
  EXPECT_EQ(again, small);
  EXPECT_EQ(block_cache_bytes().kept, 0);
  give_block(again, 6 * kMiB);
  // A block of a size that is not kept takes the place of those that are: never more than was once in use.
  give_block(large, 40 * kMiB);
  EXPECT_EQ(block_cache_bytes().kept, static_cast<int64_t>(46 * kMiB));
  void* other = take_block(10 * kMiB);
  const BlockCacheBytes now = block_cache_bytes();
  EXPECT_LE(now.live + now.kept, now.most);
  EXPECT_LE(now.kept, static_cast<int64_t>(6 * kMiB));  // the largest went
  give_block(other, 10 * kMiB);
  trim_block_cache();
  EXPECT_EQ(block_cache_bytes().kept, 0);
  EXPECT_EQ(block_cache_bytes().live, before.live);
}

TEST(BlockCache, SmallBlocksAreMallocs) {
  const BlockCacheBytes before = block_cache_bytes();
  void* p = take_block(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
  EXPECT_EQ(block_cache_bytes().live, before.live);
  give_block(p, 100);
  give_block(nullptr, 5 * kMiB);
}

TEST(BlockCache, ThreadsShareIt) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([t] {
      for (size_t i = 0; i < 50; ++i) {
        const size_t bytes = (1 + (i + static_cast<size_t>(t)) % 5) * kMiB;
        auto* p = static_cast<unsigned char*>(take_block(bytes));
        p[0] = p[bytes - 1] = static_cast<unsigned char>(t);
        std::this_thread::yield();
        EXPECT_EQ(p[0], t);
        EXPECT_EQ(p[bytes - 1], t);
        give_block(p, bytes);
      }
    });
}

}  // namespace
}  // namespace weft
