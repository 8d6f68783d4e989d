// N ranks equal one: forwards bit for bit, gradients up to the order of sums.
#include "weft/parallel/fully_shard.h"

#include <gtest/gtest.h>

#include <mutex>

#include "weft/base/error.h"
#include "weft/parallel/test_support.h"

namespace weft {
namespace {

using namespace testing;
using nn::testing::relative;
using nn::testing::same_bits;

// Sums of at most 40 products in another order: well under 4e-6 of the largest entry in fp32.
constexpr double kTolerance = 4e-6;

struct Case {
  std::string mesh;
  at::ScalarType dtype = at::kFloat;
  bool recompute = false;
  std::optional<bool> reshard = {};
  int64_t rows = 9;
  int accumulate = 1;
};

struct Reference {
  at::Tensor logits;
  std::map<std::string, at::Tensor> grads;
};

Reference one_rank(const Case& c) {
  auto tree = whole_tree(c.dtype);
  Reference r;
  for (int i = 0; i < c.accumulate; ++i) {
    at::Tensor y = tree->forward(ids_of(c.rows, 5), c.recompute);
    nn::backward({y}, {cotangent_of(c.rows)});
    r.logits = y.detach();
  }
  for (nn::Parameter* p : tree->parameters())
    if (p->grad().defined()) r.grads[p->name()] = p->grad();
  return r;
}

// This rank's rows: in ceil chunks, so that the last ranks may have none.
std::pair<int64_t, int64_t> rows_of(int64_t rows, int64_t rank, int64_t ranks) {
  const int64_t chunk = (rows + ranks - 1) / ranks, begin = std::min(rows, rank * chunk);
  return {begin, std::min(rows, begin + chunk) - begin};
}

void expect_equal_to_one_rank(const Case& c) {
  SCOPED_TRACE(c.mesh + (c.recompute ? " recompute" : "") + fmt::format(" rows {} dtype {}", c.rows, c10::toString(c.dtype)));
  const Reference expected = one_rank(c);
  const ParallelDims dims = parse_parallel_dims(c.mesh);
  run_ranks(static_cast<int>(dims.world()), {}, [&](Communicator& world) {
    auto mesh = make_rank_mesh(dims, world);
    FullyShardOptions options;
    options.reshard_after_forward = c.reshard;
    auto tree = sharded_tree(mesh, c.dtype, options);
    const auto [begin, count] = rows_of(c.rows, world.rank(), world.size());
    for (int i = 0; i < c.accumulate; ++i) {
      set_requires_gradient_sync(*tree, i + 1 == c.accumulate);
      at::Tensor y = tree->forward(ids_of(c.rows, 5).narrow(0, begin, count), c.recompute);
      EXPECT_TRUE(same_bits(y.detach(), expected.logits.narrow(0, begin, count))) << "rank " << world.rank();
      nn::backward({y}, {cotangent_of(c.rows).narrow(0, begin, count)});
    }
    for (nn::Parameter* p : tree->parameters()) {
      if (!p->trainable()) {
        EXPECT_FALSE(p->grad().defined()) << p->name();
        continue;
      }
      ASSERT_TRUE(p->grad().defined()) << p->name();
      const at::Tensor grad = full_grad(*p, mesh);
      const auto it = expected.grads.find(p->name());
      if (it == expected.grads.end())
        EXPECT_EQ(grad.abs().max().item<float>(), 0.0f) << p->name();  // unused
      else
        EXPECT_LE(relative(grad, it->second), c.dtype == at::kFloat ? kTolerance : 0.02) << p->name();
    }
    for (ShardGroup* g : shard_groups(*tree)) EXPECT_FALSE(g->unsharded()) << g->name();
  });
}

TEST(FullyShard, EveryMeshOfReplicateAndFsdpEqualsOneRank) {
  for (int64_t replicate = 1; replicate <= 8; ++replicate)
    for (int64_t fsdp = 1; replicate * fsdp <= 8; ++fsdp)
      expect_equal_to_one_rank({fmt::format("replicate={},fsdp={}", replicate, fsdp)});
}

TEST(FullyShard, RecomputeReshardAccumulationAndEmptyRanks) {
  for (const std::string mesh : {"fsdp=2", "fsdp=5", "replicate=2,fsdp=2"})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
      for (const bool recompute : {false, true}) {
        expect_equal_to_one_rank({mesh, dtype, recompute});
        expect_equal_to_one_rank({mesh, dtype, recompute, false, 1});
        expect_equal_to_one_rank({mesh, dtype, recompute, true, 4, 3});
      }
}

// Not more than two groups but the outermost are gathered, in the forward and in the backward.
TEST(FullyShard, AtMostTwoBlocksAreGathered) {
  for (const bool recompute : {false, true})
    run_ranks(2, {}, [&](Communicator& world) {
      auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
      auto tree = sharded_tree(mesh, at::kFloat);
      int64_t most = 0, looks = 0;
      const auto look = [&] {
        int64_t gathered = 0;
        for (Block* b : tree->blocks) gathered += b->up->gathered();
        most = std::max(most, gathered), ++looks;
      };
      for (Block* b : tree->blocks) {
        b->watch = look;
        b->down->add_grad_hook([&](nn::Parameter&) { look(); });
      }
      at::Tensor y = tree->forward(ids_of(4, 5), recompute);
      nn::backward({y}, {cotangent_of(4)});
      EXPECT_GE(looks, 6);
      EXPECT_LE(most, 2);
      EXPECT_GE(most, 1);
    });
}

TEST(FullyShard, NamesStayAndGroupsAreByCall) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    Tree plain;
    auto tree = sharded_tree(mesh, at::kFloat);
    const auto a = plain.parameters(), b = tree->parameters();
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i]->name(), b[i]->name());
    const std::vector<ShardGroup*> groups = shard_groups(*tree);
    ASSERT_EQ(groups.size(), 4u);
    EXPECT_EQ(groups[0]->name(), "root");
    EXPECT_EQ(groups[0]->parameter_names(), std::vector<std::string>{"table.weight"});
    EXPECT_EQ(groups[2]->parameter_names().size(), 5u);
    // [11, 6] on 2: the first dim that 2 divides.
    EXPECT_EQ(tree->table->local_shape(), (std::vector<int64_t>{11, 3}));
    // [5] on 2: no dim divides, so ceil chunks of dim 0.
    EXPECT_EQ(tree->blocks[0]->bias->local_shape(), (std::vector<int64_t>{world.rank() == 0 ? 3 : 2}));
  });
}

TEST(FullyShard, MistakesAreNamed) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    Tree tree;
    fully_shard(*tree.blocks[0], mesh);
    EXPECT_THROW(fully_shard(*tree.blocks[0], mesh), ValueError);
    tree.blocks[1]->up->materialize(at::kCPU, at::kFloat);
    try {
      fully_shard(*tree.blocks[1], mesh);
      ADD_FAILURE();
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find("blocks.1.up.weight has memory already"), std::string::npos) << e.what();
    }
    try {
      tree.blocks[0]->forward(at::empty({1, Tree::kWidth}));
      ADD_FAILURE();
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find("materialize the model before"), std::string::npos) << e.what();
    }
  });
}

TEST(FullyShard, IgnoredParametersStayWholeAndFactorsDivide) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    Tree tree;
    FullyShardOptions options;
    options.ignored = {tree.blocks[0]->norm};
    options.gradient_divide_factor = 4;
    fully_shard(tree, mesh, options);
    for (nn::Parameter* p : tree.parameters()) {
      p->materialize(at::kCPU, at::kFloat);
      p->master().copy_(DistributedTensor::distribute(value_of(*p), layout_of(*p, *mesh), mesh).local());
      p->updated();
    }
    EXPECT_FALSE(tree.blocks[0]->norm->sharded());
    const Reference expected = one_rank({"fsdp=1"});
    at::Tensor y = tree.forward(ids_of(9, 5));
    nn::backward({y}, {cotangent_of(9)});
    // Both ranks ran all rows: the sum is twice the gradient.
    EXPECT_LE(relative(full_grad(*tree.table, mesh) * 2, expected.grads.at("table.weight")), kTolerance);
    EXPECT_TRUE(same_bits(tree.blocks[0]->norm->grad(), expected.grads.at("blocks.0.norm.weight")));
  });
}

// An optimizer step makes what was gathered stale: the next forward gathers anew.
TEST(FullyShard, UpdatesReachTheNextForward) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    auto tree = sharded_tree(mesh, at::kFloat);
    auto whole = whole_tree(at::kFloat);
    at::NoGradGuard guard;
    (void)tree->forward(ids_of(3, 5));
    for (nn::Parameter* p : tree->parameters()) p->master().mul_(0.5), p->updated();
    for (nn::Parameter* p : whole->parameters()) p->master().mul_(0.5), p->updated();
    EXPECT_TRUE(same_bits(tree->forward(ids_of(3, 5)), whole->forward(ids_of(3, 5))));
    EXPECT_TRUE(same_bits(tree->forward(ids_of(0, 5)), whole->forward(ids_of(0, 5))));
  });
}

}  // namespace
}  // namespace weft
