#pragma once
// A user's regular expression over completions: PCRE2's syntax (Perl's), UTF-8, '.' also matches line ends only with (?s).
// Text that is not valid UTF-8 is matched around its bad bytes. Immutable, safe from many threads.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

class RewardPattern {
 public:
  // Throws ValueError with the offset when the pattern does not compile. `whole`: it must match the whole text, and '.' then
  // matches line ends too.
  explicit RewardPattern(const std::string& pattern, bool whole = false);

  // Throws ValueError when matching takes more steps than PCRE2's limit (nested repeats on a long text).
  bool found_in(std::string_view text) const;
  // What the group of this name holds in the last match of the text; nullopt without a match (or where it took no part).
  std::optional<std::string> last_group(std::string_view text, const std::string& group) const;
  bool has_group(const std::string& group) const;

 private:
  // Matches from byte `start`; the byte offsets of group `number`, or of the whole match for 0.
  struct Match {
    size_t begin, end, group_begin, group_end;
  };
  std::optional<Match> match(std::string_view text, size_t start, uint32_t group) const;

  std::string pattern_;
  std::shared_ptr<const void> code_;
};

}  // namespace weft
