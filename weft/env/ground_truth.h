#pragma once
// Where a row keeps its ground truth: reward.ground_truth_key, a dotted path into the row ("reward_model.ground_truth"), or
// "auto". Pure; the caller prints `key` once so that the user sees what was taken.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// The paths that "auto" looks at, in this order. More than one of them in a row is an error.
const std::vector<std::string>& ground_truth_keys();

struct GroundTruth {
  std::string json;  // the value as JSON text
  std::string key;   // the path that it was found under
};

// Looks into `row_json` (a JSON object). A null value counts as absent. Nothing found: nullopt for "auto"; for a named key
// a ValueError that lists the row's fields. `where` starts the messages ("train.jsonl: row 12"). A key that is itself a
// field's name with dots in it wins over the path.
std::optional<GroundTruth> find_ground_truth(std::string_view row_json, const std::string& key, const std::string& where);

}  // namespace weft
