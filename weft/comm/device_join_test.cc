// The kernel for GPUs, run on the CPU without flushing by the machine: its bits are those of reduce.h.
#include "weft/comm/device_join.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cstring>
#include <thread>

#include "weft/base/random.h"
#include "weft/base/threads.h"
#include "weft/comm/comm_test_cases.h"

namespace weft {
namespace {

using comm_cases::Bytes;

// Ordinary values, or any bits but those of a NaN or infinity: denormals, huge and tiny numbers.
Bytes part(DType dtype, int rank, int64_t count, bool wild) {
  if (!wild) return comm_cases::values(dtype, rank, count);
  Bytes out = comm_cases::blank(count, dtype);
  for (int64_t i = 0; i < count; ++i) {
    uint64_t bits = hash_combine(static_cast<uint64_t>(rank), static_cast<uint64_t>(i));
    // Half of the elements are near the smallest normal number, and some averages just below it.
    const int64_t tiny = i % 4;
    const auto exponent = [&](int fraction_bits, int exponent_bits) {
      const uint64_t all = (uint64_t{1} << exponent_bits) - 1;
      uint64_t e = bits >> 40 & all;
      if (e == all) e = 1;
      if (tiny < 2) e = bits >> 40 & 3;
      if (i % 8 == 0) bits |= (uint64_t{1} << fraction_bits) - 1;
      bits = (bits & ~(all << fraction_bits)) | e << fraction_bits;
    };
    switch (dtype) {
      case DType::kF64: exponent(52, 11); comm_cases::put(&out, i, bits); break;
      case DType::kF32: exponent(23, 8); comm_cases::put(&out, i, static_cast<uint32_t>(bits)); break;
      case DType::kF16: exponent(10, 5); comm_cases::put(&out, i, static_cast<uint16_t>(bits)); break;
      case DType::kBF16: exponent(7, 8); comm_cases::put(&out, i, static_cast<uint16_t>(bits)); break;
      default: comm_cases::put_value(&out, i, dtype, rank, i);
    }
  }
  return out;
}

// A NaN is a NaN, whatever its bits (infinity - infinity, where sums overflow).
bool same(const Bytes& a, const Bytes& b, DType dtype, int64_t i) {
  const int64_t width = dtype_bytes(dtype);
  if (std::memcmp(a.data() + i * width, b.data() + i * width, static_cast<size_t>(width)) == 0) return true;
  const auto nan = [&](const Bytes& x) {
    switch (dtype) {
      case DType::kF64: return (comm_cases::get<uint64_t>(x, i) & ~(uint64_t{1} << 63)) > 0x7ff0000000000000u;
      case DType::kF32: return (comm_cases::get<uint32_t>(x, i) & 0x7fffffffu) > 0x7f800000u;
      case DType::kF16: return (comm_cases::get<uint16_t>(x, i) & 0x7fff) > 0x7c00;
      case DType::kBF16: return (comm_cases::get<uint16_t>(x, i) & 0x7fff) > 0x7f80;
      default: return false;
    }
  };
  return nan(a) && nan(b);
}

TEST(DeviceJoin, HasTheBitsOfReduceParts) {
  constexpr int64_t kCount = 3000;
  for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 13, 16}) {
    for (const DType dtype : comm_cases::kDTypes) {
      for (const bool wild : {false, true}) {
        std::vector<Bytes> parts;
        std::vector<const std::byte*> places;
        for (int r = 0; r < n; ++r) parts.push_back(part(dtype, r, kCount, wild));
        for (const Bytes& p : parts) places.push_back(p.data());
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
          if (!comm_cases::reducible(dtype, op)) continue;
          Bytes wanted = comm_cases::blank(kCount, dtype);
          std::thread([&] {
            set_denormals_flushed();
            reduce_parts(places, wanted.data(), kCount, dtype, op);
          }).join();
          const int me = n / 2;
          const int64_t stride = kCount * dtype_bytes(dtype) + 256;
          Bytes staged(static_cast<size_t>(stride * n)), got = parts[static_cast<size_t>(me)];
          for (int r = 0, place = 0; r < n; ++r)
            if (r != me) std::memcpy(staged.data() + stride * place++, places[static_cast<size_t>(r)], static_cast<size_t>(kCount * dtype_bytes(dtype)));
          auto* own = reinterpret_cast<unsigned char*>(got.data());
          const JoinArgs args{own, reinterpret_cast<const unsigned char*>(staged.data()), own, stride, kCount, n, me,
                              static_cast<int>(dtype), static_cast<int>(op)};
          std::thread([&] {
            std::fesetenv(FE_DFL_ENV);
            ASSERT_FALSE(denormals_flushed());
            for (int64_t first = 0; first < 7; ++first) device_join::join_elements(args, first, 7);
          }).join();
          int64_t wrong = 0, example = -1;
          for (int64_t i = 0; i < kCount; ++i)
            if (!same(got, wanted, dtype, i) && wrong++ == 0) example = i;
          EXPECT_EQ(wrong, 0) << to_string(op) << " of " << dtype_name(dtype) << ", " << n << " ranks, wild " << wild << ", element " << example;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
