#include "weft/rollout/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {
namespace {

TEST(BlockPool, AllocatesEachBlockOnce) {
  BlockPool pool(10);
  EXPECT_EQ(pool.num_blocks(), 10);
  EXPECT_EQ(pool.num_free(), 10);
  const std::vector<BlockId> a = pool.allocate(4), b = pool.allocate(6);
  std::set<BlockId> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  EXPECT_EQ(all.size(), 10u);
  EXPECT_EQ(*all.begin(), 0);
  EXPECT_EQ(*all.rbegin(), 9);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_TRUE(pool.allocate(0).empty());
  pool.check_integrity();
}

TEST(BlockPool, SharedBlockIsFreeAfterItsLastRelease) {
  BlockPool pool(2);
  const BlockId block = pool.allocate(1)[0];
  pool.add_reference(block);
  EXPECT_EQ(pool.references(block), 2);
  pool.release(block);
  EXPECT_EQ(pool.num_free(), 1);
  pool.release(block);
  EXPECT_EQ(pool.num_free(), 2);
  EXPECT_EQ(pool.allocate(1)[0], block);  // last in, first out
}

TEST(BlockPool, MisuseIsCaught) {
  BlockPool pool(2);
  EXPECT_THROW(pool.allocate(3), InternalError);
  EXPECT_THROW(pool.allocate(-1), InternalError);
  EXPECT_THROW(pool.add_reference(0), InternalError);
  const BlockId block = pool.allocate(1)[0];
  pool.release(block);
  EXPECT_THROW(pool.release(block), InternalError);
  EXPECT_THROW(BlockPool(-1), InternalError);
  pool.check_integrity();
}

TEST(BlockPool, RandomUseKeepsIntegrity) {
  const CounterRng rng(7);
  BlockPool pool(17);
  std::vector<BlockId> held;  // one entry a reference
  for (uint64_t i = 0; i < 2000; ++i) {
    const uint64_t what = rng.below(3 * i, 3);
    if (what == 0 && pool.num_free() > 0) {
      for (BlockId b : pool.allocate(1 + static_cast<int64_t>(rng.below(3 * i + 1, static_cast<uint64_t>(pool.num_free()))))) {
        ASSERT_EQ(std::count(held.begin(), held.end(), b), 0);
        held.push_back(b);
      }
    } else if (!held.empty()) {
      const size_t at = rng.below(3 * i + 2, held.size());
      if (what == 1) {
        pool.add_reference(held[at]);
        held.push_back(held[at]);
      } else {
        pool.release(held[at]);
        held.erase(held.begin() + static_cast<int64_t>(at));
      }
    }
    pool.check_integrity();
    ASSERT_EQ(pool.num_blocks() - pool.num_free(), static_cast<int64_t>(std::set<BlockId>(held.begin(), held.end()).size()));
  }
  pool.release(held);
  EXPECT_EQ(pool.num_free(), 17);
}

}  // namespace
}  // namespace weft
