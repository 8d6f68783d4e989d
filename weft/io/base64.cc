#include "weft/io/base64.h"

#include <array>
#include <cstdint>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

constexpr std::array<int8_t, 256> kValues = [] {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  for (size_t i = 0; i < kAlphabet.size(); ++i) values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
  return values;
}();

}  // namespace

std::string base64_encode(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < n ? static_cast<uint32_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) text += k <= n ? kAlphabet[group >> (18 - 6 * k) & 63] : '=';
  }
  return text;
}

std::vector<std::byte> base64_decode(std::string_view text) {
  if (text.size() % 4 != 0) throw ValueError(fmt::format("base64 of {} characters is not a multiple of 4", text.size()));
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    const bool last = i + 4 == text.size();
    const size_t padding = !last ? 0 : text[i + 3] != '=' ? 0 : text[i + 2] != '=' ? 1 : 2;
    uint32_t group = 0;
    for (size_t k = 0; k < 4; ++k) {
      const int8_t value = k < 4 - padding ? kValues[static_cast<unsigned char>(text[i + k])] : int8_t{0};
      if (value < 0) throw ValueError(fmt::format("base64 has a bad character at {}", i + k));
      group = group << 6 | static_cast<uint32_t>(value);
    }
    if (padding > 0 && (group & ((1u << (8 * padding)) - 1)) != 0)
      throw ValueError("base64 ends with bits that belong to no byte");
    for (size_t k = 0; k < 3 - padding; ++k) bytes.push_back(static_cast<std::byte>(group >> (16 - 8 * k) & 255));
  }
  return bytes;
}

}  // namespace weft
