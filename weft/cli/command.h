#pragma once
// Commands of the program: each in its own file, listed once in weft.cc. A command describes its arguments as data; parsing, --help and
// suggestions for misspelt options come from that.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/train/registry.h"

namespace weft {

struct Option {
  std::string name;   // "--golden"
  std::string value;  // "FILE"; empty: a flag
  std::string help;
};

// What a command was given. Unknown options never get here.
struct Arguments {
  std::vector<std::string> positional;
  std::map<std::string, std::string> options;  // "--golden" -> value; a flag -> ""

  bool has(const std::string& name) const { return options.count(name) > 0; }
  std::string get(const std::string& name, const std::string& otherwise = "") const;
  // UsageError for what is not an integer of at least `low`.
  int64_t get_int(const std::string& name, int64_t otherwise, int64_t low = 0) const;
  std::optional<double> get_double(const std::string& name) const;
};

struct Command {
  std::string name;        // "check"
  std::string summary;     // one line
  std::string arguments;   // "DIR"
  std::vector<Option> options;
  std::string example;     // shown by --help
  size_t min_positional = 0, max_positional = 0;  // max: SIZE_MAX for recipe overrides
  std::function<int(const Arguments&, const Registry&)> run;
};

// UsageError with a suggestion for an unknown option, a missing value, too few or too many arguments.
Arguments parse_arguments(const Command& command, const std::vector<std::string>& words);
std::string help_text(const Command& command);

Command check_command();
Command train_command();
Command sft_command();
Command eval_command();
Command generate_command();
Command tokenize_command();
Command inspect_command();
Command plan_command();
Command convert_command();
Command report_command();
Command doctor_command();

}  // namespace weft
