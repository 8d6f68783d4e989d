#include "weft/text/jinja_format.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>

#include "weft/text/jinja_args.h"
#include "weft/text/jinja_string.h"
#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

namespace {

struct Spec {
  std::string fill = " ";
  char align = '\0';
  char sign = '-';
  bool alternate = false;
  bool grouped = false;
  int64_t width = 0;
  std::optional<int64_t> precision;
  char type = '\0';
};

void limit_output(const std::string& out) { check_size(1, static_cast<int64_t>(out.size())); }

int64_t read_number(std::string_view text, size_t& at) {
  int64_t value = 0;
  auto result = std::from_chars(text.data() + at, text.data() + text.size(), value);
  if (result.ec != std::errc()) throw RawError("a number in a format is too large");
  at = static_cast<size_t>(result.ptr - text.data());
  return check_width(value);
}

bool starts_number(std::string_view text, size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '9'; }

std::string group_thousands(const std::string& digits) {
  size_t whole = digits.find_first_not_of("0123456789");
  if (whole == digits.npos) whole = digits.size();
  std::string out;
  for (size_t i = 0; i < whole; ++i) {
    if (i > 0 && (whole - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out + digits.substr(whole);
}

std::string float_digits(double magnitude, char type, int precision, bool alternate) {
  bool upper = type == 'F' || type == 'E' || type == 'G';
  if (!std::isfinite(magnitude)) {
    std::string word = std::isnan(magnitude) ? "nan" : "inf";
    return upper ? jinja::upper(word) : word;
  }
  if (alternate) throw RawError("the flag '#' is not supported for floats");
  switch (type) {
    case 'e': return fmt::format("{:.{}e}", magnitude, precision);
    case 'E': return fmt::format("{:.{}E}", magnitude, precision);
    case 'g': return fmt::format("{:.{}g}", magnitude, precision == 0 ? 1 : precision);
    case 'G': return fmt::format("{:.{}G}", magnitude, precision == 0 ? 1 : precision);
    default: return fmt::format("{:.{}f}", magnitude, precision);
  }
}

std::string integer_digits(const Value& value, const Spec& spec) {
  if (value.is(Kind::kBigInt)) {
    if (spec.type != 'd') throw RawError("integers beyond 64 bits can only be formatted as decimal");
    return value.text()[0] == '-' ? value.text().substr(1) : value.text();
  }
  uint64_t magnitude = value.as_int() < 0 ? 0 - static_cast<uint64_t>(value.as_int()) : static_cast<uint64_t>(value.as_int());
  switch (spec.type) {
    case 'x': return (spec.alternate ? "0x" : "") + fmt::format("{:x}", magnitude);
    case 'X': return (spec.alternate ? "0X" : "") + fmt::format("{:X}", magnitude);
    case 'o': return (spec.alternate ? "0o" : "") + fmt::format("{:o}", magnitude);
    case 'b': return (spec.alternate ? "0b" : "") + fmt::format("{:b}", magnitude);
    default: return fmt::format("{}", magnitude);
  }
}

bool is_negative(const Value& value) {
  if (value.is(Kind::kFloat)) return std::signbit(value.as_float()) && !std::isnan(value.as_float());
  if (value.is(Kind::kBigInt)) return value.text()[0] == '-';
  return value.as_int() < 0;
}

std::string number_text(const Value& value, Spec spec) {
  bool as_float = std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos;
  std::string body;
  if (as_float) {
    double magnitude = std::fabs(number(value)) * (spec.type == '%' ? 100 : 1);
    int64_t precision = spec.precision.value_or(6);
    if (precision > 1000) throw RawError("a precision above 1000 is not supported");
    body = float_digits(magnitude, spec.type, static_cast<int>(precision), spec.alternate);
    if (spec.type == '%') body += '%';
  } else {
    body = integer_digits(value, spec);
  }
  if (spec.grouped) body = group_thousands(body);
  std::string sign = is_negative(value) ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  if (spec.align == '=') {
    if (spec.grouped && spec.fill == "0") throw RawError("zero padding with ',' is not supported");
    std::string prefix = spec.alternate && body.size() > 2 && std::string_view("xXob").find(spec.type) != std::string_view::npos
                             ? body.substr(0, 2)
                             : "";
    body = body.substr(prefix.size());
    int64_t taken = static_cast<int64_t>(sign.size() + prefix.size());
    return sign + prefix + pad(body, spec.width - taken, spec.fill, Align::kRight);
  }
  return sign + body;
}

std::string aligned(const std::string& text, const Spec& spec, bool is_number) {
  char align = spec.align == '\0' ? (is_number ? '>' : '<') : spec.align;
  if (align == '=') return text;
  int64_t missing = spec.width - count_codes(text);
  if (align != '^' || missing <= 0) return pad(text, spec.width, spec.fill, align == '<' ? Align::kLeft : Align::kRight);
  return pad(pad(text, spec.width - missing + missing / 2, spec.fill, Align::kRight), spec.width, spec.fill, Align::kLeft);
}

std::string cut(const std::string& text, const Spec& spec) {
  return spec.precision ? text.substr(0, byte_offset(text, *spec.precision)) : text;
}

class Percent {
 public:
  Percent(std::string_view text, const Value& values) : text_(text), values_(values) {}

  std::string run() {
    std::string out;
    while (at_ < text_.size()) {
      size_t next = std::min(text_.find('%', at_), text_.size());
      out += text_.substr(at_, next - at_);
      at_ = next;
      if (at_ == text_.size()) break;
      ++at_;
      out += one();
      limit_output(out);
    }
    bool all_used = values_.is(Kind::kDict) || used_ >= count();
    if (!all_used) throw RawError("not all arguments converted during string formatting");
    return out;
  }

 private:
  size_t count() const { return values_.is(Kind::kTuple) ? values_.items().size() : 1; }
  char peek() const {
    if (at_ >= text_.size()) throw RawError("incomplete format");
    return text_[at_];
  }

  const Value& next() {
    if (used_ >= count()) throw RawError("not enough arguments for format string");
    ++used_;
    return values_.is(Kind::kTuple) ? values_.items()[used_ - 1] : values_;
  }

  std::string one() {
    Spec spec;
    const Value* named = nullptr;
    if (peek() == '(') {
      size_t end = text_.find(')', at_);
      if (end == text_.npos) throw RawError("incomplete format key");
      if (!values_.is(Kind::kDict)) throw RawError("format requires a mapping");
      named = values_.as_dict().find(text_.substr(at_ + 1, end - at_ - 1));
      if (named == nullptr) throw RawError(fmt::format("no value named '{}' to format", text_.substr(at_ + 1, end - at_ - 1)));
      at_ = end + 1;
    }
    bool zero = false;
    for (; std::string_view("-+ #0").find(peek()) != std::string_view::npos; ++at_) {
      if (peek() == '-')
        spec.align = '<';
      else if (peek() == '+')
        spec.sign = '+';
      else if (peek() == ' ' && spec.sign == '-')
        spec.sign = ' ';
      else if (peek() == '#')
        spec.alternate = true;
      else if (peek() == '0')
        zero = true;
    }
    if (peek() == '*') throw RawError("'*' in a format is not supported");
    if (starts_number(text_, at_)) spec.width = read_number(text_, at_);
    if (peek() == '.') {
      ++at_;
      spec.precision = starts_number(text_, at_) ? read_number(text_, at_) : 0;
    }
    spec.type = peek();
    ++at_;
    if (spec.type == '%') return "%";
    if (zero && spec.align == '\0') spec.align = '=', spec.fill = "0";
    const Value& value = named != nullptr ? *named : next();
    if (spec.align == '\0') spec.align = '>';
    return convert(value, spec);
  }

  static std::string convert(const Value& value, Spec spec) {
    if (spec.type == 's' || spec.type == 'r') {
      if (spec.align == '=') spec.align = '>', spec.fill = " ";
      return aligned(cut(spec.type == 's' ? to_text(value) : to_repr(value), spec), spec, false);
    }
    if (std::string_view("diuxXofFeEgG").find(spec.type) == std::string_view::npos) {
      throw RawError(fmt::format("the format %{} is not supported", spec.type));
    }
    if (!value.is_number()) {
      throw RawError(fmt::format("%{} format: a real number is required, not {}", spec.type, type_name(value)));
    }
    bool integral = std::string_view("diuxXo").find(spec.type) != std::string_view::npos;
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    if (integral && spec.precision) throw RawError("a precision for integers is not supported");
    if (integral && value.is(Kind::kFloat)) {
      if (spec.type != 'd') throw RawError(fmt::format("%{} format: an integer is required, not float", spec.type));
      if (!std::isfinite(value.as_float())) throw RawError("cannot convert float infinity or NaN to integer");
      return aligned(number_text(Value::digits(fmt::format("{:.0f}", std::trunc(value.as_float()))), spec), spec, true);
    }
    return aligned(number_text(value, spec), spec, true);
  }

  std::string_view text_;
  const Value& values_;
  size_t at_ = 0;
  size_t used_ = 0;
};

Spec read_spec(std::string_view text) {
  Spec spec;
  size_t at = 0;
  auto is_align = [&](size_t i) { return i < text.size() && std::string_view("<>=^").find(text[i]) != std::string_view::npos; };
  if (!text.empty()) {
    size_t behind = 0;
    next_code(text, behind);
    if (is_align(behind)) {
      spec.fill = std::string(text.substr(0, behind));
      spec.align = text[behind];
      at = behind + 1;
    } else if (is_align(0)) {
      spec.align = text[0];
      at = 1;
    }
  }
  if (at < text.size() && (text[at] == '+' || text[at] == '-' || text[at] == ' ')) spec.sign = text[at++];
  if (at < text.size() && text[at] == '#') spec.alternate = true, ++at;
  if (at < text.size() && text[at] == '0') {
    if (spec.align == '\0') spec.align = '=', spec.fill = "0";
    ++at;
  }
  if (starts_number(text, at)) spec.width = read_number(text, at);
  if (at < text.size() && text[at] == ',') spec.grouped = true, ++at;
  if (at < text.size() && text[at] == '.') {
    ++at;
    if (!starts_number(text, at)) throw RawError("format specifier missing precision");
    spec.precision = read_number(text, at);
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) throw RawError(fmt::format("the format specifier '{}' is not supported", text));
  return spec;
}

std::string format_value(const Value& value, std::string_view spec_text) {
  if (spec_text.empty()) return to_text(value);
  Spec spec = read_spec(spec_text);
  auto refuse = [&] { throw RawError(fmt::format("the format '{}' is not supported for '{}'", spec_text, type_name(value))); };
  if (value.is_string()) {
    if ((spec.type != '\0' && spec.type != 's') || spec.align == '=' || spec.grouped || spec.alternate || spec.sign != '-')
      refuse();
    return aligned(cut(value.text(), spec), spec, false);
  }
  if (!value.is_number() || value.is(Kind::kBool)) refuse();
  bool integral = value.is_integer();
  if (spec.type == '\0') {
    if (!integral) refuse();
    spec.type = 'd';
  }
  bool known = std::string_view(integral ? "dxXobeEfFgG%" : "eEfFgG%").find(spec.type) != std::string_view::npos;
  bool int_precision = spec.precision && std::string_view("dxXob").find(spec.type) != std::string_view::npos;
  if (!known || int_precision) refuse();
  return aligned(number_text(value, spec), spec, true);
}

}  // namespace

std::string percent_format(std::string_view text, const Value& values) { return Percent(text, values).run(); }

std::string brace_format(std::string_view text, const Args& args) {
  std::string out;
  size_t automatic = 0;
  for (size_t at = 0; at < text.size();) {
    char c = text[at++];
    if ((c == '{' || c == '}') && at < text.size() && text[at] == c) {
      out += c;
      ++at;
      continue;
    }
    if (c == '}') throw RawError("single '}' encountered in format string");
    if (c != '{') {
      out += c;
      continue;
    }
    size_t end = text.find('}', at);
    if (end == text.npos) throw RawError("expected '}' before end of string");
    std::string_view field = text.substr(at, end - at);
    at = end + 1;
    if (field.find('{') != field.npos) throw RawError("nested fields in a format are not supported");
    size_t colon = field.find(':');
    std::string_view spec = colon == field.npos ? "" : field.substr(colon + 1);
    std::string_view name = field.substr(0, colon);
    char conversion = '\0';
    if (size_t bang = name.find('!'); bang != name.npos) {
      if (bang + 2 != name.size()) throw RawError("malformed conversion in a format");
      conversion = name[bang + 1];
      name = name.substr(0, bang);
    }
    if (name.find_first_of(".[") != name.npos) throw RawError("attributes and elements in a format are not supported");
    const Value* value = nullptr;
    if (name.empty() || starts_number(name, 0)) {
      size_t index = automatic;
      if (name.empty()) {
        ++automatic;
      } else {
        size_t read = 0;
        index = static_cast<size_t>(read_number(name, read));
        if (read != name.size()) throw RawError("malformed field in a format");
      }
      if (index < args.positional.size()) value = &args.positional[index];
    } else {
      for (const auto& named : args.named) {
        if (named.first == name) value = &named.second;
      }
    }
    if (value == nullptr) throw RawError(fmt::format("no value for the field '{{{}}}' of a format", field));
    if (conversion == 's')
      out += format_value(Value::string(to_text(*value)), spec);
    else if (conversion == 'r')
      out += format_value(Value::string(to_repr(*value)), spec);
    else if (conversion == '\0')
      out += format_value(*value, spec);
    else
      throw RawError(fmt::format("the conversion '!{}' is not supported", conversion));
    limit_output(out);
  }
  return out;
}

}  // namespace weft::jinja
