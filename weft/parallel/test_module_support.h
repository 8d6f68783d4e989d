#pragma once
// For the tests of sharded_module.h: a model of libtorch's modules with everything that is awkward to shard, and one rank's
// gradients.

#include <ATen/ops/relu.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/parallel/sharded_module.h"
#include "weft/parallel/test_support.h"

namespace weft::testing {

constexpr int64_t kWords = 11, kWide = 6;
// libtorch's products of other numbers of rows sum in another order: the same few roundings of fp32 as between ranks.
constexpr double kClose = 1e-5;

struct Feed : torch::nn::Module {
  explicit Feed(int64_t inner)
      : norm(torch::nn::LayerNormOptions({kWide})), up(kWide, inner), down(inner, kWide), frozen(kWide, kWide) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
    register_module("frozen", frozen);
    scale = register_parameter("scale", at::empty({kWide}));
    unused = register_parameter("unused", at::empty({3, 2}));
    frozen->weight.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (watch) watch();
    return x + frozen(down(at::relu(up(norm(x))))) * scale;
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down, frozen;
  at::Tensor scale, unused;
  std::function<void()> watch;
};

// Sizes that divide by nothing, a tied head, a block that may run twice.
struct Net : torch::nn::Module {
  Net() : words(kWords, kWide), norm(torch::nn::LayerNormOptions({kWide})) {
    register_module("words", words);
    for (int i = 0; i < 3; ++i) feeds.push_back(register_module(fmt::format("feeds_{}", i), std::make_shared<Feed>(5 + 2 * i)));
    register_module("norm", norm);
    at::NoGradGuard guard;
    for (auto& item : named_parameters()) {
      uint64_t seed = 1;
      for (char c : item.key()) seed = hash_combine(seed, static_cast<uint64_t>(c));
      item.value().copy_(nn::testing::normal(item.value().sizes().vec(), seed, 0.5f));
    }
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = words(ids);
    for (size_t i = 0; i < feeds.size(); ++i)
      if (static_cast<int64_t>(i) != skip) x = weft::forward(feeds[i], x);
    if (twice) x = weft::forward(feeds[1], x);
    return norm(x).matmul(words->weight.t());
  }
  torch::nn::Embedding words;
  std::vector<std::shared_ptr<Feed>> feeds;
  torch::nn::LayerNorm norm;
  int64_t skip = -1;
  bool twice = false;
};

inline at::Tensor word_ids(int64_t rows) { return ids_of(rows, 5).to(at::kLong); }
inline at::Tensor weights_of(int64_t rows) { return nn::testing::normal({rows, kWords}, 77); }

inline Sharded<Net> sharded_net(const std::shared_ptr<Net>& net, const std::shared_ptr<const RankMesh>& mesh,
                                const ShardModuleOptions& options = {}) {
  for (auto& feed : net->feeds) (void)fully_shard(feed, mesh, options);
  return fully_shard(net, mesh, options);
}

inline std::map<std::string, at::Tensor> whole_grads(bool twice = false, int64_t rows = 9) {
  Net net;
  net.twice = twice;
  (net.forward(word_ids(rows)) * weights_of(rows)).sum().backward();
  std::map<std::string, at::Tensor> out;
  for (auto& item : net.named_parameters()) out[item.key()] = item.value().grad();
  return out;
}

// Gradients of the parts, put together by the layouts of sharded_state_dict.
inline std::map<std::string, at::Tensor> gathered_grads(Net& net, const std::shared_ptr<const RankMesh>& mesh) {
  std::map<std::string, at::Tensor> parts, out;
  for (auto& item : net.named_parameters()) parts[item.key()] = item.value().grad();
  for (auto& [name, t] : sharded_state_dict(net))
    if (parts.at(name).defined()) out[name] = DistributedTensor::from_local(parts.at(name), t.layout(), mesh).full_tensor();
  return out;
}

inline void expect_grads(const std::map<std::string, at::Tensor>& got, const std::map<std::string, at::Tensor>& expected,
                         double bound = kClose) {
  for (const auto& [name, grad] : expected) {
    if (name.find("frozen.weight") != std::string::npos) {
      EXPECT_FALSE(got.contains(name)) << name;
    } else if (!grad.defined()) {
      EXPECT_EQ(got.at(name).abs().max().item<float>(), 0.0f) << name;
    } else {
      ASSERT_TRUE(got.contains(name)) << name;
      EXPECT_LE(nn::testing::relative(got.at(name), grad), bound) << name;
    }
  }
}

struct Split {
  int64_t begin, count;
};
inline Split split_of(int64_t rows, int64_t rank, int64_t ranks) {
  const int64_t chunk = (rows + ranks - 1) / ranks, begin = std::min(rows, rank * chunk);
  return {begin, std::min(rows, begin + chunk) - begin};
}

inline void backward_of(const Sharded<Net>& net, int64_t rows, const Split& mine) {
  at::Tensor y = net(word_ids(rows).narrow(0, mine.begin, mine.count));
  (y * weights_of(rows).narrow(0, mine.begin, mine.count)).sum().backward();
}

}  // namespace weft::testing
