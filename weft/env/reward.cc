#include "weft/env/reward.h"

#include <nlohmann/json.hpp>

#include "weft/base/error.h"

namespace weft {
namespace {

std::string as_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

nlohmann::json parse_ground_truth(const RewardRequest& request) {
  try {
    return nlohmann::json::parse(*request.ground_truth_json);
  } catch (const nlohmann::json::exception& error) {
    throw ValueError(fmt::format("{}: ground truth is not JSON: {}", where(request), error.what()));
  }
}

}  // namespace

std::string where(const RewardRequest& request) {
  const std::string row = fmt::format("row {}, sample {}", request.row_number, request.sample_index);
  return request.file.empty() ? row : request.file + ": " + row;
}

std::optional<std::string> ground_truth_text(const RewardRequest& request) {
  if (!request.ground_truth_json) return std::nullopt;
  return as_text(parse_ground_truth(request));
}

std::vector<std::string> accepted_answers(const RewardRequest& request, const std::string& function) {
  std::vector<std::string> answers;
  if (request.ground_truth_json) {
    const nlohmann::json value = parse_ground_truth(request);
    if (value.is_array()) {
      for (const auto& element : value) answers.push_back(as_text(element));
    } else if (!value.is_null()) {
      answers.push_back(as_text(value));
    }
  }
  if (answers.empty())
    throw ValueError(
        fmt::format("{}: reward '{}' needs a ground truth and the row has none; name the field with "
                    "reward.ground_truth_key",
                    where(request), function));
  return answers;
}

}  // namespace weft
