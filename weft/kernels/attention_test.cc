#include "weft/kernels/attention.h"

#include <algorithm>
#include <numeric>

#include "weft/base/math.h"
#include "weft/kernels/attention_reference.h"
#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

using testing::bits_equal;
using testing::kBoth;
using testing::Owned;

class Attention : public testing::Kernels {};

struct Case {
  int64_t heads, kv_heads, d;
  std::vector<int64_t> offsets;
  int64_t tokens() const { return offsets.back(); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(d)); }
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {2, 1, 16, {0, 1, 1, 70, 135}}, {7, 1, 32, {0, 100}}, {3, 3, 20, {0, 67}}, {4, 2, 8, {0}}, {50, 1, 16, {0, 9}}};
  return kCases;
}

struct Data {
  Owned q, k, v;
  Data(const Case& c, DType dtype)
      : q(dtype, c.tokens(), c.heads * c.d, 1, 2.0f),
        k(dtype, c.tokens(), c.kv_heads * c.d, 2, 2.0f),
        v(dtype, c.tokens(), c.kv_heads * c.d, 3) {}
};

struct Result {
  Owned o;
  std::vector<float> lse;
  Result(const Case& c, DType dtype) : o(dtype, c.tokens(), c.heads * c.d), lse(static_cast<size_t>(c.tokens() * c.heads)) {}
};

Owned take(const Owned& x, const std::vector<int64_t>& rows) {
  Owned out(x.dtype, static_cast<int64_t>(rows.size()), x.cols);
  const auto copy = [&](const auto& from, auto& to) {
    for (size_t i = 0; i < rows.size(); ++i)
      std::copy_n(from.begin() + rows[i] * x.cols, x.cols, to.begin() + static_cast<std::ptrdiff_t>(i) * x.cols);
  };
  if (x.dtype == DType::kF32)
    copy(x.f, out.f);
  else
    copy(x.b, out.b);
  return out;
}

TEST_F(Attention, ForwardHasTheReferenceBits) {
  for (const Case& c : cases())
    for (const DType dtype : kBoth) {
      const Data in(c, dtype);
      Result expected(c, dtype);
      reference::attention_packed_forward(in.q.c(), in.k.c(), in.v.c(), c.heads, c.kv_heads, c.offsets, c.scale(), expected.o.m(),
                                          expected.lse.data());
      everywhere([&] {
        Result r(c, dtype);
        attention_packed_forward(in.q.c(), in.k.c(), in.v.c(), c.heads, c.kv_heads, c.offsets, whole_sequences(c.offsets),
                                 c.scale(), r.o.m(), r.lse.data());
        EXPECT_TRUE(bits_equal(r.o, expected.o));
        EXPECT_TRUE(bits_equal(r.lse, expected.lse));
      });
    }
}

// Rows far down a long sequence, where segments merge: only they are compared, through a cache whose first 2100 keys are filled.
TEST_F(Attention, SegmentsMergeAsTheReference) {
  const Case c{1, 1, 4, {0, 2060}};
  const Data in(c, DType::kF32);
  Result expected(c, DType::kF32), r(c, DType::kF32);
  reference::attention_packed_forward(in.q.c(), in.k.c(), in.v.c(), 1, 1, c.offsets, c.scale(), expected.o.m(),
                                      expected.lse.data());
  attention_packed_forward(in.q.c(), in.k.c(), in.v.c(), 1, 1, c.offsets, whole_sequences(c.offsets), c.scale(), r.o.m(),
                           r.lse.data());
  EXPECT_TRUE(bits_equal(r.o, expected.o));
  EXPECT_TRUE(bits_equal(r.lse, expected.lse));
}

TEST_F(Attention, BackwardHasTheReferenceBits) {
  for (const Case& c : cases())
    for (const DType dtype : kBoth) {
      const Data in(c, dtype);
      Result f(c, dtype);
      attention_packed_forward(in.q.c(), in.k.c(), in.v.c(), c.heads, c.kv_heads, c.offsets, whole_sequences(c.offsets),
                               c.scale(), f.o.m(), f.lse.data());
      if (c.heads > 48) continue;  // groups above a tile are cut into tiles of heads: another order, not worth a second reference
      const Owned d_o(dtype, c.tokens(), c.heads * c.d, 4);
      Owned dq(dtype, c.tokens(), c.heads * c.d), dk(dtype, c.tokens(), c.kv_heads * c.d),
          dv(DType::kF32, c.tokens(), c.kv_heads * c.d);
      reference::attention_packed_backward(d_o.c(), in.q.c(), in.k.c(), in.v.c(), f.o.c(), f.lse.data(), c.heads, c.kv_heads,
                                           c.offsets, c.scale(), dq.m(), dk.m(), dv.m());
      everywhere([&] {
        Owned dq2 = dq, dk2 = dk, dv2 = dv;
        for (Owned* x : {&dq2, &dk2, &dv2}) *x = Owned(x->dtype, x->rows, x->cols);
        attention_packed_backward(d_o.c(), in.q.c(), in.k.c(), in.v.c(), f.o.c(), f.lse.data(), c.heads, c.kv_heads, c.offsets,
                                  whole_sequences(c.offsets), c.scale(), dq2.m(), dk2.m(), dv2.m());
        EXPECT_TRUE(bits_equal(dq, dq2));
        EXPECT_TRUE(bits_equal(dk, dk2));
        EXPECT_TRUE(bits_equal(dv, dv2));
      });
    }
}

// Naive attention in double of one sequence; inputs as flat doubles.
std::vector<double> naive(const Case& c, const std::vector<double>& q, const std::vector<double>& k,
                          const std::vector<double>& v) {
  const auto d = static_cast<size_t>(c.d), hq = static_cast<size_t>(c.heads), hk = static_cast<size_t>(c.kv_heads),
             group = hq / hk;
  std::vector<double> o(q.size());
  for (size_t i = 0; i < static_cast<size_t>(c.tokens()); ++i)
    for (size_t h = 0; h < hq; ++h) {
      double sum = 0;
      for (size_t j = 0; j <= i; ++j) {
        double s = 0;
        for (size_t x = 0; x < d; ++x) s += q[(i * hq + h) * d + x] * k[(j * hk + h / group) * d + x];
        const double p = det_exp(s * static_cast<double>(c.scale()));
        sum += p;
        for (size_t x = 0; x < d; ++x) o[(i * hq + h) * d + x] += p * v[(j * hk + h / group) * d + x];
      }
      for (size_t x = 0; x < d; ++x) o[(i * hq + h) * d + x] /= sum;
    }
  return o;
}
std::vector<double> doubles(const Owned& x) {
  const std::vector<float> f = x.floats();
  return {f.begin(), f.end()};
}

TEST_F(Attention, MatchesNaiveDoubleAndFiniteDifferences) {
  const Case c{4, 2, 8, {0, 9}};
  const Data in(c, DType::kF32);
  const Owned d_o(DType::kF32, 9, 32, 4);
  Result r(c, DType::kF32);
  attention_packed_forward(in.q.c(), in.k.c(), in.v.c(), 4, 2, c.offsets, whole_sequences(c.offsets), c.scale(), r.o.m(),
                           r.lse.data());
  Owned dq(DType::kF32, 9, 32), dk(DType::kF32, 9, 16), dv(DType::kF32, 9, 16);
  attention_packed_backward(d_o.c(), in.q.c(), in.k.c(), in.v.c(), r.o.c(), r.lse.data(), 4, 2, c.offsets,
                            whole_sequences(c.offsets), c.scale(), dq.m(), dk.m(), dv.m());
  std::vector<double> x[3] = {doubles(in.q), doubles(in.k), doubles(in.v)};
  const std::vector<double> exact = naive(c, x[0], x[1], x[2]);
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(r.o.f[i], exact[i], 3e-6);
  const auto loss = [&] {
    const std::vector<double> o = naive(c, x[0], x[1], x[2]);
    double sum = 0;
    for (size_t i = 0; i < o.size(); ++i) sum += o[i] * static_cast<double>(d_o.f[i]);
    return sum;
  };
  const std::vector<float>* grads[3] = {&dq.f, &dk.f, &dv.f};
  for (int which = 0; which < 3; ++which)
    for (size_t i = 0; i < x[which].size(); i += 3) {
      const double keep = x[which][i];
      x[which][i] = keep + 1e-5;
      const double up = loss();
      x[which][i] = keep - 1e-5;
      const double down = loss();
      x[which][i] = keep;
      EXPECT_NEAR((*grads[which])[i], (up - down) / 2e-5, 2e-5);
    }
}

// The paged cache: blocks of any size in any order, unused slots full of NaN, prompts in chunks: the bits of the packed form.
TEST_F(Attention, PagedAndChunkedRowsHaveThePackedBits) {
  for (const DType dtype : kBoth)
    for (const int64_t d : {16, 20}) {
      const Case c{4, 2, d, {0, 150}};
      const Data in(c, dtype);
      Result expected(c, dtype);
      attention_packed_forward(in.q.c(), in.k.c(), in.v.c(), 4, 2, c.offsets, whole_sequences(c.offsets), c.scale(),
                               expected.o.m(), expected.lse.data());
      for (const int64_t block_size : {4, 16, 32, 64})
        for (const std::vector<int64_t>& cuts :
             {std::vector<int64_t>{0, 150}, {0, 1, 33, 64, 149, 150}, {0, 100, 101, 102, 150}}) {
          const KvShape shape{2, d, block_size, dtype};
          const int64_t blocks = (150 + block_size - 1) / block_size;
          std::vector<uint16_t> cache(static_cast<size_t>((blocks + 1) * shape.block_bytes() / 2), 0x7fc1);  // NaN in both dtypes
          std::vector<int32_t> table(static_cast<size_t>(blocks));
          for (int64_t i = 0; i < blocks; ++i) table[static_cast<size_t>(i)] = static_cast<int32_t>(blocks - i);
          Result r(c, dtype);
          for (size_t i = 0; i + 1 < cuts.size(); ++i) {
            const AttentionSequence s[] = {{cuts[i], cuts[i + 1], cuts[i], table.data()}};
            write_kv(in.k.c(), in.v.c(), s, shape, cache.data());
            attention_forward(in.q.c(), s, shape, cache.data(), c.scale(), r.o.m(), r.lse.data());
          }
          EXPECT_TRUE(bits_equal(r.o, expected.o))
              << "block size " << block_size << ", " << cuts.size() - 1 << " chunks, d " << d;
          EXPECT_TRUE(bits_equal(r.lse, expected.lse));
        }
    }
}

// Query rows shared out as context parallelism does: outputs of the whole, bit for bit; gradients of keys and values add up to
// it.
TEST_F(Attention, RunsOfQueryRowsMakeTheWhole) {
  for (const Case& c : cases())
    for (const DType dtype : kBoth) {
      const Data in(c, dtype);
      const Owned d_o(dtype, c.tokens(), c.heads * c.d, 4);
      const int64_t q_cols = c.heads * c.d, k_cols = c.kv_heads * c.d;
      const auto call = [&](const Owned& q, const Owned& g, std::span<const QueryRun> runs, Owned& o, std::vector<float>& lse,
                            Owned& dq, Owned& dk, Owned& dv) {
        attention_packed_forward(q.c(), in.k.c(), in.v.c(), c.heads, c.kv_heads, c.offsets, runs, c.scale(), o.m(), lse.data());
        attention_packed_backward(g.c(), q.c(), in.k.c(), in.v.c(), o.c(), lse.data(), c.heads, c.kv_heads, c.offsets, runs,
                                  c.scale(), dq.m(), dk.m(), dv.m());
      };
      Result whole(c, dtype);
      Owned dq(dtype, c.tokens(), q_cols), dk(DType::kF32, c.tokens(), k_cols), dv(DType::kF32, c.tokens(), k_cols);
      call(in.q, d_o, whole_sequences(c.offsets), whole.o, whole.lse, dq, dk, dv);
      std::vector<float> sum_k(dk.f.size()), sum_v(dv.f.size());
      // Three ranks; the pieces of a sequence go round, so that a rank has several runs of it, or none.
      for (size_t rank = 0; rank < 3; ++rank) {
        std::vector<QueryRun> runs;
        std::vector<int64_t> rows;
        for (size_t s = 0; s + 1 < c.offsets.size(); ++s) {
          const int64_t n = c.offsets[s + 1] - c.offsets[s];
          for (int64_t piece = static_cast<int64_t>(rank); piece < 7; piece += 3) {
            const int64_t from = n * piece / 7, to = n * (piece + 1) / 7, begin = static_cast<int64_t>(rows.size());
            for (int64_t p = from; p < to; ++p) rows.push_back(c.offsets[s] + p);
            runs.push_back({begin, static_cast<int64_t>(rows.size()), static_cast<int64_t>(s), from});
          }
        }
        const int64_t t = static_cast<int64_t>(rows.size());
        Owned q = take(in.q, rows), g = take(d_o, rows), o(dtype, t, q_cols), rank_dq(dtype, t, q_cols),
              rank_dk(DType::kF32, c.tokens(), k_cols), rank_dv = rank_dk;
        std::vector<float> lse(static_cast<size_t>(t * c.heads));
        call(q, g, runs, o, lse, rank_dq, rank_dk, rank_dv);
        EXPECT_TRUE(bits_equal(o, take(whole.o, rows)));
        for (size_t i = 0; i < rows.size(); ++i)
          for (int64_t h = 0; h < c.heads; ++h)
            EXPECT_EQ(lse[i * static_cast<size_t>(c.heads) + static_cast<size_t>(h)],
                      whole.lse[static_cast<size_t>(rows[i] * c.heads + h)]);
        EXPECT_TRUE(bits_equal(rank_dq, take(dq, rows)));
        for (size_t i = 0; i < sum_k.size(); ++i) sum_k[i] += rank_dk.f[i], sum_v[i] += rank_dv.f[i];
      }
      // Sums of up to 135 rows in another order.
      for (size_t i = 0; i < sum_k.size(); ++i) {
        EXPECT_NEAR(sum_k[i], dk.f[i], 2e-5);
        EXPECT_NEAR(sum_v[i], dv.f[i], 2e-5);
      }
    }
}

TEST_F(Attention, SequencesInCompanyHaveTheBitsTheyHaveAlone) {
  const Case c{2, 1, 16, {0, 40, 120, 121}};
  const Data in(c, DType::kF32);
  Result together(c, DType::kF32);
  attention_packed_forward(in.q.c(), in.k.c(), in.v.c(), 2, 1, c.offsets, whole_sequences(c.offsets), c.scale(), together.o.m(),
                           nullptr);
  for (size_t s = 0; s < 3; ++s) {
    const int64_t first = c.offsets[s], n = c.offsets[s + 1] - first;
    Owned o(DType::kF32, n, 32);
    const std::vector<int64_t> alone = {0, n};
    attention_packed_forward(view(in.q.f.data() + first * 32, n, 32), view(in.k.f.data() + first * 16, n, 16),
                             view(in.v.f.data() + first * 16, n, 16), 2, 1, alone, whole_sequences(alone), c.scale(), o.m(),
                             nullptr);
    EXPECT_TRUE(bits_equal(o.f, {together.o.f.begin() + first * 32, together.o.f.begin() + (first + n) * 32}));
  }
}

// Inverse: softmax blocks that do not begin at multiples of 64 give other bits.
TEST_F(Attention, BlockOriginIsVisibleInTheBits) {
  const Case c{1, 1, 16, {0, 150}};
  const Data in(c, DType::kF32);
  Result a(c, DType::kF32), b(c, DType::kF32);
  reference::attention_packed_forward(in.q.c(), in.k.c(), in.v.c(), 1, 1, c.offsets, c.scale(), a.o.m(), nullptr);
  reference::attention_packed_forward(in.q.c(), in.k.c(), in.v.c(), 1, 1, c.offsets, c.scale(), b.o.m(), nullptr, 37);
  EXPECT_FALSE(bits_equal(a.o, b.o));
}

}  // namespace
}  // namespace weft::kernels
