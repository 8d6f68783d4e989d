#include "weft/kernels/gemm.h"

#include <algorithm>
#include <vector>

#include "weft/base/block_cache.h"
#include "weft/base/error.h"
#include "weft/base/threads.h"
#include "weft/kernels/gemm_table.h"

namespace weft::kernels {
namespace {

// Rows of a block of outputs, and columns: A's block stays in L2, and widening or packing it is repaid over the columns.
constexpr int64_t kForwardRows = 96, kForwardPanels = 32;
constexpr int64_t kGradRows = 120, kGradColumns = 256;
constexpr int64_t kLeafFloats = 64 * 1024;
constexpr int64_t kInputGradChain = 512, kWeightGradChain = 256;

struct GiveBlock {
  size_t bytes = 0;
  void operator()(void* p) const { give_block(p, bytes); }
};
using Memory = std::unique_ptr<void, GiveBlock>;

Memory allocate(int64_t bytes) {
  const size_t size = std::max<size_t>(1, static_cast<size_t>(bytes));
  return {take_block(size), GiveBlock{size}};
}

const GemmTable& table() { return select(portable::kGemmTable, avx2::kGemmTable, avx512::kGemmTable, avx512_bf16::kGemmTable); }

int64_t to_line(int64_t bytes) { return (bytes + 63) / 64 * 64; }

bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }

template <class View>
View sub(View m, int64_t row, int64_t col, int64_t rows, int64_t cols) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(m.data)>>, const char, char>;
  const int64_t offset = (row * m.stride + col) * dtype_bytes(m.dtype);
  return {m.data ? static_cast<Byte*>(m.data) + offset : nullptr, m.dtype, rows, cols, m.stride};
}

// The largest equal pieces of at most `most`, each a multiple of `step`.
int64_t even_block(int64_t n, int64_t most, int64_t step) {
  if (n <= 0) return step;
  const int64_t pieces = (n + most - 1) / most;
  return ((n + pieces - 1) / pieces + step - 1) / step * step;
}

// Blocks of rows of each expert: expert e's rows are cut into equal blocks.
class RowBlocks {
 public:
  struct Block {
    int64_t expert, begin, end;
  };

  RowBlocks(std::span<const int64_t> offsets, int64_t most, int64_t step) {
    for (size_t e = 0; e + 1 < offsets.size(); ++e) {
      const int64_t block = even_block(offsets[e + 1] - offsets[e], most, step);
      for (int64_t i = offsets[e]; i < offsets[e + 1]; i += block)
        blocks_.push_back({static_cast<int64_t>(e), i, std::min(i + block, offsets[e + 1])});
    }
  }
  int64_t size() const { return static_cast<int64_t>(blocks_.size()); }
  const Block& operator[](int64_t i) const { return blocks_[static_cast<size_t>(i)]; }

 private:
  std::vector<Block> blocks_;
};

void check_offsets(std::span<const int64_t> offsets, int64_t experts, int64_t rows) {
  WEFT_CHECK(static_cast<int64_t>(offsets.size()) == experts + 1, "{} offsets for {} experts", offsets.size(), experts);
  WEFT_CHECK(offsets.front() == 0 && offsets.back() == rows && std::is_sorted(offsets.begin(), offsets.end()),
             "offsets must ascend from 0 to the {} rows", rows);
}

}  // namespace

struct PackedWeight::Impl {
  Target target = Target::kPortable;
  DType dtype = DType::kF32;
  int64_t experts = 0, n = 0, k = 0, bytes = 0, capacity = 0;
  Memory memory;
  std::shared_ptr<Arena> arena;  // in place of `memory`
  void* in_arena = nullptr;
  int64_t losses = 0;  // of the arena, when they were packed
  bool packed = false;

  int64_t panels() const { return (n + kPanelColumns - 1) / kPanelColumns; }
  int64_t panel_bytes() const { return panel_elements(dtype, k) * dtype_bytes(dtype); }
  char* data() const { return static_cast<char*>(arena ? in_arena : memory.get()); }
  // Of int8 weights: behind all panels, from a cache line on, for the outputs of whole panels.
  float* scales(int64_t e) const {
    return reinterpret_cast<float*>(data() + to_line(experts * panels() * panel_bytes())) + e * panels() * kPanelColumns;
  }
  const char* expert(int64_t e) const { return data() + e * panels() * panel_bytes(); }
};

namespace {

template <class T>
void pack_panel(const T* w, int64_t rows, int64_t k, T* to) {
  constexpr int64_t kPair = sizeof(T) == 2 ? 2 : 1;
  const int64_t padded = (k + kPair - 1) / kPair * kPair;
  if (rows < kPanelColumns || padded != k) std::fill(to, to + kPanelColumns * padded, T{});
  // Blocks of k, so that the sixteen rows are read in whole cache lines and the block of the panel stays in L1.
  for (int64_t begin = 0; begin < k; begin += 64)
    for (int64_t j = 0; j < rows; ++j)
      for (int64_t i = begin; i < std::min(k, begin + 64); ++i)
        to[i / kPair * kPair * kPanelColumns + j * kPair + i % kPair] = w[j * k + i];
}

constexpr LeafSpan kOneChain{0, 0, 0};

// y is outputs [first, first + y.cols).
void forward(ConstMatrix x, const PackedWeight& packed, int64_t first, const float* bias, std::span<const int64_t> offsets,
             Matrix y, LeafSpan leaves) {
  const PackedWeight::Impl& w = packed.impl();
  WEFT_CHECK(x.cols == w.k && first % kPanelColumns == 0 && first + y.cols <= w.n && y.rows == x.rows,
             "product of [{}, {}] and [{}, {}] from output {} into [{}, {}]", x.rows, x.cols, w.n, w.k, first, y.rows, y.cols);
  WEFT_CHECK(is_float(x.dtype) && is_float(y.dtype), "matrix products take fp32 and bf16, not {} and {}", dtype_name(x.dtype),
             dtype_name(y.dtype));
  check_offsets(offsets, w.experts, x.rows);
  const GemmTable& simd = table();
  int64_t most = kForwardRows;
  if (leaves.count > 0) most = std::clamp(kLeafFloats / std::max<int64_t>(w.k, 1), 2 * simd.tile_rows, kForwardRows);
  const RowBlocks rows(offsets, most, simd.tile_rows);
  const int64_t panels = (y.cols + kPanelColumns - 1) / kPanelColumns;
  int64_t block = kForwardPanels;
  while (block > 4 && rows.size() * ((panels + block - 1) / block) < 4 * num_threads()) block /= 2;
  const int64_t per_row = (panels + block - 1) / block;
  parallel_for(rows.size() * per_row, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RowBlocks::Block& r = rows[i / per_row];
      ForwardBlock t;
      t.x = sub(x, r.begin, 0, r.end - r.begin, x.cols);
      t.panels = w.expert(r.expert) + first / kPanelColumns * w.panel_bytes();
      t.w_dtype = w.dtype;
      t.n = y.cols;
      t.first_panel = i % per_row * block;
      t.last_panel = std::min(panels, t.first_panel + block);
      t.bias = bias;
      if (w.dtype == DType::kI8) t.scales = w.scales(r.expert) + first;
      t.y = sub(y, r.begin, 0, r.end - r.begin, y.cols);
      t.leaves = leaves;
      simd.forward(t);
    }
  });
}

void input_grad(ConstMatrix dy, const void* w, DType w_dtype, std::span<const int64_t> offsets, Matrix dx, bool accumulate) {
  WEFT_CHECK(dx.rows == dy.rows, "input gradient of {} rows into {}", dy.rows, dx.rows);
  WEFT_CHECK(is_float(dy.dtype) && is_float(w_dtype) && is_float(dx.dtype), "matrix products take fp32 and bf16");
  WEFT_CHECK(!accumulate || dx.dtype == DType::kF32, "only an fp32 gradient can be added to");
  const GemmTable& simd = table();
  const RowBlocks rows(offsets, kGradRows, simd.tile_rows);
  const int64_t cols = even_block(dx.cols, kGradColumns, kPanelColumns), per_row = (dx.cols + cols - 1) / cols;
  parallel_for(rows.size() * per_row, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const RowBlocks::Block& r = rows[i / per_row];
      GradBlock t;
      t.rows = r.end - r.begin;
      t.depth = dy.cols;
      t.chain = kInputGradChain;
      const int64_t col = i % per_row * cols;
      t.cols = std::min(cols, dx.cols - col);
      t.a = sub(dy, r.begin, 0, t.rows, dy.cols);
      const ConstMatrix all{w, w_dtype, static_cast<int64_t>(offsets.size() - 1) * dy.cols, dx.cols, dx.cols};
      t.b = sub(all, r.expert * dy.cols, col, dy.cols, t.cols);
      t.c = sub(dx, r.begin, col, t.rows, t.cols);
      t.add = accumulate;
      simd.grad(t);
    }
  });
}

void weight_grad(ConstMatrix dy, ConstMatrix x, std::span<const int64_t> offsets, float* dw) {
  WEFT_CHECK(dy.rows == x.rows, "weight gradient of {} and {} rows", dy.rows, x.rows);
  WEFT_CHECK(is_float(dy.dtype) && is_float(x.dtype), "matrix products take fp32 and bf16");
  const GemmTable& simd = table();
  const int64_t experts = static_cast<int64_t>(offsets.size()) - 1, n = dy.cols, k = x.cols;
  const int64_t rows = even_block(n, kGradRows, simd.tile_rows), row_blocks = (n + rows - 1) / rows;
  const int64_t cols = even_block(k, kGradColumns, kPanelColumns), col_blocks = (k + cols - 1) / cols;
  parallel_for(experts * row_blocks * col_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t expert = i / (row_blocks * col_blocks), row = i / col_blocks % row_blocks * rows, col = i % col_blocks * cols;
      const int64_t first = offsets[static_cast<size_t>(expert)];
      GradBlock t;
      t.depth = offsets[static_cast<size_t>(expert) + 1] - first;
      if (t.depth == 0) continue;
      t.chain = kWeightGradChain;
      t.rows = std::min(rows, n - row);
      t.cols = std::min(cols, k - col);
      t.a_transposed = true;
      t.a = sub(dy, first, row, t.depth, t.rows);
      t.b = sub(x, first, col, t.depth, t.cols);
      t.c = {dw + (expert * n + row) * k + col, DType::kF32, t.rows, t.cols, k};
      t.add = true;
      simd.grad(t);
    }
  });
}

}  // namespace

float* scratch(Scratch slot, int64_t n) {
  struct Buffer {
    Memory memory;
    int64_t capacity = 0;
  };
  thread_local Buffer buffers[static_cast<int>(Scratch::kCount)];
  Buffer& buffer = buffers[static_cast<int>(slot)];
  if (n > buffer.capacity || !buffer.memory) {
    buffer.memory = nullptr;
    buffer.capacity = 0;
    // Whole huge pages: small ones land on arbitrary sets of the physically indexed L2 and evict each other.
    constexpr int64_t kHugeFloats = (int64_t{2} << 20) / static_cast<int64_t>(sizeof(float));
    n = (n + kHugeFloats - 1) / kHugeFloats * kHugeFloats;
    buffer.memory = allocate(n * static_cast<int64_t>(sizeof(float)));
    buffer.capacity = n;
  }
  return static_cast<float*>(buffer.memory.get());
}

PackedWeight::PackedWeight() : impl_(std::make_unique<Impl>()) {}
PackedWeight::~PackedWeight() = default;
PackedWeight::PackedWeight(PackedWeight&&) noexcept = default;
PackedWeight& PackedWeight::operator=(PackedWeight&&) noexcept = default;

void PackedWeight::pack(const void* w, DType dtype, int64_t experts, int64_t n, int64_t k) {
  WEFT_CHECK(is_float(dtype), "weights are packed from fp32 or bf16, not {}", dtype_name(dtype));
  pack_rows(w, dtype, experts, n, k);
}

void PackedWeight::pack(const int8_t* w, const float* scales, int64_t experts, int64_t n, int64_t k) {
  pack_rows(w, DType::kI8, experts, n, k);
  for (int64_t e = 0; e < experts; ++e) {
    float* to = impl_->scales(e);
    std::copy_n(scales + e * n, n, to);
    std::fill(to + n, to + impl_->panels() * kPanelColumns, 0.0f);
  }
}

void PackedWeight::pack_rows(const void* w, DType dtype, int64_t experts, int64_t n, int64_t k) {
  WEFT_CHECK(experts >= 0 && n >= 0 && k >= 0, "weight [{}, {}, {}]", experts, n, k);
  if (!impl_) impl_ = std::make_unique<Impl>();
  Impl& to = *impl_;
  to.target = active_target();
  to.dtype = dtype;
  to.experts = experts;
  to.n = n;
  to.k = k;
  to.bytes = packed_weight_bytes(dtype, experts, n, k);
  if (to.arena) {
    to.arena->require();
    if (!to.in_arena) to.in_arena = to.arena->allocate(to.capacity = to.bytes);
    WEFT_CHECK(to.bytes == to.capacity, "panels of {} bytes in an arena's {}", to.bytes, to.capacity);
    to.losses = to.arena->losses();
  } else if (!to.memory || to.bytes > to.capacity || to.bytes < to.capacity / 2) {
    to.memory = nullptr;
    to.capacity = 0;
    to.memory = allocate(to.bytes);
    to.capacity = to.bytes;
  }
  const int64_t panels = to.panels();
  parallel_for(experts * panels, std::max<int64_t>(1, 65536 / std::max<int64_t>(1, kPanelColumns * k)),
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t row = i % panels * kPanelColumns, source = (i / panels * n + row) * k;
                   char* panel = to.data() + i * to.panel_bytes();
                   const int64_t rows = std::min(kPanelColumns, n - row);
                   if (dtype == DType::kF32)
                     pack_panel(static_cast<const float*>(w) + source, rows, k, reinterpret_cast<float*>(panel));
                   else if (dtype == DType::kBF16)
                     pack_panel(static_cast<const bf16*>(w) + source, rows, k, reinterpret_cast<bf16*>(panel));
                   else
                     pack_panel(static_cast<const int8_t*>(w) + source, rows, k, reinterpret_cast<int8_t*>(panel));
                 }
               });
  to.packed = true;
}

int64_t packed_weight_bytes(DType dtype, int64_t experts, int64_t n, int64_t k) {
  const int64_t panels = experts * ((n + kPanelColumns - 1) / kPanelColumns),
                bytes = panels * panel_elements(dtype, k) * dtype_bytes(dtype);
  return dtype == DType::kI8 ? to_line(bytes) + panels * kPanelColumns * dtype_bytes(DType::kF32) : bytes;
}

void PackedWeight::set_arena(std::shared_ptr<Arena> arena) {
  impl_ = std::make_unique<Impl>();
  impl_->arena = std::move(arena);
}

void PackedWeight::clear() {
  if (impl_ && impl_->arena)
    impl_->packed = false;  // an arena's memory stays
  else
    impl_ = std::make_unique<Impl>();
}

bool PackedWeight::empty() const { return !impl_ || !impl_->packed || (impl_->arena && impl_->arena->losses() != impl_->losses); }
Target PackedWeight::packed_for() const { return impl_->target; }
DType PackedWeight::dtype() const { return impl_->dtype; }
int64_t PackedWeight::experts() const { return impl_->experts; }
int64_t PackedWeight::n() const { return impl_->n; }
int64_t PackedWeight::k() const { return impl_->k; }
int64_t PackedWeight::bytes() const { return impl_->bytes; }

void gemm(ConstMatrix x, const PackedWeight& w, const float* bias, Matrix y, Chain chain) {
  WEFT_CHECK(y.cols == w.n(), "product with {} outputs into {} columns", w.n(), y.cols);
  const int64_t offsets[] = {0, x.rows};
  forward(x, w, 0, bias, offsets, y, chain == Chain::kLeaves ? LeafSpan{x.cols} : kOneChain);
}

void gemm_columns(ConstMatrix x, const PackedWeight& w, int64_t first, Matrix y) {
  const int64_t offsets[] = {0, x.rows};
  forward(x, w, first, nullptr, offsets, y, kOneChain);
}

void gemm_leaves(ConstMatrix x, const PackedWeight& w, LeafSpan span, Matrix y) {
  WEFT_CHECK(span.count > 0 && span.first % span.count == 0 && span.first + span.count <= kNumLeaves &&
                 kNumLeaves % span.count == 0 && x.cols == span.columns(),
             "{} columns for leaves [{}, {}) of {}", x.cols, span.first, span.first + span.count, span.k);
  WEFT_CHECK(y.cols == w.n() && y.dtype == DType::kF32, "leaves of {} outputs into {} columns of {}", w.n(), y.cols,
             dtype_name(y.dtype));
  const int64_t offsets[] = {0, x.rows};
  forward(x, w, 0, nullptr, offsets, y, span);
}

void gemm_input_grad(ConstMatrix dy, ConstMatrix w, Matrix dx, bool accumulate) {
  WEFT_CHECK(w.rows == dy.cols && w.cols == dx.cols && w.stride == w.cols,
             "input gradient of [{}, {}] through [{}, {}] stride {} into [{}, {}]", dy.rows, dy.cols, w.rows, w.cols, w.stride,
             dx.rows, dx.cols);
  const int64_t offsets[] = {0, dy.rows};
  input_grad(dy, w.data, w.dtype, offsets, dx, accumulate);
}

void gemm_weight_grad(ConstMatrix dy, ConstMatrix x, float* dw) {
  const int64_t offsets[] = {0, dy.rows};
  weight_grad(dy, x, offsets, dw);
}

void gemm_bias_grad(ConstMatrix dy, float* dbias) {
  WEFT_CHECK(is_float(dy.dtype), "bias gradient of {}", dtype_name(dy.dtype));
  const GemmTable& simd = table();
  const int64_t panels = (dy.cols + kPanelColumns - 1) / kPanelColumns;
  parallel_for(panels, 16, [&](int64_t begin, int64_t end) {
    const int64_t col = begin * kPanelColumns, last = std::min(dy.cols, end * kPanelColumns);
    simd.bias_grad(sub(dy, 0, col, dy.rows, last - col), dbias + col);
  });
}

void grouped_gemm(ConstMatrix x, const PackedWeight& w, std::span<const int64_t> offsets, Matrix y) {
  WEFT_CHECK(y.cols == w.n(), "product with {} outputs into {} columns", w.n(), y.cols);
  forward(x, w, 0, nullptr, offsets, y, kOneChain);
}

void grouped_gemm_input_grad(ConstMatrix dy, const void* w, DType w_dtype, std::span<const int64_t> offsets, Matrix dx) {
  check_offsets(offsets, static_cast<int64_t>(offsets.size()) - 1, dy.rows);
  input_grad(dy, w, w_dtype, offsets, dx, false);
}

void grouped_gemm_weight_grad(ConstMatrix dy, ConstMatrix x, std::span<const int64_t> offsets, float* dw) {
  check_offsets(offsets, static_cast<int64_t>(offsets.size()) - 1, dy.rows);
  weight_grad(dy, x, offsets, dw);
}

}  // namespace weft::kernels
