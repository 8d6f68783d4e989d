#pragma once
// JSON in and out. Integers of any size keep their digits when the JSON was read by parse_template_json
// (weft/text/chat_template.h); key order is kept.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "weft/text/jinja_value.h"

namespace weft::jinja {

constexpr uint64_t kBigIntSubtype = 0xB16;  // of a JSON binary that holds the digits of an integer beyond 64 bits

// Throws RawError for text that is not UTF-8 and for nesting beyond kMaxValueDepth.
Value from_json(const nlohmann::ordered_json& json);

struct JsonStyle {
  std::optional<std::string> indent;  // of one level; none: all on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};
// As Python's json.dumps; throws RawError for what it cannot hold.
std::string to_json(const Value& value, const JsonStyle& style);

}  // namespace weft::jinja
