#pragma once
// Element types, and bfloat16 as bits. Rounding is integer round-to-nearest-even with NaN kept quiet (docs/numerics.md, rule 1).

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

enum class DType : uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

int64_t dtype_bytes(DType dtype);
// "float32", "bfloat16", ...: the names of Hugging Face configs and of our output.
std::string_view dtype_name(DType dtype);
// Accepts "bfloat16", "torch.bfloat16", "bf16", "BF16", "float32", "fp32", "F32", "float", ...
std::optional<DType> parse_dtype(std::string_view name);

struct bf16 {
  uint16_t bits;
};

inline float bf16_to_float(bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

inline bf16 float_to_bf16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

}  // namespace weft
