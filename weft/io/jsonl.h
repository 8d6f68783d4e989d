#pragma once
// JSON Lines: one JSON value a line, UTF-8, blank lines skipped, CRLF accepted, the last newline optional.
// Errors: FileError with file, line (from 1) and reason.

#include <cstdint>
#include <istream>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/io/append_file.h"
#include "weft/io/mapped_file.h"

namespace weft {

struct JsonlLimits {
  int64_t max_line_bytes = int64_t{64} << 20;
};

// Random access to the rows of a file. Opening scans it once: line lengths and UTF-8 are checked then, JSON at json().
class JsonlFile {
 public:
  explicit JsonlFile(const std::string& path, JsonlLimits limits = {});

  const std::string& path() const { return file_.path(); }
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  std::string_view text(int64_t row) const;  // valid as long as the object
  nlohmann::json json(int64_t row) const;    // FileError: malformed
  int64_t line_number(int64_t row) const;    // in the file, from 1
  std::string location(int64_t row) const;   // "line 12", for FileError's `where`
  std::span<const std::byte> bytes() const { return file_.bytes(); }

 private:
  struct Row {
    int64_t begin, end, line;
  };
  MappedFile file_;
  std::vector<Row> rows_;
};

// One pass over a stream (standard input). `name` stands for the path in errors.
class JsonlStream {
 public:
  JsonlStream(std::istream& stream, std::string name, JsonlLimits limits = {});
  // The next row that is not blank; nullopt at the end. line_number() is its line.
  std::optional<std::string> next();
  nlohmann::json parse(std::string_view row) const;
  int64_t line_number() const { return line_; }

 private:
  std::istream& stream_;
  std::string name_;
  JsonlLimits limits_;
  int64_t line_ = 0;
};

// Appends rows; each is one write, so a reader sees whole lines only.
class JsonlWriter {
 public:
  explicit JsonlWriter(const std::string& path, std::optional<int64_t> keep_bytes = std::nullopt) : file_(path, keep_bytes) {}
  void write(std::string_view json);  // without newlines
  int64_t size() const { return file_.size(); }

 private:
  AppendFile file_;
};

}  // namespace weft
