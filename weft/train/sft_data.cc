#include "weft/train/sft_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/train/prompts.h"

namespace weft {
namespace {

using Spans = std::vector<std::pair<int64_t, int64_t>>;

// Bytes that assistant turns add, for templates without {% generation %}: render up to each turn with the generation prompt, and through
// it. Refused where a rendering is no prefix of the next (a template that rewrites earlier turns).
Spans assistant_spans(const ChatTemplate& chat, ChatTemplate::Inputs in, const std::string& whole) {
  Spans spans;
  const nlohmann::ordered_json messages = in.messages;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object() || !messages[i].contains("role") || messages[i].at("role") != "assistant") continue;
    in.messages = nlohmann::ordered_json(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(i));
    in.add_generation_prompt = true;
    const std::string before = in.messages.empty() ? "" : chat.render(in).text;
    in.messages = nlohmann::ordered_json(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    in.add_generation_prompt = false;
    const std::string through = chat.render(in).text;
    if (!through.starts_with(before) || !whole.starts_with(through))
      throw ValueError("the chat template rewrites earlier text when a turn is added, so assistant turns cannot be found: mark them with "
                               "{% generation %} in the template, or set sft.completion_only_loss = false");
    spans.emplace_back(static_cast<int64_t>(before.size()), static_cast<int64_t>(through.size()));
  }
  return spans;
}

}  // namespace

SftSource::SftSource(const std::vector<std::string>& files, const Recipe& recipe, const Tokenizer& tokenizer, std::optional<int32_t> end_id,
                     int64_t max_samples)
    : recipe_(recipe), tokenizer_(tokenizer), end_id_(end_id), dataset_(std::make_unique<Dataset>(files)) {
  const int64_t size = max_samples >= 0 ? std::min(max_samples, dataset_->size()) : dataset_->size();
  for (int64_t row = 0; row < size; ++row) {
    if (!template_ && dataset_->json(row).contains("messages")) template_ = default_chat_template(tokenizer, recipe.model.path);
    rows_.push_back(build(row));
  }
}

Trajectory SftSource::build(int64_t row) const {
  const std::string where = dataset_->location(row);
  const nlohmann::ordered_json j = parse_template_json(dataset_->text(row));
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;
  if (j.contains("messages")) {
    ChatTemplate::Inputs in;
    in.messages = j.at("messages");
    if (!in.messages.is_array()) throw ValueError(where + ": 'messages' must be a list");
    if (j.contains("tools")) in.tools = j.at("tools");
    in.extra = parse_template_json(recipe_.data.chat_template_kwargs.json);
    in.special_tokens = tokenizer_.special_tokens();
    ChatTemplate::Rendered rendered;
    Spans spans;
    try {
      rendered = template_->render(in);
      spans = rendered.generation_spans;
      if (spans.empty() && recipe_.sft.completion_only_loss) spans = assistant_spans(*template_, in, rendered.text);
    } catch (const Error& e) {
      throw ValueError(where + ": " + e.what());
    }
    // Tokenised in pieces at the spans' ends: a token never straddles the border of what is trained.
    int64_t at = 0;
    auto take = [&](int64_t end, uint8_t flag) {
      const auto piece = tokenizer_.encode(std::string_view(rendered.text).substr(static_cast<size_t>(at), static_cast<size_t>(end - at)), false);
      ids.insert(ids.end(), piece.begin(), piece.end());
      trained.insert(trained.end(), piece.size(), flag);
      at = end;
    };
    for (const auto& [begin, end] : spans) take(begin, 0), take(end, 1);
    take(static_cast<int64_t>(rendered.text.size()), 0);
  } else {
    const std::string& key = recipe_.data.prompt_key;
    if (!j.contains(key) || !j.contains("completion") || !j.at(key).is_string() || !j.at("completion").is_string())
      throw ValueError(fmt::format("{}: expected 'messages', or the strings '{}' and 'completion'", where, key));
    ids = tokenizer_.encode(j.at(key).get<std::string>(), true);
    trained.assign(ids.size(), 0);
    auto completion = tokenizer_.encode(j.at("completion").get<std::string>(), false);
    if (end_id_) completion.push_back(*end_id_);
    ids.insert(ids.end(), completion.begin(), completion.end());
    trained.resize(ids.size(), 1);
  }
  if (!recipe_.sft.completion_only_loss) std::fill(trained.begin(), trained.end(), uint8_t{1});
  const int64_t length = static_cast<int64_t>(ids.size());
  if (length > recipe_.sft.max_length)
    throw ValueError(fmt::format("{}: {} tokens, sft.max_length is {}: raise it or shorten the row; nothing is truncated", where, length,
                                 recipe_.sft.max_length));
  if (!trained.empty()) trained[0] = 0;  // nothing predicts the first token
  const auto first = std::find(trained.begin(), trained.end(), 1);
  if (first == trained.end()) throw ValueError(where + ": has no token to train on");
  const auto split = first - trained.begin();
  Trajectory t;
  t.dataset_row = row;
  t.prompt_ids.assign(ids.begin(), ids.begin() + split);
  t.response_ids.assign(ids.begin() + split, ids.end());
  t.response_mask.assign(first, trained.end());
  t.rollout_log_probs.assign(t.response_ids.size(), 0.0f);
  return t;
}

}  // namespace weft
