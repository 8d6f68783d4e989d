#include "weft/text/jinja_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "weft/text/jinja_unicode.h"

namespace weft::jinja {

namespace {

Value read(const nlohmann::ordered_json& json, int32_t depth) {
  if (depth >= kMaxValueDepth) throw RawError(fmt::format("JSON nests deeper than {} levels", kMaxValueDepth));
  auto checked = [](const std::string& text) {
    if (!valid_utf8(text)) throw RawError("a text in the input is not valid UTF-8");
    return text;
  };
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::null: return {};
    case nlohmann::ordered_json::value_t::boolean: return Value::boolean(json.get<bool>());
    case nlohmann::ordered_json::value_t::number_integer: return Value::integer(json.get<int64_t>());
    case nlohmann::ordered_json::value_t::number_unsigned: return Value::wide_integer(json.get<uint64_t>());
    case nlohmann::ordered_json::value_t::number_float: return Value::real(json.get<double>());
    case nlohmann::ordered_json::value_t::string: return Value::string(checked(json.get_ref<const std::string&>()));
    case nlohmann::ordered_json::value_t::array: {
      Values items;
      for (const auto& item : json) items.push_back(read(item, depth + 1));
      return Value::list(std::move(items));
    }
    case nlohmann::ordered_json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : json.items()) dict->set(Value::string(checked(key)), read(value, depth + 1));
      return Value::dict(std::move(dict));
    }
    case nlohmann::ordered_json::value_t::binary: {
      const auto& bytes = json.get_binary();
      std::string digits(bytes.begin(), bytes.end());
      size_t first = digits.starts_with('-');
      if (bytes.has_subtype() && bytes.subtype() == kBigIntSubtype && digits.size() > first &&
          digits.find_first_not_of("0123456789", first) == digits.npos) {
        return Value::digits(std::move(digits));
      }
      throw RawError("binary JSON values are not supported");
    }
    default: throw RawError("a discarded JSON value cannot be rendered");
  }
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int64_t level) {
    switch (value.kind()) {
      case Kind::kNone: out_ += "null"; break;
      case Kind::kBool: out_ += value.as_bool() ? "true" : "false"; break;
      case Kind::kInt:
      case Kind::kBigInt: out_ += to_repr(value); break;
      case Kind::kFloat: out_ += float_word(value.as_float()); break;
      case Kind::kString: string(value.text()); break;
      case Kind::kList:
      case Kind::kTuple: list(value.items(), level); break;
      case Kind::kDict: dict(value.as_dict(), level); break;
      default: throw RawError(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
    }
    check_size(1, static_cast<int64_t>(out_.size()));
  }

  std::string take() { return std::move(out_); }

 private:
  static std::string float_word(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return float_text(d);
  }

  void new_line(int64_t level) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int64_t i = 0; i < level; ++i) out_ += *style_.indent;
  }

  void list(const Values& items, int64_t level) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(level + 1);
      write(items[i], level + 1);
    }
    if (!items.empty()) new_line(level);
    out_ += ']';
  }

  static std::string key_text(const Value& key) {
    switch (key.kind()) {
      case Kind::kString: return key.text();
      case Kind::kNone: return "null";
      case Kind::kBool: return key.as_bool() ? "true" : "false";
      case Kind::kInt:
      case Kind::kBigInt: return to_repr(key);
      case Kind::kFloat: return float_word(key.as_float());
      default: throw RawError(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
    }
  }

  void dict(const Dict& dict, int64_t level) {
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [](auto* a, auto* b) { return less(a->first, b->first); });
    }
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(level + 1);
      string(key_text(entries[i]->first));
      out_ += style_.key_separator;
      write(entries[i]->second, level + 1);
    }
    if (!entries.empty()) new_line(level);
    out_ += '}';
  }

  void string(const std::string& text) {
    out_ += '"';
    for (size_t i = 0; i < text.size();) {
      char32_t c = next_code(text, i);
      switch (c) {
        case '"': out_ += "\\\""; break;
        case '\\': out_ += "\\\\"; break;
        case '\n': out_ += "\\n"; break;
        case '\r': out_ += "\\r"; break;
        case '\t': out_ += "\\t"; break;
        case '\b': out_ += "\\b"; break;
        case '\f': out_ += "\\f"; break;
        default: character(c);
      }
    }
    out_ += '"';
  }

  void character(char32_t c) {
    auto unit = [&](uint32_t u) { out_ += fmt::format("\\u{:04x}", u); };
    if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
      unit(c);
    } else if (style_.ensure_ascii && c >= 0x10000) {
      unit(0xD800 + ((c - 0x10000) >> 10));
      unit(0xDC00 + ((c - 0x10000) & 0x3FF));
    } else {
      append_utf8(out_, c);
    }
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

Value from_json(const nlohmann::ordered_json& json) { return read(json, 0); }

std::string to_json(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace weft::jinja
