#include "weft/text/json_node.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"

namespace weft::tok {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;

// The offset at which nesting exceeds the limit. Scanned before parsing: a hostile document is refused before it costs memory.
std::optional<int64_t> find_too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return static_cast<int64_t>(i);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::nullopt;
}

}  // namespace

void JsonNode::fail(const std::string& what) const { throw FileError(*file_, path_, what); }

void JsonNode::expect(bool fits, std::string_view wanted) const {
  if (!fits) fail(fmt::format("expected {}, found {}", wanted, value_->type_name()));
}

JsonNode JsonNode::child(const json& value, std::string_view key) const {
  return JsonNode(value, *file_, path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key));
}

JsonNode JsonNode::at(std::string_view key) const {
  std::optional<JsonNode> found = find(key);
  if (!found) fail(fmt::format("the field \"{}\" is missing", key));
  return *found;
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  expect(value_->is_object(), "an object");
  const auto it = value_->find(std::string(key));
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return child(*it, key);
}

std::string JsonNode::type() const { return at("type").string(); }

std::string JsonNode::string_or(std::string_view key, std::string_view otherwise) const {
  const std::optional<JsonNode> field = find(key);
  return field ? field->string() : std::string(otherwise);
}

bool JsonNode::boolean_or(std::string_view key, bool otherwise) const {
  const std::optional<JsonNode> field = find(key);
  return field ? field->boolean() : otherwise;
}

int64_t JsonNode::size() const {
  expect(value_->is_array(), "an array");
  return static_cast<int64_t>(value_->size());
}

JsonNode JsonNode::item(int64_t index) const {
  WEFT_CHECK(index >= 0 && index < size(), "item {} of {}", index, value_->size());
  return JsonNode((*value_)[static_cast<size_t>(index)], *file_, fmt::format("{}[{}]", path_, index));
}

std::string JsonNode::string() const {
  expect(value_->is_string(), "a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  expect(value_->is_boolean(), "true or false");
  return value_->get<bool>();
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  expect(value_->is_number_integer(), "an integer");
  const bool fits = value_->is_number_unsigned() ? high >= 0 && value_->get<uint64_t>() <= static_cast<uint64_t>(high) &&
                                                       (low < 0 || value_->get<uint64_t>() >= static_cast<uint64_t>(low))
                                                 : value_->get<int64_t>() >= low && value_->get<int64_t>() <= high;
  if (!fits) fail(fmt::format("{} is outside {}..{}", value_->dump(), low, high));
  return value_->get<int64_t>();
}

nlohmann::json parse_json(std::string_view text, const std::string& file) {
  if (const auto offset = find_too_deep(text)) {
    throw FileError(file, fmt::format("byte {}", *offset), fmt::format("nested deeper than {}", kMaxDepth));
  }
  try {
    return json::parse(text.begin(), text.end());
  } catch (const json::parse_error& e) {
    // The parser counts the byte it read last, from 1.
    throw FileError(file, fmt::format("byte {}", e.byte > 0 ? e.byte - 1 : 0), fmt::format("not JSON: {}", e.what()));
  } catch (const json::exception& e) {
    throw FileError(file, "", fmt::format("not JSON: {}", e.what()));
  }
}

std::string read_text_file(const std::string& path, int64_t limit) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) throw FileError(path, "", "there is no such file");
  if (error) throw FileError(path, "", error.message());
  if (!std::filesystem::is_regular_file(status)) throw FileError(path, "", "not a regular file");
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw FileError(path, "", error.message());
  if (size > static_cast<uint64_t>(limit))
    throw FileError(path, "", fmt::format("{} bytes, more than the {} allowed", size, limit));
  std::ifstream in(path, std::ios::binary);
  std::string text(static_cast<size_t>(size), '\0');
  if (!in || !in.read(text.data(), static_cast<std::streamsize>(size))) {
    throw FileError(path, "", fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  return text;
}

}  // namespace weft::tok
