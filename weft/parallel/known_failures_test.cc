// What went wrong for users of other implementations, each tried here (docs/sharding.md names where).
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/serialize.h>
#include <torch/serialize.h>

#include <sstream>

#include "weft/nn/moe.h"
#include "weft/parallel/sharded_module.h"
#include "weft/parallel/test_support.h"

namespace weft {
namespace {

using nn::testing::normal;
using nn::testing::relative;
using nn::testing::same_bits;

CommOptions no_hanging() {
  CommOptions options;
  options.timeout_s = 20;
  return options;
}

void fill(torch::nn::Module& m) {
  at::NoGradGuard guard;
  uint64_t seed = 3;
  for (auto& p : m.parameters()) p.copy_(normal(p.sizes().vec(), seed++, 0.5f));
}

at::Tensor full_module_grad(torch::nn::Module& m, const std::string& name, const DistributedTensor& part,
                            const std::shared_ptr<const RankMesh>& mesh) {
  return DistributedTensor::from_local(m.named_parameters()[name].grad(), part.layout(), mesh).full_tensor();
}

// pytorch #129206: fsdp and tp on one dim came back permuted.
TEST(KnownFailures, TwoAxesOnOneDimComeBackInOrder) {
  for (int64_t fsdp = 1; fsdp <= 4; ++fsdp)
    for (int64_t tp = 1; fsdp * tp <= 8; ++tp) {
      const ParallelDims dims = parse_parallel_dims(fmt::format("fsdp={},tp={}", fsdp, tp));
      run_ranks(static_cast<int>(dims.world()), no_hanging(), [&](Communicator& world) {
        auto mesh = make_rank_mesh(dims, world);
        for (const std::vector<int64_t>& shape : {std::vector<int64_t>{8, 8}, {13, 5}, {3, 7}, {1, 2}})
          for (const int64_t tp_dim : {0, 1})
            for (const int64_t fsdp_dim : {0, 1}) {
              const at::Tensor full = normal(shape, 4);
              const Layout layout = Layout::replicated(shape, mesh->dense).with_cut({"tp", tp_dim}).with_cut({"fsdp", fsdp_dim});
              EXPECT_TRUE(same_bits(DistributedTensor::distribute(full, layout, mesh).full_tensor(), full)) << layout.to_string();
            }
      });
    }
}

// pytorch #158719, torchtitan #2747: experts without tokens on some ranks left them without a gradient, and the ranks hung.
TEST(KnownFailures, StackedExpertsWithoutTokens) {
  struct Experts : nn::Module {
    Experts() : nn::Module("moe") { gate_up = add_parameter("gate_up", {4, 8, 6}), down = add_parameter("down", {4, 6, 4}); }
    at::Tensor forward(const at::Tensor& x, const at::Tensor& ids) {
      return run([&] { return nn::moe_experts(x, at::ones({x.size(0), 1}, at::kFloat), ids, *gate_up, *down); });
    }
    nn::Parameter *gate_up, *down;
  };
  const at::Tensor x = normal({8, 6}, 1), dy = normal({8, 6}, 2), ids = at::zeros({8, 1}, at::kInt);  // all tokens to expert 0
  Experts whole;
  for (nn::Parameter* p : whole.parameters())
    p->materialize(at::kCPU, at::kFloat), p->master().copy_(testing::value_of(*p)), p->updated();
  nn::backward({whole.forward(x, ids)}, {dy});
  run_ranks(4, no_hanging(), [&](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=4"), world);
    Experts moe;
    fully_shard(moe, mesh);
    for (nn::Parameter* p : moe.parameters()) {
      p->materialize(at::kCPU, at::kFloat);
      p->master().copy_(DistributedTensor::distribute(testing::value_of(*p), layout_of(*p, *mesh), mesh).local());
      p->updated();
    }
    const int64_t begin = world.rank() < 2 ? 4 * world.rank() : 8,
                  count = world.rank() < 2 ? 4 : 0;  // ranks 2 and 3 have no tokens at all
    nn::backward({moe.forward(x.narrow(0, begin, count), ids.narrow(0, begin, count))}, {dy.narrow(0, begin, count)});
    for (size_t i = 0; i < 2; ++i) {
      const at::Tensor grad = testing::full_grad(*moe.parameters()[i], mesh);
      EXPECT_LE(relative(grad, whole.parameters()[i]->grad()), 4e-6);
      EXPECT_EQ(grad.narrow(0, 1, 3).abs().max().item<float>(), 0.0f);  // exactly
    }
  });
}

// The same as modules of their own, which run where they have tokens only (slime PR #1010). Inside one group that is well; a
// group that only some ranks run would not be: all ranks run the same forwards.
TEST(KnownFailures, ExpertModulesThatSomeRanksDoNotRun) {
  struct Moe : torch::nn::Module {
    Moe() {
      for (int i = 0; i < 3; ++i) experts.push_back(register_module(fmt::format("expert{}", i), torch::nn::Linear(4, 4)));
      fill(*this);
    }
    at::Tensor forward(const at::Tensor& x, int64_t expert) { return expert < 0 ? x : experts[static_cast<size_t>(expert)](x); }
    std::vector<torch::nn::Linear> experts;
  };
  const auto x_of = [](int64_t rank) { return normal({3, 4}, 20 + static_cast<uint64_t>(rank)).set_requires_grad(true); };
  const auto expert_of = [](int64_t rank) { return rank == 2 ? -1 : rank; };  // rank 2's tokens go nowhere; expert 2 has none
  Moe whole;
  for (int64_t rank = 0; rank < 3; ++rank) whole.forward(x_of(rank), expert_of(rank)).pow(2).sum().backward();
  run_ranks(3, no_hanging(), [&](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=3"), world);
    auto moe = std::make_shared<Moe>();
    const auto sharded = fully_shard(moe, mesh);
    sharded(x_of(world.rank()), expert_of(world.rank())).pow(2).sum().backward();
    const auto expected = whole.named_parameters();
    for (const auto& [name, part] : sharded_state_dict(*moe)) {
      const at::Tensor grad = full_module_grad(*moe, name, part, mesh);
      if (expected[name].grad().defined())
        EXPECT_LE(relative(grad, expected[name].grad()), 1e-5) << name;
      else
        EXPECT_EQ(grad.abs().max().item<float>(), 0.0f) << name;
    }
  });
}

// 13 words over 4 ranks (4, 4, 4, 1), 20 experts over 8 (3 x 6, 2, 0): sizes at which a resumed run or an empty shard went wrong.
struct Uneven : torch::nn::Module {
  Uneven() : words(13, 5), head(5, 13) {
    register_module("words", words), register_module("head", head);
    experts = register_parameter("experts", at::zeros({20, 5}));
    fill(*this);
  }
  at::Tensor forward(const at::Tensor& ids) { return head(words(ids) + experts.sum(0) * 0.1); }
  torch::nn::Embedding words;
  torch::nn::Linear head;
  at::Tensor experts;
};

// torchtitan #1136: a resumed run was another one where the vocabulary did not divide; transformers PR #48237: empty shards.
TEST(KnownFailures, SavedStateOfUnevenAndEmptyShardsResumesBitForBit) {
  for (const int ranks : {4, 8})
    run_ranks(ranks, no_hanging(), [&](Communicator& world) {
      auto mesh = make_rank_mesh(parse_parallel_dims(fmt::format("fsdp={}", ranks)), world);
      auto first = std::make_shared<Uneven>(), second = std::make_shared<Uneven>();
      const auto a = fully_shard(first, mesh), b = fully_shard(second, mesh);
      const auto early = sharded_state_dict(*first);  // taken before the first forward
      if (ranks == 8 && world.rank() == 7) {
        EXPECT_EQ(first->named_parameters()["experts"].sizes(), (std::vector<int64_t>{0, 5}));
      }
      torch::optim::Adam one(first->parameters(), 0.01), two(second->parameters(), 0.01);
      const auto steps = [&](const Sharded<Uneven>& model, torch::optim::Adam& optimizer, int from, int to) {
        for (int i = from; i < to; ++i) {
          optimizer.zero_grad();
          at::Tensor ids = testing::ids_of(6, static_cast<uint64_t>(10 + i)).to(at::kLong) + 2;
          model(ids).pow(2).sum().backward();
          optimizer.step();
        }
      };
      steps(a, one, 0, 3);
      std::stringstream weights, moments;
      torch::save(first, weights), torch::save(one, moments);
      steps(a, one, 3, 6);
      set_reshard_after_backward(*second, false);
      steps(b, two, 0, 1);  // gathered, and something else
      torch::load(second, weights), torch::load(two, moments);
      steps(b, two, 3, 6);
      const auto late = sharded_state_dict(*first), resumed = sharded_state_dict(*second);
      for (size_t i = 0; i < late.size(); ++i) {
        EXPECT_TRUE(same_bits(late[i].second.local(), resumed[i].second.local())) << late[i].first;
        EXPECT_TRUE(same_bits(late[i].second.local(), early[i].second.local())) << late[i].first;
        EXPECT_EQ(late[i].second.full_tensor().sizes(), late[i].second.layout().shape());
      }
    });
}

// accelerate PR #4171: a parameter tied across two groups was silently wrong. weft's modules may: the owner's group adds both
// uses.
TEST(KnownFailures, AParameterTiedAcrossGroups) {
  struct Inner : nn::Module {
    explicit Inner(std::string name) : nn::Module(std::move(name)) { table = add_parameter("weight", {11, 6}); }
    at::Tensor forward(const at::Tensor& ids) {
      return run([&] { return nn::embedding(ids, *table); });
    }
    nn::Parameter* table;
  };
  struct Outer : nn::Module {
    Outer() : nn::Module("") {
      inner = add_module<Inner>("table");
      block = add_module<testing::Block>("block", 6, 5);
      share_parameter(inner->table);
    }
    at::Tensor forward(const at::Tensor& ids) {
      return run([&] { return nn::linear(block->forward(inner->forward(ids)), *inner->table, nullptr, at::kFloat); });
    }
    Inner* inner;
    testing::Block* block;
  };
  const at::Tensor dy = normal({6, 11}, 2);
  Outer whole;
  for (nn::Parameter* p : whole.parameters())
    p->materialize(at::kCPU, at::kFloat), p->master().copy_(testing::value_of(*p)), p->updated();
  nn::backward({whole.forward(testing::ids_of(6, 5))}, {dy});
  run_ranks(2, no_hanging(), [&](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    Outer outer;
    fully_shard(*outer.inner, mesh);
    fully_shard(*outer.block, mesh);
    fully_shard(outer, mesh);
    for (nn::Parameter* p : outer.parameters()) {
      p->materialize(at::kCPU, at::kFloat);
      p->master().copy_(DistributedTensor::distribute(testing::value_of(*p), layout_of(*p, *mesh), mesh).local());
      p->updated();
    }
    for (int step = 1; step <= 2; ++step) {
      const int64_t begin = 3 * world.rank();
      nn::backward({outer.forward(testing::ids_of(6, 5).narrow(0, begin, 3))}, {dy.narrow(0, begin, 3)});
      EXPECT_LE(relative(testing::full_grad(*outer.inner->table, mesh) / step, whole.inner->table->grad()), 4e-6);
    }
  });
}

}  // namespace
}  // namespace weft
