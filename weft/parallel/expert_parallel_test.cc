// Experts on the ranks of an ep axis equal experts on one rank: outputs bit for bit, gradients up to the order of sums.
#include "weft/parallel/expert_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <mutex>
#include <numeric>

#include "weft/nn/moe.h"
#include "weft/parallel/test_support.h"

namespace weft {
namespace {

using namespace testing;

constexpr int64_t kHidden = 24, kWidth = 10;

struct ExpertCase {
  std::string mesh;
  int64_t experts, top_k;
  std::vector<int64_t> rows;          // of each rank
  std::vector<int32_t> favourites{};  // experts that every token takes; empty: any
  at::ScalarType dtype = at::kFloat;
};

class EpLayer : public nn::Module {
 public:
  explicit EpLayer(int64_t experts) : Module("mlp.experts") {
    gate_up = add_parameter("gate_up_proj", {experts, 2 * kWidth, kHidden});
    down = add_parameter("down_proj", {experts, kHidden, kWidth});
  }
  nn::Parameter *gate_up, *down;
};

at::Tensor routes(const ExpertCase& c, int64_t rows) {
  at::Tensor ids = at::empty({rows, c.top_k}, at::kInt);
  for (int64_t t = 0; t < rows; ++t) {
    std::vector<int32_t> choice(static_cast<size_t>(c.experts));
    std::iota(choice.begin(), choice.end(), 0);
    if (!c.favourites.empty()) choice = c.favourites;
    const CounterRng rng(static_cast<uint64_t>(t) + 100);
    for (int64_t s = 0; s < c.top_k; ++s) {
      const size_t at = c.favourites.empty() ? rng.below(static_cast<uint64_t>(s), choice.size()) : 0;
      ids.data_ptr<int32_t>()[t * c.top_k + s] = choice[at];
      choice.erase(choice.begin() + static_cast<int64_t>(at));
    }
  }
  return ids;
}

struct Outcome {
  at::Tensor y, dx, dgates;
  std::map<std::string, at::Tensor> grads;
};

Outcome run_experts(const std::function<at::Tensor(const at::Tensor& x, const at::Tensor& gates)>& fn, const at::Tensor& x,
                    const at::Tensor& gates, const at::Tensor& dy) {
  at::Tensor xs = x.clone().set_requires_grad(true), gs = gates.clone().set_requires_grad(true);
  at::Tensor y = fn(xs, gs);
  nn::backward({y}, {dy});
  return {y.detach(), xs.grad(), gs.grad(), {}};
}

void expect_experts_equal_one_rank(const ExpertCase& c) {
  SCOPED_TRACE(fmt::format("{}: {} experts, top {}, rows {}", c.mesh, c.experts, c.top_k, fmt::join(c.rows, "+")));
  const int64_t total = std::accumulate(c.rows.begin(), c.rows.end(), int64_t{0});
  const at::Tensor x = normal({total, kHidden}, 1).to(c.dtype), gates = normal({total, c.top_k}, 2).abs(),
                   dy = normal({total, kHidden}, 3);
  const at::Tensor ids = routes(c, total);
  EpLayer whole(c.experts);
  for (nn::Parameter* p : whole.parameters()) {
    p->materialize(at::kCPU, c.dtype);
    p->master().copy_(value_of(*p));
    p->updated();
  }
  Outcome one = run_experts(
      [&](const at::Tensor& a, const at::Tensor& g) { return nn::moe_experts(a, g, ids, *whole.gate_up, *whole.down); }, x, gates,
      dy);

  const ParallelDims dims = parse_parallel_dims(c.mesh);
  run_ranks(static_cast<int>(dims.world()), {}, [&](Communicator& world) {
    auto mesh = make_rank_mesh(dims, world);
    EpLayer mine(c.experts);
    FullyShardOptions options;
    options.plan = {cut("*.experts.*", "ep", 0)};
    fully_shard(mine, mesh, options);
    for (nn::Parameter* p : mine.parameters()) {
      p->materialize(at::kCPU, c.dtype);
      p->master().copy_(DistributedTensor::distribute(value_of(*p), layout_of(*p, *mesh), mesh).local());
      p->updated();
    }
    const size_t rank = static_cast<size_t>(world.rank());
    const int64_t begin = std::accumulate(c.rows.begin(), c.rows.begin() + static_cast<int64_t>(rank), int64_t{0}),
                  n = c.rows[rank];
    const at::Tensor here = ids.narrow(0, begin, n).contiguous();
    world.stats().clear();
    Outcome many = run_experts(
        [&](const at::Tensor& a, const at::Tensor& g) { return moe_experts(a, g, here, *mine.gate_up, *mine.down, mesh->ep); },
        x.narrow(0, begin, n), gates.narrow(0, begin, n), dy.narrow(0, begin, n));
    // What travels: a row for each (token, slot) whose expert is elsewhere, there and back, and in the backward the other way.
    const int64_t chunk = (c.experts + dims.ep - 1) / dims.ep, row_bytes = kHidden * static_cast<int64_t>(x.element_size());
    int64_t rows_moved = 0;
    for (const int64_t peer : mesh->expert.group(world.rank(), "ep")) {
      const int64_t from = std::accumulate(c.rows.begin(), c.rows.begin() + peer, int64_t{0}) * c.top_k;
      for (int64_t i = 0; i < c.rows[static_cast<size_t>(peer)] * c.top_k; ++i) {
        const int64_t owner = ids.data_ptr<int32_t>()[from + i] / chunk;
        if (peer == world.rank())
          rows_moved += owner != mesh->ep.rank();
        else
          rows_moved += owner == mesh->ep.rank();
      }
    }
    for (const char* purpose : {"dispatch", "combine"}) {
      EXPECT_EQ(world.stats().of(OpKind::kAllToAll, "ep", purpose).sent, rows_moved * row_bytes);
      EXPECT_EQ(world.stats().of(OpKind::kAllToAll, "ep", purpose).received, rows_moved * row_bytes);
    }
    EXPECT_EQ(
        world.stats().of(OpKind::kAllToAll, "ep", "dispatch_counts").sent,
        8 * (c.experts - (std::min(c.experts, chunk * (mesh->ep.rank() + 1)) - std::min(c.experts, chunk * mesh->ep.rank()))));

    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(same_bits(many.y, one.y.narrow(0, begin, n)));
    EXPECT_TRUE(same_bits(many.dx, one.dx.narrow(0, begin, n)));
    EXPECT_TRUE(same_bits(many.dgates, one.dgates.narrow(0, begin, n)));
    // Weight gradients are sums over tokens, by chunks of a rank's: another order.
    for (nn::Parameter* p : mine.parameters()) {
      const nn::Parameter* w = p == mine.gate_up ? whole.gate_up : whole.down;
      const at::Tensor expected = w->grad().defined() ? w->grad() : at::zeros(w->shape(), at::kFloat);
      for (const LocalBox& b : local_boxes(*p)) {
        at::Tensor ours = p->mutable_grad(), theirs = expected;
        for (size_t d = 0; d < b.box.size.size(); ++d) {
          ours = ours.narrow(static_cast<int64_t>(d), b.local_offset[d], b.box.size[d]);
          theirs = theirs.narrow(static_cast<int64_t>(d), b.box.offset[d], b.box.size[d]);
        }
        EXPECT_LE((ours - theirs).abs().max().item<double>(), 4e-6 * std::max(1e-3, expected.abs().max().item<double>()))
            << p->name();
      }
    }
  });
}

TEST(ExpertParallel, EqualsOneRank) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    expect_experts_equal_one_rank({"fsdp=2,ep=2", 8, 2, {7, 5}, {}, dtype});
    expect_experts_equal_one_rank({"fsdp=4,ep=2", 8, 3, {7, 0, 1, 12}, {}, dtype});
    expect_experts_equal_one_rank({"replicate=2,fsdp=2,ep=2", 6, 2, {4, 4, 9, 1}, {}, dtype});
    expect_experts_equal_one_rank({"fsdp=3,ep=3", 7, 2, {5, 6, 300}, {}, dtype});  // 3, 3 and 1 experts
  }
}

TEST(ExpertParallel, RanksWithoutTokensOrExperts) {
  expect_experts_equal_one_rank({"fsdp=4,ep=4", 3, 1, {3, 0, 2, 4}});       // the last rank has no expert
  expect_experts_equal_one_rank({"fsdp=4,ep=4", 8, 2, {0, 0, 0, 0}});       // nobody has a token
  expect_experts_equal_one_rank({"fsdp=4,ep=4", 8, 1, {6, 3, 0, 1}, {5}});  // all on one expert
  expect_experts_equal_one_rank({"fsdp=2,ep=2", 8, 3, {6, 3}, {7, 6, 0}});  // slots not in expert order
  expect_experts_equal_one_rank({"fsdp=8,ep=4", 5, 2, {1, 0, 3, 0, 2, 2, 0, 9}});
}

// What makes it so: slots are summed in their order at home. In the order in which ranks come, other bits.
TEST(ExpertParallel, SumInRankOrderIsNotTheSame) {
  const ExpertCase c{"fsdp=2,ep=2", 8, 3, {40, 0}, {7, 6, 0}};
  const at::Tensor x = normal({40, kHidden}, 1), gates = normal({40, 3}, 2).abs(), ids = routes(c, 40);
  EpLayer whole(8);
  for (nn::Parameter* p : whole.parameters()) {
    p->materialize(at::kCPU, at::kFloat);
    p->master().copy_(value_of(*p));
    p->updated();
  }
  at::NoGradGuard guard;
  const at::Tensor y = nn::moe_experts(x, gates, ids, *whole.gate_up, *whole.down);
  at::Tensor other = at::zeros_like(y);
  for (const int64_t slot : {2, 0, 1})  // expert 0 is on rank 0
    other = other + nn::moe_experts(x, gates.narrow(1, slot, 1).contiguous(), ids.narrow(1, slot, 1).contiguous(), *whole.gate_up,
                                    *whole.down);
  EXPECT_FALSE(same_bits(y, other));
  EXPECT_LT(relative(other, y), 1e-6);
}

}  // namespace
}  // namespace weft
