#include "weft/kernels/logprob.h"

#include <algorithm>
#include <array>
#include <memory>

#include "weft/base/threads.h"
#include "weft/kernels/elementwise.h"
#include "weft/kernels/logprob_simd.h"
#include "weft/kernels/row_pointers.h"

namespace weft::kernels {
namespace {

constexpr int64_t kBlock = 512;       // logits of one block of the walk
constexpr int64_t kHeldRows = 256;    // rows whose logits are held at once: those of one weight-gradient chain
constexpr int64_t kHeldVocab = 2048;  // and how many of their logits

// By the tree: neighbours first.
VocabSum merge_leaves(const VocabSum* leaf, int count) {
  return count == 1 ? leaf[0] : join_vocab_sums(merge_leaves(leaf, count / 2), merge_leaves(leaf + count / 2, count / 2));
}

float lse_of(const VocabSum& s) { return s.max + scalar::log(s.sum); }

// Logits of [first, first + n) become the z of the row: bias, temperature, removed tokens at -inf.
void process(const LogprobTable& loops, const HeadRow& row, float* z, int64_t first, int64_t n) {
  if (row.bias) {
    const auto& ids = row.bias->ids;
    for (auto it = std::lower_bound(ids.begin(), ids.end(), first); it != ids.end() && *it < first + n; ++it)
      z[*it - first] += row.bias->values[static_cast<size_t>(it - ids.begin())];
  }
  if (row.inv_temperature != 1.0f) loops.scale(z, row.inv_temperature, n);
  if (!row.kept || row.kept->all) return;
  const auto& ids = row.kept->ids;
  int64_t next = 0;
  for (auto it = std::lower_bound(ids.begin(), ids.end(), first); it != ids.end() && *it < first + n; ++it) {
    std::fill(z + next, z + (*it - first), -scalar::kInf);
    next = *it - first + 1;
  }
  std::fill(z + next, z + n, -scalar::kInf);
}

void check_head(ConstMatrix x, const PackedWeight& w, const VocabSpan& span, std::span<const HeadRow> rows) {
  WEFT_CHECK(x.rows == static_cast<int64_t>(rows.size()), "{} hidden rows for {} targets", x.rows, rows.size());
  WEFT_CHECK(x.cols == w.k() && w.experts() == 1, "head of {} inputs for hidden rows of {}", w.k(), x.cols);
  WEFT_CHECK(span.count > 0 && span.first % span.count == 0 && span.first + span.count <= kNumLeaves && kNumLeaves % span.count == 0 &&
                 w.n() == span.end() - span.begin(),
             "{} head rows for leaves [{}, {}) of a vocabulary of {}", w.n(), span.first, span.first + span.count, span.vocab);
  for (const HeadRow& row : rows) {
    WEFT_CHECK(row.target >= 0 && row.target < span.vocab, "target {} outside the vocabulary of {}", row.target, span.vocab);
    WEFT_CHECK(!row.bias || row.bias->ids.size() == row.bias->values.size(), "logit bias of {} ids and {} values",
               row.bias ? row.bias->ids.size() : 0, row.bias ? row.bias->values.size() : 0);
  }
}

ConstMatrix row_range(ConstMatrix x, int64_t first, int64_t count) {
  return {row_of(x, first), x.dtype, count, x.cols, x.stride};
}

}  // namespace

VocabSum join_vocab_sums(const VocabSum& a, const VocabSum& b) {
  if (b.max == -scalar::kInf) return a;
  if (a.max == -scalar::kInf) return b;
  const float m = a.max > b.max ? a.max : b.max;
  const float fa = scalar::exp(a.max - m), fb = scalar::exp(b.max - m);
  return {m, a.sum * fa + b.sum * fb, a.weighted * fa + b.weighted * fb};
}

void finish_vocab_sum(const VocabSum& whole, float target_z, float* log_prob, float* entropy, float* lse) {
  const float all = lse_of(whole);
  if (lse) *lse = all;
  if (log_prob) *log_prob = target_z - all;
  if (entropy) *entropy = all - whole.weighted / whole.sum;
}

float log_sum_exp(const float* z, int64_t vocab) {
  const auto& loops = logprob_table();
  std::array<VocabSum, kNumLeaves> leaves;
  for (int i = 0; i < kNumLeaves; ++i) {
    VocabSum& sum = leaves[static_cast<size_t>(i)];
    const int64_t end = std::min(vocab, vocab_leaf(vocab, i + 1));
    for (int64_t v = vocab_leaf(vocab, i); v < end; v += kBlock) sum = join_vocab_sums(sum, loops.block(z + v, std::min(kBlock, end - v), false));
  }
  return lse_of(merge_leaves(leaves.data(), kNumLeaves));
}

void head_logprob_span(ConstMatrix x, const PackedWeight& w, const VocabSpan& span, std::span<const HeadRow> rows, bool want_entropy,
                       VocabSum* sums, float* target_z) {
  check_head(x, w, span, rows);
  const auto& loops = logprob_table();
  const int64_t num_rows = x.rows, held = std::min(kHeldRows, num_rows), start = span.begin();
  std::vector<VocabSum> leaves(static_cast<size_t>(num_rows * span.count));
  const auto z = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(held * std::min(kHeldVocab, w.n())));
  for (int64_t first = 0; first < num_rows; first += held) {
    const int64_t count = std::min(held, num_rows - first);
    for (int leaf = 0; leaf < span.count; ++leaf) {
      const int64_t leaf_end = std::min(span.vocab, vocab_leaf(span.vocab, span.first + leaf + 1));
      for (int64_t v0 = vocab_leaf(span.vocab, span.first + leaf); v0 < leaf_end; v0 += kHeldVocab) {
        const int64_t width = std::min(kHeldVocab, leaf_end - v0);
        gemm_columns(row_range(x, first, count), w, v0 - start, view(z.get(), count, width));
        parallel_for(count, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const HeadRow& row = rows[static_cast<size_t>(first + i)];
            VocabSum& sum = leaves[static_cast<size_t>((first + i) * span.count + leaf)];
            for (int64_t v = v0; v < v0 + width; v += kBlock) {
              const int64_t n = std::min(kBlock, v0 + width - v);
              float* block = z.get() + i * width + (v - v0);
              process(loops, row, block, v, n);
              if (row.target >= v && row.target < v + n) target_z[first + i] = block[row.target - v];
              sum = join_vocab_sums(sum, loops.block(block, n, want_entropy));
            }
          }
        });
      }
    }
  }
  for (int64_t r = 0; r < num_rows; ++r) sums[r] = merge_leaves(leaves.data() + r * span.count, span.count);
}

void head_logprob_forward(ConstMatrix x, const PackedWeight& w, std::span<const HeadRow> rows, float* log_probs, float* entropy,
                          float* lse) {
  std::vector<VocabSum> sums(rows.size());
  std::vector<float> target_z(rows.size());
  head_logprob_span(x, w, {w.n()}, rows, entropy != nullptr, sums.data(), target_z.data());
  for (size_t r = 0; r < rows.size(); ++r)
    finish_vocab_sum(sums[r], target_z[r], log_probs ? log_probs + r : nullptr, entropy ? entropy + r : nullptr, lse ? lse + r : nullptr);
}

// dlogit_j = inv_T * (dlp * (1[j = target] - p_j) - dH * p_j * (z_j + H - lse)), since dH/dz_j = -p_j * (z_j - sum p z) and
// sum p z = lse - H.
void head_logprob_backward(ConstMatrix x, const PackedWeight& w, ConstMatrix w_raw, std::span<const HeadRow> rows,
                           const float* lse, const float* dlog_probs, const float* dentropy, Matrix dx, float* dw) {
  std::vector<float> entropy(dentropy ? rows.size() : 0);
  if (dentropy) head_logprob_forward(x, w, rows, nullptr, entropy.data(), nullptr);
  head_logprob_span_backward(x, w, w_raw, {w.n()}, rows, lse, entropy.data(), dlog_probs, dentropy, dx, dw);
}

void head_logprob_span_backward(ConstMatrix x, const PackedWeight& w, ConstMatrix w_raw, const VocabSpan& span, std::span<const HeadRow> rows,
                                const float* lse, const float* entropy, const float* dlog_probs, const float* dentropy, Matrix dx, float* dw) {
  check_head(x, w, span, rows);
  WEFT_CHECK(w_raw.rows == w.n() && w_raw.cols == w.k() && w_raw.stride == w_raw.cols && w_raw.dtype == w.dtype(),
             "raw weight [{}, {}] of a head [{}, {}]: shape, stride or dtype differ", w_raw.rows, w_raw.cols, w.n(), w.k());
  WEFT_CHECK(dx.rows == x.rows && dx.cols == x.cols, "gradient [{}, {}] of hidden rows [{}, {}]", dx.rows, dx.cols, x.rows,
             x.cols);
  const auto& loops = logprob_table();
  const int64_t start = span.begin(), stop = span.end(), hidden = x.cols;
  const int64_t held = std::min(kHeldRows, x.rows);
  const auto z = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(held * std::min(kHeldVocab, w.n())));
  std::vector<float> dx_chunk(static_cast<size_t>(held * hidden));
  for (int64_t first = 0; first < x.rows; first += kHeldRows) {
    const int64_t count = std::min(kHeldRows, x.rows - first);
    const ConstMatrix x_chunk = row_range(x, first, count);
    std::fill(dx_chunk.begin(), dx_chunk.end(), 0.0f);
    const Matrix dx_f32 = view(dx_chunk.data(), count, hidden);
    for (int64_t v0 = start; v0 < stop; v0 += kHeldVocab) {
      const int64_t width = std::min(kHeldVocab, stop - v0), blocks = (width + kBlock - 1) / kBlock;
      gemm_columns(x_chunk, w, v0 - start, view(z.get(), count, width));
      parallel_for(blocks * count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t v = v0 + task % blocks * kBlock, n = std::min(kBlock, v0 + width - v);
          const auto at = static_cast<size_t>(first + task / blocks);
          const HeadRow& row = rows[at];
          float* zr = z.get() + task / blocks * width + (v - v0);
          process(loops, row, zr, v, n);
          loops.dlogit(zr, row.inv_temperature, lse[at], dlog_probs[at], dentropy ? dentropy[at] : 0.0f,
                       dentropy ? entropy[at] - lse[at] : 0.0f, n);
          if (row.target >= v && row.target < v + n) zr[row.target - v] += row.inv_temperature * dlog_probs[at];
        }
      });
      const ConstMatrix dz = view(static_cast<const float*>(z.get()), count, width);
      gemm_input_grad(dz, row_range(w_raw, v0 - start, width), dx_f32, true);
      if (dw) gemm_weight_grad(dz, x_chunk, dw + (v0 - start) * hidden);
    }
    for (int64_t r = 0; r < count; ++r) {
      if (is_bf16(dx))
        convert(dx_chunk.data() + r * hidden, static_cast<bf16*>(row_of(dx, first + r)), hidden);
      else
        std::copy_n(dx_chunk.data() + r * hidden, hidden, static_cast<float*>(row_of(dx, first + r)));
    }
  }
}

}  // namespace weft::kernels
