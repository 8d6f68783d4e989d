#include "weft/text/chat_template.h"

#include <fmt/format.h>

#include "weft/text/jinja_eval.h"
#include "weft/text/jinja_globals.h"
#include "weft/text/jinja_json.h"
#include "weft/text/jinja_parser.h"
#include "weft/text/jinja_unicode.h"

namespace weft {

namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxSourceBytes = size_t{4} << 20;
// Put behind the final message and looked for in the text: what follows it there belongs to the template.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";

std::tm local_time() {
  std::time_t now = std::time(nullptr);
  std::tm out{};
  localtime_r(&now, &out);
  return out;
}

ordered_json mark_final_message(ordered_json messages) {
  if (messages.empty() || !messages.back().is_object() || !messages.back().contains("content")) {
    throw ValueError("continue_final_message: there is no final message with content to continue");
  }
  ordered_json& content = messages.back()["content"];
  if (content.is_string()) {
    content = content.get<std::string>() + std::string(kMark);
    return messages;
  }
  if (content.is_array()) {
    for (auto block = content.rbegin(); block != content.rend(); ++block) {
      if (!block->is_object() || !block->contains("text") || !(*block)["text"].is_string()) continue;
      (*block)["text"] = (*block)["text"].get<std::string>() + std::string(kMark);
      return messages;
    }
  }
  throw ValueError("continue_final_message: the final message has no text to continue");
}

void cut_at_mark(ChatTemplate::Rendered& out) {
  std::string_view bare = kMark.substr(0, kMark.size() - 1);
  size_t at = out.text.rfind(bare);
  if (at == std::string::npos) {
    throw ValueError(
        "continue_final_message: the template does not write the final message as it is, so nothing can be continued");
  }
  bool keeps_spaces = out.text.compare(at, kMark.size(), kMark) == 0;
  std::string_view kept(out.text.data(), at);
  if (!keeps_spaces) kept = jinja::strip(kept, jinja::Side::kRight);
  out.text = std::string(kept);
  int64_t size = static_cast<int64_t>(out.text.size());
  std::erase_if(out.generation_spans, [&](const auto& span) { return span.first > size; });
  for (auto& span : out.generation_spans) span.second = std::min(span.second, size);
}

// Builds the document value by value; the only difference to the library's own is what it makes of large integers.
class ExactReader : public nlohmann::detail::json_sax_dom_parser<ordered_json> {
 public:
  using Base = nlohmann::detail::json_sax_dom_parser<ordered_json>;
  explicit ExactReader(ordered_json& document) : Base(document, false) {}

  bool number_float(double value, const std::string& literal) {
    if (literal.find_first_of(".eE") != std::string::npos) return Base::number_float(value, literal);
    ordered_json::binary_t digits({literal.begin(), literal.end()}, jinja::kBigIntSubtype);
    return Base::binary(digits);
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) {
    failed_at = position;
    return false;
  }
  std::size_t failed_at = 0;
};

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  std::string name;
  jinja::NodePtr root;
};

ChatTemplate ChatTemplate::compile(std::string source, std::string name) {
  auto impl = std::make_shared<Impl>();
  impl->source = std::move(source);
  impl->name = std::move(name);
  if (impl->source.size() > kMaxSourceBytes) {
    throw TemplateError(impl->name, fmt::format("the template is longer than {} bytes", kMaxSourceBytes), 1, 1);
  }
  impl->root = jinja::parse(impl->source, impl->name);
  return ChatTemplate(std::move(impl));
}

const std::string& ChatTemplate::source() const { return impl_->source; }

ChatTemplate::Rendered ChatTemplate::render(const Inputs& inputs) const {
  if (!inputs.messages.is_array()) throw ValueError("a chat template renders a list of messages; 'messages' is no JSON array");
  if (!inputs.extra.is_null() && !inputs.extra.is_object())
    throw ValueError("the extra variables of a chat template are a JSON object");
  if (inputs.continue_final_message && inputs.add_generation_prompt) {
    throw ValueError("continue_final_message and add_generation_prompt exclude each other; set one of them");
  }
  jinja::Interpreter in(impl_->name, {inputs.max_output_bytes, inputs.max_work});
  jinja::define_globals(in, inputs.now ? *inputs.now : local_time());
  auto define = [&](const std::string& variable, const ordered_json& json) {
    try {
      in.define(variable, jinja::from_json(json));
    } catch (const jinja::RawError& error) {
      throw ValueError(fmt::format("the variable '{}' of a chat template: {}", variable, error.what()));
    }
  };
  for (const auto& [token, text] : inputs.special_tokens) define(token, text);
  define("messages", inputs.continue_final_message ? mark_final_message(inputs.messages) : inputs.messages);
  define("tools", inputs.tools);
  define("documents", inputs.documents);
  define("add_generation_prompt", inputs.add_generation_prompt);
  if (inputs.extra.is_object()) {
    for (const auto& [variable, value] : inputs.extra.items()) define(variable, value);
  }
  Rendered out;
  out.text = in.run(*impl_->root, out.generation_spans);
  if (inputs.continue_final_message) cut_at_mark(out);
  return out;
}

ordered_json parse_template_json(std::string_view text) {
  ordered_json root;
  ExactReader reader(root);
  if (!ordered_json::sax_parse(text.begin(), text.end(), &reader)) {
    throw ValueError(fmt::format("malformed JSON at byte {}", reader.failed_at));
  }
  return root;
}

}  // namespace weft
