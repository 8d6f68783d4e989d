#pragma once
// Reward functions: what one is asked, what it answers, and the interface that a new one implements. Texts are UTF-8, JSON
// values are JSON text (one line). docs/rewards.md is the page for users.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace weft {

// One completion to score.
struct RewardRequest {
  std::string prompt;                        // as the model saw it (chat template applied)
  std::optional<std::string> messages_json;  // the prompt as a message list; none for a prompt that is a string
  std::string completion;                    // decoded, special tokens left out
  std::vector<int64_t> prompt_ids;
  std::vector<int64_t> completion_ids;
  std::optional<std::string> ground_truth_json;  // find_ground_truth; none where the row has none
  std::string data_source;                       // field data_source of the row, or empty
  std::string row_json = "{}";                   // the whole row of the data file: a JSON object
  std::string file;                              // the data file, for messages
  int64_t row_number = 0;                        // the row's number as messages should show it
  int64_t sample_index = 0;                      // which of the group's completions
};

// "data/train.jsonl: row 12, sample 3".
std::string where(const RewardRequest& request);

// Ground truth as text: a JSON string without its quotes, anything else as JSON text. nullopt where there is none.
std::optional<std::string> ground_truth_text(const RewardRequest& request);

// The answers that count as right, as text: the elements of a ground truth that is a JSON list, else that one value.
// Throws ValueError naming `function` and the row where there is none.
std::vector<std::string> accepted_answers(const RewardRequest& request, const std::string& function);

struct RewardValue {
  double value = 0;
  bool applicable = true;               // false: this reward says nothing about this completion (Python's None)
  std::map<std::string, double> extra;  // further figures to log
};

// Gives one value per request, in order. Not called from two threads at once. A value that is not finite is the RewardSet's
// to judge; whatever keeps a function from scoring is a typed error that names the row (where()).
class RewardFunction {
 public:
  virtual ~RewardFunction() = default;
  virtual std::string name() const = 0;  // for metrics: reward/<name>/mean
  virtual std::vector<RewardValue> score(std::span<const RewardRequest> requests) = 0;
};

}  // namespace weft
