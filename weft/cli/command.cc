#include "weft/cli/command.h"

#include <algorithm>
#include <charconv>

#include "weft/base/config.h"
#include "weft/base/error.h"

namespace weft {
namespace {

template <class T>
T number(const std::string& option, const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) throw UsageError(fmt::format("{} {}: expected a number", option, text));
  return value;
}

std::string nearest_option(const Command& command, const std::string& word) {
  std::string best;
  int64_t distance = 4;  // further away is no misspelling
  for (const Option& o : command.options)
    if (const int64_t d = edit_distance(word, o.name); d < distance) distance = d, best = o.name;
  return best;
}

}  // namespace

std::string Arguments::get(const std::string& name, const std::string& otherwise) const {
  const auto it = options.find(name);
  return it == options.end() ? otherwise : it->second;
}

int64_t Arguments::get_int(const std::string& name, int64_t otherwise, int64_t low) const {
  if (!has(name)) return otherwise;
  const int64_t value = number<int64_t>(name, options.at(name));
  if (value < low) throw UsageError(fmt::format("{} {}: must be at least {}", name, value, low));
  return value;
}

std::optional<double> Arguments::get_double(const std::string& name) const {
  if (!has(name)) return std::nullopt;
  return number<double>(name, options.at(name));
}

Arguments parse_arguments(const Command& command, const std::vector<std::string>& words) {
  Arguments out;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i], value;
    if (!word.starts_with("--") || word == "--") {
      out.positional.push_back(word);
      continue;
    }
    bool has_value = false;
    if (const size_t equals = word.find('='); equals != std::string::npos) {
      value = word.substr(equals + 1);
      word.resize(equals);
      has_value = true;
    }
    const auto it = std::find_if(command.options.begin(), command.options.end(), [&](const Option& o) { return o.name == word; });
    if (it == command.options.end()) {
      const std::string near = nearest_option(command, word);
      throw UsageError(fmt::format("weft {}: unknown option {}{}", command.name, word,
                                   near.empty() ? "; weft " + command.name + " --help lists them" : "; did you mean " + near + "?"));
    }
    if (it->value.empty() && has_value) throw UsageError(fmt::format("weft {}: {} takes no value", command.name, word));
    if (!it->value.empty() && !has_value) {
      if (i + 1 == words.size()) throw UsageError(fmt::format("weft {}: {} needs a value: {} {}", command.name, word, word, it->value));
      value = words[++i];
    }
    if (!out.options.emplace(word, value).second) throw UsageError(fmt::format("weft {}: {} is given twice", command.name, word));
  }
  if (out.positional.size() < command.min_positional)
    throw UsageError(fmt::format("weft {}: expected {}; for example: {}", command.name, command.arguments, command.example));
  if (out.positional.size() > command.max_positional)
    throw UsageError(fmt::format("weft {}: unexpected argument '{}'; expected {}", command.name, out.positional[command.max_positional],
                                 command.arguments.empty() ? "none" : command.arguments));
  return out;
}

std::string help_text(const Command& command) {
  std::string out = fmt::format("weft {} {}\n\n{}\n", command.name, command.arguments, command.summary);
  if (!command.options.empty()) {
    out += "\nOptions\n";
    size_t width = 0;
    for (const Option& o : command.options) width = std::max(width, o.name.size() + o.value.size() + 1);
    for (const Option& o : command.options) out += fmt::format("  {:<{}}  {}\n", o.name + (o.value.empty() ? "" : " " + o.value), width, o.help);
  }
  return out + "\nExample\n  " + command.example + "\n";
}

}  // namespace weft
