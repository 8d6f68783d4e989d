#pragma once
// JSON from outside: one strict reader for files and records. Every error is a FileError with path, place and reason.
// Refused: syntax errors (byte offset), duplicate keys, nesting beyond max_depth, NUL bytes, invalid UTF-8, numbers that no
// double holds. `where` names the record inside the file (a line, "header") and may be empty.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

inline constexpr int kMaxJsonDepth = 64;

nlohmann::json parse_json(std::string_view text, const std::string& path, const std::string& where = "",
                          int max_depth = kMaxJsonDepth);
// The same, keys in the order of the text (for rewriting a file with few changes).
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& path, const std::string& where = "",
                                          int max_depth = kMaxJsonDepth);
nlohmann::json read_json_file(const std::string& path);

// Byte offset of the first byte that is not well-formed UTF-8 (overlong forms and surrogates are not).
std::optional<int64_t> find_invalid_utf8(std::string_view text);

}  // namespace weft
