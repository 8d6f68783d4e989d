#include "weft/base/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"

namespace weft {
namespace {

std::string quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (u < 0x20 || u == 0x7f) {
      out += fmt::format("\\u{:04X}", u);
    } else {
      out += c;
    }
  }
  return out + '"';
}

// Shortest text that reads back as the same double, always recognisable as a float.
std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string key_text(const std::string& key) {
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
  return bare ? key : quote(key);
}

std::string json_as_toml(const nlohmann::ordered_json& json) {
  if (json.is_object()) {
    std::string out = "{";
    for (const auto& [key, value] : json.items())
      out += (out.size() > 1 ? ", " : "") + key_text(key) + " = " + json_as_toml(value);
    return out + "}";
  }
  if (json.is_array()) {
    std::string out = "[";
    for (const auto& value : json) out += (out.size() > 1 ? ", " : "") + json_as_toml(value);
    return out + "]";
  }
  if (json.is_string()) return quote(json.get<std::string>());
  if (json.is_number_float()) return number_text(json.get<double>());
  return json.dump();
}

template <typename T>
std::string list_text(const std::vector<T>& values, const auto& one) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) out += (i ? ", " : "") + one(values[i]);
  return out + "]";
}

struct ValueText {
  std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
  std::string operator()(const int64_t* v) const { return fmt::format("{}", *v); }
  std::string operator()(const double* v) const { return number_text(*v); }
  std::string operator()(const std::string* v) const { return quote(*v); }
  std::string operator()(const std::vector<std::string>* v) const {
    return list_text(*v, [](const auto& x) { return quote(x); });
  }
  std::string operator()(const std::vector<int64_t>* v) const {
    return list_text(*v, [](int64_t x) { return fmt::format("{}", x); });
  }
  std::string operator()(const std::vector<double>* v) const { return list_text(*v, number_text); }
  std::string operator()(const ConfigTable* v) const { return json_as_toml(nlohmann::ordered_json::parse(v->json)); }
};

struct TypeText {
  std::string operator()(const bool*) const { return "true or false"; }
  std::string operator()(const int64_t*) const { return "an integer"; }
  std::string operator()(const double*) const { return "a number"; }
  std::string operator()(const std::string*) const { return "a string"; }
  std::string operator()(const std::vector<std::string>*) const { return "a list of strings"; }
  std::string operator()(const std::vector<int64_t>*) const { return "a list of integers"; }
  std::string operator()(const std::vector<double>*) const { return "a list of numbers"; }
  std::string operator()(const ConfigTable*) const { return "a table"; }
};

std::string limit_number(double x) {
  std::string text = number_text(x);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

// Comment lines of at most 120 characters, broken at spaces.
std::string comment(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    size_t cut = text.size();
    if (cut > 118) {
      cut = text.rfind(' ', 118);
      if (cut == std::string_view::npos || cut == 0) cut = std::min(text.size(), text.find(' '));
    }
    out += fmt::format("# {}\n", text.substr(0, cut));
    text.remove_prefix(std::min(text.size(), cut + 1));
  }
  return out;
}

std::string_view leaf_of(std::string_view key) {
  const size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

}  // namespace

ConfigField::ConfigField(std::string key, ConfigMember member, std::string doc)
    : key_(std::move(key)),
      member_(member),
      doc_(std::move(doc)),
      default_text_(std::visit(ValueText{}, member)),
      low_(-std::numeric_limits<double>::infinity()),
      high_(std::numeric_limits<double>::infinity()) {}

ConfigField& ConfigField::range(double low, double high) {
  low_ = low;
  high_ = high;
  return *this;
}

ConfigField& ConfigField::positive() {
  low_ = 0;
  exclusive_low_ = true;
  return *this;
}

ConfigField& ConfigField::one_of(std::vector<std::string> words) {
  words_ = std::move(words);
  return *this;
}

ConfigField& ConfigField::accept_number() {
  accept_number_ = true;
  return *this;
}

ConfigField& ConfigField::required() {
  required_ = true;
  return *this;
}

std::string ConfigField::type_text() const { return std::visit(TypeText{}, member_); }

std::string ConfigField::value_text() const { return std::visit(ValueText{}, member_); }

std::string ConfigField::limits_text(bool brief) const {
  if (!words_.empty()) return fmt::format("one of: {}", fmt::join(words_, ", "));
  const bool low = std::isfinite(low_), high = std::isfinite(high_) && !(brief && high_ >= 1e6);
  if (low && high) return fmt::format("{} to {}", limit_number(low_), limit_number(high_));
  if (low) return fmt::format("{} {}", exclusive_low_ ? ">" : ">=", limit_number(low_));
  if (high) return fmt::format("<= {}", limit_number(high_));
  return "";
}

ConfigField& ConfigFields::add(std::string key, ConfigMember member, std::string doc) {
  WEFT_CHECK(!key.empty() && !find(key) && !is_section(key), "config key '{}' is registered twice", key);
  for (size_t dot = key.find('.'); dot != std::string::npos; dot = key.find('.', dot + 1))
    WEFT_CHECK(!find(std::string_view(key).substr(0, dot)), "config key '{}' lies under another key", key);
  return fields_.emplace_back(std::move(key), member, std::move(doc));
}

const ConfigField* ConfigFields::find(std::string_view key) const {
  for (const ConfigField& field : fields_)
    if (field.key() == key) return &field;
  return nullptr;
}

ConfigField* ConfigFields::find(std::string_view key) { return const_cast<ConfigField*>(std::as_const(*this).find(key)); }

bool ConfigFields::is_section(std::string_view path) const {
  return std::any_of(fields_.begin(), fields_.end(), [&](const ConfigField& field) {
    return field.key().size() > path.size() && field.key()[path.size()] == '.' && field.key().starts_with(path);
  });
}

void check_required(const ConfigFields& fields) {
  std::string missing;
  for (const ConfigField& field : fields.fields()) {
    const std::string value = field.value_text();
    if (field.is_required() && (value == "\"\"" || value == "[]"))
      missing += fmt::format("{}{} ({})", missing.empty() ? "" : ", ", field.key(), field.doc());
  }
  if (!missing.empty())
    throw UsageError("missing: " + missing + "; give it in the recipe or as section.key=value after the recipe");
}

std::string print_config(const ConfigFields& fields) {
  // Keys are printed under their section in order of first appearance, sections in order of theirs.
  std::vector<std::string> sections;
  const auto section_of = [](const std::string& key) {
    const size_t dot = key.rfind('.');
    return dot == std::string::npos ? std::string() : key.substr(0, dot);
  };
  for (const ConfigField& field : fields.fields()) {
    const std::string section = section_of(field.key());
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) sections.push_back(section);
  }
  std::stable_partition(sections.begin(), sections.end(), [](const std::string& s) { return s.empty(); });
  std::string out;
  for (const std::string& section : sections) {
    if (!section.empty()) out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    for (const ConfigField& field : fields.fields()) {
      if (section_of(field.key()) != section) continue;
      std::string doc = field.doc();
      if (const std::string limits = field.limits_text(true); !limits.empty()) doc += fmt::format(" ({})", limits);
      const std::string value = field.value_text();
      if (value != field.default_text() && !field.is_required()) doc += fmt::format(" [default {}]", field.default_text());
      out += fmt::format("{}{} = {}\n", comment(doc), leaf_of(field.key()), value);
    }
  }
  return out;
}

int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> before(b.size() + 1), previous(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) previous[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, row);
  }
  return previous[b.size()];
}

std::string suggest_config_key(std::string_view key, const ConfigFields& fields, const ConfigNames& names) {
  // The whole dotted name first, then without its leading sections: verl and Hydra users nest deeper than we do.
  for (std::string_view rest = key;;) {
    if (const auto found = names.aliases.find(rest); found != names.aliases.end()) return ": weft: " + found->second;
    if (rest != key && fields.find(rest)) return fmt::format(": weft: {}", rest);
    const size_t dot = rest.find('.');
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  // Long names come from hostile files only; distances would cost their product.
  if (key.size() > 200) return "";
  const std::string_view leaf = leaf_of(key);
  const ConfigField* best = nullptr;
  int64_t best_distance = std::numeric_limits<int64_t>::max();
  for (const ConfigField& field : fields.fields()) {
    int64_t distance = edit_distance(key, field.key()) * 2;
    // The right word in the wrong section.
    if (leaf_of(field.key()) == leaf) distance = std::min<int64_t>(distance, 1);
    if (distance < best_distance) {
      best_distance = distance;
      best = &field;
    }
    const int64_t by_leaf = edit_distance(leaf, leaf_of(field.key())) * 2 + 1;
    if (by_leaf <= static_cast<int64_t>(leaf.size()) / 2 + 1 && by_leaf < best_distance) {
      best_distance = by_leaf;
      best = &field;
    }
  }
  if (best && best_distance <= std::max<int64_t>(2, static_cast<int64_t>(key.size()) * 2 / 3))
    return fmt::format("; did you mean '{}'?", best->key());
  const size_t dot = key.rfind('.');
  const std::string_view section = dot == std::string_view::npos ? std::string_view() : key.substr(0, dot);
  std::vector<std::string> keys;
  for (const ConfigField& field : fields.fields()) {
    const std::string_view name = field.key();
    const std::string top(name.substr(0, name.find('.')));
    if (section.empty() || !fields.is_section(section)) {
      if (std::find(keys.begin(), keys.end(), top) == keys.end()) keys.push_back(top);
    } else if (name.starts_with(std::string(section) + ".")) {
      keys.emplace_back(name);
    }
  }
  return fmt::format("; there are: {}", fmt::join(keys, ", "));
}

}  // namespace weft
