#include "weft/text/jinja_unicode.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

namespace weft::jinja {

namespace {

utf8proc_category_t category(char32_t code) { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

struct Range {
  char32_t first, last;
};
template <size_t N>
bool in_ranges(const Range (&ranges)[N], char32_t code) {
  return std::any_of(std::begin(ranges), std::end(ranges), [&](Range r) { return code >= r.first && code <= r.last; });
}

const SpecialCase* special_case(char32_t code) {
  const SpecialCase* end = kSpecialCases + kSpecialCaseCount;
  const SpecialCase* at = std::lower_bound(kSpecialCases, end, code, [](const SpecialCase& s, char32_t c) { return s.code < c; });
  return at != end && at->code == code ? at : nullptr;
}

void append_upper(std::string& out, char32_t code) {
  if (const SpecialCase* s = special_case(code))
    out += s->upper;
  else
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))));
}

void append_title(std::string& out, char32_t code) {
  if (const SpecialCase* s = special_case(code))
    out += s->title;
  else
    append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))));
}

bool is_cased(char32_t code) { return is_upper(code) || is_lower(code) || is_title(code); }

bool is_case_ignorable(char32_t code) {
  static constexpr Range kMid[] = {{0x27, 0x27},     {0x2E, 0x2E},     {0x3A, 0x3A},     {0xB7, 0xB7},
                                   {0x387, 0x387},   {0x55F, 0x55F},   {0x5F4, 0x5F4},   {0x2018, 0x2019},
                                   {0x2024, 0x2024}, {0x2027, 0x2027}, {0xFE13, 0xFE13}, {0xFE52, 0xFE52},
                                   {0xFE55, 0xFE55}, {0xFF07, 0xFF07}, {0xFF0E, 0xFF0E}, {0xFF1A, 0xFF1A}};
  switch (category(code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK: return true;
    default: return in_ranges(kMid, code);
  }
}

// A capital sigma is final behind a cased character and not before one (case-ignorable ones are looked through).
bool is_final_sigma(std::u32string_view codes, size_t at) {
  size_t i = at;
  while (i > 0 && is_case_ignorable(codes[i - 1])) --i;
  if (i == 0 || !is_cased(codes[i - 1])) return false;
  for (i = at + 1; i < codes.size() && is_case_ignorable(codes[i]);) ++i;
  return i == codes.size() || !is_cased(codes[i]);
}

void append_lower(std::string& out, std::u32string_view codes, size_t at) {
  char32_t code = codes[at];
  if (code == 0x130)
    out += "i\xcc\x87";
  else if (code == 0x3A3 && is_final_sigma(codes, at))
    append_utf8(out, 0x3C2);
  else
    append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))));
}

constexpr Range kOtherLower[] = {{0xAA, 0xAA},     {0xBA, 0xBA},     {0x2B0, 0x2B8},   {0x2C0, 0x2C1},   {0x2E0, 0x2E4},
                                 {0x345, 0x345},   {0x37A, 0x37A},   {0x1D2C, 0x1D6A}, {0x1D78, 0x1D78}, {0x1D9B, 0x1DBF},
                                 {0x2071, 0x2071}, {0x207F, 0x207F}, {0x2090, 0x209C}, {0x2170, 0x217F}, {0x24D0, 0x24E9},
                                 {0x2C7C, 0x2C7D}, {0xA69C, 0xA69D}, {0xA770, 0xA770}, {0xA7F8, 0xA7F9}, {0xAB5C, 0xAB5F}};
constexpr Range kOtherUpper[] = {{0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
// No (other number) that are digits: superscripts, subscripts, circled and parenthesised digits.
constexpr Range kDigits[] = {{0xB2, 0xB3},     {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},   {0x2070, 0x2070},
                             {0x2074, 0x2079}, {0x2080, 0x2089},   {0x2460, 0x2468},   {0x2474, 0x247C},   {0x2488, 0x2490},
                             {0x24EA, 0x24EA}, {0x24F5, 0x24FD},   {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},
                             {0x278A, 0x2792}, {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
// Han characters with a numeric value, the common ones.
constexpr char32_t kHanNumbers[] = {
    0x3405, 0x3483, 0x382A, 0x3B4D, 0x4E00, 0x4E03, 0x4E07, 0x4E09, 0x4E5D, 0x4E8C, 0x4E94, 0x4E96, 0x4EBF, 0x4EC0, 0x4EDF,
    0x4EE8, 0x4F0D, 0x4F70, 0x5104, 0x5146, 0x5169, 0x516B, 0x516D, 0x5341, 0x5343, 0x5344, 0x5345, 0x534C, 0x53C1, 0x53C2,
    0x53C3, 0x53C4, 0x56DB, 0x58F1, 0x58F9, 0x5E7A, 0x5EFE, 0x5EFF, 0x5F0C, 0x5F0D, 0x5F0E, 0x5F10, 0x62FE, 0x634C, 0x67D2,
    0x6F06, 0x7396, 0x767E, 0x8086, 0x842C, 0x8CAE, 0x8CB3, 0x8D30, 0x9621, 0x9646, 0x964C, 0x9678, 0x96F6};

}  // namespace

bool valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    utf8proc_int32_t code;
    auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + i,
                              static_cast<utf8proc_ssize_t>(text.size() - i), &code);
    if (n <= 0) return false;
    i += static_cast<size_t>(n);
  }
  return true;
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

void append_utf8(std::string& out, char32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  utf8proc_uint8_t bytes[4];
  auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

char32_t next_code(std::string_view text, size_t& at) {
  auto byte = [&](size_t i) { return static_cast<char32_t>(i < text.size() ? static_cast<unsigned char>(text[i]) & 0x3F : 0); };
  unsigned char c = static_cast<unsigned char>(text[at]);
  if (c < 0x80) return at += 1, c;
  if (c < 0xE0) return at += 2, (c & 0x1FU) << 6 | byte(at - 1);
  if (c < 0xF0) return at += 3, (c & 0x0FU) << 12 | byte(at - 2) << 6 | byte(at - 1);
  return at += 4, (c & 0x07U) << 18 | byte(at - 3) << 12 | byte(at - 2) << 6 | byte(at - 1);
}

std::u32string to_codes(std::string_view text) {
  std::u32string codes;
  codes.reserve(text.size());
  for (size_t i = 0; i < text.size();) codes += next_code(text, i);
  return codes;
}

std::string to_utf8(std::u32string_view codes) {
  std::string out;
  out.reserve(codes.size());
  for (char32_t c : codes) append_utf8(out, c);
  return out;
}

int64_t count_codes(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_alpha(char32_t code) {
  auto c = category(code);
  return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }
bool is_digit(char32_t code) { return is_decimal(code) || in_ranges(kDigits, code); }
bool is_numeric(char32_t code) {
  auto c = category(code);
  return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO ||
         std::binary_search(std::begin(kHanNumbers), std::end(kHanNumbers), code);
}
bool is_printable(char32_t code) {
  if (code == ' ') return true;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    default: return true;
  }
}
bool is_upper(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LU || in_ranges(kOtherUpper, code); }
bool is_lower(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LL || in_ranges(kOtherLower, code); }
bool is_title(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LT; }

std::string upper(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) append_upper(out, next_code(text, i));
  return out;
}

std::string lower(std::string_view text) {
  std::u32string codes = to_codes(text);
  std::string out;
  for (size_t i = 0; i < codes.size(); ++i) append_lower(out, codes, i);
  return out;
}

std::string title(std::string_view text) {
  std::u32string codes = to_codes(text);
  std::string out;
  bool inside = false;
  for (size_t i = 0; i < codes.size(); ++i) {
    if (inside)
      append_lower(out, codes, i);
    else
      append_title(out, codes[i]);
    inside = is_cased(codes[i]);
  }
  return out;
}

std::string capitalize(std::string_view text) {
  std::u32string codes = to_codes(text);
  std::string out;
  if (!codes.empty()) append_title(out, codes[0]);
  for (size_t i = 1; i < codes.size(); ++i) append_lower(out, codes, i);
  return out;
}

std::string swapcase(std::string_view text) {
  std::u32string codes = to_codes(text);
  std::string out;
  for (size_t i = 0; i < codes.size(); ++i) {
    if (is_upper(codes[i]))
      append_lower(out, codes, i);
    else if (is_lower(codes[i]))
      append_upper(out, codes[i]);
    else
      append_utf8(out, codes[i]);
  }
  return out;
}

std::string casefold(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    utf8proc_int32_t folded[8];
    int boundary = 0;
    auto code = static_cast<utf8proc_int32_t>(next_code(text, i));
    auto n = utf8proc_decompose_char(code, folded, 8, UTF8PROC_CASEFOLD, &boundary);
    for (utf8proc_ssize_t k = 0; k < n && k < 8; ++k) append_utf8(out, static_cast<char32_t>(folded[k]));
  }
  return out;
}

namespace {

template <class Pred>
std::string_view strip_if(std::string_view text, Side side, Pred drop) {
  size_t first = 0, last = text.size();
  while (side != Side::kRight && first < last) {
    size_t next = first;
    if (!drop(next_code(text, next))) break;
    first = next;
  }
  while (side != Side::kLeft && first < last) {
    size_t start = last - 1;
    while (start > first && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
    size_t next = start;
    if (!drop(next_code(text, next))) break;
    last = start;
  }
  return text.substr(first, last - first);
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

std::string_view strip(std::string_view text, Side side) { return strip_if(text, side, is_space); }

std::string_view strip(std::string_view text, std::string_view characters, Side side) {
  std::u32string set = to_codes(characters);
  return strip_if(text, side, [&](char32_t c) { return set.find(c) != std::u32string::npos; });
}

std::vector<std::string> splitlines(std::string_view text, bool keep_ends) {
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    char32_t c = next_code(text, i);
    if (!is_line_end(c)) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.emplace_back(text.substr(start, (keep_ends ? i : end) - start));
    start = i;
  }
  if (start < text.size()) lines.emplace_back(text.substr(start));
  return lines;
}

std::string quote_text(std::string_view text) {
  char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    char32_t c = next_code(text, i);
    if (c == static_cast<char32_t>(quote) || c == '\\')
      out += '\\', out += static_cast<char>(c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (is_printable(c))
      append_utf8(out, c);
    else if (c < 0x100)
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    else if (c < 0x10000)
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    else
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
  }
  return out += quote;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string sign = text[0] == '-' ? "-" : "";
  if (!sign.empty()) text.remove_prefix(1);
  size_t e = text.find('e');
  int exponent = 0;
  std::string_view power = text.substr(e + 1);
  if (power[0] == '+') power.remove_prefix(1);
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace weft::jinja
