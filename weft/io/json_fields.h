#pragma once
// Typed, checked access to the keys of one JSON object, remembering which keys were asked for. For .cc files of this folder.
// A key that is absent or null yields nullopt; a wrong type or range is a FileError naming path, key and value.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/base/error.h"

namespace weft {

class JsonFields {
 public:
  // `prefix` is put before keys in messages ("rope_parameters.").
  JsonFields(const nlohmann::json& object, std::string path, std::string prefix = "");

  bool has(const std::string& key) const;  // present and not null
  std::optional<int64_t> integer(const std::string& key, int64_t low, int64_t high);
  std::optional<double> number(const std::string& key, double low, double high);
  std::optional<bool> boolean(const std::string& key);
  std::optional<std::string> text(const std::string& key);
  std::optional<std::vector<int64_t>> integers(const std::string& key, int64_t low, int64_t high);  // an integer or a list
  std::optional<std::vector<std::string>> texts(const std::string& key);
  const nlohmann::json* object(const std::string& key);  // nullptr: absent or null

  int64_t required_integer(const std::string& key, int64_t low, int64_t high);
  // One value under several spellings; two that differ are an error.
  std::optional<int64_t> integer_of(const std::vector<std::string>& keys, int64_t low, int64_t high);

  void mark_read(const std::string& key) { read_.insert(key); }
  // Keys that hold something and were never asked for, with the prefix.
  std::vector<std::string> unread() const;
  [[noreturn]] void fail(const std::string& key, const std::string& what) const;
  std::string name(const std::string& key) const { return prefix_ + key; }

 private:
  const nlohmann::json* value(const std::string& key);

  const nlohmann::json& object_;
  std::string path_, prefix_;
  std::set<std::string> read_;
};

}  // namespace weft
