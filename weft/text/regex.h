#pragma once
// Regular expressions of tokenizer files, written for Oniguruma's default syntax, matched with PCRE2 (JIT, UTF, UCP).
// What the two read differently is translated (white space, word characters, intervals followed by '+') or refused
// (nested classes, '&&', \W in a class). Immutable after construction and safe to use from many threads at once.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::tok {

using Span = std::pair<int64_t, int64_t>;  // bytes [first, second)

class Regex {
 public:
  // Throws ValueError with the offset in the pattern when it does not compile or is not supported.
  explicit Regex(const std::string& pattern);

  // All matches in valid UTF-8 `text`, in order, not overlapping, empty ones included. Look-around ends at `text`.
  // Throws ValueError when the pattern needs more steps than PCRE2's match limit at one place.
  std::vector<Span> matches(std::string_view text) const;

 private:
  std::string pattern_;
  std::shared_ptr<const void> code_;
  bool trailing_space_ = false;
};

// Oniguruma's pattern as PCRE2's. Public for its tests.
std::string translate_pattern(std::string_view pattern);

// Every occurrence of a non-empty literal, from the left, not overlapping.
std::vector<Span> find_literal(std::string_view text, std::string_view literal);

}  // namespace weft::tok
