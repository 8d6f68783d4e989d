// Column- and row-parallel products on the ranks of a tp axis equal those of one rank, bit for bit, because cuts fall on leaves
// and partial sums meet in the one tree; with slices of rows between them as without.
#include "weft/parallel/tensor_parallel.h"

#include <ATen/ops/matmul.h>
#include <ATen/TensorOperators.h>

#include <mutex>

#include "weft/mesh/placement.h"
#include "weft/nn/linear.h"
#include "weft/parallel/test_support.h"

namespace weft {
namespace {

using namespace testing;

constexpr int64_t kRows = 11, kIn = 50, kOut = 9;  // 50 = leaves of 6 6 6 6 6 6 6 8

struct RowParallel : nn::Module {
  RowParallel() : nn::Module("mlp") { down = add_parameter("down_proj.weight", {kOut, kIn}); }
  nn::Parameter* down;
};

// Of a rank: its columns of w, from `begin`.
struct Columns {
  int64_t begin, size;
};

std::vector<Columns> leaf_columns(int64_t ranks) {
  const std::vector<int64_t> at = contraction_boundaries(kIn, ranks);
  std::vector<Columns> out;
  for (size_t r = 0; r + 1 < at.size(); ++r) out.push_back({at[r], at[r + 1] - at[r]});
  return out;
}

// Sums of fp32 terms, as chains of ascending fma over the columns would make them: one product a part.
at::Tensor part_product(const at::Tensor& x, const at::Tensor& w, const Columns& c, kernels::Chain chain) {
  nn::Parameter part("w", {kOut, c.size}, nn::Precision::kParamDtype);
  part.materialize(at::kCPU, at::kFloat);
  part.master().copy_(w.narrow(1, c.begin, c.size));
  part.updated();
  return nn::linear(x.narrow(1, c.begin, c.size).contiguous(), part, nullptr, at::kFloat, chain);
}

at::Tensor whole_product(const at::Tensor& x, const at::Tensor& w) {
  return part_product(x, w, {0, kIn}, kernels::Chain::kLeaves);
}

TEST(TensorParallel, RowParallelHasTheBitsOfOneRank) {
  const at::Tensor x = normal({kRows, kIn}, 1), w = normal({kOut, kIn}, 2), dy = normal({kRows, kOut}, 3),
                   y = whole_product(x, w);
  const at::Tensor dx = at::matmul(dy, w), dw = at::matmul(dy.t(), x);
  for (const int ranks : {1, 2, 4, 8})
    for (const bool slices : {false, true})
      run_ranks(ranks, {}, [&](Communicator& world) {
        const Columns own = leaf_columns(ranks)[static_cast<size_t>(world.rank())];
        RowParallel layer;
        ShardingPlan plan{cut("*down_proj.weight", "tp", 1, Shares::kContraction)};
        FullyShardOptions options;
        options.plan = plan;
        auto mesh = make_rank_mesh(parse_parallel_dims(fmt::format("tp={}", ranks)), world);
        fully_shard(layer, mesh, options);
        layer.down->materialize(at::kCPU, at::kFloat);
        layer.down->master().copy_(w.narrow(1, own.begin, own.size));
        layer.down->updated();
        at::Tensor xs = x.narrow(1, own.begin, own.size).contiguous().set_requires_grad(true);
        const at::Tensor out = row_parallel_linear(xs, *layer.down, nullptr, world, slices);
        const auto [begin, end] = slice_of_rows(kRows, ranks, world.rank());
        const auto mine = [&](const at::Tensor& t) { return slices ? t.narrow(0, begin, end - begin) : t; };
        nn::backward({out}, {mine(dy)});
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(same_bits(out.detach(), mine(y))) << ranks << " ranks, slices " << slices;
        EXPECT_LE(relative(xs.grad(), dx.narrow(1, own.begin, own.size)), 2e-6);
        EXPECT_LE(relative(layer.down->grad(), dw.narrow(1, own.begin, own.size)), 2e-6);
      });
}

// Inverse: cut at ceil chunks of 50 instead of leaves, or added from rank 0 up instead of by the tree, the sums have other bits.
TEST(TensorParallel, CeilChunksAndANaiveTreeAreSeen) {
  const at::Tensor x = normal({kRows, kIn}, 1), w = normal({kOut, kIn}, 2), y = whole_product(x, w);
  for (const int64_t ranks : {2, 4, 8}) {
    at::Tensor chunks;
    for (int64_t r = 0; r < ranks; ++r) {
      const int64_t chunk = (kIn + ranks - 1) / ranks, begin = std::min(kIn, r * chunk);
      const Columns own{begin, std::min(kIn, begin + chunk) - begin};
      if (own.size == 0) continue;
      const at::Tensor term = part_product(x, w, own, kernels::Chain::kLeaves);
      chunks = chunks.defined() ? chunks + term : term;
    }
    EXPECT_LE(relative(chunks, y), 2e-6) << ranks;
    EXPECT_FALSE(same_bits(chunks, y)) << ranks;
  }
  at::Tensor ascending;
  for (const Columns& leaf : leaf_columns(8)) {
    const at::Tensor term = part_product(x, w, leaf, kernels::Chain::kSingle);
    ascending = ascending.defined() ? ascending + term : term;
  }
  EXPECT_LE(relative(ascending, y), 2e-6);
  EXPECT_FALSE(same_bits(ascending, y));
}

// Rows that the ranks share: what goes out comes back, gradients are summed where every rank used the whole, and the bytes are
// those missing.
TEST(TensorParallel, SlicesOfRows) {
  for (const int ranks : {1, 2, 3, 5})
    for (const int64_t rows : {0, 1, 7, 10})
      run_ranks(ranks, {}, [&](Communicator& world) {
        const at::Tensor x = normal({rows, 6}, 1), dy = normal({rows, 6}, 2);
        const auto [begin, end] = slice_of_rows(rows, ranks, world.rank());
        at::Tensor slice = x.narrow(0, begin, end - begin).clone().set_requires_grad(true);
        const at::Tensor whole = gather_for_columns(slice, rows, world);
        const at::Tensor ours = dy * static_cast<double>(world.rank() + 1);
        nn::backward({whole}, {ours});
        at::Tensor all = x.clone().set_requires_grad(true);
        const at::Tensor sliced = slice_rows(all, world);
        nn::backward({sliced}, {dy.narrow(0, begin, end - begin).clone()});
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(same_bits(whole.detach(), x));
        if (begin < end) {
          EXPECT_LE(relative(slice.grad(), dy.narrow(0, begin, end - begin) * (ranks * (ranks + 1) / 2.0)), 1e-6)
              << ranks << " " << rows;
        }
        EXPECT_TRUE(same_bits(sliced.detach(), x.narrow(0, begin, end - begin)));
        EXPECT_TRUE(same_bits(all.grad(), dy));
        for (const CommStatsRow& r : world.stats().rows()) {
          if (r.purpose != "rows") continue;
          EXPECT_EQ(r.bytes.received, 2 * (rows - (end - begin)) * 6 * 4);
        }
      });
}

}  // namespace
}  // namespace weft
