#pragma once
// The program that runs a user's Python reward: python3 -c <text> FILE FUNCTION. Only Python's standard library.

#include <string_view>

namespace weft {

std::string_view reward_adapter_source();

}  // namespace weft
