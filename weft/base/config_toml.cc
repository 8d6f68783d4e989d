// The only file that includes toml++ (header-only use; nothing to link).
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "weft/base/config.h"
#include "weft/base/error.h"

namespace weft {
// Some assertions of toml++ 3.3 can be reached by malformed files: they must neither abort nor be skipped.
[[noreturn]] static void toml_assertion(const char* condition) {
  throw std::logic_error(fmt::format("malformed TOML ({})", condition));
}
}  // namespace weft
#define TOML_ASSERT(condition) ((condition) ? static_cast<void>(0) : ::weft::toml_assertion(#condition))
#include <toml++/toml.h>

namespace weft {
namespace {

constexpr int64_t kMaxBytes = 1 << 20;
// Each dot outside strings and comments may nest one table deeper, and tables are built and freed recursively.
constexpr int64_t kMaxDots = 4000;
constexpr size_t kMaxErrors = 10;

// Dots outside strings and comments. Follows TOML's quoting, so up to the first syntax error it sees what the parser sees.
int64_t count_bare_dots(std::string_view text) {
  int64_t dots = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (c == '"' || c == '\'') {
      const std::string triple(3, c);
      if (text.substr(i, 3) == triple) {
        i += 3;
        while (i < text.size() && text.substr(i, 3) != triple) i += (c == '"' && text[i] == '\\') ? 2 : 1;
        i += 2;
        // Up to two more quotes belong to the string.
        while (i + 1 < text.size() && text[i + 1] == c) ++i;
      } else {
        ++i;
        while (i < text.size() && text[i] != c && text[i] != '\n') i += (c == '"' && text[i] == '\\') ? 2 : 1;
      }
    } else if (c == '.') {
      ++dots;
    }
  }
  return dots;
}

std::string place(const std::string& path, const toml::source_region& source) {
  return fmt::format("{}:{}:{}", path, source.begin.line, source.begin.column);
}

std::string shorten(std::string text) {
  if (text.size() > 120) {
    size_t cut = 117;
    while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
    text = text.substr(0, cut) + "...";
  }
  return text;
}

nlohmann::ordered_json to_json(const toml::node& node) {
  using nlohmann::ordered_json;
  if (const auto* table = node.as_table()) {
    ordered_json out = ordered_json::object();
    for (const auto& [key, value] : *table) out[std::string(key.str())] = to_json(value);
    return out;
  }
  if (const auto* array = node.as_array()) {
    ordered_json out = ordered_json::array();
    for (const auto& value : *array) out.push_back(to_json(value));
    return out;
  }
  if (const auto* v = node.as_boolean()) return v->get();
  if (const auto* v = node.as_integer()) return v->get();
  if (const auto* v = node.as_floating_point()) {
    if (!std::isfinite(v->get())) throw UsageError("nan and inf have no place in a table");
    return v->get();
  }
  if (const auto* v = node.as_string()) return v->get();
  throw UsageError("dates and times have no place in a table; write a string");
}

bool valid_utf8(std::string_view text) {
  try {
    (void)nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

std::string node_text(const toml::node& node) {
  std::ostringstream out;
  node.visit([&](const auto& n) { out << n; });
  return shorten(out.str());
}

}  // namespace

// Puts values into fields. `where` is the place that messages begin with.
class ConfigReader {
 public:
  ConfigReader(ConfigFields& fields, const ConfigNames& names) : fields_(fields), names_(names) {}

  void read_table(const toml::table& table, const std::string& prefix, const std::string& path) {
    for (const auto& entry : table) {
      const toml::key& name = entry.first;  // no structured binding: clang 14 cannot capture one in a lambda
      const toml::node& node = entry.second;
      const std::string key = prefix.empty() ? std::string(name.str()) : prefix + "." + std::string(name.str());
      const std::string where = place(path, name.source());
      if (ConfigField* field = fields_.find(key)) {
        attempt(name.source(), [&] { set(*field, node, where, place(path, node.source())); });
      } else if (node.is_table() && (fields_.is_section(key) || !not_built(key))) {
        const toml::table& inner = *node.as_table();
        if (inner.empty() && !fields_.is_section(key)) attempt(name.source(), [&] { unknown(key, where); });
        read_table(inner, key, path);
      } else {
        attempt(name.source(), [&] { unknown(key, where); });
      }
    }
  }

  void set(ConfigField& field, const toml::node& node, const std::string& origin, const std::string& where) {
    std::visit([&](auto* member) { assign(field, *member, node, where); }, field.member_);
    check_limits(field, where);
    field.origin_ = origin;
  }

  static void mark(ConfigField& field, const std::string& origin) { field.origin_ = origin; }

  void set_string(ConfigField& field, const std::string& text, const std::string& where) {
    toml::value<std::string> node(text);
    set(field, node, where, where);
  }

  [[noreturn]] void unknown(const std::string& key, const std::string& where) const {
    if (const std::string* sentence = not_built(key)) throw UsageError(fmt::format("{}: {}: {}", where, shorten(key), *sentence));
    if (fields_.is_section(key)) throw UsageError(fmt::format("{}: '{}' is a section, not a value", where, key));
    throw UsageError(fmt::format("{}: unknown key '{}'{}", where, shorten(key), suggest_config_key(key, fields_, names_)));
  }

  // In the order of the file: toml++ walks tables by key.
  void throw_errors() {
    if (errors_.empty()) return;
    std::sort(errors_.begin(), errors_.end());
    std::string text;
    for (size_t i = 0; i < std::min(errors_.size(), kMaxErrors); ++i) text += (i ? "\n" : "") + std::get<2>(errors_[i]);
    if (errors_.size() > kMaxErrors) text += fmt::format("\nand {} more errors", errors_.size() - kMaxErrors);
    throw UsageError(text);
  }

 private:
  template <typename F>
  void attempt(const toml::source_region& source, const F& f) {
    try {
      f();
    } catch (const UsageError& error) {
      errors_.emplace_back(source.begin.line, source.begin.column, error.what());
    }
  }

  const std::string* not_built(std::string_view key) const {
    for (std::string_view part = key;;) {
      if (const auto found = names_.not_built_yet.find(part); found != names_.not_built_yet.end()) return &found->second;
      const size_t dot = part.rfind('.');
      if (dot == std::string_view::npos) return nullptr;
      part = part.substr(0, dot);
    }
  }

  [[noreturn]] static void wrong(const ConfigField& field, const toml::node& node, const std::string& where) {
    throw UsageError(fmt::format("{}: {} = {}: must be {}{}", where, field.key(), node_text(node), field.type_text(),
                                 field.words_.empty() ? "" : ", " + field.limits_text()));
  }

  static void assign(const ConfigField& field, bool& out, const toml::node& node, const std::string& where) {
    const auto* v = node.as_boolean();
    if (!v) wrong(field, node, where);
    out = v->get();
  }
  static void assign(const ConfigField& field, int64_t& out, const toml::node& node, const std::string& where) {
    const auto* v = node.as_integer();
    if (!v) wrong(field, node, where);
    out = v->get();
  }
  static void assign(const ConfigField& field, double& out, const toml::node& node, const std::string& where) {
    if (const auto* v = node.as_floating_point()) {
      if (!std::isfinite(v->get()))
        throw UsageError(fmt::format("{}: {} = {}: must be finite", where, field.key(), node_text(node)));
      out = v->get();
    } else if (const auto* i = node.as_integer()) {
      out = static_cast<double>(i->get());
    } else {
      wrong(field, node, where);
    }
  }
  static void assign(const ConfigField& field, std::string& out, const toml::node& node, const std::string& where) {
    if (const auto* v = node.as_string()) {
      out = v->get();
      return;
    }
    if (field.accept_number_ && node.is_number()) {
      out = node_text(node);
      return;
    }
    const auto* b = node.as_boolean();
    const std::string word = b && b->get() ? "true" : "false";
    if (!b || std::find(field.words_.begin(), field.words_.end(), word) == field.words_.end()) wrong(field, node, where);
    out = word;
  }
  template <typename T>
  static void assign(const ConfigField& field, std::vector<T>& out, const toml::node& node, const std::string& where) {
    std::vector<T> values;
    const auto one = [&](const toml::node& element) {
      if (element.is_array() || element.is_table()) wrong(field, node, where);
      if constexpr (std::is_same_v<T, std::string>) {
        if (!element.is_string()) wrong(field, node, where);
      }
      T value{};
      assign(field, value, element, where);
      values.push_back(std::move(value));
    };
    if (const auto* array = node.as_array()) {
      for (const auto& element : *array) one(element);
    } else {
      one(node);
    }
    out = std::move(values);
  }
  static void assign(const ConfigField& field, ConfigTable& out, const toml::node& node, const std::string& where) {
    if (!node.is_table()) wrong(field, node, where);
    try {
      out.json = to_json(node).dump();
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}: {}: {}", where, field.key(), error.what()));
    }
  }

  void check_limits(const ConfigField& field, const std::string& where) const {
    const auto number = [&](double value, const std::string& text) {
      if (value < field.low_ || value > field.high_ || (field.exclusive_low_ && value <= field.low_))
        throw UsageError(fmt::format("{}: {} = {}: must be {}", where, field.key(), text, field.limits_text()));
    };
    const auto word = [&](const std::string& value) {
      if (const auto found = names_.not_built_yet.find(field.key() + "=" + value); found != names_.not_built_yet.end())
        throw UsageError(fmt::format("{}: {} = \"{}\": {}", where, field.key(), value, found->second));
      if (!field.words_.empty() && std::find(field.words_.begin(), field.words_.end(), value) == field.words_.end())
        throw UsageError(fmt::format("{}: {} = \"{}\": must be {}", where, field.key(), shorten(value), field.limits_text()));
    };
    const std::string text = field.value_text();
    if (auto* const* v = std::get_if<int64_t*>(&field.member_)) number(static_cast<double>(**v), text);
    if (auto* const* v = std::get_if<double*>(&field.member_)) number(**v, text);
    if (auto* const* v = std::get_if<std::vector<int64_t>*>(&field.member_))
      for (const int64_t x : **v) number(static_cast<double>(x), text);
    if (auto* const* v = std::get_if<std::vector<double>*>(&field.member_))
      for (const double x : **v) number(x, text);
    if (auto* const* v = std::get_if<std::string*>(&field.member_)) word(**v);
    if (auto* const* v = std::get_if<std::vector<std::string>*>(&field.member_))
      for (const std::string& x : **v) word(x);
    if (auto* const* v = std::get_if<bool*>(&field.member_)) word(**v ? "true" : "false");
  }

  ConfigFields& fields_;
  const ConfigNames& names_;
  std::vector<std::tuple<int64_t, int64_t, std::string>> errors_;  // line, column, message
};

void read_config_text(std::string_view text, const std::string& path, ConfigFields& fields, const ConfigNames& names) {
  if (static_cast<int64_t>(text.size()) > kMaxBytes)
    throw UsageError(fmt::format("{}: {} bytes; a recipe has at most {}", path, text.size(), kMaxBytes));
  if (const int64_t dots = count_bare_dots(text); dots > kMaxDots)
    throw UsageError(fmt::format("{}: {} dots in keys and numbers; a recipe has at most {}", path, dots, kMaxDots));
  toml::table table;
  try {
    table = toml::parse(text, path);
  } catch (const toml::parse_error& error) {
    throw UsageError(fmt::format("{}: {}", place(path, error.source()), error.description()));
  } catch (const std::logic_error& error) {
    throw UsageError(fmt::format("{}: {}", path, error.what()));
  }
  ConfigReader reader(fields, names);
  reader.read_table(table, "", path);
  reader.throw_errors();
}

std::string read_config_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(static_cast<size_t>(kMaxBytes) + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  // A directory opens but gives an error, an empty file gives end of file.
  if (in.bad() || (in.gcount() == 0 && !in.eof())) throw UsageError(fmt::format("{}: cannot be read; is it a file?", path));
  text.resize(static_cast<size_t>(in.gcount()));
  if (static_cast<int64_t>(text.size()) > kMaxBytes)
    throw UsageError(fmt::format("{}: over {} bytes; is it a recipe?", path, kMaxBytes));
  return text;
}

void read_config_file(const std::string& path, ConfigFields& fields, const ConfigNames& names) {
  read_config_text(read_config_bytes(path), path, fields, names);
}

void apply_config_override(std::string_view text, ConfigFields& fields, const ConfigNames& names) {
  const size_t equal = text.find('=');
  if (!valid_utf8(text)) throw UsageError("override: not valid UTF-8");
  if (equal == std::string_view::npos || equal == 0)
    throw UsageError(fmt::format("override '{}': must be section.key=value", shorten(std::string(text))));
  const std::string where = "override " + shorten(std::string(text));
  const auto trim = [](std::string_view s) {
    while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
    while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
    return std::string(s);
  };
  const std::string key = trim(text.substr(0, equal));
  const std::string value = trim(text.substr(equal + 1));
  ConfigReader reader(fields, names);
  ConfigField* field = fields.find(key);
  std::string entry;
  for (size_t dot = key.find('.'); !field && dot != std::string::npos; dot = key.find('.', dot + 1)) {
    ConfigField* table = fields.find(std::string_view(key).substr(0, dot));
    if (table && std::holds_alternative<ConfigTable*>(table->member())) {
      field = table;
      entry = key.substr(dot + 1);
    }
  }
  if (!field) reader.unknown(key, where);
  if (static_cast<int64_t>(value.size()) > kMaxBytes || count_bare_dots(value) > kMaxDots)
    throw UsageError(fmt::format("override {}: the value is too long", key));

  // A value that TOML cannot read is a string whose quotes the shell took or the user left out.
  toml::table parsed;
  const bool is_line = value.find('\n') == std::string::npos && value.find('#') == std::string::npos;
  try {
    if (is_line) parsed = toml::parse("value = " + value);
  } catch (const toml::parse_error&) {
    parsed.clear();
  } catch (const std::logic_error&) {
    parsed.clear();
  }
  const toml::node* node = parsed.size() == 1 ? parsed.get("value") : nullptr;
  const bool texts =
      std::holds_alternative<std::string*>(field->member()) || std::holds_alternative<std::vector<std::string>*>(field->member());
  if (!entry.empty()) {
    auto* table = std::get<ConfigTable*>(field->member());
    nlohmann::ordered_json json = nlohmann::ordered_json::parse(table->json);
    nlohmann::ordered_json* at = &json;
    std::string_view rest = entry;
    for (size_t depth = 0;; ++depth) {
      const size_t dot = rest.find('.');
      const std::string part(rest.substr(0, dot));
      if (part.empty() || depth > 32) throw UsageError(fmt::format("{}: '{}' is no key of a table", where, shorten(entry)));
      if (!at->is_object()) throw UsageError(fmt::format("{}: '{}' lies under a value that is no table", where, shorten(entry)));
      at = &(*at)[part];
      if (dot == std::string_view::npos) break;
      if (at->is_null()) *at = nlohmann::ordered_json::object();
      rest.remove_prefix(dot + 1);
    }
    try {
      *at = node ? to_json(*node) : nlohmann::ordered_json(value);
      table->json = json.dump();
      reader.mark(*field, where);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}: {}", where, error.what()));
    }
    return;
  }
  const bool many = std::holds_alternative<std::vector<std::string>*>(field->member());
  if (many && !node && value.starts_with('[') && value.ends_with(']') && value.find_first_of("'\"[]", 1) == value.size() - 1) {
    // [a, b] with the quotes left out, as Hydra's users write it.
    toml::array words;
    for (std::string_view rest = std::string_view(value).substr(1, value.size() - 2);;) {
      const size_t comma = rest.find(',');
      words.push_back(trim(rest.substr(0, comma)));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    reader.set(*field, words, where, where);
  } else if (texts && (!node || !(node->is_string() || node->is_array()))) {
    if (many && value.starts_with('[')) throw UsageError(where + ": not a list of strings; write ['a', 'b']");
    reader.set_string(*field, value, where);
  } else if (node) {
    reader.set(*field, *node, where, where);
  } else {
    reader.set_string(*field, value, where);  // reports the type that the key needs
  }
}

}  // namespace weft
