#pragma once
// String operations that methods and filters share. Positions and widths count characters.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/text/jinja_value.h"

namespace weft::jinja {

enum class Align { kLeft, kRight, kCenter };

size_t byte_offset(std::string_view text, int64_t characters);
// `limit` < 0: no limit.
std::vector<std::string> split(std::string_view text, std::string_view separator, int64_t limit, bool from_right);
std::vector<std::string> split_spaces(std::string_view text, int64_t limit, bool from_right);
std::string replace(Interpreter& in, std::string_view text, std::string_view old, std::string_view with, int64_t limit);
std::string pad(std::string_view text, int64_t width, std::string_view fill, Align align);

}  // namespace weft::jinja
