#pragma once
// The "post_processor" of a tokenizer.json: Sequence, ByteLevel (moves only offsets, which are not kept), TemplateProcessing.
// All that remains of one is ids before and behind those of the text. Errors: FileError.

#include <cstdint>
#include <vector>

#include "weft/text/json_node.h"

namespace weft::tok {

struct SpecialFrame {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

SpecialFrame parse_post_processor(const JsonNode& node);

}  // namespace weft::tok
