// FSDP2's switches on weft's module tree: what is sent, what stays, when; gradients are one rank's throughout.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <set>

#include "weft/base/error.h"
#include "weft/mesh/choose_dim.h"
#include "weft/parallel/gradient_norm.h"
#include "weft/parallel/test_support.h"

namespace weft {
namespace {

using namespace testing;
using nn::testing::relative;
using nn::testing::same_bits;

constexpr double kOrderOfSums = 4e-6;  // as in fully_shard_test.cc

std::map<std::string, at::Tensor> grads_of_one_rank(int64_t rows) {
  auto tree = whole_tree(at::kFloat);
  nn::backward({tree->forward(ids_of(rows, 5))}, {cotangent_of(rows)});
  std::map<std::string, at::Tensor> out;
  for (nn::Parameter* p : tree->parameters())
    if (p->grad().defined()) out[p->name()] = p->grad();
  return out;
}

void step(Tree& tree, int64_t rows, const Communicator& world, bool recompute = false) {
  const int64_t chunk = rows / world.size();
  at::Tensor y = tree.forward(ids_of(rows, 5).narrow(0, world.rank() * chunk, chunk), recompute);
  nn::backward({y}, {cotangent_of(rows).narrow(0, world.rank() * chunk, chunk)});
}

void expect_one_ranks_grads(Tree& tree, const std::shared_ptr<const RankMesh>& mesh, double times = 1) {
  static const auto expected = grads_of_one_rank(8);
  for (nn::Parameter* p : tree.parameters()) {
    if (!expected.contains(p->name())) continue;
    EXPECT_LE(relative(full_grad(*p, mesh) / times, expected.at(p->name())), kOrderOfSums) << p->name();
  }
}

int64_t unshard_bytes(const Communicator& world) { return world.stats().of(OpKind::kAllGather, "fsdp", "unshard").received; }
int64_t unshard_calls(const Communicator& world) { return world.stats().of(OpKind::kAllGather, "fsdp", "unshard").operations; }

// k: the forward gathers over all ranks, the backward over k neighbours, which receive (k-1)/k of each tensor.
TEST(ShardModes, ReshardAfterForwardToKNeighbours) {
  for (const bool recompute : {false, true})
    for (const int64_t k : {1, 2, 4})
      run_ranks(4, {}, [&](Communicator& world) {
        auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=4"), world);
        FullyShardOptions options;
        options.reshard_after_forward = k;
        auto tree = sharded_tree(mesh, at::kFloat, options);
        at::Tensor y = tree->forward(ids_of(8, 5).narrow(0, 2 * world.rank(), 2), recompute);
        const int64_t after_forward = unshard_bytes(world);
        for (ShardGroup* g : shard_groups(*tree)) EXPECT_EQ(g->unsharded(), k == 1) << g->name();
        nn::backward({y}, {cotangent_of(8).narrow(0, 2 * world.rank(), 2)});
        const int64_t in_backward = unshard_bytes(world) - after_forward;
        int64_t expected = 0;
        if (k > 1)
          for (nn::Parameter* p : tree->parameters()) {
            const ShardCut cut(p->shape(), *choose_dim(p->shape(), {}, k).dim, k);
            expected += (p->numel() - cut.counts[static_cast<size_t>(world.rank() % k)]) * 4;
          }
        EXPECT_EQ(in_backward, expected) << "k " << k << " rank " << world.rank();
        expect_one_ranks_grads(*tree, mesh);
        for (ShardGroup* g : shard_groups(*tree)) EXPECT_FALSE(g->unsharded());
        // What was kept is old after an update: the next forward gathers from the shards.
        for (nn::Parameter* p : tree->parameters()) p->master().mul_(0.5), p->updated();
        auto whole = whole_tree(at::kFloat);
        for (nn::Parameter* p : whole->parameters()) p->master().mul_(0.5), p->updated();
        at::NoGradGuard guard;
        EXPECT_TRUE(same_bits(tree->forward(ids_of(3, 5)), whole->forward(ids_of(3, 5))));
        for (nn::Parameter* p : tree->parameters()) p->master().mul_(2), p->updated();
        for (nn::Parameter* p : whole->parameters()) p->master().mul_(2), p->updated();
        EXPECT_TRUE(same_bits(tree->forward(ids_of(3, 5)), whole->forward(ids_of(3, 5))));
      });
}

TEST(ShardModes, KThatDoesNotDivideIsAnError) {
  run_ranks(4, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=4"), world);
    for (const int64_t k : {3, 8, 0, -2}) {
      Tree tree;
      FullyShardOptions options;
      options.reshard_after_forward = k;
      try {
        fully_shard(*tree.blocks[0], mesh, options);
        ADD_FAILURE() << k;
      } catch (const ValueError& e) {
        EXPECT_NE(std::string(e.what()).find("must divide the number of shards, 4"), std::string::npos) << e.what();
      }
    }
  });
}

// The outermost group stays gathered unless it was told otherwise.
TEST(ShardModes, TheOutermostGroupStaysUnlessTold) {
  for (const std::optional<bool> told : {std::optional<bool>(), std::optional<bool>(false), std::optional<bool>(true)})
    run_ranks(2, {}, [&](Communicator& world) {
      auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
      FullyShardOptions options;
      options.reshard_after_forward = told;
      auto tree = sharded_tree(mesh, at::kFloat, options);
      (void)tree->forward(ids_of(4, 5));
      EXPECT_EQ(shard_groups(*tree)[0]->unsharded(), !told.value_or(false));
      EXPECT_EQ(shard_groups(*tree)[1]->unsharded(), told.has_value() && !*told);
    });
}

// Which gathers have begun when a block runs: the next one's; those that were named; none.
TEST(ShardModes, ExplicitPrefetchReplacesTheNextGroup) {
  const auto calls_by_block = [](int which) {
    std::vector<int64_t> forward, backward;
    run_ranks(2, {}, [&](Communicator& world) {
      auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
      auto tree = sharded_tree(mesh, at::kFloat);
      (void)tree->forward(ids_of(4, 5));  // from here on the order is known
      for (nn::Parameter* p : tree->parameters()) p->updated();
      const std::vector<nn::Module*> blocks(tree->blocks.begin(), tree->blocks.end());
      if (which == 1) {
        set_modules_to_forward_prefetch(*blocks[0], {blocks[1], blocks[2]});
        set_modules_to_backward_prefetch(*blocks[2], {blocks[1], blocks[0]});
      }
      std::vector<int64_t> seen;
      int64_t before = unshard_calls(world);
      for (Block* b : tree->blocks) b->watch = [&] { seen.push_back(unshard_calls(world) - before); };
      at::Tensor y = tree->forward(ids_of(4, 5));
      if (world.rank() == 0) forward = seen;
      seen.clear();
      before = unshard_calls(world);
      for (Block* b : tree->blocks)
        b->down->add_grad_hook([&](nn::Parameter&) { seen.push_back(unshard_calls(world) - before); });
      nn::backward({y}, {cotangent_of(4)});
      if (world.rank() == 0) backward = seen;
      try {
        nn::Module plain("plain");
        set_modules_to_forward_prefetch(plain, {});
        ADD_FAILURE();
      } catch (const ValueError& e) {
        EXPECT_NE(std::string(e.what()).find("has no group of its own"), std::string::npos);
      }
    });
    return std::pair(forward, backward);
  };
  // Five parameters a block and the table: an operation each. The table's gather begins block 0's, block 0's block 1's, and so
  // on. In the backward a block's last weight gradient is added before the first of its weights is read.
  EXPECT_EQ(calls_by_block(0), std::pair(std::vector<int64_t>({11, 16, 16}), std::vector<int64_t>({0, 10, 15})));
  EXPECT_EQ(calls_by_block(1), std::pair(std::vector<int64_t>({16, 16, 16}), std::vector<int64_t>({0, 15, 15})));
}

TEST(ShardModes, ParametersStayGatheredBetweenMicroBatches) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    FullyShardOptions options;
    options.reshard_after_forward = false;
    auto tree = sharded_tree(mesh, at::kFloat, options);
    set_reshard_after_backward(*tree, false);
    step(*tree, 8, world);
    for (ShardGroup* g : shard_groups(*tree)) EXPECT_TRUE(g->unsharded());
    const int64_t before = unshard_bytes(world);
    step(*tree, 8, world);
    EXPECT_EQ(unshard_bytes(world), before);
    expect_one_ranks_grads(*tree, mesh, 2);
    for (nn::Parameter* p : tree->parameters()) p->updated();
    for (ShardGroup* g : shard_groups(*tree)) EXPECT_FALSE(g->unsharded());
    set_reshard_after_backward(*tree, true);
    step(*tree, 8, world);
    for (ShardGroup* g : shard_groups(*tree)) EXPECT_FALSE(g->unsharded());
  });
}

// An embedding's backward reads no table: its gather can be left out. Where weights are read after all they are fetched then.
TEST(ShardModes, NoGatherInTheBackwardWhereItIsNotNeeded) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    auto tree = sharded_tree(mesh, at::kFloat);
    for (ShardGroup* g : shard_groups(*tree)) g->set_unshard_in_backward(false);
    step(*tree, 8, world);
    expect_one_ranks_grads(*tree, mesh);

    struct Table : nn::Module {
      explicit Table(std::string name) : nn::Module(std::move(name)) { weight = add_parameter("weight", {11, 6}); }
      at::Tensor forward(const at::Tensor& ids) {
        return run([&] { return nn::embedding(ids, *weight); });
      }
      nn::Parameter* weight;
    };
    struct Embedded : nn::Module {
      Embedded() : nn::Module("") { table = add_module<Table>("table"), block = add_module<Block>("block", 6, 5); }
      at::Tensor forward(const at::Tensor& ids) {
        return run([&] { return block->forward(table->forward(ids)); });
      }
      Table* table;
      Block* block;
    };
    int64_t bytes[2];
    for (const bool on : {true, false}) {
      Embedded stack;
      fully_shard(*stack.table, mesh).set_unshard_in_backward(on);
      fully_shard(*stack.block, mesh);
      fully_shard(stack, mesh);
      for (nn::Parameter* p : stack.parameters()) {
        p->materialize(at::kCPU, at::kFloat);
        p->master().copy_(DistributedTensor::distribute(value_of(*p), layout_of(*p, *mesh), mesh).local());
        p->updated();
      }
      at::Tensor y = stack.forward(ids_of(4, 5));
      const int64_t before = unshard_bytes(world);
      nn::backward({y}, {nn::testing::normal({4, 6}, 3)});
      bytes[on] = unshard_bytes(world) - before;
    }
    EXPECT_EQ(bytes[1] - bytes[0], 11 * 3 * 4);
  });
}

TEST(ShardModes, TheLastReductionMayOutliveABackwardThatIsNotTheLast) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    auto tree = sharded_tree(mesh, at::kFloat);
    set_is_last_backward(*tree, false);
    step(*tree, 8, world);
    EXPECT_FALSE(tree->table->grad().defined());  // the outermost group's is reduced last
    EXPECT_TRUE(tree->blocks[2]->down->grad().defined());
    set_is_last_backward(*tree, true);
    step(*tree, 8, world);
    expect_one_ranks_grads(*tree, mesh, 2);
  });
}

// Without all-reduce a micro-batch sends nothing between replicas; without sync nothing at all. The one that does reduces the
// sum.
TEST(ShardModes, MicroBatchesWithoutAllReduceAndWithoutSync) {
  run_ranks(4, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("replicate=2,fsdp=2"), world);
    auto tree = sharded_tree(mesh, at::kFloat);
    const auto sent = [&](const std::string& axis) {
      int64_t bytes = 0;
      for (const CommStatsRow& row : world.stats().rows())
        if (row.axis == axis && row.purpose == "grad") bytes += row.bytes.sent;
      return bytes;
    };
    set_requires_gradient_sync(*tree, false);
    step(*tree, 8, world);
    EXPECT_EQ(sent("fsdp") + sent("replicate"), 0);
    EXPECT_FALSE(tree->table->grad().defined());
    set_requires_gradient_sync(*tree, true);
    set_requires_all_reduce(*tree, false);
    step(*tree, 8, world);
    EXPECT_GT(sent("fsdp"), 0);
    EXPECT_EQ(sent("replicate"), 0);
    set_requires_all_reduce(*tree, true);
    step(*tree, 8, world);
    EXPECT_GT(sent("replicate"), 0);
    expect_one_ranks_grads(*tree, mesh, 3);
  });
}

// reduce_dtype halves what gradients send; they are added in fp32. Three roundings to 8 bits: each rank's gradient and the sum.
TEST(ShardModes, GradientsTravelInReduceDtype) {
  const auto grads = grads_of_one_rank(8);
  std::map<DType, int64_t> bytes;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    run_ranks(2, {}, [&](Communicator& world) {
      auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
      FullyShardOptions options;
      options.reduce_dtype = dtype;
      auto tree = sharded_tree(mesh, at::kFloat, options);
      step(*tree, 8, world);
      if (world.rank() == 0) bytes[dtype] = world.stats().of(OpKind::kReduceScatter, "fsdp", "grad").sent;
      for (nn::Parameter* p : tree->parameters()) {
        if (!grads.contains(p->name())) continue;
        EXPECT_EQ(p->grad().scalar_type(), at::kFloat);
        EXPECT_LE(relative(full_grad(*p, mesh), grads.at(p->name())), dtype == DType::kF32 ? kOrderOfSums : 0.02) << p->name();
      }
    });
  EXPECT_EQ(bytes[DType::kF32], 2 * bytes[DType::kBF16]);
  run_ranks(1, {}, [](Communicator& world) {
    Tree tree;
    FullyShardOptions options;
    options.reduce_dtype = DType::kF16;
    EXPECT_THROW(fully_shard(tree, make_rank_mesh(parse_parallel_dims("fsdp=1"), world), options), ValueError);
  });
}

TEST(ShardModes, UnshardAndReshardByHand) {
  run_ranks(3, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=3"), world);
    auto tree = sharded_tree(mesh, at::kFloat);
    ShardGroup* g = shard_groups(*tree)[1];
    g->unshard(/*async=*/true);
    const int64_t calls = unshard_calls(world);
    EXPECT_EQ(calls, 5);
    EXPECT_FALSE(g->unsharded());
    g->unshard();
    g->unshard();
    EXPECT_EQ(unshard_calls(world), calls);
    EXPECT_TRUE(g->unsharded());
    EXPECT_TRUE(same_bits(tree->blocks[0]->up->compute(), value_of(*tree->blocks[0]->up)));
    EXPECT_FALSE(shard_groups(*tree)[2]->unsharded());  // not recursive
    g->reshard();
    EXPECT_FALSE(g->unsharded());
  });
}

// The parts as distributed tensors: the optimizer's memory, no byte sent, and taken before a step it shows the step.
TEST(ShardModes, StateDictIsWithoutCommunication) {
  run_ranks(4, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=4"), world);
    auto tree = sharded_tree(mesh, at::kFloat);
    const int64_t before = world.stats().total().received;
    const auto state = sharded_state_dict(*tree, mesh);
    EXPECT_EQ(world.stats().total().received, before);
    const auto parameters = tree->parameters();
    ASSERT_EQ(state.size(), parameters.size());
    step(*tree, 8, world);
    for (nn::Parameter* p : parameters) p->master().mul_(0.5), p->updated();
    step(*tree, 8, world);
    for (size_t i = 0; i < state.size(); ++i) {
      EXPECT_EQ(state[i].first, parameters[i]->name());
      EXPECT_TRUE(state[i].second.local().is_same(parameters[i]->master()));
      EXPECT_TRUE(same_bits(state[i].second.full_tensor(), value_of(*parameters[i]) * 0.5));
    }
  });
}

// On every mesh: the same bits on all ranks; the largest entry exactly one rank's; p = 1 and 2 up to the order of sums, in double
// of fp32 gradients that themselves differ by the order of sums.
TEST(ShardModes, TheGradientNormIsOneRanks) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto grads = grads_of_one_rank(8);
  std::vector<GradientPart> whole;
  for (const auto& [name, grad] : grads) whole.push_back({grad, false});
  std::map<double, double> expected;
  run_ranks(1, {}, [&](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=1"), world);
    for (const double p : {1.0, 2.0, 3.0, kInfinity}) expected[p] = gradient_norm(whole, p, *mesh);
    double squares = 0;
    for (const auto& [name, grad] : grads) squares += grad.to(at::kDouble).pow(2).sum().item<double>();
    EXPECT_NEAR(expected[2.0], std::sqrt(squares), 1e-12 * std::sqrt(squares));
    EXPECT_THROW(gradient_norm(whole, 0, *mesh), ValueError);
  });
  for (const std::string text : {"fsdp=2", "fsdp=8", "replicate=2,fsdp=2", "replicate=4,fsdp=2"}) {
    const ParallelDims dims = parse_parallel_dims(text);
    std::mutex mutex;
    std::map<double, std::set<double>> got, of_parts;
    run_ranks(static_cast<int>(dims.world()), {}, [&](Communicator& world) {
      auto mesh = make_rank_mesh(dims, world);
      auto tree = sharded_tree(mesh, at::kFloat);
      step(*tree, 8, world);
      // The same gradients as one rank's, bit for bit, cut into shards.
      std::vector<GradientPart> parts;
      for (const auto& [name, grad] : grads)
        for (nn::Parameter* p : tree->parameters())
          if (p->name() == name) parts.push_back({DistributedTensor::distribute(grad, layout_of(*p, *mesh), mesh).local(), true});
      for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
        const double norm = gradient_norm(tree->parameters(), p, *mesh), exact = gradient_norm(parts, p, *mesh);
        std::lock_guard lock(mutex);
        got[p].insert(norm), of_parts[p].insert(exact);
      }
      parts[0].grad = parts[0].grad.clone();
      if (parts[0].grad.numel() > 0 && world.rank() == 0) parts[0].grad.view({-1})[0] = std::nan("");
      if (mesh->replicate.rank() > 0) return;  // rank 0's copy has none
      for (const double p : {1.0, 2.0, kInfinity}) EXPECT_FALSE(std::isfinite(gradient_norm(parts, p, *mesh)));
    });
    for (const auto& [p, value] : expected) {
      EXPECT_EQ(got[p].size(), 1u) << text << " p " << p;
      ASSERT_EQ(of_parts[p].size(), 1u) << text << " p " << p;
      EXPECT_NEAR(*got[p].begin(), value, 4e-6 * value) << text << " p " << p;
      EXPECT_NEAR(*of_parts[p].begin(), value, p == kInfinity ? 0 : 1e-14 * value) << text << " p " << p;
    }
  }
}

}  // namespace
}  // namespace weft
