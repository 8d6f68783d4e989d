#pragma once
// Functions that every chat template finds: range, dict, namespace, raise_exception, strftime_now.

#include <ctime>
#include <string>

#include "weft/text/jinja_eval.h"

namespace weft::jinja {

void define_globals(Interpreter& in, const std::tm& now);
// Python's strftime in the C locale; throws RawError for a directive that is not supported.
std::string format_time(const std::string& format, const std::tm& time);

}  // namespace weft::jinja
