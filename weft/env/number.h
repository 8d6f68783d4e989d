#pragma once
// Numbers in text, as exact rationals: no rounding, so 0.1 equals 1/10 and "1,000.0" equals "1000" and 2^53 + 1 differs from
// 2^53. Pure functions.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

// numerator / denominator * 10^exponent, with the numerator's digits free of leading and trailing zeros.
struct Number {
  bool negative = false;
  std::string digits = "0";       // of the numerator, decimal
  std::string denominator = "1";  // decimal, not zero
  int64_t exponent = 0;
};

// Equal values (2/4 and 0.5 are).
bool operator==(const Number& a, const Number& b);

// The last number of `text`. A number is: a sign that touches it (not one between two operands: "5-3" holds 5 and 3; also
// U+2212, also before a currency's $), digits with thousands commas, decimals, an exponent (1.5e3), a plain fraction a/b or
// LaTeX's \frac{a}{b}. What follows it (a unit, %, a full stop) is left alone. Numbers of more than 1000 digits are not numbers.
std::optional<Number> last_number(std::string_view text);

// The answer that a solution states: the last \boxed{...} (braces may nest; the last number inside) or the first number on
// the line of the last "####", whichever comes later; without either the last number. A box or a #### without a number
// is a solution without one.
std::optional<Number> answer_number(std::string_view text);

// The content of the last complete \boxed{...} or \fbox{...}.
std::optional<std::string_view> last_boxed(std::string_view text);

}  // namespace weft
