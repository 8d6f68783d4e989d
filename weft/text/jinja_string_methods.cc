#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "weft/text/jinja_args.h"
#include "weft/text/jinja_eval.h"
#include "weft/text/jinja_format.h"
#include "weft/text/jinja_methods.h"
#include "weft/text/jinja_string.h"
#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

namespace {

Value string_list(Interpreter& in, std::vector<std::string> parts, bool markup = false) {
  Values out;
  for (std::string& part : parts) out.push_back(Value::string(std::move(part), markup));
  in.charge(2 * static_cast<int64_t>(out.size()));
  return Value::list(std::move(out));
}

template <std::string (*Map)(std::string_view)>
Value mapped(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "the method", {});
  in.charge_for(self);
  return in.text(Map(self.text()), self.flag());
}

template <Side kSide>
Value stripped(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "strip()", {"chars"});
  in.charge_for(self);
  if (bound.has_some(0)) in.charge(self.weight() / 16 * static_cast<int64_t>(bound.text(0).size()));
  return in.text(std::string(bound.has_some(0) ? strip(self.text(), bound.text(0), kSide) : strip(self.text(), kSide)),
                 self.flag());
}

template <bool kFromRight>
Value split_method(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "split()", {"sep", "maxsplit"});
  in.charge_for(self);
  int64_t limit = bound.integer(1, -1);
  if (!bound.has_some(0)) return string_list(in, split_spaces(self.text(), limit, kFromRight), self.flag());
  if (bound.text(0).empty()) throw RawError("empty separator");
  return string_list(in, split(self.text(), bound.text(0), limit, kFromRight), self.flag());
}

Value splitlines_method(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "splitlines()", {"keepends"});
  in.charge_for(self);
  return string_list(in, splitlines(self.text(), bound.flag(0, false)), self.flag());
}

template <bool kFromRight>
Value partition(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "partition()", {"sep"}, 1);
  const std::string &text = self.text(), &sep = bound.text(0);
  if (sep.empty()) throw RawError("empty separator");
  in.charge_for(self);
  size_t at = kFromRight ? text.rfind(sep) : text.find(sep);
  auto part = [&](std::string s) { return in.text(std::move(s), self.flag()); };
  if (at == text.npos) {
    if (kFromRight) return Value::tuple({part(""), part(""), part(text)});
    return Value::tuple({part(text), part(""), part("")});
  }
  return Value::tuple({part(text.substr(0, at)), part(sep), part(text.substr(at + sep.size()))});
}

// Bytes [first, last) of the characters [start, end) that the arguments i and i + 1 name. False: an empty window off the end.
bool window(const Value& self, const Bound& bound, size_t i, size_t& first, size_t& last) {
  const std::string& text = self.text();
  first = 0, last = text.size();
  if (!bound.has_some(i) && !bound.has_some(i + 1)) return true;
  int64_t size = count_codes(text);
  auto clamp = [&](size_t k, int64_t otherwise) {
    if (!bound.has_some(k)) return otherwise;
    int64_t at = bound.integer(k, 0);
    return at < 0 ? std::max<int64_t>(at < -size ? 0 : at + size, 0) : at;
  };
  int64_t start = clamp(i, 0), end = std::min(clamp(i + 1, size), size);
  if (start > end) return false;
  first = byte_offset(text, start);
  last = byte_offset(text, end);
  return true;
}

template <bool kEnd>
Value starts_or_ends(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, kEnd ? "endswith()" : "startswith()", {"what", "start", "end"}, 1);
  in.charge_for(self);
  Values options;
  if (bound[0].is(Kind::kTuple))
    options = bound[0].items();
  else
    options.push_back(bound[0]);
  size_t first, last;
  bool inside = window(self, bound, 1, first, last);
  bool found = false;
  for (const Value& option : options) {
    if (!option.is_string()) {
      throw RawError(option.is_undefined() ? option.text()
                                           : fmt::format("startswith() and endswith() take strings, not {}", type_name(option)));
    }
    std::string_view text = std::string_view(self.text()).substr(first, inside ? last - first : 0);
    found = found || (inside && (kEnd ? text.ends_with(option.text()) : text.starts_with(option.text())));
  }
  return Value::boolean(found);
}

template <bool kFromRight, bool kMustBe>
Value find_method(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "find()", {"sub", "start", "end"}, 1);
  in.charge_for(self);
  const std::string& sub = bound.text(0);
  size_t first, last;
  if (window(self, bound, 1, first, last)) {
    std::string_view text = std::string_view(self.text()).substr(first, last - first);
    size_t at = kFromRight ? text.rfind(sub) : text.find(sub);
    if (at != text.npos) return Value::integer(count_codes(std::string_view(self.text()).substr(0, first + at)));
  }
  if (kMustBe) throw RawError("substring not found");
  return Value::integer(-1);
}

Value count_method(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "count()", {"sub", "start", "end"}, 1);
  in.charge_for(self);
  const std::string& sub = bound.text(0);
  size_t first, last;
  if (!window(self, bound, 1, first, last)) return Value::integer(0);
  std::string_view text = std::string_view(self.text()).substr(first, last - first);
  if (sub.empty()) return Value::integer(count_codes(text) + 1);
  int64_t n = 0;
  for (size_t at = text.find(sub); at != text.npos; at = text.find(sub, at + sub.size())) ++n;
  return Value::integer(n);
}

Value replace_method(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "replace()", {"old", "new", "count"}, 2);
  return in.text(replace(in, self.text(), bound.text(0), bound.text(1), bound.integer(2, -1)));
}

Value join_method(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "join()", {"iterable"}, 1);
  std::string out;
  int64_t i = 0;
  for (const Value& item : in.items(bound[0])) {
    if (!item.is_string()) throw RawError(fmt::format("sequence item {}: expected str instance, {} found", i, type_name(item)));
    if (i++ > 0) out += self.text();
    out += item.text();
    check_size(1, static_cast<int64_t>(out.size()));
  }
  return in.text(std::move(out));
}

Value removeprefix(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "removeprefix()", {"prefix"}, 1);
  const std::string& cut = bound.text(0);
  return in.text(self.text().starts_with(cut) ? self.text().substr(cut.size()) : self.text());
}
Value removesuffix(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "removesuffix()", {"suffix"}, 1);
  const std::string& cut = bound.text(0);
  return in.text(self.text().ends_with(cut) ? self.text().substr(0, self.text().size() - cut.size()) : self.text());
}

template <Align kAlign>
Value justify(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "the method", {"width", "fillchar"}, 1);
  std::string fill = bound.has(1) ? bound.text(1) : " ";
  if (count_codes(fill) != 1) throw RawError("the fill character must be exactly one character long");
  return in.text(pad(self.text(), bound.integer(0, 0), fill, kAlign));
}

Value zfill(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "zfill()", {"width"}, 1);
  const std::string& text = self.text();
  bool sign = !text.empty() && (text[0] == '+' || text[0] == '-');
  return in.text(text.substr(0, sign) + pad(text.substr(sign), bound.integer(0, 0) - sign, "0", Align::kRight));
}

// True if there are characters and all pass.
template <bool (*Pass)(char32_t)>
Value all_are(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "the method", {});
  in.charge_for(self);
  std::u32string codes = to_codes(self.text());
  return Value::boolean(!codes.empty() && std::all_of(codes.begin(), codes.end(), Pass));
}
bool is_alnum(char32_t c) { return is_alpha(c) || is_numeric(c); }

template <bool (*Wanted)(char32_t), bool (*Other)(char32_t)>
Value has_case(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "the method", {});
  in.charge_for(self);
  std::u32string codes = to_codes(self.text());
  bool none = std::none_of(codes.begin(), codes.end(), [](char32_t c) { return Other(c) || is_title(c); });
  return Value::boolean(none && std::any_of(codes.begin(), codes.end(), Wanted));
}

Value istitle(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "istitle()", {});
  in.charge_for(self);
  bool inside = false, any = false;
  for (char32_t c : to_codes(self.text())) {
    bool starts = is_upper(c) || is_title(c), goes_on = is_lower(c);
    if ((starts && inside) || (goes_on && !inside)) return Value::boolean(false);
    inside = starts || goes_on;
    any = any || inside;
  }
  return Value::boolean(any);
}
Value isascii(Interpreter&, const Value& self, Args& args) {
  Bound bound(args, "isascii()", {});
  return Value::boolean(is_ascii(self.text()));
}

Value format_method(Interpreter& in, const Value& self, Args& args) { return in.text(brace_format(self.text(), args)); }

Value encode(Interpreter& in, const Value& self, Args& args) {
  Bound bound(args, "encode()", {"encoding"});
  if (bound.has(0) && lower(bound.text(0)) != "utf-8" && lower(bound.text(0)) != "utf8") {
    throw RawError(fmt::format("encode() to '{}' is not supported, only to utf-8", bound.text(0)));
  }
  in.charge_for(self);
  return Value::bytes(self.text());
}

struct Entry {
  Method method;
  bool on_markup;  // gives there what Python's Markup gives
};
const std::unordered_map<std::string_view, Entry>& methods() {
  static const std::unordered_map<std::string_view, Entry> kMethods = {
      {"upper", {mapped<upper>, true}},
      {"lower", {mapped<lower>, true}},
      {"title", {mapped<title>, true}},
      {"capitalize", {mapped<capitalize>, true}},
      {"swapcase", {mapped<swapcase>, true}},
      {"casefold", {mapped<casefold>, true}},
      {"strip", {stripped<Side::kBoth>, true}},
      {"lstrip", {stripped<Side::kLeft>, true}},
      {"rstrip", {stripped<Side::kRight>, true}},
      {"split", {split_method<false>, true}},
      {"rsplit", {split_method<true>, true}},
      {"splitlines", {splitlines_method, true}},
      {"partition", {partition<false>, false}},
      {"rpartition", {partition<true>, false}},
      {"startswith", {starts_or_ends<false>, true}},
      {"endswith", {starts_or_ends<true>, true}},
      {"find", {find_method<false, false>, true}},
      {"rfind", {find_method<true, false>, true}},
      {"index", {find_method<false, true>, true}},
      {"rindex", {find_method<true, true>, true}},
      {"count", {count_method, true}},
      {"replace", {replace_method, false}},
      {"join", {join_method, false}},
      {"removeprefix", {removeprefix, false}},
      {"removesuffix", {removesuffix, false}},
      {"ljust", {justify<Align::kLeft>, false}},
      {"rjust", {justify<Align::kRight>, false}},
      {"center", {justify<Align::kCenter>, false}},
      {"zfill", {zfill, false}},
      {"isalpha", {all_are<is_alpha>, true}},
      {"isdigit", {all_are<is_digit>, true}},
      {"isdecimal", {all_are<is_decimal>, true}},
      {"isnumeric", {all_are<is_numeric>, true}},
      {"isalnum", {all_are<is_alnum>, true}},
      {"isspace", {all_are<is_space>, true}},
      {"isupper", {has_case<is_upper, is_lower>, true}},
      {"islower", {has_case<is_lower, is_upper>, true}},
      {"istitle", {istitle, true}},
      {"isascii", {isascii, true}},
      {"format", {format_method, false}},
      {"encode", {encode, true}},
  };
  return kMethods;
}

}  // namespace

Method find_string_method(const std::string& name) {
  auto at = methods().find(name);
  return at == methods().end() ? nullptr : at->second.method;
}

bool works_on_markup(const std::string& name) {
  auto at = methods().find(name);
  return at != methods().end() && at->second.on_markup;
}

}  // namespace weft::jinja
