#pragma once
// Where the recorded tokenizers lie.

#include <string>

namespace weft::test {

inline std::string data_dir(const std::string& name) { return std::string(WEFT_SOURCE_DIR) + "/tests/data/tokenizers/" + name; }

}  // namespace weft::test
