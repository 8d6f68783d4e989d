#pragma once
// Hashes of whole files, against damage (not against attackers).

#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

uint64_t hash_bytes(std::string_view bytes);
uint64_t hash_file(const std::string& path);  // FileError where it cannot be read
std::string hash_text(uint64_t hash);         // 16 hex digits

}  // namespace weft
