#pragma once
// For tests: a directory that is removed at the end, and the message of an expected error.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "weft/base/error.h"

namespace weft {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-io-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw SystemError("mkdtemp failed");
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code code;
    std::filesystem::remove_all(path_, code);
  }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(file(name), std::ios::binary) << text;
    return file(name);
  }
  int64_t num_entries() const {
    return std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator());
  }

 private:
  std::string path_;
};

inline std::string test_data(const std::string& name) { return std::string(WEFT_SOURCE_DIR) + "/tests/data/" + name; }

// Message of the E that `call` throws; a failure of the test when it throws none.
template <typename E, typename Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

}  // namespace weft
