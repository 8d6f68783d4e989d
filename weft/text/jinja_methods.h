#pragma once
// Attributes, methods, elements and slices of values. What Python has and we do not, and what the sandbox forbids, throws:
// a template that relies on it must not render as if it were undefined.

#include <string>

#include "weft/text/jinja_value.h"

namespace weft::jinja {

using Method = Value (*)(Interpreter&, const Value& self, Args&);

// False: no such attribute.
bool find_attribute(Interpreter& in, const Value& object, const std::string& name, Value& out);
// Null: no such method.
Method find_string_method(const std::string& name);
// Whether that method gives on a string marked safe what Python's Markup gives.
bool works_on_markup(const std::string& name);
// False: out of range, or nothing with elements. Negative indexes count from the end.
bool element(const Value& object, int64_t index, Value& out);
Value slice(Interpreter& in, const Value& object, const Value& start, const Value& stop, const Value& step);
std::string quoted_name(const std::string& name);

}  // namespace weft::jinja
