#include "weft/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include "weft/base/error.h"
#include "weft/text/unicode.h"

namespace weft::tok {
namespace {

constexpr size_t kMaxPattern = 65536;
// White_Space and word characters as members of a class. PCRE2's own \s adds U+180E; its \w lacks marks.
constexpr std::string_view kSpaceMembers = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWordMembers = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

class Translator {
 public:
  explicit Translator(std::string_view in) : in_(in) {}

  std::string run() {
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == '\\') {
        atom_ = out_.size();
        escape(false);
      } else if (c == '[') {
        atom_ = out_.size();
        character_class();
      } else if (c == '{') {
        interval();
      } else {
        if (c == '(') {
          groups_.push_back(out_.size());
        } else if (c == ')' && !groups_.empty()) {
          atom_ = groups_.back();
          groups_.pop_back();
        } else if (c != '*' && c != '+' && c != '?' && (static_cast<uint8_t>(c) & 0xC0) != 0x80) {
          atom_ = out_.size();
        }
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw ValueError(fmt::format("regular expression, offset {}: {} not supported", pos_, what));
  }

  void copy(size_t count) {
    out_.append(in_.substr(pos_, count));
    pos_ = std::min(in_.size(), pos_ + count);
  }

  void replace(std::string_view text) {
    out_.append(text);
    pos_ += 2;
  }

  void escape(bool in_class) {
    const char next = pos_ + 1 < in_.size() ? in_[pos_ + 1] : '\0';
    switch (next) {
      case 's': replace(in_class ? std::string(kSpaceMembers) : fmt::format("[{}]", kSpaceMembers)); return;
      // In a class the complement cannot be written; PCRE2's \S lacks exactly U+180E.
      case 'S': replace(in_class ? std::string(R"(\S\x{180E})") : fmt::format("[^{}]", kSpaceMembers)); return;
      case 'w': replace(in_class ? std::string(kWordMembers) : fmt::format("[{}]", kWordMembers)); return;
      case 'W':
        if (in_class) refuse("\\W in a class is");
        replace(fmt::format("[^{}]", kWordMembers));
        return;
      case 'h': replace(in_class ? "0-9a-fA-F" : "[0-9a-fA-F]"); return;
      case 'H':
      case 'Q':
      case 'E':
      case 'C':
      case 'b':
      case 'B': refuse(fmt::format("\\{} is", next));
      case 'p':
      case 'P':
      case 'x': {
        const size_t close = pos_ + 2 < in_.size() && in_[pos_ + 2] == '{' ? in_.find('}', pos_) : std::string_view::npos;
        copy(close == std::string_view::npos ? 2 : close + 1 - pos_);
        return;
      }
      default: copy(2); return;
    }
  }

  void character_class() {
    copy(1);
    if (pos_ < in_.size() && in_[pos_] == '^') copy(1);
    bool first = true;
    while (pos_ < in_.size()) {
      const char c = in_[pos_];
      if (c == ']' && !first) {
        copy(1);
        return;
      }
      if (c == '\\') {
        escape(true);
      } else if (c == '[') {
        const size_t close = in_.substr(pos_, 2) == "[:" ? in_.find(":]", pos_) : std::string_view::npos;
        if (close == std::string_view::npos) refuse("a class in a class is");
        copy(close + 2 - pos_);
      } else if (in_.substr(pos_, 2) == "&&") {
        refuse("'&&' in a class is");
      } else {
        copy(1);
      }
      first = false;
    }
  }

  // X{1,3}+ is a repeated interval to Oniguruma and a possessive one to PCRE2.
  void interval() {
    const size_t close = in_.find('}', pos_);
    if (close == std::string_view::npos ||
        in_.substr(pos_ + 1, close - pos_ - 1).find_first_not_of("0123456789,") != std::string_view::npos) {
      copy(1);
      return;
    }
    copy(close + 1 - pos_);
    if (pos_ < in_.size() && in_[pos_] == '+') {
      out_.insert(atom_, "(?:");
      out_ += ")";
    }
  }

  std::string_view in_;
  size_t pos_ = 0;
  std::string out_;
  size_t atom_ = 0;  // where the last atom starts in out_
  std::vector<size_t> groups_;
};

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// `\s+$` tried at every place of a long run of spaces is quadratic in a backtracking engine, and a published pattern.
std::vector<Span> trailing_space_matches(std::string_view text) {
  std::vector<Span> found;
  const auto size = static_cast<int64_t>(text.size());
  int64_t pos = 0;
  while (pos < size) {
    int64_t end = pos;
    int64_t last_line_end = -1;  // the last '\n' of the run behind its first character
    while (end < size) {
      const Utf8Step step = utf8_step(text, end);
      if (!is_white_space(step.value)) break;
      if (step.value == '\n' && end > pos) last_line_end = end;
      end += step.size;
    }
    if (end == pos) {
      pos += utf8_size(text[static_cast<size_t>(pos)]);
      continue;
    }
    if (end == size) {
      found.emplace_back(pos, end);
    } else if (last_line_end > 0) {
      found.emplace_back(pos, last_line_end);
    }
    pos = end;
  }
  return found;
}

}  // namespace

std::string translate_pattern(std::string_view pattern) { return Translator(pattern).run(); }

Regex::Regex(const std::string& pattern) : pattern_(pattern), trailing_space_(pattern == R"(\s+$)") {
  if (pattern.size() > kMaxPattern)
    throw ValueError(fmt::format("regular expression of {} bytes, more than {}", pattern.size(), kMaxPattern));
  const std::string translated = translate_pattern(pattern);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* compiled =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context.get());
  if (compiled == nullptr) {
    throw ValueError(fmt::format("regular expression, offset {} of \"{}\": {}", offset, translated, pcre2_message(code)));
  }
  code_ = std::shared_ptr<const void>(compiled,
                                      [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
  // Without JIT (no executable memory) the interpreter gives the same matches.
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
}

std::vector<Span> Regex::matches(std::string_view text) const {
  if (trailing_space_) return trailing_space_matches(text);
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(pcre2_match_data_create(1, nullptr),
                                                                                 &pcre2_match_data_free);
  if (!data) throw std::bad_alloc();
  std::vector<Span> found;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int64_t start = 0;
  const auto size = static_cast<int64_t>(text.size());
  bool after_empty = false;
  while (start <= size) {
    const uint32_t options = PCRE2_NO_UTF_CHECK | (after_empty ? PCRE2_NOTEMPTY_ATSTART : 0u);
    int count = pcre2_match(code, subject, text.size(), static_cast<PCRE2_SIZE>(start), options, data.get(), nullptr);
    if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
      count =
          pcre2_match(code, subject, text.size(), static_cast<PCRE2_SIZE>(start), options | PCRE2_NO_JIT, data.get(), nullptr);
    }
    if (count == PCRE2_ERROR_NOMATCH) break;
    if (count < 0) {
      throw ValueError(fmt::format("the regular expression \"{}\" failed at byte {} of a piece of {} bytes: {}", pattern_, start,
                                   size, pcre2_message(count)));
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    const auto begin = static_cast<int64_t>(ends[0]);
    const auto end = static_cast<int64_t>(ends[1]);
    // \K in a look-around can put the end before the beginning or the start.
    if (begin > end || begin < start) throw ValueError(fmt::format("the regular expression \"{}\" matches backwards", pattern_));
    found.emplace_back(begin, end);
    after_empty = begin == end;
    start = end;
  }
  return found;
}

std::vector<Span> find_literal(std::string_view text, std::string_view literal) {
  WEFT_CHECK(!literal.empty(), "empty literal");
  std::vector<Span> found;
  for (size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, at + literal.size())) {
    found.emplace_back(static_cast<int64_t>(at), static_cast<int64_t>(at + literal.size()));
  }
  return found;
}

}  // namespace weft::tok
