#pragma once
// Typed configuration. A struct registers each of its members once, with key, doc string (unit included) and limits; from
// that one table come reading TOML, overrides `section.key=value`, the printout of the resolved configuration and the
// messages about unknown keys.
//
//   struct Server { int64_t port = 8000; };
//   Server server;
//   ConfigFields fields;
//   fields.add("server.port", server.port, "TCP port.").range(1, 65535);
//   read_config_file("server.toml", fields, {});
//
// The fields point into the struct: it must outlive them and must not move. The value a member has when it is added is its
// default. Every error is a UsageError (exit 2) that names file, line and column, or the override; a file's errors are
// collected and reported together. Deterministic: no clock, no locale, no environment.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace weft {

// A free-form table, kept as the text of one JSON object.
struct ConfigTable {
  std::string json = "{}";
};

using ConfigMember = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*, std::vector<int64_t>*,
                                  std::vector<double>*, ConfigTable*>;

class ConfigField {
 public:
  ConfigField(std::string key, ConfigMember member, std::string doc);

  // Inclusive limits of a number, or of each number of a list.
  ConfigField& range(double low, double high);
  // A number, or each number of a list, must be > 0.
  ConfigField& positive();
  // The allowed words of a string, or of each string of a list. Words "true" and "false" also accept a bool.
  ConfigField& one_of(std::vector<std::string> words);
  // A string that may also be written as a bare number.
  ConfigField& accept_number();
  // Must be given and not empty (check_required).
  ConfigField& required();

  const std::string& key() const { return key_; }
  const std::string& doc() const { return doc_; }
  const ConfigMember& member() const { return member_; }
  bool is_required() const { return required_; }
  // Whether a file or an override gave the value, and which: "recipe.toml:3:1" or "override rollout.n=4"; else "default".
  bool given() const { return !origin_.empty(); }
  std::string origin() const { return origin_.empty() ? "default" : origin_; }
  // The type in words: "an integer", "a list of strings".
  std::string type_text() const;
  // The limits in words, or empty. `brief` leaves out upper limits that only keep nonsense away (1e6 and more).
  std::string limits_text(bool brief = false) const;
  // The present value, and the default, as TOML.
  std::string value_text() const;
  const std::string& default_text() const { return default_text_; }

 private:
  friend class ConfigReader;
  std::string key_;
  ConfigMember member_;
  std::string doc_;
  std::string default_text_;
  std::string origin_;
  double low_, high_;
  bool exclusive_low_ = false;
  bool required_ = false;
  bool accept_number_ = false;
  std::vector<std::string> words_;
};

class ConfigFields {
 public:
  // Keys are dotted ("rollout.val_kwargs.n"). Twice the same key, or a key that is another's section, is a bug.
  ConfigField& add(std::string key, ConfigMember member, std::string doc);
  template <typename T>
  ConfigField& add(std::string key, T& member, std::string doc) {
    return add(std::move(key), ConfigMember(&member), std::move(doc));
  }
  ConfigField* find(std::string_view key);
  const ConfigField* find(std::string_view key) const;
  // Whether some key begins with `path` and a dot.
  bool is_section(std::string_view path) const;
  std::vector<ConfigField>& fields() { return fields_; }
  const std::vector<ConfigField>& fields() const { return fields_; }

 private:
  std::vector<ConfigField> fields_;
};

// What is known about keys that are not fields.
struct ConfigNames {
  // Name elsewhere -> text shown after "weft: ", usually our key. Looked up whole, then without leading sections.
  std::map<std::string, std::string, std::less<>> aliases;
  // Our key ("tools.format"), section ("server") or value ("actor.loss_mode=gspo") -> sentence that says what is missing.
  std::map<std::string, std::string, std::less<>> not_built_yet;
};

// The bytes of a recipe file; refuses what is no file or too large to be one.
std::string read_config_bytes(const std::string& path);
void read_config_file(const std::string& path, ConfigFields& fields, const ConfigNames& names);
// `path` is for messages.
void read_config_text(std::string_view toml, const std::string& path, ConfigFields& fields, const ConfigNames& names);
// `section.key=value`. The value is TOML; for strings and lists of strings quotes may be left out, a single value makes a
// list of one; `table.key=value` sets one entry of a free-form table.
void apply_config_override(std::string_view text, ConfigFields& fields, const ConfigNames& names);
void check_required(const ConfigFields& fields);

// The whole configuration as TOML with docs, limits and, where the value differs, the default as comments; reading it back
// gives the same values.
std::string print_config(const ConfigFields& fields);

// Text after "unknown key 'x'": ": weft: rollout.n", "; did you mean 'rollout.n'?" or the keys of the section.
std::string suggest_config_key(std::string_view key, const ConfigFields& fields, const ConfigNames& names);

// Insertions, deletions, substitutions and swaps of neighbours.
int64_t edit_distance(std::string_view a, std::string_view b);

}  // namespace weft
