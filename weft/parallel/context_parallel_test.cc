// Attention shared among the ranks of cp equals attention on one rank: outputs bit for bit, gradients up to the order of sums.
#include "weft/parallel/context_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <mutex>

#include "weft/parallel/test_support.h"

namespace weft {
namespace {

using namespace testing;

constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 10;
const nn::AttentionShape kShape{kHeads, kKvHeads, kHeadDim, 0.3f};

struct Attended {
  at::Tensor o, dq, dk, dv;
};

Attended attend_and_backward(nn::AttentionContext& attention, const std::vector<at::Tensor>& in, const at::Tensor& d_o) {
  std::vector<at::Tensor> x;
  for (const at::Tensor& t : in) x.push_back(t.clone().set_requires_grad(true));
  const at::Tensor o = attention.attend(0, x[0], x[1], x[2]);
  nn::backward({o}, {d_o});
  return {o.detach(), x[0].grad(), x[1].grad(), x[2].grad()};
}

// Sequences shorter than 2*cp, of one token, of none, and longer than a block of keys.
void expect_contexts_equal_one_rank(const std::vector<int64_t>& offsets, int ranks, ContextSplit split, at::ScalarType dtype) {
  SCOPED_TRACE(fmt::format("offsets {}, {} ranks, split {}", fmt::join(offsets, " "), ranks, static_cast<int>(split)));
  const int64_t total = offsets.back();
  const std::vector<at::Tensor> in = {normal({total, kHeads * kHeadDim}, 1).to(dtype),
                                      normal({total, kKvHeads * kHeadDim}, 2).to(dtype),
                                      normal({total, kKvHeads * kHeadDim}, 3).to(dtype)};
  const at::Tensor d_o = normal({total, kHeads * kHeadDim}, 4).to(dtype);
  nn::PackedAttention whole(kShape, offsets);
  const Attended one = attend_and_backward(whole, in, d_o);
  run_ranks(ranks, {}, [&](Communicator& world) {
    std::vector<int64_t> rows;
    for (const ContextPiece& p : context_pieces(offsets, world.size(), world.rank(), split))
      for (int64_t at = p.begin; at < p.end; ++at) rows.push_back(offsets[static_cast<size_t>(p.sequence)] + at);
    at::Tensor index = at::empty({static_cast<int64_t>(rows.size())}, at::kLong);
    std::copy(rows.begin(), rows.end(), index.data_ptr<int64_t>());
    const auto own = [&](const at::Tensor& t) { return t.index_select(0, index); };
    ContextParallelAttention attention(kShape, offsets, world, split);
    const Attended ours = attend_and_backward(attention, {own(in[0]), own(in[1]), own(in[2])}, own(d_o));
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(same_bits(ours.o, own(one.o)));
    EXPECT_TRUE(same_bits(ours.dq, own(one.dq)));
    // bf16: the sum is rounded once here and there, and may fall the other way.
    const double tolerance = dtype == at::kFloat ? 2e-6 : 8e-3;
    if (!rows.empty()) {
      EXPECT_LE(relative(ours.dk, own(one.dk)), tolerance);
      EXPECT_LE(relative(ours.dv, own(one.dv)), tolerance);
    }
    // What is missing arrives, twice: for the forward and for the backward; of the gradients each rank receives the others' terms
    // of its own rows.
    const int64_t width = kKvHeads * kHeadDim, item = dtype == at::kFloat ? 4 : 2,
                  missing = total - static_cast<int64_t>(rows.size());
    for (const CommStatsRow& r : world.stats().rows()) {
      const int64_t expected = r.purpose == "kv" ? 2 * 2 * missing * width * item
                                                 : 2 * (world.size() - 1) * static_cast<int64_t>(rows.size()) * width * 4;
      EXPECT_EQ(r.bytes.received, expected) << r.purpose;
    }
  });
}

TEST(ContextParallel, EqualsOneRank) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16})
    for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous})
      for (const int ranks : {1, 2, 3, 5}) {
        expect_contexts_equal_one_rank({0, 150, 151, 151, 155, 219}, ranks, split, dtype);
        expect_contexts_equal_one_rank({0, 1}, ranks, split, dtype);
        expect_contexts_equal_one_rank({0}, ranks, split, dtype);
      }
}

// What the rule is for: keys in the order of the ranks have other bits.
TEST(ContextParallel, OrderOfKeysIsVisibleInTheBits) {
  const at::Tensor q = normal({70, kHeads * kHeadDim}, 1), k = normal({70, kKvHeads * kHeadDim}, 2),
                   v = normal({70, kKvHeads * kHeadDim}, 3);
  const std::vector<int64_t> offsets = {0, 70};
  const std::vector<kernels::QueryRun> last = {{69, 70, 0, 69}};  // sees every key
  const auto turned = [](const at::Tensor& t) { return at::cat({t.narrow(0, 35, 35), t.narrow(0, 0, 35)}, 0); };
  const at::Tensor a = nn::attention_values(kShape, offsets, last, q, k, v, false).o[69];
  const at::Tensor b = nn::attention_values(kShape, offsets, last, q, turned(k), turned(v), false).o[69];
  EXPECT_LE(relative(a, b), 1e-5);
  EXPECT_FALSE(same_bits(a, b));
}

}  // namespace
}  // namespace weft
