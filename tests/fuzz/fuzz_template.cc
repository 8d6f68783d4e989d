// Bytes as a chat template: compiling and rendering it may fail with weft::Error, nothing else.
#include <cstddef>
#include <cstdint>
#include <string>

#include "weft/text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const weft::ChatTemplate::Inputs kInputs = [] {
    weft::ChatTemplate::Inputs in;
    in.messages = nlohmann::ordered_json::parse(
        R"([{"role": "system", "content": "Be kind. \u00e9"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5]}}}]}])");
    in.tools = nlohmann::ordered_json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {}}}])");
    in.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    in.now = std::tm{};
    in.max_output_bytes = 1 << 20;
    in.max_work = 1 << 20;
    return in;
  }();
  try {
    weft::ChatTemplate::compile(std::string(reinterpret_cast<const char*>(data), size), "fuzz").render(kInputs);
  } catch (const weft::Error&) {
  }
  return 0;
}
