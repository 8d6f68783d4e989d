#include "weft/env/number.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace weft {
namespace {

constexpr size_t kMaxDigits = 1000;
constexpr std::string_view kMinus = "\xe2\x88\x92";  // U+2212

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

size_t digits_at(std::string_view text, size_t pos) {
  size_t end = pos;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end - pos;
}

// Digits in groups: 1,234,567. Without a well-formed group the plain digits.
size_t grouped_digits_at(std::string_view text, size_t pos) {
  const size_t head = digits_at(text, pos);
  if (head == 0 || head > 3) return head;
  size_t end = pos + head;
  while (end < text.size() && text[end] == ',' && digits_at(text, end + 1) == 3) end += 4;
  return end - pos;
}

void trim_zeros(Number* number) {
  std::string& digits = number->digits;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) {
    *number = Number{};
    return;
  }
  const size_t kept = digits.find_last_not_of('0') + 1;
  number->exponent += static_cast<int64_t>(digits.size() - kept);
  digits.resize(kept);
}

// An unsigned number at `pos`; returns its length, 0 when there is none.
size_t parse_unsigned(std::string_view text, size_t pos, Number* number) {
  *number = Number{};
  number->digits.clear();
  const size_t whole = grouped_digits_at(text, pos);
  size_t end = pos + whole;
  for (const char c : text.substr(pos, whole))
    if (c != ',') number->digits.push_back(c);
  if (end < text.size() && text[end] == '.') {
    const size_t decimals = digits_at(text, end + 1);
    number->digits.append(text.substr(end + 1, decimals));
    number->exponent = -static_cast<int64_t>(decimals);
    if (decimals > 0) end += 1 + decimals;
  }
  if (end == pos) return 0;
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    size_t at = end + 1;
    const bool negative = at < text.size() && text[at] == '-';
    if (at < text.size() && (text[at] == '-' || text[at] == '+')) ++at;
    const size_t length = digits_at(text, at);
    if (length > 0 && length <= 9 && (at + length == text.size() || !is_word(text[at + length]))) {
      const int64_t exponent = std::stoll(std::string(text.substr(at, length)));
      number->exponent += negative ? -exponent : exponent;
      end = at + length;
    }
  }
  trim_zeros(number);
  return end - pos;
}

// "/b" after a number: length of it, 0 when it is no plain fraction.
size_t parse_denominator(std::string_view text, size_t pos, Number* number) {
  if (pos >= text.size() || text[pos] != '/') return 0;
  const size_t length = digits_at(text, pos + 1);
  const std::string_view digits = text.substr(pos + 1, length);
  if (length == 0 || length > kMaxDigits || digits.find_first_not_of('0') == std::string_view::npos) return 0;
  number->denominator = std::string(digits);
  return length + 1;
}

// \frac{a}{b} with plain numbers, also \dfrac and \tfrac.
size_t parse_latex_fraction(std::string_view text, size_t pos, Number* number) {
  size_t at = pos;
  for (const std::string_view command : {"\\frac{", "\\dfrac{", "\\tfrac{"})
    if (text.substr(pos).starts_with(command)) at = pos + command.size();
  if (at == pos) return 0;
  const bool negative = at < text.size() && text[at] == '-';
  if (negative) ++at;
  const size_t length = parse_unsigned(text, at, number);
  if (length == 0 || !text.substr(at + length).starts_with("}{")) return 0;
  at += length + 2;
  const size_t below = digits_at(text, at);
  const std::string_view digits = text.substr(at, below);
  if (below == 0 || below > kMaxDigits || digits.find_first_not_of('0') == std::string_view::npos) return 0;
  if (at + below >= text.size() || text[at + below] != '}') return 0;
  number->denominator = std::string(digits);
  number->negative = negative && number->digits != "0";
  return at + below + 1 - pos;
}

// Whether what stands before `pos` is a minus sign of the number there.
bool signed_at(std::string_view text, size_t pos) {
  if (pos > 0 && text[pos - 1] == '$') pos -= pos > 1 && text[pos - 2] == '\\' ? 2 : 1;
  size_t before;
  if (pos > 0 && text[pos - 1] == '-') {
    before = pos - 1;
  } else if (pos >= kMinus.size() && text.substr(pos - kMinus.size(), kMinus.size()) == kMinus) {
    before = pos - kMinus.size();
  } else {
    return false;
  }
  if (before == 0) return true;
  const char c = text[before - 1];
  return !is_word(c) && c != ')' && c != ']' && c != '}' && c != '-';
}

// The next number at or after *pos; *pos moves behind it.
std::optional<Number> next_number(std::string_view text, size_t* pos) {
  for (size_t at = *pos; at < text.size(); ++at) {
    const char c = text[at];
    Number number;
    size_t length = 0;
    if (c == '\\') {
      length = parse_latex_fraction(text, at, &number);
    } else if (is_digit(c) || (c == '.' && (at == 0 || !is_digit(text[at - 1])) && digits_at(text, at + 1) > 0)) {
      length = parse_unsigned(text, at, &number);
      length += parse_denominator(text, at + length, &number);
    }
    if (length == 0) continue;
    *pos = at + length;
    if (length > kMaxDigits) {
      at = *pos - 1;
      continue;
    }
    if (number.digits != "0" && signed_at(text, at)) number.negative = !number.negative;
    return number;
  }
  *pos = text.size();
  return std::nullopt;
}

std::string multiply(const std::string& a, const std::string& b) {
  std::string product(a.size() + b.size(), '\0');
  for (size_t i = a.size(); i-- > 0;) {
    int carry = 0;
    for (size_t j = b.size(); j-- > 0;) {
      const int sum = product[i + j + 1] + (a[i] - '0') * (b[j] - '0') + carry;
      product[i + j + 1] = static_cast<char>(sum % 10);
      carry = sum / 10;
    }
    product[i] = static_cast<char>(product[i] + carry);
  }
  for (char& digit : product) digit = static_cast<char>(digit + '0');
  return product;
}

}  // namespace

bool operator==(const Number& a, const Number& b) {
  Number left = a, right = b;
  if (left.digits == "0" || right.digits == "0") return left.digits == right.digits;
  left.digits = multiply(left.digits, b.denominator);
  right.digits = multiply(right.digits, a.denominator);
  trim_zeros(&left);
  trim_zeros(&right);
  return left.negative == right.negative && left.digits == right.digits && left.exponent == right.exponent;
}

std::optional<Number> last_number(std::string_view text) {
  std::optional<Number> last;
  for (size_t pos = 0; pos < text.size();)
    if (auto number = next_number(text, &pos)) last = std::move(number);
  return last;
}

std::optional<std::string_view> last_boxed(std::string_view text) {
  struct Open {
    size_t content;
    bool boxed;
  };
  std::vector<Open> open;
  std::optional<std::string_view> last;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\') {
      size_t brace = 0;
      for (const std::string_view command : {"\\boxed", "\\fbox"})
        if (text.substr(at).starts_with(command)) brace = at + command.size();
      while (brace != 0 && brace < text.size() && text[brace] == ' ') ++brace;
      if (brace != 0 && brace < text.size() && text[brace] == '{') {
        open.push_back({brace + 1, true});
        at = brace;
      } else {
        ++at;  // an escaped brace is text
      }
    } else if (text[at] == '{') {
      open.push_back({at + 1, false});
    } else if (text[at] == '}' && !open.empty()) {
      const Open begin = open.back();
      open.pop_back();
      if (begin.boxed && (!last || text.data() + begin.content > last->data()))
        last = text.substr(begin.content, at - begin.content);
    }
  }
  return last;
}

std::optional<Number> answer_number(std::string_view text) {
  const auto boxed = last_boxed(text);
  const size_t hashes = text.rfind("####");
  if (boxed && (hashes == std::string_view::npos || boxed->data() > text.data() + hashes)) return last_number(*boxed);
  if (hashes != std::string_view::npos) {
    const std::string_view rest = text.substr(hashes + 4);
    size_t pos = 0;
    return next_number(rest.substr(0, rest.find('\n')), &pos);
  }
  return last_number(text);
}

}  // namespace weft
