#pragma once
// Template text to tokens, with white space control done: `-` and `+` signs, trim_blocks and lstrip_blocks (both on, as chat
// templates expect), CRLF read as LF, one newline at the end dropped. Throws TemplateError.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::jinja {

struct Place {
  int32_t line = 1;
  int32_t column = 1;
};

enum class Token : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Lexeme {
  Token token;
  Place place;
  std::string text;  // data, name, decoded string, number without underscores, operator
};

std::vector<Lexeme> tokenize(std::string_view source, const std::string& name);

}  // namespace weft::jinja
