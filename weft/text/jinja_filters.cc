#include "weft/text/jinja_filters.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <unordered_map>

#include "weft/text/jinja_args.h"
#include "weft/text/jinja_arithmetic.h"
#include "weft/text/jinja_eval.h"
#include "weft/text/jinja_format.h"
#include "weft/text/jinja_json.h"
#include "weft/text/jinja_string.h"
#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

namespace {

// The input as text; the mark of a safe string stays.
Value soft_text(Interpreter& in, const Value& input) {
  if (input.is_string()) return input;
  in.charge_for(input);
  return in.text(to_text(input));
}

template <std::string (*Map)(std::string_view)>
Value mapped(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "the filter", {});
  Value text = soft_text(in, input);
  in.charge_for(text);
  return in.text(Map(text.text()), text.flag());
}

// Jinja's own title: words start behind white space, '-' and opening brackets only.
std::string title_words(std::string_view text) {
  std::u32string codes = to_codes(text);
  std::string out;
  for (size_t i = 0; i < codes.size();) {
    auto separates = [](char32_t c) { return is_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos; };
    size_t end = i;
    bool separator = separates(codes[i]);
    while (end < codes.size() && separates(codes[end]) == separator) ++end;
    out += upper(to_utf8(codes.substr(i, 1))) + lower(to_utf8(codes.substr(i + 1, end - i - 1)));
    i = end;
  }
  return out;
}

Value trim(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "trim", {"chars"});
  Value text = soft_text(in, input);
  in.charge_for(text);
  if (bound.has_some(0)) in.charge(text.weight() / 16 * static_cast<int64_t>(bound.text(0).size()));
  auto kept = bound.has_some(0) ? strip(text.text(), bound.text(0), Side::kBoth) : strip(text.text());
  return in.text(std::string(kept), text.flag());
}

Value string_filter(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "string", {});
  return soft_text(in, input);
}

Value safe(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "safe", {});
  return in.text(soft_text(in, input).text(), true);
}

Value escape(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "escape", {});
  if (input.is_string() && input.flag()) return input;
  in.charge_for(input);
  return in.text(escape_html(to_text(input)), true);
}
Value force_escape(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "forceescape", {});
  in.charge_for(input);
  return in.text(escape_html(to_text(input)), true);
}

Value replace_filter(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "replace", {"old", "new", "count"}, 2);
  in.charge_for(input);
  int64_t count = bound.has_some(2) ? bound.integer(2, -1) : -1;
  auto text = [&](size_t i) { return to_text(bound[i]); };
  return in.text(replace(in, to_text(input), text(0), text(1), count));
}

Value default_filter(Interpreter&, const Value& input, Args& args) {
  Bound bound(args, "default", {"default_value", "boolean"});
  bool replaced = input.is_undefined() || (bound.flag(1, false) && !truth(input));
  if (!replaced) return input;
  return bound.has(0) ? bound[0] : Value::string("");
}

Value indent(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "indent", {"width", "first", "blank"});
  if (!input.is_string()) throw RawError(fmt::format("indent takes a string, not {}", type_name(input)));
  if (input.flag()) throw RawError("indent of a string marked safe is not supported");
  std::string by;
  if (bound.has(0) && bound[0].is_string())
    by = bound[0].text();
  else
    by = std::string(static_cast<size_t>(std::max<int64_t>(check_width(bound.integer(0, 4)), 0)), ' ');
  std::vector<std::string> lines = splitlines(input.text() + "\n");
  std::string out = bound.flag(1, false) ? by : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i > 0 && (bound.flag(2, false) || !lines[i].empty())) out += by;
    out += lines[i];
    check_size(1, static_cast<int64_t>(out.size()));
  }
  return in.text(std::move(out));
}

Value center(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "center", {"width"});
  Value text = soft_text(in, input);
  return in.text(pad(text.text(), bound.integer(0, 80), " ", Align::kCenter), text.flag());
}

Value truncate(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "truncate", {"length", "killwords", "end", "leeway"});
  if (!input.is_string() || input.flag()) throw RawError(fmt::format("truncate takes a plain string, not {}", type_name(input)));
  int64_t size = bound.integer(0, 255), leeway = bound.has_some(3) ? bound.integer(3, 5) : 5;
  std::string end = bound.has(2) ? bound.text(2) : "...";
  int64_t end_size = count_codes(end);
  if (size < end_size) throw RawError(fmt::format("truncate: length {} is less than that of the end, {}", size, end_size));
  if (leeway < 0) throw RawError("truncate: leeway is negative");
  in.charge_for(input);
  const std::string& text = input.text();
  if (count_codes(text) - leeway <= size) return input;
  std::string kept = text.substr(0, byte_offset(text, size - end_size));
  if (!bound.flag(1, false)) {
    size_t space = kept.rfind(' ');
    if (space != kept.npos) kept.resize(space);
  }
  return in.text(kept + end);
}

Value wordcount(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "wordcount", {});
  Value text = soft_text(in, input);
  in.charge_for(text);
  int64_t n = 0;
  bool inside = false;
  for (char32_t c : to_codes(text.text())) {
    bool word = is_alpha(c) || is_numeric(c) || c == '_';
    n += word && !inside;
    inside = word;
  }
  return Value::integer(n);
}

Value format_filter(Interpreter& in, const Value& input, Args& args) {
  if (!args.positional.empty() && !args.named.empty()) throw RawError("format takes values by position or by name, not both");
  Value text = soft_text(in, input);
  if (text.flag()) throw RawError("format of a string marked safe is not supported");
  if (args.named.empty()) return in.text(percent_format(text.text(), Value::tuple(args.positional)));
  auto dict = std::make_shared<Dict>();
  for (const auto& [name, value] : args.named) dict->set(Value::string(name), value);
  return in.text(percent_format(text.text(), Value::dict(std::move(dict))));
}

// Digits with single underscores between them and white space around, as int() and float() read text. Empty: malformed.
std::string number_literal(std::string_view text) {
  std::string out;
  text = strip(text);
  for (size_t i = 0; i < text.size(); ++i) {
    auto digit = [&](size_t k) { return k < text.size() && text[k] >= '0' && text[k] <= '9'; };
    if (text[i] != '_')
      out += text[i];
    else if (i == 0 || !digit(i - 1) || !digit(i + 1))
      return "";
  }
  return out;
}

bool read_integer(std::string_view text, Value& out) {
  std::string literal = number_literal(text);
  if (literal.size() > 4300) return false;
  size_t first = !literal.empty() && (literal[0] == '-' || literal[0] == '+');
  if (literal.size() == first || literal.find_first_not_of("0123456789", first) != literal.npos) return false;
  out = Value::digits(literal[0] == '+' ? literal.substr(1) : literal);
  return true;
}

bool read_float(std::string_view text, double& out) {
  std::string literal = lower(number_literal(text));
  if (!is_ascii(text)) {
    bool foreign_digit = false;
    for (char32_t c : to_codes(text)) foreign_digit = foreign_digit || (c > 0x7F && is_decimal(c));
    if (foreign_digit) throw RawError("numbers in other than ASCII digits are not supported");
  }
  std::string body = literal.substr(!literal.empty() && (literal[0] == '-' || literal[0] == '+'));
  bool word = body == "inf" || body == "infinity" || body == "nan";
  bool digits = !body.empty() && body.find_first_not_of("0123456789.e+-") == body.npos &&
                (std::isdigit(static_cast<unsigned char>(body[0])) || body[0] == '.');
  if (!word && !digits) return false;
  char* end = nullptr;
  out = std::strtod(literal.c_str(), &end);
  return end == literal.c_str() + literal.size();
}

bool whole_part(double d, Value& out) {
  if (!std::isfinite(d)) return false;
  out = Value::digits(fmt::format("{:.0f}", std::trunc(d) == 0 ? 0.0 : std::trunc(d)));
  return true;
}

Value int_filter(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "int", {"default", "base"});
  if (bound.integer(1, 10) != 10) throw RawError("int with another base than 10 is not supported");
  in.charge_for(input);
  Value otherwise = bound.has(0) ? bound[0] : Value::integer(0), out;
  if (input.is_integer()) return input;
  if (input.is(Kind::kBool)) return Value::integer(input.as_int());
  if (input.is(Kind::kFloat)) return whole_part(input.as_float(), out) ? out : otherwise;
  if (input.is_undefined()) throw RawError(input.text());
  if (!input.is_string()) return otherwise;
  double d = 0;
  if (read_integer(input.text(), out) || (read_float(input.text(), d) && whole_part(d, out))) return out;
  return otherwise;
}

Value float_filter(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "float", {"default"});
  in.charge_for(input);
  if (input.is_number()) {
    double d = number(input);
    return input.is(Kind::kBigInt) && std::isinf(d) ? throw RawError("int too large to convert to float") : Value::real(d);
  }
  if (input.is_undefined()) throw RawError(input.text());
  double d = 0;
  if (input.is_string() && read_float(input.text(), d)) return Value::real(d);
  return bound.has(0) ? bound[0] : Value::real(0);
}

Value abs_filter(Interpreter&, const Value& input, Args& args) {
  Bound bound(args, "abs", {});
  if (input.is_undefined()) throw RawError(input.text());
  if (!input.is_number()) throw RawError(fmt::format("bad operand type for abs(): '{}'", type_name(input)));
  if (input.is(Kind::kFloat)) return Value::real(std::fabs(input.as_float()));
  return to_repr(input)[0] == '-' ? negative(input) : positive(input);
}

Value round_filter(Interpreter&, const Value& input, Args& args) {
  Bound bound(args, "round", {"precision", "method"});
  if (input.is_undefined()) throw RawError(input.text());
  if (!input.is_number()) throw RawError(fmt::format("round takes a number, not {}", type_name(input)));
  std::string method = bound.has(1) ? bound.text(1) : "common";
  int64_t precision = bound.integer(0, 0);
  if (precision < 0 || precision > 300) throw RawError(fmt::format("round: precision {} is not supported (0 to 300)", precision));
  if (method == "common") {
    if (!input.is(Kind::kFloat)) return positive(input);
    double d = input.as_float();
    if (!std::isfinite(d)) return input;
    return Value::real(std::strtod(fmt::format("{:.{}f}", d, static_cast<int>(precision)).c_str(), nullptr));
  }
  if (method != "ceil" && method != "floor") throw RawError("round: method must be common, ceil or floor");
  double scale = std::pow(10.0, static_cast<double>(precision)), scaled = number(input) * scale;
  if (!std::isfinite(scaled)) throw RawError("round: the number is too large");
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value tojson(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound.has_some(1)) {
    if (bound[1].is_string())
      style.indent = bound[1].text();
    else
      style.indent = std::string(static_cast<size_t>(std::clamp<int64_t>(bound.integer(1, 0), 0, 1001)), ' ');
    if (style.indent->size() > 1000) throw RawError("tojson: an indent above 1000 is not supported");
    style.item_separator = ",";
  }
  if (bound.has_some(2)) {
    Values parts = in.items(bound[2]);
    if (parts.size() != 2 || !parts[0].is_string() || !parts[1].is_string()) throw RawError("tojson: separators are two strings");
    style.item_separator = parts[0].text();
    style.key_separator = parts[1].text();
  }
  in.charge_for(input);
  return in.text(to_json(input, style));
}

Value attr(Interpreter& in, const Value& input, Args& args) {
  Bound bound(args, "attr", {"name"}, 1);
  if (input.is(Kind::kDict)) throw RawError("attr looks for attributes, not for keys; use x.name or x['name']");
  return in.attribute(input, bound.text(0));
}

}  // namespace

FilterFunction find_filter(const std::string& name) {
  static const std::unordered_map<std::string_view, FilterFunction> kFilters = {
      {"abs", abs_filter},
      {"attr", attr},
      {"capitalize", mapped<capitalize>},
      {"center", center},
      {"d", default_filter},
      {"default", default_filter},
      {"e", escape},
      {"escape", escape},
      {"float", float_filter},
      {"forceescape", force_escape},
      {"format", format_filter},
      {"indent", indent},
      {"int", int_filter},
      {"lower", mapped<lower>},
      {"replace", replace_filter},
      {"round", round_filter},
      {"safe", safe},
      {"string", string_filter},
      {"title", mapped<title_words>},
      {"tojson", tojson},
      {"trim", trim},
      {"truncate", truncate},
      {"upper", mapped<upper>},
      {"wordcount", wordcount},
  };
  auto at = kFilters.find(name);
  return at != kFilters.end() ? at->second : find_sequence_filter(name);
}

bool is_unsupported_filter(const std::string& name) {
  static constexpr std::string_view kNames[] = {"filesizeformat", "pprint", "random",   "slice",  "striptags",
                                                "urlencode",      "urlize", "wordwrap", "xmlattr"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace weft::jinja
