#pragma once
// Built-in filters (`x | name`) and tests (`x is name`).

#include <string>

#include "weft/text/jinja_ast.h"

namespace weft::jinja {

FilterFunction find_filter(const std::string& name);  // null: unknown or unsupported
bool is_unsupported_filter(const std::string& name);  // Jinja has it, we do not
TestFunction find_test(const std::string& name);

// Filters over sequences (jinja_sequence_filters.cc).
FilterFunction find_sequence_filter(const std::string& name);

}  // namespace weft::jinja
