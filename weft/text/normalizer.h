#pragma once
// The "normalizer" of a tokenizer.json: Sequence, NFC, NFD, NFKC, NFKD, Prepend, Replace. Immutable, safe to use from many
// threads. Errors: FileError for what the file says, ValueError when a regular expression backtracks beyond bounds.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weft/text/json_node.h"
#include "weft/text/regex.h"
#include "weft/text/unicode.h"

namespace weft::tok {

// What to search for: {"String": s} or {"Regex": r}.
class Pattern {
 public:
  static Pattern parse(const JsonNode& node);
  std::vector<Span> matches(std::string_view text) const;
  // The literal, when it is one.
  const std::string* literal() const { return regex_ ? nullptr : &literal_; }

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

// `text` with every match replaced by `content`.
std::string replace_all(std::string_view text, const Pattern& pattern, std::string_view content);

// Stages of a hostile file could multiply a short text without end (each "a" becomes "aa", sixty times). So every stage
// counts by how much it can lengthen a text, and a file whose stages together exceed kMaxGrowth is refused.
class Growth {
 public:
  void add(const JsonNode& node, int64_t factor);
  // A Replace of `pattern` by `content`.
  void add_replace(const JsonNode& node, const Pattern& pattern, std::string_view content);

 private:
  int64_t total_ = 1;
};

inline constexpr int kMaxSequenceDepth = 8;
inline constexpr int64_t kMaxSteps = 64;
inline constexpr int64_t kMaxContent = 4096;  // bytes of a replacement, prefix or added token
inline constexpr int64_t kMaxGrowth = 1024;

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  static Normalizer parse(const JsonNode& node);

  bool is_identity() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;  // valid UTF-8 in and out

 private:
  struct Step {
    enum class Kind : uint8_t { kForm, kPrepend, kReplace } kind;
    NormalForm form = NormalForm::kNfc;
    std::string content;
    Pattern pattern;
  };
  void add(const JsonNode& node, int depth, Growth& growth);

  std::vector<Step> steps_;
};

}  // namespace weft::tok
