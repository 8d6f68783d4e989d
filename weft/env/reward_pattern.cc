#include "weft/env/reward_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "weft/base/error.h"

namespace weft {
namespace {

const pcre2_code* code_of(const std::shared_ptr<const void>& code) { return static_cast<const pcre2_code*>(code.get()); }

std::string error_text(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

RewardPattern::RewardPattern(const std::string& pattern, bool whole) : pattern_(pattern) {
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF;
  if (whole) options |= PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOTALL;
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr);
  if (code == nullptr)
    throw ValueError(fmt::format("regular expression '{}': at byte {}: {}", pattern, offset, error_text(error)));
  code_ =
      std::shared_ptr<const void>(code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
}

std::optional<RewardPattern::Match> RewardPattern::match(std::string_view text, size_t start, uint32_t group) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code_of(code_), nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(pcre2_match_context_create(nullptr),
                                                                                     pcre2_match_context_free);
  WEFT_CHECK(data != nullptr && context != nullptr, "no memory to match");
  pcre2_set_match_limit(context.get(), 10'000'000);
  pcre2_set_heap_limit(context.get(), 256 * 1024);  // KiB
  const char* subject = text.data() == nullptr ? "" : text.data();
  const int result =
      pcre2_match(code_of(code_), reinterpret_cast<PCRE2_SPTR>(subject), text.size(), start, 0, data.get(), context.get());
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0)
    throw ValueError(
        fmt::format("regular expression '{}' gave up on a text of {} bytes ({}); make it simpler: repeats inside "
                    "repeats take exponential time",
                    pattern_, text.size(), error_text(result)));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
  return Match{ends[0], ends[1], ends[2 * group], ends[2 * group + 1]};
}

bool RewardPattern::found_in(std::string_view text) const { return match(text, 0, 0).has_value(); }

bool RewardPattern::has_group(const std::string& group) const {
  return pcre2_substring_number_from_name(code_of(code_), reinterpret_cast<PCRE2_SPTR>(group.c_str())) > 0;
}

std::optional<std::string> RewardPattern::last_group(std::string_view text, const std::string& group) const {
  const int number = pcre2_substring_number_from_name(code_of(code_), reinterpret_cast<PCRE2_SPTR>(group.c_str()));
  WEFT_CHECK(number > 0, "group '{}' is not in '{}'", group, pattern_);
  std::optional<std::string> last;
  for (size_t start = 0; start <= text.size();) {
    const auto found = match(text, start, static_cast<uint32_t>(number));
    if (!found) break;
    last.reset();
    if (found->group_begin != PCRE2_UNSET) last.emplace(text.substr(found->group_begin, found->group_end - found->group_begin));
    start = found->end > start ? found->end : start + 1;  // \K and empty matches must not stand still
    while (start < text.size() && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) ++start;
  }
  return last;
}

}  // namespace weft
