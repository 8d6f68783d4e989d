#pragma once
// Text as the template language sees it: strings are UTF-8 here and sequences of code points there. Case mapping, white space
// and character classes follow Python's str (full case mapping, final sigma). Pure functions.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::jinja {

struct SpecialCase {
  char32_t code;
  const char* upper;
  const char* title;
};
extern const SpecialCase kSpecialCases[];
extern const int64_t kSpecialCaseCount;

bool valid_utf8(std::string_view text);
bool is_ascii(std::string_view text);
void append_utf8(std::string& out, char32_t code);
// The character at byte `at` of valid UTF-8; `at` moves behind it.
char32_t next_code(std::string_view text, size_t& at);
std::u32string to_codes(std::string_view text);
std::string to_utf8(std::u32string_view codes);
int64_t count_codes(std::string_view text);

bool is_space(char32_t code);
bool is_alpha(char32_t code);
bool is_decimal(char32_t code);
bool is_digit(char32_t code);
bool is_numeric(char32_t code);
bool is_printable(char32_t code);
bool is_upper(char32_t code);
bool is_lower(char32_t code);
bool is_title(char32_t code);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);
std::string capitalize(std::string_view text);
std::string swapcase(std::string_view text);
std::string casefold(std::string_view text);

enum class Side { kLeft, kRight, kBoth };
std::string_view strip(std::string_view text, Side side = Side::kBoth);
std::string_view strip(std::string_view text, std::string_view characters, Side side);
// Pieces between line ends as Python's str.splitlines knows them.
std::vector<std::string> splitlines(std::string_view text, bool keep_ends = false);

// Python's repr of a string, and of a number.
std::string quote_text(std::string_view text);
std::string float_text(double value);

}  // namespace weft::jinja
