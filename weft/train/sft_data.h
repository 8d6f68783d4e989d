#pragma once
// Rows for supervised fine-tuning: token ids with a loss mask.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "weft/io/dataset.h"
#include "weft/io/trajectory.h"
#include "weft/text/chat_template.h"
#include "weft/text/tokenizer.h"
#include "weft/train/recipe.h"

namespace weft {

// `messages` (with `tools`): the chat template; trained are the spans of {% generation %}, or without that mark the text that each
// assistant turn adds to the prompt before it. `prompt` + `completion` strings: each tokenised alone, as in rollout, the end token after
// the completion; trained is the completion. sft.completion_only_loss = false trains every token but the first.
class SftSource {
 public:
  // FileError or ValueError naming the row for what is malformed, has nothing to train or is longer than sft.max_length.
  SftSource(const std::vector<std::string>& files, const Recipe& recipe, const Tokenizer& tokenizer, std::optional<int32_t> end_id,
            int64_t max_samples);

  const Dataset& dataset() const { return *dataset_; }
  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  // prompt_ids end before the first trained token; response_mask marks trained ones.
  const Trajectory& row(int64_t i) const { return rows_[static_cast<size_t>(i)]; }

 private:
  Trajectory build(int64_t row) const;

  const Recipe& recipe_;
  const Tokenizer& tokenizer_;
  std::optional<int32_t> end_id_;
  std::unique_ptr<Dataset> dataset_;
  std::optional<ChatTemplate> template_;
  std::vector<Trajectory> rows_;
};

}  // namespace weft
