#include <iostream>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/cli/command.h"
#include "weft/io/hub_cache.h"
#include "weft/text/chat_template.h"
#include "weft/text/tokenizer.h"
#include "weft/train/prompts.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
T field(const Json& j, const char* key, T otherwise) {
  if (!j.contains(key) || j.at(key).is_null()) return otherwise;
  try {
    return j.at(key).get<T>();
  } catch (const Json::exception&) {
    throw ValueError(fmt::format("'{}' has the wrong type: {}", key, j.at(key).dump()));
  }
}

Json answer(const Json& in, const Arguments& args, const Tokenizer& tokenizer, const std::optional<ChatTemplate>& chat) {
  if (!in.is_object()) throw ValueError("expected a JSON object");
  std::string text;
  std::vector<int32_t> ids;
  if (args.has("--decode")) {
    if (!in.contains("ids")) throw ValueError("expected {\"ids\": [...]}");
    const Json list = in.at("ids");
    if (!list.is_array()) throw ValueError("'ids' is no list");
    for (const Json& id : list) {
      const bool known = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < tokenizer.vocab_size();
      if (!known) throw ValueError(fmt::format("'ids' holds {}, which is no token id: 0 to {}", id.dump(), tokenizer.vocab_size() - 1));
      ids.push_back(id.get<int32_t>());
    }
    text = tokenizer.decode(ids, field(in, "skip_special_tokens", false));
  } else if (args.has("--chat")) {
    if (!in.contains("messages")) throw ValueError("expected {\"messages\": [...]}");
    ChatTemplate::Inputs inputs;
    inputs.messages = in.at("messages");
    if (in.contains("tools")) inputs.tools = in.at("tools");
    if (in.contains("documents")) inputs.documents = in.at("documents");
    inputs.add_generation_prompt = field(in, "add_generation_prompt", false);
    inputs.special_tokens = tokenizer.special_tokens();
    text = chat->render(inputs).text;
    ids = tokenizer.encode(text, false);
  } else {
    if (!in.contains("text")) throw ValueError("expected {\"text\": \"...\"}");
    text = field<std::string>(in, "text", "");
    ids = tokenizer.encode(text, field(in, "add_special_tokens", true));
  }
  return {{"ids", ids}, {"text", text}};
}

}  // namespace

Command tokenize_command() {
  return {"tokenize",
          "JSON lines in, JSON lines with ids and text out: {\"text\"}, with --decode {\"ids\"}, with --chat {\"messages\", \"tools\"}.",
          "DIR",
          {{"--decode", "", "ids to text: {\"ids\", \"skip_special_tokens\" (default false)}"},
           {"--chat", "", "messages through the chat template: {\"messages\", \"tools\", \"add_generation_prompt\" (default false)}"}},
          "echo '{\"text\": \"Hello\"}' | weft tokenize models/tiny-moe",
          1,
          1,
          [](const Arguments& args, const Registry&) -> int {
            if (args.has("--decode") && args.has("--chat")) throw UsageError("weft tokenize: --decode and --chat exclude each other");
            const std::string dir = resolve_model_path(args.positional[0]);
            const Tokenizer tokenizer = Tokenizer::load(dir);
            std::optional<ChatTemplate> chat;
            if (args.has("--chat")) chat = default_chat_template(tokenizer, dir);
            std::string line;
            for (int64_t number = 1; std::getline(std::cin, line); ++number) {
              if (line.empty()) continue;
              try {
                std::cout << answer(parse_template_json(line), args, tokenizer, chat).dump(-1, ' ', false, Json::error_handler_t::replace)
                          << "\n"
                          << std::flush;
              } catch (const Error& e) {
                throw FileError("standard input", fmt::format("line {}", number), e.what());
              }
            }
            return kExitDone;
          }};
}

}  // namespace weft
