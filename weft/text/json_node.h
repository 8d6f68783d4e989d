#pragma once
// A place in a JSON document together with its path ("pre_tokenizer.pretokenizers[0].pattern"), so that every complaint
// about an outside file names where it is. A view: the document and the file name must outlive it. Errors: FileError.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace weft::tok {

class JsonNode {
 public:
  // The root of a document read from `file`.
  JsonNode(const nlohmann::json& value, const std::string& file) : value_(&value), file_(&file) {}

  [[noreturn]] void fail(const std::string& what) const;

  // Objects: a field that must be there, or one that may be absent or null.
  JsonNode at(std::string_view key) const;
  std::optional<JsonNode> find(std::string_view key) const;
  std::string type() const;  // the text of the field "type"
  std::string string_or(std::string_view key, std::string_view otherwise) const;
  bool boolean_or(std::string_view key, bool otherwise) const;

  // Arrays.
  int64_t size() const;
  JsonNode item(int64_t index) const;

  std::string string() const;
  bool boolean() const;
  int64_t integer(int64_t low, int64_t high) const;  // inside [low, high]

  const nlohmann::json& raw() const { return *value_; }
  const std::string& file() const { return *file_; }
  const std::string& path() const { return path_; }

 private:
  JsonNode(const nlohmann::json& value, const std::string& file, std::string path)
      : value_(&value), file_(&file), path_(std::move(path)) {}
  JsonNode child(const nlohmann::json& value, std::string_view key) const;
  void expect(bool fits, std::string_view wanted) const;

  const nlohmann::json* value_;
  const std::string* file_;
  std::string path_;
};

// Parses a whole document; malformed JSON, invalid UTF-8 and nesting deeper than 64 are FileErrors with the byte offset.
nlohmann::json parse_json(std::string_view text, const std::string& file);

// A whole file, at most `limit` bytes. FileError when it is missing, not a regular file, unreadable or larger.
std::string read_text_file(const std::string& path, int64_t limit);

}  // namespace weft::tok
