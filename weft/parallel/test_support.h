#pragma once
// For the tests of parallel: a small module tree with everything that is awkward to shard (sizes that divide by nothing, a tied
// table, a frozen and an unused parameter), and what one rank makes of the same rows.

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/comm/launch.h"
#include "weft/nn/autograd.h"
#include "weft/nn/embedding.h"
#include "weft/nn/linear.h"
#include "weft/nn/norm.h"
#include "weft/nn/test_support.h"
#include "weft/parallel/distributed_tensor.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/shard_group.h"

namespace weft::testing {

using nn::testing::normal;
using nn::testing::relative;
using nn::testing::same_bits;

class Block : public nn::Module {
 public:
  Block(std::string name, int64_t width, int64_t inner) : Module(std::move(name)) {
    norm = add_parameter("norm.weight", {width}, nn::Precision::kFp32);
    up = add_parameter("up.weight", {inner, width});
    bias = add_parameter("up.bias", {inner}, nn::Precision::kFp32);
    down = add_parameter("down.weight", {width, inner});
    unused = add_parameter("unused.weight", {3, 2});
  }
  at::Tensor forward(const at::Tensor& x) {
    return run([&] {
      const at::ScalarType dtype = up->param_dtype();
      at::Tensor h = nn::linear(nn::rms_norm(x, *norm, 1e-6f, dtype, false).rounded, *up, bias, dtype);
      if (watch) watch();
      return nn::add(x, nn::linear(h, *down, nullptr, at::kFloat));
    });
  }
  nn::Parameter *norm, *up, *bias, *down, *unused;
  std::function<void()> watch;
};

class Tree : public nn::Module {
 public:
  static constexpr int64_t kVocab = 11, kWidth = 6;
  Tree() : Module("") {
    table = add_parameter("table.weight", {kVocab, kWidth});
    for (int64_t i = 0; i < 3; ++i) blocks.push_back(add_module<Block>(fmt::format("blocks.{}", i), kWidth, 5 + 2 * i));
    blocks[1]->up->set_trainable(false);
  }
  // The table is the head as well.
  at::Tensor forward(const at::Tensor& ids, bool recompute = false) {
    return run([&] {
      at::Tensor x = nn::embedding(ids, *table);
      for (Block* b : blocks)
        x = recompute ? nn::recompute(x, [b](const at::Tensor& in) { return b->forward(in); }) : b->forward(x);
      return nn::linear(nn::to_dtype(x, table->param_dtype()), *table, nullptr, at::kFloat);
    });
  }
  nn::Parameter* table;
  std::vector<Block*> blocks;
};

inline at::Tensor value_of(const nn::Parameter& p) {
  uint64_t seed = 1;
  for (char c : p.name()) seed = hash_combine(seed, static_cast<uint64_t>(c));
  return nn::testing::normal(p.shape(), seed, 0.3f);
}

inline at::Tensor ids_of(int64_t rows, uint64_t seed) {
  at::Tensor ids = at::empty({rows}, at::kInt);
  for (int64_t i = 0; i < rows; ++i)
    ids.data_ptr<int32_t>()[i] = static_cast<int32_t>(CounterRng(seed).below(static_cast<uint64_t>(i), Tree::kVocab));
  return ids;
}

inline std::unique_ptr<Tree> whole_tree(at::ScalarType dtype) {
  auto tree = std::make_unique<Tree>();
  for (nn::Parameter* p : tree->parameters()) {
    p->materialize(at::kCPU, dtype);
    p->master().copy_(value_of(*p));
    p->updated();
  }
  return tree;
}

// Each block, then the rest; every rank's masters are its parts of value_of.
inline std::unique_ptr<Tree> sharded_tree(const std::shared_ptr<const RankMesh>& mesh, at::ScalarType dtype,
                                          FullyShardOptions options = {}) {
  auto tree = std::make_unique<Tree>();
  for (Block* b : tree->blocks) fully_shard(*b, mesh, options);
  fully_shard(*tree, mesh, options);
  for (nn::Parameter* p : tree->parameters()) {
    p->materialize(at::kCPU, dtype);
    p->master().copy_(DistributedTensor::distribute(value_of(*p), layout_of(*p, *mesh), mesh).local());
    p->updated();
  }
  return tree;
}

// Row i of `rows` has the gradient of row i of the whole batch, wherever it runs.
inline at::Tensor cotangent_of(int64_t rows) { return nn::testing::normal({rows, Tree::kVocab}, 77); }

inline at::Tensor full_grad(nn::Parameter& p, const std::shared_ptr<const RankMesh>& mesh) {
  return DistributedTensor::from_local(p.mutable_grad(), layout_of(p, *mesh), mesh).full_tensor();
}

}  // namespace weft::testing
