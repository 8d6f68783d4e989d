#include "weft/io/json_fields.h"

namespace weft {
namespace {

std::optional<int64_t> as_integer(const nlohmann::json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

JsonFields::JsonFields(const nlohmann::json& object, std::string path, std::string prefix)
    : object_(object), path_(std::move(path)), prefix_(std::move(prefix)) {
  if (!object.is_object()) throw FileError(path_, prefix_, "not a JSON object");
}

void JsonFields::fail(const std::string& key, const std::string& what) const {
  throw FileError(path_, fmt::format("key \"{}\"", name(key)), what);
}

const nlohmann::json* JsonFields::value(const std::string& key) {
  read_.insert(key);
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::has(const std::string& key) const {
  const auto it = object_.find(key);
  return it != object_.end() && !it->is_null();
}

std::optional<int64_t> JsonFields::integer(const std::string& key, int64_t low, int64_t high) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return std::nullopt;
  const auto result = as_integer(*found);
  if (!result || *result < low || *result > high) {
    fail(key, fmt::format("{} is not an integer from {} to {}", found->dump(), low, high));
  }
  return result;
}

std::optional<double> JsonFields::number(const std::string& key, double low, double high) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return std::nullopt;
  const double result = found->is_number() ? found->get<double>() : low - 1;
  if (!(result >= low && result <= high)) fail(key, fmt::format("{} is not a number from {} to {}", found->dump(), low, high));
  return result;
}

std::optional<bool> JsonFields::boolean(const std::string& key) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_boolean()) fail(key, fmt::format("{} is not true or false", found->dump()));
  return found->get<bool>();
}

std::optional<std::string> JsonFields::text(const std::string& key) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_string()) fail(key, fmt::format("{} is not a string", found->dump()));
  return found->get<std::string>();
}

std::optional<std::vector<int64_t>> JsonFields::integers(const std::string& key, int64_t low, int64_t high) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return std::nullopt;
  std::vector<int64_t> result;
  const auto add = [&](const nlohmann::json& entry) {
    const auto number = as_integer(entry);
    if (!number || *number < low || *number > high) {
      fail(key, fmt::format("{} is not an integer from {} to {}", entry.dump(), low, high));
    }
    result.push_back(*number);
  };
  if (found->is_array()) {
    for (const auto& entry : *found) add(entry);
  } else {
    add(*found);
  }
  return result;
}

std::optional<std::vector<std::string>> JsonFields::texts(const std::string& key) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_array()) fail(key, "not a list of strings");
  std::vector<std::string> result;
  for (const auto& entry : *found) {
    if (!entry.is_string()) fail(key, fmt::format("{} is not a string", entry.dump()));
    result.push_back(entry.get<std::string>());
  }
  return result;
}

const nlohmann::json* JsonFields::object(const std::string& key) {
  const nlohmann::json* found = value(key);
  if (found != nullptr && !found->is_object()) fail(key, "not an object");
  return found;
}

int64_t JsonFields::required_integer(const std::string& key, int64_t low, int64_t high) {
  const auto result = integer(key, low, high);
  if (!result) fail(key, "missing");
  return *result;
}

std::optional<int64_t> JsonFields::integer_of(const std::vector<std::string>& keys, int64_t low, int64_t high) {
  std::optional<int64_t> result;
  std::string first;
  for (const std::string& key : keys) {
    const auto found = integer(key, low, high);
    if (!found) continue;
    if (result && *result != *found) fail(key, fmt::format("{} contradicts \"{}\": {}", *found, name(first), *result));
    if (!result) first = key;
    result = found;
  }
  return result;
}

std::vector<std::string> JsonFields::unread() const {
  std::vector<std::string> result;
  for (const auto& [key, entry] : object_.items()) {
    if (!entry.is_null() && !read_.contains(key)) result.push_back(name(key));
  }
  return result;
}

}  // namespace weft
