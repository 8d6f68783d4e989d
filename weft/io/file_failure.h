#pragma once
// What the system said about a file, as an error that also says what to do.

#include <string>

namespace weft {

// "PATH: cannot ACTION: REASON; ADVICE". `error` is errno's value.
[[noreturn]] void throw_file_failure(const std::string& path, const char* action, int error);

}  // namespace weft
