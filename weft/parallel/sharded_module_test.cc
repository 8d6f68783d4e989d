// libtorch's own modules, sharded: N ranks equal one.
#include "weft/parallel/sharded_module.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adamw.h>

#include "weft/parallel/test_module_support.h"

namespace weft {
namespace {

using nn::testing::relative;
using nn::testing::same_bits;
using namespace testing;

TEST(ShardedModule, EqualsOneRankOnEveryMeshAndInEveryMode) {
  using Mode = decltype(ShardOptions::reshard_after_forward);
  const auto expected = whole_grads();
  for (const std::string text : {"fsdp=1", "fsdp=2", "fsdp=4", "fsdp=5", "replicate=2,fsdp=2"}) {
    const ParallelDims dims = parse_parallel_dims(text);
    std::vector<Mode> modes{{}, false, true};
    if (text == "fsdp=4") modes.push_back(2);
    for (const Mode& mode : modes)
      for (const int accumulate : {1, 3})
        run_ranks(static_cast<int>(dims.world()), {}, [&](Communicator& world) {
          auto mesh = make_rank_mesh(dims, world);
          auto net = std::make_shared<Net>();
          ShardModuleOptions options;
          options.reshard_after_forward = mode;
          const Sharded<Net> sharded = sharded_net(net, mesh, options);
          for (int i = 0; i < accumulate; ++i) {
            set_requires_gradient_sync(*net, i + 1 == accumulate);
            backward_of(sharded, 9, split_of(9, world.rank(), world.size()));
          }
          auto grads = gathered_grads(*net, mesh);
          for (auto& [name, grad] : grads) grad = grad / accumulate;
          SCOPED_TRACE(text);
          expect_grads(grads, expected);
          for (ShardGroup* g : shard_groups(*net)) EXPECT_FALSE(g->unsharded()) << g->name();
        });
  }
}

// The optimizer, built on the module's parameters, steps the parts; ten steps equal one rank's.
TEST(ShardedModule, OptimizersStepTheParts) {
  const auto steps = [](Net& net, const std::function<void()>& backward) {
    torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.01));
    for (int i = 0; i < 10; ++i) {
      optimizer.zero_grad();
      backward();
      optimizer.step();
    }
  };
  Net whole;
  for (auto& f : whole.feeds) f->unused.set_requires_grad(false);  // zero gradients decay, undefined ones do not
  steps(whole, [&] { (whole.forward(word_ids(9)) * weights_of(9)).sum().backward(); });
  run_ranks(4, {}, [&](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=4"), world);
    auto net = std::make_shared<Net>();
    for (auto& f : net->feeds) f->unused.set_requires_grad(false);
    const Sharded<Net> sharded = sharded_net(net, mesh);
    steps(*net, [&] { backward_of(sharded, 9, split_of(9, world.rank(), 4)); });
    const auto expected = whole.named_parameters();
    // Adam divides by the size of the gradient: where that is near 0 its rounding shows. 1e-4 of the largest weight after ten
    // steps of 0.01.
    for (auto& [name, t] : sharded_state_dict(*net)) EXPECT_LE(relative(t.full_tensor(), expected[name].detach()), 1e-4) << name;
  });
}

TEST(ShardedModule, NamesStayAndStateHasNoCommunication) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    Net plain;
    auto net = std::make_shared<Net>();
    (void)sharded_net(net, mesh);
    const int64_t before = world.stats().total().received;
    const auto state = sharded_state_dict(*net);
    EXPECT_EQ(world.stats().total().received, before);
    const auto names = plain.named_parameters(), parts = net->named_parameters();
    ASSERT_EQ(names.keys(), parts.keys());
    ASSERT_EQ(state.size(), names.size());
    for (const auto& [name, t] : state) {
      EXPECT_EQ(t.local().sizes(), parts[name].sizes()) << name;
      EXPECT_TRUE(parts[name].is_leaf());
      EXPECT_TRUE(same_bits(t.full_tensor(), names[name].detach())) << name;
    }
    // [11, 6]: the first dim that 2 divides; [5]: ceil chunks of dim 0.
    EXPECT_EQ(parts["words.weight"].sizes(), (std::vector<int64_t>{11, 3}));
    EXPECT_EQ(parts["feeds_0.up.bias"].sizes(), (std::vector<int64_t>{world.rank() == 0 ? 3 : 2}));
    EXPECT_EQ(shard_groups(*net)[1]->name(), "feeds_0");
  });
}

TEST(ShardedModule, ABlockThatRunsTwiceAddsBothUses) {
  const auto expected = whole_grads(true);
  for (const bool reshard : {false, true})
    run_ranks(3, {}, [&](Communicator& world) {
      auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=3"), world);
      auto net = std::make_shared<Net>();
      net->twice = true;
      ShardModuleOptions options;
      options.reshard_after_forward = reshard;
      const Sharded<Net> sharded = sharded_net(net, mesh, options);
      backward_of(sharded, 9, split_of(9, world.rank(), 3));
      expect_grads(gathered_grads(*net, mesh), expected);
    });
}

// Two forwards, one backward; and two backwards through one graph.
TEST(ShardedModule, SeveralForwardsAndBackwards) {
  const auto expected = whole_grads();
  run_ranks(2, {}, [&](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    auto net = std::make_shared<Net>();
    const Sharded<Net> sharded = sharded_net(net, mesh);
    const Split mine = split_of(9, world.rank(), 2);
    const at::Tensor ids = word_ids(9).narrow(0, mine.begin, mine.count), w = weights_of(9).narrow(0, mine.begin, mine.count);
    at::Tensor loss = (sharded(ids) * w).sum() + (sharded(ids) * w).sum();
    loss.backward();
    auto grads = gathered_grads(*net, mesh);
    for (auto& [name, grad] : grads) grad = grad / 2;
    expect_grads(grads, expected);
    net->zero_grad();
    loss = (sharded(ids) * w).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    grads = gathered_grads(*net, mesh);
    for (auto& [name, grad] : grads) grad = grad / 2;
    expect_grads(grads, expected);
  });
}

// Rank 0's loss does not reach a block that all ranks ran: nobody hangs, and its gradient is the others'.
TEST(ShardedModule, ABlockThatOneRankDoesNotReachCountsAsZero) {
  struct Pair : torch::nn::Module {
    Pair() : a(4, 4), b(4, 4), c(4, 4) { register_module("a", a), register_module("b", b), register_module("c", c); }
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor first = weft::forward(a, x), second = weft::forward(b, first);
      return weft::forward(c, cut ? first : second);
    }
    torch::nn::Linear a, b, c;
    bool cut = false;
  };
  const auto fill = [](torch::nn::Module& m) {
    at::NoGradGuard guard;
    uint64_t seed = 3;
    for (auto& p : m.parameters()) p.copy_(nn::testing::normal(p.sizes().vec(), seed++));
  };
  const auto x_of = [](int64_t rank) { return nn::testing::normal({3, 4}, 50 + static_cast<uint64_t>(rank)); };
  for (const int64_t unreached : {0, 1, 2}) {
    Pair whole;
    fill(whole);
    for (int64_t rank = 0; rank < 3; ++rank) {
      whole.cut = rank == unreached;
      whole.forward(x_of(rank)).sum().backward();
    }
    run_ranks(3, {}, [&](Communicator& world) {
      auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=3"), world);
      auto pair = std::make_shared<Pair>();
      fill(*pair);
      for (auto* block : {&pair->a, &pair->b, &pair->c}) (void)fully_shard(*block, mesh);
      const Sharded<Pair> sharded = fully_shard(pair, mesh);
      pair->cut = world.rank() == unreached;
      sharded(x_of(world.rank())).sum().backward();
      const auto expected = whole.named_parameters(), parts = pair->named_parameters();
      for (const auto& [name, t] : sharded_state_dict(*pair))
        EXPECT_LE(
            relative(DistributedTensor::from_local(parts[name].grad(), t.layout(), mesh).full_tensor(), expected[name].grad()),
            kClose)
            << name;
    });
  }
}

TEST(ShardedModule, TuplesAndRecurrentModules) {
  torch::nn::LSTM whole(torch::nn::LSTMOptions(4, 5));
  const at::Tensor x = nn::testing::normal({3, 2, 4}, 9);
  const auto fill = [](torch::nn::LSTM& m) {
    at::NoGradGuard guard;
    uint64_t seed = 3;
    for (auto& p : m->parameters()) p.copy_(nn::testing::normal(p.sizes().vec(), seed++));
  };
  fill(whole);
  auto [out, state] = whole->forward(x);
  (out.sum() + std::get<1>(state).sum()).backward();
  run_ranks(2, {}, [&](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(4, 5));
    fill(lstm);
    const auto sharded = fully_shard(lstm, mesh);
    auto [y, last] = sharded(x);
    (y.sum() + std::get<1>(last).sum()).backward();
    const auto expected = whole->named_parameters(), parts = lstm->named_parameters();
    for (const auto& [name, t] : sharded_state_dict(*lstm))
      EXPECT_LE(
          relative(DistributedTensor::from_local(parts[name].grad(), t.layout(), mesh).full_tensor(), expected[name].grad() * 2),
          kClose)
          << name;
  });
}

// FSDP2's policy: parameters travel and are read in param_dtype, outputs in output_dtype, parts and gradients in fp32.
TEST(ShardedModule, MixedPrecision) {
  struct Look : torch::nn::Module {
    Look() : linear(4, 3) { register_module("linear", linear); }
    at::Tensor forward(const at::Tensor& x) {
      input = x.scalar_type(), weight = linear->weight.scalar_type();
      return linear(x);
    }
    torch::nn::Linear linear;
    at::ScalarType input = at::kFloat, weight = at::kFloat;
  };
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    auto look = std::make_shared<Look>();
    {
      at::NoGradGuard guard;
      look->linear->weight.copy_(nn::testing::normal({3, 4}, 3)), look->linear->bias.zero_();
    }
    const at::Tensor weight = look->linear->weight.detach().clone();
    ShardModuleOptions options;
    options.param_dtype = at::kBFloat16;
    options.output_dtype = at::kFloat;
    options.gradient_divide_factor = 2;
    const auto sharded = fully_shard(look, mesh, options);
    const auto received = [&] { return world.stats().total().received; };
    const int64_t before = received();
    at::Tensor x = nn::testing::normal({2, 4}, 1).set_requires_grad(true);
    at::Tensor y = sharded(x);
    EXPECT_EQ(received() - before, 2 * (world.rank() == 0 ? 6 + 1 : 6 + 2));  // bf16: half of [3, 4], and the peer's part of [3]
    EXPECT_EQ(look->input, at::kBFloat16);
    EXPECT_EQ(look->weight, at::kBFloat16);
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    y.sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
    const at::Tensor part = look->named_parameters()["linear.weight"];
    EXPECT_EQ(part.scalar_type(), at::kFloat);
    EXPECT_EQ(part.grad().scalar_type(), at::kFloat);
    // Both ranks have the same rows, and the sum is divided by 2: one rank's gradient, with x rounded to bf16 (8 bits).
    const at::Tensor full =
        DistributedTensor::from_local(part.grad(), sharded.group().layout("linear.weight"), mesh).full_tensor();
    EXPECT_LE(relative(full, x.detach().sum(0).expand({3, 4})), 0.02);

    auto uncast = std::make_shared<Look>();
    options.cast_forward_inputs = false;
    const auto raw = fully_shard(uncast, mesh, options);
    (void)raw(x.detach().to(at::kBFloat16));
    EXPECT_EQ(uncast->input, at::kBFloat16);
    EXPECT_THROW((void)raw(x.detach()), std::exception);  // bf16 weights, fp32 rows: libtorch's own error
  });
}

TEST(ShardedModule, AParameterThatIsNotContiguous) {
  struct Turned : torch::nn::Module {
    Turned() { weight = register_parameter("weight", nn::testing::normal({6, 4}, 1).t()); }
    at::Tensor forward(const at::Tensor& x) { return x.matmul(weight); }
    at::Tensor weight;
  };
  const at::Tensor x = nn::testing::normal({4, 4}, 2), dy = nn::testing::normal({4, 6}, 3);
  Turned whole;
  (whole.forward(x) * dy).sum().backward();
  run_ranks(4, {}, [&](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=4"), world);
    auto turned = std::make_shared<Turned>();
    const auto sharded = fully_shard(turned, mesh);
    const at::Tensor y = sharded(x.narrow(0, world.rank(), 1));
    EXPECT_LE(relative(y.detach(), whole.forward(x).detach().narrow(0, world.rank(), 1)), kClose);
    (y * dy.narrow(0, world.rank(), 1)).sum().backward();
    EXPECT_LE(
        relative(
            DistributedTensor::from_local(turned->parameters()[0].grad(), sharded.group().layout("weight"), mesh).full_tensor(),
            whole.weight.grad()),
        kClose);
  });
}

// Tied within one group: one part under both names, and the gradient of both uses.
TEST(ShardedModule, TiedParametersOfOneGroup) {
  struct Tied : torch::nn::Module {
    Tied() : a(4, 4), b(4, 4) {
      register_module("a", a), register_module("b", b);
      shared = register_parameter("shared", a->weight);
      at::NoGradGuard guard;
      uint64_t seed = 3;
      for (auto& p : parameters()) p.copy_(nn::testing::normal(p.sizes().vec(), seed++));
    }
    at::Tensor forward(const at::Tensor& x) { return b(a(x)).matmul(shared); }
    torch::nn::Linear a, b;
    at::Tensor shared;
  };
  Tied whole;
  const at::Tensor x = nn::testing::normal({3, 4}, 2);
  whole.forward(x).sum().backward();
  run_ranks(2, {}, [&](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    auto tied = std::make_shared<Tied>();
    ShardModuleOptions options;
    options.gradient_divide_factor = 2;
    const auto sharded = fully_shard(tied, mesh, options);
    const auto parts = tied->named_parameters();
    EXPECT_TRUE(parts["shared"].is_same(parts["a.weight"]));
    sharded(x).sum().backward();
    EXPECT_LE(
        relative(DistributedTensor::from_local(parts["shared"].grad(), sharded.group().layout("shared"), mesh).full_tensor(),
                 whole.shared.grad()),
        kClose);
  });
}

}  // namespace
}  // namespace weft
