#pragma once
// Numbers of a plan for a person.

#include <cstdint>
#include <string>

namespace weft {

std::string size_text(double bytes);  // "12.72 GB": powers of 1000
inline std::string size_text(int64_t bytes) { return size_text(static_cast<double>(bytes)); }
std::string time_text(double seconds);  // "509.0 ms"
std::string count_text(int64_t n);      // "671.03 B"

}  // namespace weft
