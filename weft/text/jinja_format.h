#pragma once
// Python's two ways to format text: 'a %s' % value and 'a {}'.format(value). What is not supported throws RawError.

#include <string>
#include <string_view>

#include "weft/text/jinja_value.h"

namespace weft::jinja {

std::string percent_format(std::string_view text, const Value& values);
// With named values, as the filter `format` passes them.
std::string brace_format(std::string_view text, const Args& args);

}  // namespace weft::jinja
