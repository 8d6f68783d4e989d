// The memory of a rank, counted by the allocator: its shards, the outermost group, two groups' parameters and two groups'
// gradients.
#include <ATen/ops/relu.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <deque>
#include <mutex>

#include "weft/parallel/sharded_module.h"
#include "weft/parallel/test_counting_allocator.h"
#include "weft/parallel/test_support.h"

namespace weft {
namespace {

using testing::Block;
using testing::ByteMeter;
using testing::CountBytes;

constexpr int64_t kBlocks = 8, kSize = 64, kInner = 512, kVocabulary = 256, kRows = 8;
constexpr int64_t kGroupBytes = 4 * (2 * kSize * kInner + kInner + kSize + 6), kTableBytes = 4 * kVocabulary * kSize;

struct Peaks {
  int64_t shards = 0;  // parameters, gradients, two moments
  int64_t peak = 0;
  int64_t packed = 0;        // the most packed weights at one time
  int64_t packed_after = 0;  // what is left of them
};

// design: 1.05 x (own shards + outermost group + 2G parameters + 2G gradients) + activations. The outermost group has a gradient,
// too.
int64_t bound(const Peaks& p, int64_t activations) {
  return (p.shards + 2 * kTableBytes + 4 * kGroupBytes) * 105 / 100 + activations;
}

class Stack : public nn::Module {
 public:
  Stack() : Module("") {
    table = add_parameter("table.weight", {kVocabulary, kSize});
    for (int64_t i = 0; i < kBlocks; ++i) blocks.push_back(add_module<Block>(fmt::format("blocks.{}", i), kSize, kInner));
  }
  at::Tensor forward(const at::Tensor& ids) {
    return run([&] {
      at::Tensor x = nn::embedding(ids, *table);
      for (Block* b : blocks) x = b->forward(x);
      return nn::linear(x, *table, nullptr, at::kFloat);
    });
  }
  nn::Parameter* table;
  std::vector<Block*> blocks;
};

// Meters outlive what they count, which may be freed after its rank has returned.
ByteMeter& new_meter() {
  static std::mutex mutex;
  static std::deque<ByteMeter> meters;
  std::lock_guard lock(mutex);
  return meters.emplace_back();
}

struct Meter {
  Meter() : bytes(new_meter()) { testing::this_ranks_meter = &bytes; }
  ~Meter() { testing::this_ranks_meter = nullptr; }
  ByteMeter& bytes;
};

enum class Break { kNothing, kPrefetchAll, kNoReshard };

// The worst rank's. Without mesh: one rank with whole parameters.
Peaks measure(int ranks, Break fault) {
  Peaks worst;
  std::mutex mutex;
  run_ranks(ranks, {}, [&](Communicator& world) {
    Meter meter;
    auto mesh = make_rank_mesh(parse_parallel_dims(fmt::format("fsdp={}", ranks)), world);
    Stack stack;
    const std::vector<nn::Module*> blocks(stack.blocks.begin(), stack.blocks.end());
    if (ranks > 1) {
      FullyShardOptions options;
      if (fault == Break::kNoReshard) options.reshard_after_forward = false;
      for (Block* b : stack.blocks) fully_shard(*b, mesh, options);
      fully_shard(stack, mesh);
      if (fault == Break::kPrefetchAll) set_modules_to_forward_prefetch(*blocks[0], blocks);
    }
    const auto parameters = stack.parameters();
    std::vector<at::Tensor> moments;
    for (nn::Parameter* p : parameters) {
      p->materialize(at::kCPU, at::kFloat);
      p->master().fill_(0.01);
      p->updated();
      p->mutable_grad();
      for (int i = 0; i < 2; ++i) moments.push_back(at::zeros_like(p->master()));
    }
    Peaks mine;
    mine.shards = meter.bytes.live;
    const auto packed = [&] {
      int64_t bytes = 0;
      for (nn::Parameter* p : parameters) bytes += p->packed_bytes();
      return bytes;
    };
    for (Block* b : stack.blocks) b->watch = [&] { mine.packed = std::max(mine.packed, packed()); };
    for (int step = 0; step < 2; ++step) {
      if (step == 1) meter.bytes.restart();  // the order of groups is known
      at::Tensor y = stack.forward(testing::ids_of(kRows, 5));
      nn::backward({y}, {nn::testing::normal({kRows, kVocabulary}, 7)});
      for (nn::Parameter* p : parameters) p->updated();
    }
    mine.peak = meter.bytes.peak;
    mine.packed_after = packed();
    if (ranks > 1) {
      EXPECT_EQ(meter.bytes.live, mine.shards);  // nothing stays
    }
    std::lock_guard lock(mutex);
    worst.shards = std::max(worst.shards, mine.shards), worst.peak = std::max(worst.peak, mine.peak);
    worst.packed = std::max(worst.packed, mine.packed), worst.packed_after = std::max(worst.packed_after, mine.packed_after);
  });
  return worst;
}

TEST(ShardMemory, StaysWithinTheBoundAndTheBoundNeedsPrefetchOfOneAndReshard) {
  CountBytes counting;
  const Peaks one = measure(1, Break::kNothing);
  const int64_t activations = one.peak - one.shards;  // of as many rows
  EXPECT_GT(activations, 0);
  for (const int ranks : {2, 4, 8}) {
    const Peaks sharded = measure(ranks, Break::kNothing);
    EXPECT_LE(sharded.peak, bound(sharded, activations)) << ranks << " ranks";
    EXPECT_LE(sharded.shards, one.shards / ranks * 105 / 100);
    // Packed weights: one block's (padded to panels of 16 columns) beside the table's, and nothing once they were given back.
    EXPECT_LE(sharded.packed, 4 * 2 * kSize * kInner);
    EXPECT_GT(sharded.packed, 0);
    EXPECT_EQ(sharded.packed_after, 0);
    EXPECT_GT(measure(ranks, Break::kPrefetchAll).peak, bound(sharded, activations)) << ranks << " ranks";
    EXPECT_GT(measure(ranks, Break::kNoReshard).peak, bound(sharded, activations)) << ranks << " ranks";
  }
}

struct Wide : torch::nn::Module {
  Wide() : up(kSize, kInner), down(kInner, kSize) { register_module("up", up), register_module("down", down); }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::relu(up(x))); }
  torch::nn::Linear up, down;
};
struct WideStack : torch::nn::Module {
  WideStack() : head(kSize, kVocabulary) {
    for (int64_t i = 0; i < kBlocks; ++i) blocks.push_back(register_module(fmt::format("block{}", i), std::make_shared<Wide>()));
    register_module("head", head);
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& b : blocks) x = weft::forward(b, x);
    return head(x);
  }
  std::vector<std::shared_ptr<Wide>> blocks;
  torch::nn::Linear head;
};

// The same for libtorch's modules, whose graph keeps views of what was gathered.
Peaks measure_modules(int ranks, Break fault) {
  Peaks worst;
  std::mutex mutex;
  run_ranks(ranks, {}, [&](Communicator& world) {
    Meter meter;
    auto mesh = make_rank_mesh(parse_parallel_dims(fmt::format("fsdp={}", ranks)), world);
    auto stack = std::make_shared<WideStack>();
    if (ranks > 1) {
      ShardModuleOptions options;
      if (fault == Break::kNoReshard) options.reshard_after_forward = false;
      for (auto& b : stack->blocks) (void)fully_shard(b, mesh, options);
      (void)fully_shard(stack, mesh);
      if (fault == Break::kPrefetchAll) {
        std::vector<ShardGroup*> groups = shard_groups(*stack);
        groups.erase(groups.begin());
        groups[0]->set_forward_prefetch(groups);
      }
    }
    std::vector<at::Tensor> moments;
    for (at::Tensor& p : stack->parameters()) {
      p.mutable_grad() = at::zeros_like(p);
      for (int i = 0; i < 2; ++i) moments.push_back(at::zeros_like(p));
    }
    Peaks mine;
    mine.shards = meter.bytes.live;
    for (int step = 0; step < 2; ++step) {
      if (step == 1) meter.bytes.restart();
      weft::forward(stack, nn::testing::normal({kRows, kSize}, 3)).sum().backward();
    }
    mine.peak = meter.bytes.peak;
    if (ranks > 1) {
      EXPECT_EQ(meter.bytes.live, mine.shards);  // nothing stays
    }
    std::lock_guard lock(mutex);
    worst.shards = std::max(worst.shards, mine.shards), worst.peak = std::max(worst.peak, mine.peak);
  });
  return worst;
}

TEST(ShardMemory, TheSameForModulesOfLibtorch) {
  CountBytes counting;
  // One rank's own peak holds a block's gradients until they are added; activations alone are eight rows of what a block keeps.
  const int64_t activations = 4 * kRows * (kBlocks + 1) * (3 * kInner + 3 * kSize);
  for (const int ranks : {2, 4}) {
    const Peaks sharded = measure_modules(ranks, Break::kNothing);
    EXPECT_LE(sharded.peak, bound(sharded, activations)) << ranks << " ranks";
    EXPECT_GT(measure_modules(ranks, Break::kPrefetchAll).peak, bound(sharded, activations)) << ranks << " ranks";
    EXPECT_GT(measure_modules(ranks, Break::kNoReshard).peak, bound(sharded, activations)) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace weft
