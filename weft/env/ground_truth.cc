#include "weft/env/ground_truth.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "weft/base/error.h"

namespace weft {
namespace {

const nlohmann::json* look_up(const nlohmann::json& row, std::string_view key) {
  const nlohmann::json* value = &row;
  if (const auto whole = row.find(key); whole != row.end()) {
    value = &*whole;
  } else {
    while (true) {
      const size_t dot = key.find('.');
      if (!value->is_object()) return nullptr;
      const auto field = value->find(key.substr(0, dot));
      if (field == value->end()) return nullptr;
      value = &*field;
      if (dot == std::string_view::npos) break;
      key.remove_prefix(dot + 1);
    }
  }
  return value->is_null() ? nullptr : value;
}

GroundTruth found(const nlohmann::json& value, const std::string& key) {
  return {value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), key};
}

}  // namespace

const std::vector<std::string>& ground_truth_keys() {
  static const std::vector<std::string> keys = {"reward_model.ground_truth", "solution", "answer", "ground_truth"};
  return keys;
}

std::optional<GroundTruth> find_ground_truth(std::string_view row_json, const std::string& key, const std::string& where) {
  nlohmann::json row;
  try {
    row = nlohmann::json::parse(row_json);
  } catch (const nlohmann::json::exception& error) {
    throw ValueError(fmt::format("{}: not JSON: {}", where, error.what()));
  }
  if (!row.is_object()) throw ValueError(fmt::format("{}: a row must be a JSON object, this is {}", where, row.type_name()));
  if (key != "auto") {
    if (const auto* value = look_up(row, key)) return found(*value, key);
    std::vector<std::string> fields;
    for (const auto& [name, value] : row.items()) fields.push_back(name);
    throw ValueError(fmt::format("{}: no value under reward.ground_truth_key = \"{}\"; fields of the row: {}", where, key,
                                 fmt::join(fields, ", ")));
  }
  std::vector<std::string> present;
  std::optional<GroundTruth> first;
  for (const auto& candidate : ground_truth_keys()) {
    const auto* value = look_up(row, candidate);
    if (value == nullptr) continue;
    present.push_back(candidate);
    if (!first) first = found(*value, candidate);
  }
  if (present.size() > 1)
    throw ValueError(fmt::format("{}: {} could each be the ground truth; choose one with reward.ground_truth_key", where,
                                 fmt::join(present, ", ")));
  return first;
}

}  // namespace weft
