#include "weft/kernels/elementwise.h"

#include <algorithm>

#include "weft/base/threads.h"
#include "weft/kernels/elementwise_simd.h"
#include "weft/kernels/row_pointers.h"

namespace weft::kernels {
namespace {

constexpr int64_t kGrain = 16384;  // elements a thread takes at least: below, starting it costs more than it saves

int64_t row_grain(int64_t cols) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(cols, 1)); }

void check_same(ConstMatrix a, ConstMatrix b) {
  WEFT_CHECK(a.rows == b.rows && a.cols == b.cols, "shapes differ: [{}, {}] and [{}, {}]", a.rows, a.cols, b.rows, b.cols);
}
void check_f32(ConstMatrix a) { WEFT_CHECK(!is_bf16(a), "this operand must be float32"); }

}  // namespace

void convert(const float* src, bf16* dst, int64_t n) {
  const auto& table = elementwise_table();
  parallel_for(n, kGrain, [&](int64_t b, int64_t e) { table.to_bf16(src + b, dst + b, e - b); });
}

void convert(const bf16* src, float* dst, int64_t n) {
  const auto& table = elementwise_table();
  parallel_for(n, kGrain, [&](int64_t b, int64_t e) { table.to_f32(src + b, dst + b, e - b); });
}

void swiglu_forward(ConstMatrix gate, ConstMatrix up, Matrix y) {
  check_same(gate, up);
  check_same(gate, y);
  check_f32(gate);
  check_f32(up);
  const bool y_bf16 = is_bf16(y);
  const auto& table = elementwise_table();
  parallel_for(gate.rows, row_grain(8 * gate.cols), [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r) table.swiglu(f32_row(gate, r), f32_row(up, r), row_of(y, r), y_bf16, gate.cols);
  });
}

void swiglu_backward(ConstMatrix dy, ConstMatrix gate, ConstMatrix up, Matrix dgate, Matrix dup) {
  check_same(gate, up);
  check_same(gate, dy);
  check_same(gate, dgate);
  check_same(gate, dup);
  check_f32(gate);
  check_f32(up);
  const bool dy_bf16 = is_bf16(dy), dgate_bf16 = is_bf16(dgate), dup_bf16 = is_bf16(dup);
  const auto& table = elementwise_table();
  parallel_for(gate.rows, row_grain(8 * gate.cols), [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r)
      table.swiglu_backward(row_of(dy, r), dy_bf16, f32_row(gate, r), f32_row(up, r), row_of(dgate, r), dgate_bf16,
                            row_of(dup, r), dup_bf16, gate.cols);
  });
}

void add(const float* a, const float* b, float* y, int64_t n) {
  const auto& table = elementwise_table();
  parallel_for(n, kGrain, [&](int64_t begin, int64_t end) { table.add(a + begin, b + begin, y + begin, end - begin); });
}

void accumulate(ConstMatrix x, float* y) {
  const bool x_bf16 = is_bf16(x);
  const auto& table = elementwise_table();
  parallel_for(x.rows, row_grain(x.cols), [&](int64_t b, int64_t e) {
    for (int64_t r = b; r < e; ++r) table.accumulate(row_of(x, r), x_bf16, y + r * x.cols, x.cols);
  });
}

void embedding_forward(std::span<const int32_t> ids, ConstMatrix table, float* y) {
  const bool table_bf16 = is_bf16(table);
  const auto& loops = elementwise_table();
  const int64_t h = table.cols;
  parallel_for(static_cast<int64_t>(ids.size()), row_grain(h), [&](int64_t b, int64_t e) {
    for (int64_t t = b; t < e; ++t) {
      const int64_t id = ids[static_cast<size_t>(t)];
      WEFT_CHECK(id >= 0 && id < table.rows, "token id {} outside the table of {} rows", id, table.rows);
      if (table_bf16)
        loops.to_f32(static_cast<const bf16*>(row_of(table, id)), y + t * h, h);
      else
        std::copy_n(f32_row(table, id), h, y + t * h);
    }
  });
}

// Threads own columns, so the rows of one id meet in token order whatever the number of threads.
void embedding_backward(std::span<const int32_t> ids, ConstMatrix dy, float* dtable, int64_t vocab) {
  const int64_t tokens = static_cast<int64_t>(ids.size()), h = dy.cols;
  WEFT_CHECK(dy.rows == tokens, "{} ids but {} gradient rows", tokens, dy.rows);
  for (const int32_t id : ids) WEFT_CHECK(id >= 0 && id < vocab, "token id {} outside the table of {} rows", id, vocab);
  const bool dy_bf16 = is_bf16(dy);
  const auto& loops = elementwise_table();
  const int64_t width = 64;
  parallel_for((h + width - 1) / width, std::max<int64_t>(1, row_grain(tokens * width)), [&](int64_t b, int64_t e) {
    const int64_t first = b * width, count = std::min(h, e * width) - first;
    for (int64_t t = 0; t < tokens; ++t) {
      const char* row = static_cast<const char*>(row_of(dy, t)) + first * (dy_bf16 ? 2 : 4);
      loops.accumulate(row, dy_bf16, dtable + ids[static_cast<size_t>(t)] * h + first, count);
    }
  });
}

void vec_exp(const float* x, float* y, int64_t n) {
  const auto& table = elementwise_table();
  parallel_for(n, kGrain, [&](int64_t b, int64_t e) { table.exp(x + b, y + b, e - b); });
}

void vec_log(const float* x, float* y, int64_t n) {
  const auto& table = elementwise_table();
  parallel_for(n, kGrain, [&](int64_t b, int64_t e) { table.log(x + b, y + b, e - b); });
}

}  // namespace weft::kernels
