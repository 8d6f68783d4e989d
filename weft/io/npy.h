#pragma once
// Small arrays in the .npy format of NumPy; with base64.h the form in which routing traces cross HTTP (vLLM calls it
// `routed_experts`). Little-endian, C order. Errors: ValueError saying what is wrong with the bytes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

enum class NpyType : uint8_t { kU8, kU16, kI16, kI32, kI64, kF32 };

int64_t npy_type_bytes(NpyType type);

struct NpyArray {
  NpyType type = NpyType::kU8;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;  // row-major

  int64_t num_elements() const { return static_cast<int64_t>(data.size()) / npy_type_bytes(type); }
  // Element `index` of an integer array.
  int64_t integer(int64_t index) const;
  bool operator==(const NpyArray&) const = default;
};

// Throws unless `data` has the size that type and shape say (our bug).
std::vector<std::byte> write_npy(const NpyArray& array);
NpyArray read_npy(std::span<const std::byte> bytes);

}  // namespace weft
