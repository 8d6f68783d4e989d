#include "weft/io/jsonl.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/io/json_file.h"

namespace weft {
namespace {

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r") == std::string_view::npos; }

std::string line_name(int64_t line) { return fmt::format("line {}", line); }

void check_line(std::string_view text, const std::string& path, int64_t line, const JsonlLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.max_line_bytes) {
    throw FileError(path, line_name(line), fmt::format("longer than the limit of {} bytes", limits.max_line_bytes));
  }
  if (const auto bad = find_invalid_utf8(text)) {
    throw FileError(path, line_name(line), fmt::format("invalid UTF-8 at byte {} of the line", *bad));
  }
}

std::string_view without_carriage_return(std::string_view text) {
  if (text.ends_with('\r')) text.remove_suffix(1);
  return text;
}

const std::string& refuse_columnar(const std::string& path) {
  for (const char* ending : {".parquet", ".arrow"}) {
    if (path.ends_with(ending)) {
      throw FileError(path, "", "not JSON lines; convert it with: tools/to_jsonl.py " + path);
    }
  }
  return path;
}

}  // namespace

JsonlFile::JsonlFile(const std::string& path, JsonlLimits limits) : file_(refuse_columnar(path)) {
  const auto bytes = file_.bytes();
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  int64_t line = 0;
  for (size_t begin = 0; begin < all.size();) {
    ++line;
    const size_t newline = all.find('\n', begin);
    const size_t end = newline == std::string_view::npos ? all.size() : newline;
    const std::string_view row = without_carriage_return(all.substr(begin, end - begin));
    check_line(row, path, line, limits);
    if (!is_blank(row)) rows_.push_back({static_cast<int64_t>(begin), static_cast<int64_t>(begin + row.size()), line});
    begin = end + 1;
  }
}

std::string_view JsonlFile::text(int64_t row) const {
  WEFT_CHECK(0 <= row && row < size(), "row {} of {}", row, size());
  const Row& place = rows_[static_cast<size_t>(row)];
  const auto bytes = file_.bytes().subspan(static_cast<size_t>(place.begin), static_cast<size_t>(place.end - place.begin));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

nlohmann::json JsonlFile::json(int64_t row) const { return parse_json(text(row), path(), location(row)); }

int64_t JsonlFile::line_number(int64_t row) const {
  WEFT_CHECK(0 <= row && row < size(), "row {} of {}", row, size());
  return rows_[static_cast<size_t>(row)].line;
}

std::string JsonlFile::location(int64_t row) const { return line_name(line_number(row)); }

JsonlStream::JsonlStream(std::istream& stream, std::string name, JsonlLimits limits)
    : stream_(stream), name_(std::move(name)), limits_(limits) {}

std::optional<std::string> JsonlStream::next() {
  std::streambuf* buffer = stream_.rdbuf();
  constexpr int kEnd = std::char_traits<char>::eof();
  std::string row;
  for (;;) {
    row.clear();
    ++line_;
    int c = buffer->sbumpc();
    for (; c != kEnd && c != '\n'; c = buffer->sbumpc()) {
      row.push_back(static_cast<char>(c));
      // Checked while reading: a line without end must not fill the memory first.
      if (static_cast<int64_t>(row.size()) > limits_.max_line_bytes + 1) check_line(row, name_, line_, limits_);
    }
    if (row.ends_with('\r')) row.pop_back();
    check_line(row, name_, line_, limits_);
    if (!is_blank(row)) return row;
    if (c == kEnd) return std::nullopt;
  }
}

nlohmann::json JsonlStream::parse(std::string_view row) const { return parse_json(row, name_, line_name(line_)); }

void JsonlWriter::write(std::string_view json) {
  WEFT_CHECK(json.find('\n') == std::string_view::npos, "a JSONL row holds a newline");
  std::string line(json);
  line += '\n';
  file_.append(std::as_bytes(std::span(line)));
}

}  // namespace weft
