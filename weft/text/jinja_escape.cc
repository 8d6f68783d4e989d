#include "weft/text/jinja_escape.h"

#include <fmt/format.h>

#include <cstdint>
#include <iterator>

#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

namespace {

struct Named {
  std::string_view name;
  char32_t code;
};
// The names that templates have a use for; any other is an error.
constexpr Named kNamed[] = {{"BULLET", 0x2022},
                            {"NO-BREAK SPACE", 0xA0},
                            {"EN DASH", 0x2013},
                            {"EM DASH", 0x2014},
                            {"HORIZONTAL ELLIPSIS", 0x2026},
                            {"ZERO WIDTH SPACE", 0x200B},
                            {"RIGHTWARDS ARROW", 0x2192},
                            {"LEFT SINGLE QUOTATION MARK", 0x2018},
                            {"RIGHT SINGLE QUOTATION MARK", 0x2019},
                            {"LEFT DOUBLE QUOTATION MARK", 0x201C},
                            {"RIGHT DOUBLE QUOTATION MARK", 0x201D},
                            {"LOWER ONE EIGHTH BLOCK", 0x2581},
                            {"FULLWIDTH VERTICAL LINE", 0xFF5C},
                            {"REPLACEMENT CHARACTER", 0xFFFD},
                            {"SPACE", 0x20}};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  char low = static_cast<char>(c | 0x20);
  return low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

bool append_code(uint32_t code, std::string& out, std::string& problem) {
  if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
    problem = fmt::format("U+{:04X} is not a character (write characters outside of the first plane as \\U000xxxxx)", code);
    return false;
  }
  append_utf8(out, code);
  return true;
}

}  // namespace

bool decode_escapes(std::string_view body, std::string& out, std::string& problem) {
  for (size_t i = 0; i < body.size();) {
    char c = body[i++];
    if (c != '\\') {
      out += c;
      continue;
    }
    char kind = body[i++];  // the lexer leaves no lone backslash at the end
    size_t want = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (want != 0) {
      uint32_t code = 0;
      for (size_t k = 0; k < want; ++k) {
        int digit = i < body.size() ? hex_digit(body[i]) : -1;
        if (digit < 0) {
          problem = fmt::format("\\{} takes {} hexadecimal digits", kind, want);
          return false;
        }
        code = code * 16 + static_cast<uint32_t>(digit);
        ++i;
      }
      if (!append_code(code, out, problem)) return false;
      continue;
    }
    if (kind >= '0' && kind <= '7') {
      uint32_t code = static_cast<uint32_t>(kind - '0');
      for (int k = 0; k < 2 && i < body.size() && body[i] >= '0' && body[i] <= '7'; ++k) {
        code = code * 8 + static_cast<uint32_t>(body[i++] - '0');
      }
      if (!append_code(code, out, problem)) return false;
      continue;
    }
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (size_t at = kFrom.find(kind); at != kFrom.npos) {
      out += kTo[at];
    } else if (kind == 'N') {
      size_t end = i < body.size() && body[i] == '{' ? body.find('}', i) : body.npos;
      std::string_view name = end == body.npos ? "" : body.substr(i + 1, end - i - 1);
      char32_t code = 0;
      for (const Named& named : kNamed) {
        if (named.name == name) code = named.code;
      }
      if (code == 0) {
        problem = fmt::format("\\N{{{}}} is not among the supported character names; write \\uXXXX", name);
        return false;
      }
      append_utf8(out, code);
      i = end + 1;
    } else if (static_cast<unsigned char>(kind) >= 0x80) {
      problem = "a backslash may not stand in front of a character that is not ASCII; write \\\\";
      return false;
    } else if (kind != '\n') {  // an escaped line end vanishes, an unknown sequence stays as written
      out += '\\';
      out += kind;
    }
  }
  return true;
}

}  // namespace weft::jinja
