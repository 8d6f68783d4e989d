#pragma once
// Escape sequences of string literals in templates, as Python's unicode-escape reads them.

#include <string>
#include <string_view>

namespace weft::jinja {

// False with `problem` set for a sequence that is malformed, names a surrogate or a character by an unknown name.
bool decode_escapes(std::string_view body, std::string& out, std::string& problem);

}  // namespace weft::jinja
