#include "weft/comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "weft/base/error.h"

namespace weft {
namespace {

// Elements joined at a time: the intermediate sums of a tree over 256 ranks (9 levels of 4 or 8 KB) stay in the L2 cache.
constexpr int64_t kBlock = 1024;
constexpr int kMaxDepth = 32;

struct f16 {
  uint16_t bits;
};

// How a stored type is computed with: its own type, or float for the two halves.
template <class T>
struct Widened {
  using type = T;
  static T widen(T x) { return x; }
  static T narrow(T x) { return x; }
};
template <>
struct Widened<bf16> {
  using type = float;
  static float widen(bf16 x) { return bf16_to_float(x); }
  static bf16 narrow(float x) { return float_to_bf16(x); }
};
template <>
struct Widened<f16> {
  using type = float;
  static float widen(f16 x) { return static_cast<float>(std::bit_cast<_Float16>(x.bits)); }
  static f16 narrow(float x) { return {std::bit_cast<uint16_t>(static_cast<_Float16>(x))}; }
};

struct Add {
  template <class T>
  static T join(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;  // wraps; signed overflow is undefined
      return static_cast<T>(static_cast<U>(static_cast<U>(a) + static_cast<U>(b)));
    } else {
      return a + b;
    }
  }
};
struct Min {
  template <class T>
  static T join(T a, T b) {
    return a < b || a != a ? a : b;
  }
};
struct Max {
  template <class T>
  static T join(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

// The tree over parts [low, high) for elements [begin, begin + n), n <= kBlock. Returns where the values are: a part itself where
// it needs no widening, else scratch[0 .. n). Scratch of one level below starts kBlock further.
// Not inlined: g++ unrolls the recursion several levels deep for each type, which makes half a minute of one file and no speed.
template <class T, class Join, class W = typename Widened<T>::type>
[[gnu::noinline]] const W* tree(std::span<const std::byte* const> parts, int low, int high, int64_t begin, int64_t n,
                                W* scratch) {
  if (high - low == 1) {
    const T* source = reinterpret_cast<const T*>(parts[static_cast<size_t>(low)]) + begin;
    if constexpr (std::is_same_v<T, W>) {
      return source;
    } else {
      for (int64_t i = 0; i < n; ++i) scratch[i] = Widened<T>::widen(source[i]);
      return scratch;
    }
  }
  const int middle = low + reduce_split(high - low);
  const W* left = tree<T, Join>(parts, low, middle, begin, n, scratch);
  const W* right = tree<T, Join>(parts, middle, high, begin, n, scratch + kBlock);
  for (int64_t i = 0; i < n; ++i) scratch[i] = Join::join(left[i], right[i]);
  return scratch;
}

template <class T, class Join, class W = typename Widened<T>::type>
void join_all(std::span<const std::byte* const> parts, std::byte* out, int64_t count, bool average) {
  alignas(64) W scratch[kBlock * kMaxDepth];
  const int n = static_cast<int>(parts.size());
  T* target = reinterpret_cast<T*>(out);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const W* sum = tree<T, Join>(parts, 0, n, begin, length, scratch);
    if constexpr (std::is_floating_point_v<W>) {
      if (average) {
        const W divisor = static_cast<W>(n);
        for (int64_t i = 0; i < length; ++i) scratch[i] = sum[i] / divisor;
        sum = scratch;
      }
    }
    if constexpr (std::is_same_v<T, W>) {
      std::memmove(target + begin, sum, static_cast<size_t>(length) * sizeof(T));
    } else {
      for (int64_t i = 0; i < length; ++i) target[begin + i] = Widened<T>::narrow(sum[i]);
    }
  }
}

// Two float parts, the commonest case, without the walk through scratch: one pass over memory.
void add_two(const float* a, const float* b, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

template <class T>
void join_by(std::span<const std::byte* const> parts, std::byte* out, int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return join_all<T, Add>(parts, out, count, false);
    case ReduceOp::kAvg: return join_all<T, Add>(parts, out, count, true);
    case ReduceOp::kMin: return join_all<T, Min>(parts, out, count, false);
    case ReduceOp::kMax: return join_all<T, Max>(parts, out, count, false);
  }
}

}  // namespace

int reduce_split(int n) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(n - 1))); }

void check_reducible(DType dtype, ReduceOp op) {
  const bool is_float = dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
  const bool fits = dtype == DType::kBool ? op == ReduceOp::kMin || op == ReduceOp::kMax : op != ReduceOp::kAvg || is_float;
  if (!fits)
    throw ValueError(fmt::format("{} of {} is not defined: {}", to_string(op), dtype_name(dtype),
                                 dtype == DType::kBool ? "use min (and) or max (or)" : "sum, then divide as you mean it"));
}

void reduce_parts(std::span<const std::byte* const> parts, std::byte* out, int64_t count, DType dtype, ReduceOp op) {
  WEFT_CHECK(!parts.empty(), "nothing to join");
  check_reducible(dtype, op);
  if (dtype == DType::kF32 && op == ReduceOp::kSum && parts.size() == 2)
    return add_two(reinterpret_cast<const float*>(parts[0]), reinterpret_cast<const float*>(parts[1]),
                   reinterpret_cast<float*>(out), count);
  switch (dtype) {
    case DType::kF64: return join_by<double>(parts, out, count, op);
    case DType::kF32: return join_by<float>(parts, out, count, op);
    case DType::kF16: return join_by<f16>(parts, out, count, op);
    case DType::kBF16: return join_by<bf16>(parts, out, count, op);
    case DType::kI64: return join_by<int64_t>(parts, out, count, op);
    case DType::kI32: return join_by<int32_t>(parts, out, count, op);
    case DType::kI16: return join_by<int16_t>(parts, out, count, op);
    case DType::kI8: return join_by<int8_t>(parts, out, count, op);
    case DType::kU8:
    case DType::kBool: return join_by<uint8_t>(parts, out, count, op);
  }
}

}  // namespace weft
