#pragma once
// Tokens to syntax tree. Unknown or unsupported tags, filters and tests are errors here, with their place. Throws TemplateError.

#include <string>
#include <string_view>

#include "weft/text/jinja_ast.h"

namespace weft::jinja {

// The whole template: bodies[0] of the node.
NodePtr parse(std::string_view source, const std::string& name);

}  // namespace weft::jinja
