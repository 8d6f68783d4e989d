#pragma once
// Chat templates: messages to prompt text, byte for byte as Hugging Face's Python libraries render them. The language is a
// subset of Jinja (trim_blocks, lstrip_blocks, no autoescape, immutable sandbox, loop controls, {% generation %}); what is
// outside of it is a TemplateError with line and column, never a different prompt.
// Always defined in a template: messages, tools, documents (none where null), add_generation_prompt, the special tokens, the
// extra variables (these win), range, dict, namespace, raise_exception, strftime_now.
// A ChatTemplate is immutable: it may be copied and rendered from several threads at once. Hostile templates end in an error
// when they nest or recurse too deep, write too much or run too long. Invalid UTF-8 in an input is an error.

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/text/jinja_error.h"

namespace weft {

class ChatTemplate {
 public:
  struct Inputs {
    nlohmann::ordered_json messages;   // list of objects; key order is kept
    nlohmann::ordered_json tools;      // null: none
    nlohmann::ordered_json documents;  // null: none
    bool add_generation_prompt = false;
    bool continue_final_message = false;                // end behind the last message's text, for a model to go on
    nlohmann::ordered_json extra;                       // object (or null) of further variables
    std::map<std::string, std::string> special_tokens;  // "bos_token" -> "<s>"...
    std::optional<std::tm> now;                         // local time that strftime_now tells; none: that of the call
    int64_t max_output_bytes = int64_t{64} << 20;
    int64_t max_work = 200'000'000;  // evaluation steps; copied text and items count too
  };
  struct Rendered {
    std::string text;
    std::vector<std::pair<int64_t, int64_t>> generation_spans;  // bytes [begin, end) of text, in order
  };

  // `name` stands in error messages: a path or the like. Throws TemplateError.
  static ChatTemplate compile(std::string source, std::string name);

  // Throws TemplateError, and ValueError for inputs that do not fit (messages that are no list, a final message that cannot be
  // continued).
  Rendered render(const Inputs& inputs) const;

  const std::string& source() const;

 private:
  struct Impl;
  explicit ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

// JSON for the inputs above: integers beyond 64 bits keep their digits (as a binary value that only templates read), where
// ordered_json::parse would round them to double. Throws ValueError with the byte where it fails.
nlohmann::ordered_json parse_template_json(std::string_view text);

}  // namespace weft
