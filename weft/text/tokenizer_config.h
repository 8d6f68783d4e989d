#pragma once
// What stands beside tokenizer.json: names of special tokens (tokenizer_config.json, special_tokens_map.json) and chat
// templates (chat_template.jinja, additional_chat_templates/*.jinja, else the config's). Every file may be absent.
// Errors: FileError. tokenizer_class, add_bos_token and the flags of added_tokens_decoder are not read: the pipeline is
// what tokenizer.json says.

#include <map>
#include <string>

namespace weft::tok {

struct TokenizerConfig {
  std::map<std::string, std::string> special_tokens;  // "bos_token" -> "<s>"; the config wins over the map file
  std::map<std::string, std::string> chat_templates;  // "default" and others; template files replace the config's
};

TokenizerConfig load_tokenizer_config(const std::string& dir);

}  // namespace weft::tok
