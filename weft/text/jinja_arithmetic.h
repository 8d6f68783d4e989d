#pragma once
// Operators on values as Python has them. Integers beyond 64 bits can be read, printed and compared; arithmetic on them is an
// error, never a wrong digit. Throws RawError.

#include "weft/text/jinja_ast.h"

namespace weft::jinja {

Value arithmetic(Interpreter& in, Op op, const Value& a, const Value& b);
Value negative(const Value& value);
Value positive(const Value& value);
// Text with the five characters of HTML escaped.
std::string escape_html(std::string_view text);

}  // namespace weft::jinja
