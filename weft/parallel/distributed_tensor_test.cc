#include "weft/parallel/distributed_tensor.h"

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/parallel/test_support.h"

namespace weft {
namespace {

using nn::testing::same_bits;

// Any layout to any other and back to the whole, on uneven sizes and with two axes on one dim.
TEST(DistributedTensor, RedistributesBetweenAllPlacements) {
  for (const std::string mesh_text : {"fsdp=3", "replicate=2,fsdp=2", "fsdp=2,tp=2", "replicate=2,fsdp=2,tp=2"}) {
    const ParallelDims dims = parse_parallel_dims(mesh_text);
    run_ranks(static_cast<int>(dims.world()), {}, [&](Communicator& world) {
      auto mesh = make_rank_mesh(dims, world);
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7, 5}, {1, 3}, {0, 4}, {6}}) {
        const at::Tensor full = nn::testing::normal(shape, 3);
        const Layout whole = Layout::replicated(shape, mesh->dense);
        std::vector<Layout> layouts{whole, whole.with_cut({"fsdp", 0}), whole.with_cut({"tp", 0}).with_cut({"fsdp", 0})};
        if (shape.size() > 1) layouts.push_back(whole.with_cut({"fsdp", 1})), layouts.push_back(whole.with_cut({"tp", 0}).with_cut({"fsdp", 1}));
        for (const Layout& a : layouts)
          for (const Layout& b : layouts) {
            const DistributedTensor t = DistributedTensor::distribute(full, a, mesh);
            EXPECT_EQ(t.local().sizes().vec(), a.local_shape(world.rank()));
            const DistributedTensor moved = t.redistribute(b);
            EXPECT_TRUE(same_bits(moved.full_tensor(), full)) << a.to_string() << " -> " << b.to_string();
            EXPECT_TRUE(same_bits(moved.local(), DistributedTensor::distribute(full, b, mesh).local()));
          }
      }
    });
  }
}

TEST(DistributedTensor, PartialValuesAreJoined) {
  run_ranks(4, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=4"), world);
    const Layout whole = Layout::replicated({5, 3}, mesh->dense);
    const at::Tensor mine = at::arange(15, at::kFloat).reshape({5, 3}) * static_cast<float>(world.rank() + 1);
    const at::Tensor sum = at::arange(15, at::kFloat).reshape({5, 3}) * 10.0f;
    for (const auto& [op, expected] : std::vector<std::pair<ReduceOp, at::Tensor>>{
             {ReduceOp::kSum, sum}, {ReduceOp::kAvg, sum / 4}, {ReduceOp::kMin, sum / 10}, {ReduceOp::kMax, sum / 10 * 4}}) {
      const DistributedTensor t = DistributedTensor::from_local(mine, whole.with_partial("fsdp", op), mesh);
      EXPECT_TRUE(same_bits(t.full_tensor(), expected)) << to_string(op);
      const DistributedTensor cut = t.redistribute(whole.with_cut({"fsdp", 0}));
      EXPECT_TRUE(same_bits(cut.full_tensor(), expected)) << to_string(op);
    }
    EXPECT_TRUE(same_bits(DistributedTensor::distribute(mine * 0 + 2, whole.with_partial("fsdp", ReduceOp::kSum), mesh).full_tensor(), mine * 0 + 2));
  });
}

// The bytes of mesh/redistribute.h are what the communicator counts.
TEST(DistributedTensor, MovesOnlyWhatIsMissing) {
  run_ranks(4, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=4"), world);
    const Layout whole = Layout::replicated({8, 8}, mesh->dense);
    const at::Tensor full = nn::testing::normal({8, 8}, 1);
    const DistributedTensor rows = DistributedTensor::distribute(full, whole.with_cut({"fsdp", 0}), mesh);
    const auto received = [&] { return world.stats().total().received; };
    int64_t before = received();
    (void)rows.redistribute(whole.with_cut({"fsdp", 1}));
    EXPECT_EQ(received() - before, 8 * 8 * 4 * 3 / 16);
    before = received();
    (void)rows.full_tensor();
    EXPECT_EQ(received() - before, 8 * 8 * 4 * 3 / 4);
  });
}

TEST(DistributedTensor, RefusesAPartThatDoesNotFit) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    const Layout cut = Layout::replicated({5, 3}, mesh->dense).with_cut({"fsdp", 0});
    try {
      DistributedTensor::from_local(at::empty({4, 3}), cut, mesh);
      ADD_FAILURE();
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find(world.rank() == 0 ? "gives it [3, 3]" : "gives it [2, 3]"), std::string::npos) << e.what();
    }
  });
}

}  // namespace
}  // namespace weft
