// Sharded modules of libtorch that are used otherwise than they can be: an error that names what, never another result.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/parameterlist.h>
#include <torch/optim/sgd.h>

#include "weft/base/error.h"
#include "weft/parallel/test_module_support.h"

namespace weft {
namespace {

using nn::testing::same_bits;
using namespace testing;

// Never a wrong result: a sharded block that is not called through weft::forward says so, with and without gradients, in both
// directions.
TEST(ShardedModuleErrors, AForwardWithoutItIsAnErrorThatNamesTheParameter) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    auto net = std::make_shared<Net>();
    const Sharded<Net> sharded = sharded_net(net, mesh);
    const auto expect_named = [](const std::function<void()>& f, const std::string& name) {
      try {
        f();
        ADD_FAILURE() << "no error for " << name;
      } catch (const ValueError& e) {
        EXPECT_NE(std::string(e.what()).find('"' + name + '"'), std::string::npos) << e.what();
        EXPECT_NE(std::string(e.what()).find("weft::forward"), std::string::npos) << e.what();
      }
    };
    const at::Tensor x = nn::testing::normal({2, kWide}, 1);
    const auto all = [&] {
      expect_named([&] { (void)net->feeds[1]->forward(x); }, "feeds_1.norm.weight");
      expect_named([&] { (void)net->forward(word_ids(2)); }, "words.weight");
      expect_named([&] { (void)(x * net->feeds[1]->scale); }, "feeds_1.scale");
      expect_named([&] { (void)net->words->weight.item(); }, "words.weight");
      at::NoGradGuard guard;
      expect_named([&] { (void)(x * net->feeds[1]->scale); }, "feeds_1.scale");
    };
    all();
    at::Tensor y = sharded(word_ids(2));
    all();  // the outermost group is still gathered
    y.sum().backward();
    all();
  });
}

// An embedding's backward reads no table, so its gather can be left out; a product's is an error then.
TEST(ShardedModuleErrors, NoGatherInTheBackward) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    const auto unshard_bytes = [&] { return world.stats().of(OpKind::kAllGather, "fsdp", "unshard").received; };
    ShardModuleOptions options;
    options.reshard_after_forward = true;
    torch::nn::Embedding words(kWords, kWide);
    const auto table = fully_shard(words, mesh, options);
    table.group().set_unshard_in_backward(false);
    at::Tensor y = table(word_ids(5));
    const int64_t before = unshard_bytes();
    y.sum().backward();
    EXPECT_EQ(unshard_bytes(), before);
    EXPECT_TRUE(words->parameters()[0].grad().defined());

    torch::nn::Linear linear(4, 4);
    const auto product = fully_shard(linear, mesh, options);
    product.group().set_unshard_in_backward(false);
    at::Tensor x = nn::testing::normal({2, 4}, 1).set_requires_grad(true);
    y = product(x);
    EXPECT_THROW(y.sum().backward(), std::exception);  // its view of the weight has no memory
  });
}

// What leaves a forward other than by being returned does not bring the parameters back: an error where its backward reads them.
TEST(ShardedModuleErrors, TensorsThatLeaveAForwardOtherwise) {
  struct Aside : torch::nn::Module {
    Aside() : linear(4, 4) {
      register_module("linear", linear);
      scale = register_parameter("scale", nn::testing::normal({4}, 2));
    }
    at::Tensor forward(const at::Tensor& x) {
      product = linear(x).sum(), scaled = (x * scale).sum();
      return x + 1;
    }
    torch::nn::Linear linear;
    at::Tensor scale, product, scaled;
  };
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    ShardModuleOptions options;
    options.reshard_after_forward = true;
    for (const bool scaled : {false, true}) {
      auto aside = std::make_shared<Aside>();
      const auto sharded = fully_shard(aside, mesh, options);
      at::Tensor x = nn::testing::normal({2, 4}, 1).set_requires_grad(true);
      (void)sharded(x);
      EXPECT_THROW((scaled ? aside->scaled : aside->product).backward(), std::exception);
    }
  });
}

// After an update the next forward gathers anew, also where the group was still gathered; between forward and backward it is an
// error.
TEST(ShardedModuleErrors, UpdatesReachTheNextForward) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    auto net = std::make_shared<Net>();
    Net whole;
    ShardModuleOptions options;
    options.reshard_after_forward = false;
    const Sharded<Net> sharded = sharded_net(net, mesh, options);
    const auto halve = [](torch::nn::Module& m) {
      at::NoGradGuard guard;
      for (auto& p : m.parameters()) p.mul_(0.5);
    };
    {
      at::NoGradGuard guard;
      (void)sharded(word_ids(4));
      EXPECT_TRUE(shard_groups(*net)[1]->unsharded());
      halve(*net), halve(whole);
      EXPECT_TRUE(same_bits(sharded(word_ids(4)), whole.forward(word_ids(4))));
      EXPECT_EQ(sharded(word_ids(0)).sizes(), (std::vector<int64_t>{0, kWords}));
    }
    at::Tensor y = sharded(word_ids(4));
    halve(*net);
    try {
      y.sum().backward();
      ADD_FAILURE();
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find("changed between its forward and its backward"), std::string::npos) << e.what();
    }
  });
}

// What would work on the wrong tensors: an optimizer on what members hold, a copy of the module.
TEST(ShardedModuleErrors, OptimizersOfMembersAndCopies) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    torch::nn::Linear linear(4, 4);
    const auto sharded = fully_shard(linear, mesh);
    EXPECT_THROW(torch::optim::SGD({linear->weight}, 0.1), std::exception);
    EXPECT_NO_THROW(torch::optim::SGD(linear->parameters(), 0.1));
    EXPECT_THROW((void)linear->clone(), std::exception);
  });
}

TEST(ShardedModuleErrors, MistakesAreNamed) {
  run_ranks(2, {}, [](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    const auto expect_error = [](const std::string& text, const std::function<void()>& f) {
      try {
        f();
        ADD_FAILURE() << "no error: " << text;
      } catch (const ValueError& e) {
        EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
      }
    };
    auto net = std::make_shared<Net>();
    (void)fully_shard(net->feeds[0], mesh);
    expect_error("is sharded already", [&] { (void)fully_shard(net->feeds[0], mesh); });

    // Tied across groups, and within one.
    struct Tied : torch::nn::Module {
      Tied() : a(4, 4), b(4, 4) {
        register_module("a", a), register_module("b", b);
        shared = register_parameter("shared", a->weight);
      }
      at::Tensor forward(const at::Tensor& x) { return b(a(x)).matmul(shared); }
      torch::nn::Linear a, b;
      at::Tensor shared;
    };
    auto tied = std::make_shared<Tied>();
    (void)fully_shard(tied->a, mesh);
    expect_error("shared is shared with a parameter of a module below", [&] { (void)fully_shard(tied, mesh); });

    struct Scalar : torch::nn::Module {
      Scalar() { s = register_parameter("s", at::empty({})); }
      at::Tensor forward(const at::Tensor& x) { return x * s; }
      at::Tensor s;
    };
    auto scalar = std::make_shared<Scalar>();
    expect_error("s has no dims", [&] { (void)fully_shard(scalar, mesh); });
    ShardModuleOptions ignoring;
    ignoring.ignored = {scalar->s};
    EXPECT_NO_THROW((void)fully_shard(scalar, mesh, ignoring));

    torch::nn::ParameterList list;
    list->append(nn::testing::normal({2, 2}, 1));
    struct Listed : torch::nn::Module {
      explicit Listed(torch::nn::ParameterList l) : list(std::move(l)) { register_module("list", list); }
      at::Tensor forward(const at::Tensor& x) { return x.matmul(list[0]); }
      torch::nn::ParameterList list;
    };
    expect_error("list.0 is held by its registration only", [&] { (void)fully_shard(std::make_shared<Listed>(list), mesh); });

    ShardModuleOptions three;
    three.reshard_after_forward = 3;
    expect_error("must divide the number of shards, 2", [&] { (void)fully_shard(torch::nn::Linear(2, 2), mesh, three); });

    struct Leak : torch::nn::Module {
      Leak() : linear(4, 4) { register_module("linear", linear); }
      at::Tensor forward(const at::Tensor& x) { return linear(x).narrow(0, 0, 0), linear->weight.t(); }
      torch::nn::Linear linear;
    };
    auto leak = std::make_shared<Leak>();
    const auto leaking = fully_shard(leak, mesh);
    expect_error("returns its parameter linear.weight or a view of it", [&] { (void)leaking(nn::testing::normal({1, 4}, 1)); });
  });
}

}  // namespace
}  // namespace weft
