#include "weft/train/prompts.h"

#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/env/ground_truth.h"

namespace weft {
namespace {

using nlohmann::json;

std::vector<int32_t> ids_of(const json& value, const std::string& where, int64_t vocab) {
  std::vector<int32_t> ids;
  if (!value.is_array()) throw ValueError(where + ": prompt_ids must be a list of token ids");
  for (const json& v : value) {
    if (!v.is_number_integer() || v.get<int64_t>() < 0 || v.get<int64_t>() >= vocab)
      throw ValueError(fmt::format("{}: prompt_ids: {} is not a token id below {}", where, v.dump(), vocab));
    ids.push_back(v.get<int32_t>());
  }
  return ids;
}

}  // namespace

ChatTemplate default_chat_template(const Tokenizer& tokenizer, const std::string& dir) {
  const auto it = tokenizer.chat_templates().find("default");
  if (it == tokenizer.chat_templates().end())
    throw ValueError(dir + ": prompts are message lists, but the checkpoint has no chat template (chat_template.jinja, or chat_template in "
                           "tokenizer_config.json)");
  return ChatTemplate::compile(it->second, dir + ": chat template");
}

PromptSource::PromptSource(const std::vector<std::string>& files, const Recipe& recipe, const Tokenizer& tokenizer, int64_t max_samples)
    : recipe_(recipe), tokenizer_(tokenizer), dataset_(std::make_unique<Dataset>(files)) {
  const int64_t size = max_samples >= 0 ? std::min(max_samples, dataset_->size()) : dataset_->size();
  for (int64_t row = 0; row < size; ++row) {
    if (!template_) {
      const json j = dataset_->json(row);
      if (!j.contains("prompt_ids") && j.contains(recipe.data.prompt_key) && j.at(recipe.data.prompt_key).is_array())
        template_ = default_chat_template(tokenizer, recipe.model.path);
    }
    const Prompt p = prompt(row);
    const int64_t length = static_cast<int64_t>(p.ids.size());
    if (length > recipe.data.max_prompt_length) {
      if (!recipe.data.filter_overlong_prompts)
        throw ValueError(fmt::format("{}: the prompt has {} tokens, data.max_prompt_length is {}: raise it, or set "
                                     "data.filter_overlong_prompts = true to leave such rows out; nothing is truncated",
                                     dataset_->location(row), length, recipe.data.max_prompt_length));
      ++num_filtered_;
      continue;
    }
    rows_.push_back(row);
  }
  if (rows_.empty()) throw ValueError(fmt::format("{}: no prompt is left of {} rows", fmt::join(files, ", "), size));
}

Prompt PromptSource::prompt(int64_t row) const {
  const json j = dataset_->json(row);
  const std::string where = dataset_->location(row), &key = recipe_.data.prompt_key;
  Prompt p;
  p.row = row;
  if (j.contains("prompt_ids")) {
    p.ids = ids_of(j.at("prompt_ids"), where, tokenizer_.vocab_size());
    p.text = tokenizer_.decode(p.ids, false);
  } else {
    if (!j.contains(key)) throw ValueError(fmt::format("{}: has neither '{}' nor 'prompt_ids' (data.prompt_key)", where, key));
    const json& value = j.at(key);
    if (value.is_string()) {
      p.text = value.get<std::string>();
      p.ids = tokenizer_.encode(p.text, true);
    } else if (value.is_array()) {
      WEFT_CHECK(template_, "{}: the template is compiled with the first message list", where);
      ChatTemplate::Inputs in;
      // Again from the text: key order counts in templates that print JSON.
      nlohmann::ordered_json ordered = parse_template_json(dataset_->text(row));
      in.messages = ordered.at(key);
      if (ordered.contains("tools")) in.tools = ordered.at("tools");
      in.add_generation_prompt = true;
      in.extra = parse_template_json(recipe_.data.chat_template_kwargs.json);
      in.special_tokens = tokenizer_.special_tokens();
      try {
        p.text = template_->render(in).text;
      } catch (const Error& e) {
        throw ValueError(where + ": " + e.what());
      }
      p.ids = tokenizer_.encode(p.text, false);
      p.messages_json = in.messages.dump();
    } else {
      throw ValueError(fmt::format("{}: '{}' must be a string or a list of messages", where, key));
    }
  }
  if (p.ids.empty()) throw ValueError(where + ": the prompt has no tokens");
  if (j.contains("data_source") && j.at("data_source").is_string()) p.data_source = j.at("data_source").get<std::string>();
  if (auto truth = find_ground_truth(dataset_->text(row), recipe_.reward.ground_truth_key, where)) {
    p.ground_truth_json = std::move(truth->json);
    ground_truth_key_ = std::move(truth->key);
  }
  return p;
}

RewardRequest PromptSource::request(const Prompt& prompt, int64_t sample_index, std::string completion,
                                    const std::vector<int32_t>& completion_ids) const {
  RewardRequest r;
  r.prompt = prompt.text;
  r.messages_json = prompt.messages_json;
  r.completion = std::move(completion);
  r.prompt_ids.assign(prompt.ids.begin(), prompt.ids.end());
  r.completion_ids.assign(completion_ids.begin(), completion_ids.end());
  r.ground_truth_json = prompt.ground_truth_json;
  r.data_source = prompt.data_source;
  r.row_json = std::string(dataset_->text(prompt.row));
  r.file = dataset_->location(prompt.row);
  r.row_number = prompt.row + 1;
  r.sample_index = sample_index;
  return r;
}

}  // namespace weft
