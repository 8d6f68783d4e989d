#pragma once
// For the kernels' tests: data, every target times several thread counts, comparison of bits.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "weft/base/random.h"
#include "weft/base/threads.h"
#include "weft/kernels/matrix.h"
#include "weft/kernels/target.h"

namespace weft::kernels::testing {

// Restores target and threads; flushes denormals, as main and every thread of ours do.
class Kernels : public ::testing::Test {
 protected:
  void SetUp() override { set_denormals_flushed(); }
  void TearDown() override {
    force_target(available_targets().back());
    set_num_threads(1);
  }
  // Runs body on each target with 1, 2 and 3 threads; its messages name them.
  static void everywhere(const std::function<void()>& body) {
    for (const Target target : available_targets())
      for (const int threads : {1, 2, 3}) {
        force_target(target);
        set_num_threads(threads);
        SCOPED_TRACE(std::string(target_name(target)) + ", " + std::to_string(threads) + " threads");
        body();
      }
    set_num_threads(1);
  }
};

inline std::vector<float> normal_floats(int64_t n, uint64_t seed, float scale = 1.0f) {
  const CounterRng rng(seed);
  std::vector<float> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) out[static_cast<size_t>(i)] = static_cast<float>(rng.normal(static_cast<uint64_t>(i))) * scale;
  return out;
}

inline std::vector<bf16> to_bf16(const std::vector<float>& x) {
  std::vector<bf16> out;
  for (const float f : x) out.push_back(float_to_bf16(f));
  return out;
}
inline std::vector<float> to_f32(const std::vector<bf16>& x) {
  std::vector<float> out;
  for (const bf16 f : x) out.push_back(bf16_to_float(f));
  return out;
}

// A matrix that owns its data, of either dtype.
struct Owned {
  DType dtype;
  int64_t rows, cols;
  std::vector<float> f;
  std::vector<bf16> b;
  Owned(DType t, int64_t r, int64_t c) : dtype(t), rows(r), cols(c) {
    if (t == DType::kF32)
      f.assign(static_cast<size_t>(r * c), NAN);
    else
      b.assign(static_cast<size_t>(r * c), bf16{0x7fc1});
  }
  Owned(DType t, int64_t r, int64_t c, uint64_t seed, float scale = 1.0f) : Owned(t, r, c) {
    if (t == DType::kF32)
      f = normal_floats(r * c, seed, scale);
    else
      b = to_bf16(normal_floats(r * c, seed, scale));
  }
  void* data() { return dtype == DType::kF32 ? static_cast<void*>(f.data()) : static_cast<void*>(b.data()); }
  const void* data() const {
    return dtype == DType::kF32 ? static_cast<const void*>(f.data()) : static_cast<const void*>(b.data());
  }
  Matrix m() { return {data(), dtype, rows, cols, cols}; }
  ConstMatrix c() const { return {data(), dtype, rows, cols, cols}; }
  float at(int64_t r, int64_t col) const {
    const auto i = static_cast<size_t>(r * cols + col);
    return dtype == DType::kF32 ? f[i] : bf16_to_float(b[i]);
  }
  std::vector<float> floats() const { return dtype == DType::kF32 ? f : to_f32(b); }
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
// Says where the first difference is.
inline ::testing::AssertionResult bits_equal(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << "sizes " << a.size() << " and " << b.size();
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0)
      return ::testing::AssertionFailure() << "element " << i << " of " << a.size() << ": " << a[i] << " and " << b[i];
  return ::testing::AssertionSuccess();
}
inline ::testing::AssertionResult bits_equal(const Owned& a, const Owned& b) { return bits_equal(a.floats(), b.floats()); }

inline constexpr DType kBoth[] = {DType::kF32, DType::kBF16};

}  // namespace weft::kernels::testing
