#pragma once
// Standard base64 (RFC 4648, with padding).

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

std::string base64_encode(std::span<const std::byte> bytes);
// Strict: padding required, no white space, unused bits zero; anything else is a ValueError.
std::vector<std::byte> base64_decode(std::string_view text);

}  // namespace weft
