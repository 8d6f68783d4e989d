#include "weft/text/jinja_string.h"

#include <algorithm>

#include "weft/text/jinja_args.h"
#include "weft/text/jinja_eval.h"
#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

size_t byte_offset(std::string_view text, int64_t characters) {
  size_t at = 0;
  for (; characters > 0 && at < text.size(); --characters) next_code(text, at);
  return at;
}

std::vector<std::string> split(std::string_view text, std::string_view separator, int64_t limit, bool from_right) {
  std::vector<std::string> parts;
  while (limit != 0) {
    size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == text.npos) break;
    parts.emplace_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
    --limit;
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> split_spaces(std::string_view text, int64_t limit, bool from_right) {
  std::vector<std::string> parts;
  Side near = from_right ? Side::kRight : Side::kLeft;
  text = strip(text, near);
  while (!text.empty()) {
    if (limit-- == 0) {
      parts.emplace_back(text);
      break;
    }
    size_t cut = from_right ? text.size() : 0;
    while (from_right ? cut > 0 : cut < text.size()) {
      size_t start = cut;
      if (from_right) {
        do --start;
        while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80);
      }
      size_t end = start;
      if (is_space(next_code(text, end))) break;
      cut = from_right ? start : end;
    }
    parts.emplace_back(from_right ? text.substr(cut) : text.substr(0, cut));
    text = strip(from_right ? text.substr(0, cut) : text.substr(cut), near);
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::string replace(Interpreter& in, std::string_view text, std::string_view old, std::string_view with, int64_t limit) {
  in.charge(static_cast<int64_t>(text.size()) / 16);
  std::string out;
  auto put = [&](std::string_view part) {
    out += part;
    check_size(1, static_cast<int64_t>(out.size()));
  };
  size_t at = 0;
  if (old.empty()) {
    for (; limit != 0; --limit) {
      put(with);
      if (at == text.size()) break;
      size_t start = at;
      next_code(text, at);
      put(text.substr(start, at - start));
    }
    put(text.substr(at));
    return out;
  }
  for (; limit != 0; --limit) {
    size_t next = text.find(old, at);
    if (next == text.npos) break;
    put(text.substr(at, next - at));
    put(with);
    at = next + old.size();
  }
  put(text.substr(at));
  return out;
}

std::string pad(std::string_view text, int64_t width, std::string_view fill, Align align) {
  int64_t missing = check_width(width) - count_codes(text);
  if (missing <= 0) return std::string(text);
  int64_t left = align == Align::kRight ? missing : align == Align::kLeft ? 0 : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return out;
}

}  // namespace weft::jinja
