#include "weft/comm/op_ring.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "weft/base/error.h"
#include "weft/comm/launch.h"

namespace weft {
namespace {

TEST(OpRing, KeptFilesTellTheLastOperationsOfEachRank) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "weft_op_ring_test";
  std::filesystem::create_directories(dir);
  CommOptions options;
  options.ring_dir = dir.string();
  run_ranks(2, options, [&](Communicator& world) {
    float x = 1, y = 0;
    for (int i = 0; i < 100; ++i) world.all_reduce(&x, &y, 1, DType::kF32, ReduceOp::kSum).wait();  // more than a ring holds
    if (world.rank() == 0) world.send(&x, 1, DType::kF32, 1).wait();
    if (world.rank() == 1) world.recv(&x, 1, DType::kF32, 0).wait();
  });
  const auto zero = OpRing::open((dir / "weft-rank-0.ring").string()), one = OpRing::open((dir / "weft-rank-1.ring").string());
  ASSERT_TRUE(zero && one);
  EXPECT_EQ(zero->record().status.load(), RankStatus::kReturned);
  EXPECT_TRUE(zero->last_operations(2).starts_with("  #0 send of 'world' to rank 1, 4 bytes, done ")) << zero->last_operations(2);
  EXPECT_TRUE(one->last_operations(1).starts_with("  #0 recv of 'world' from rank 0, 4 bytes, done ")) << one->last_operations(1);
  const std::string all = zero->last_operations(1000);
  EXPECT_NE(all.find("#99 all_reduce"), std::string::npos);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), RankRecord::kOps);
  EXPECT_LE(std::filesystem::file_size(dir / "weft-rank-0.ring"), 8192u);
  EXPECT_EQ(OpRing::open((dir / "none.ring").string()), nullptr);
  std::filesystem::remove_all(dir);
  EXPECT_THROW(run_ranks(2, options, [](Communicator&) {}), SystemError);  // the folder is gone
}

}  // namespace
}  // namespace weft
