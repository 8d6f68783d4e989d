// Bytes as a tokenizer.json: it is refused with an Error, or it encodes and decodes. Anything else is a bug. Streamed and
// whole decodings must agree.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "weft/base/error.h"
#include "weft/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const weft::Tokenizer tokenizer = weft::Tokenizer::from_json(bytes, "fuzz");
    for (const std::string_view text : {std::string_view("Hello  w\xC3\xB6rld 123\n\n \xE6\xBC\xA2<s>a"), bytes.substr(0, 64)}) {
      try {
        std::vector<int32_t> ids = tokenizer.encode(text, true);
        ids.push_back(-1);
        for (int32_t id = 0; id < 64; ++id) ids.push_back(id);
        for (const bool skip : {false, true}) {
          weft::StreamDecoder stream(tokenizer, skip);
          std::string streamed;
          for (const int32_t id : ids) streamed += stream.push(id);
          streamed += stream.flush();
          if (streamed != tokenizer.decode(ids, skip)) std::abort();
        }
      } catch (const weft::ValueError&) {
      }
    }
  } catch (const weft::Error&) {
  }
  return 0;
}
