#pragma once
// UTF-8 and the few Unicode properties that tokenizers use. Positions and sizes are bytes. All functions are pure and
// deterministic; none throws except for memory. The property tables are those of the linked utf8proc.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft::tok {

inline constexpr char32_t kReplacement = 0xFFFD;

enum class Utf8State : uint8_t { kValid, kInvalid, kIncomplete };

// What starts at `pos` (< bytes.size()): a character; a maximal ill-formed part (size >= 1); or a good beginning of a
// character that the end of `bytes` cuts off (size = what is there).
struct Utf8Step {
  Utf8State state;
  int size;
  char32_t value;  // kReplacement unless valid
};
Utf8Step utf8_step(std::string_view bytes, int64_t pos);

// Offset of the first byte that is not part of a valid character.
std::optional<int64_t> find_invalid_utf8(std::string_view bytes);

// Appends `bytes` with one U+FFFD per maximal ill-formed part; returns how many bytes were consumed: all, except that a
// cut-off character at the end is left unless `final`.
int64_t append_lossy(std::string_view bytes, bool final, std::string& out);

void append_utf8(char32_t c, std::string& out);

// Size of the character that starts with this byte of valid UTF-8.
inline int utf8_size(char lead) {
  const auto b = static_cast<uint8_t>(lead);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

bool is_white_space(char32_t c);     // property White_Space
bool is_word_character(char32_t c);  // Alphabetic, M, Nd, Pc, ZWNJ, ZWJ
bool is_numeric(char32_t c);         // Nd, Nl, No
bool is_ascii(std::string_view bytes);

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
// `text` is valid UTF-8. Time n log n, also for long runs of combining marks.
std::string normalize(std::string_view text, NormalForm form);

// The byte-level alphabet: every byte has a printable character of at most 2 bytes in UTF-8.
std::string_view byte_to_alphabet(uint8_t byte);
std::optional<uint8_t> alphabet_to_byte(char32_t c);

}  // namespace weft::tok
