#pragma once
// From rows of a data file to prompts: token ids, text for people and rewards, ground truth.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/env/reward.h"
#include "weft/io/dataset.h"
#include "weft/text/chat_template.h"
#include "weft/text/tokenizer.h"
#include "weft/train/recipe.h"

namespace weft {

struct Prompt {
  int64_t row = 0;            // of the dataset
  std::vector<int32_t> ids;
  std::string text;           // as the model sees it
  std::optional<std::string> messages_json;
  std::optional<std::string> ground_truth_json;
  std::string data_source;
};

// A prompt is `prompt_ids` (taken as they are), a string (tokenised with the tokenizer's special tokens, as TRL does) or a list of
// messages (chat template with the generation prompt; nothing is added).
class PromptSource {
 public:
  // FileError naming the row for what is malformed. Overlong prompts are an error, or with data.filter_overlong_prompts left out,
  // counted and reported.
  PromptSource(const std::vector<std::string>& files, const Recipe& recipe, const Tokenizer& tokenizer, int64_t max_samples);

  const Dataset& dataset() const { return *dataset_; }
  // Rows that are used, ascending.
  const std::vector<int64_t>& rows() const { return rows_; }
  int64_t num_filtered() const { return num_filtered_; }
  Prompt prompt(int64_t row) const;
  // What a reward is asked about one completion of a prompt.
  RewardRequest request(const Prompt& prompt, int64_t sample_index, std::string completion, const std::vector<int32_t>& completion_ids) const;
  // The key under which ground truth was found, for printing; empty when no row has one.
  const std::string& ground_truth_key() const { return ground_truth_key_; }

 private:
  const Recipe& recipe_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<Dataset> dataset_;
  std::optional<ChatTemplate> template_;
  std::vector<int64_t> rows_;
  int64_t num_filtered_ = 0;
  mutable std::string ground_truth_key_;
};

// The checkpoint's default chat template. FileError for one that does not compile; ValueError where there is none.
ChatTemplate default_chat_template(const Tokenizer& tokenizer, const std::string& dir);

}  // namespace weft
