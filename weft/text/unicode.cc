#include "weft/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "weft/base/error.h"

namespace weft::tok {
namespace {

constexpr Utf8Step kBadByte{Utf8State::kInvalid, 1, kReplacement};

struct ByteAlphabet {
  std::array<char32_t, 256> character{};
  std::array<std::string, 256> utf8;
  std::array<int16_t, 512> byte{};

  ByteAlphabet() {
    byte.fill(-1);
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const auto i = static_cast<size_t>(b);
      character[i] = printable ? static_cast<char32_t>(b) : next++;
      byte[character[i]] = static_cast<int16_t>(b);
      append_utf8(character[i], utf8[i]);
    }
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

// Canonical ordering: a stable sort of each run of marks. utf8proc's own is quadratic in the run.
void order_marks(std::vector<utf8proc_int32_t>& points) {
  const auto ccc = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  auto it = points.begin();
  while (it != points.end()) {
    if (ccc(*it) == 0) {
      ++it;
      continue;
    }
    const auto end = std::find_if(it, points.end(), [&](utf8proc_int32_t c) { return ccc(c) == 0; });
    std::stable_sort(it, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) { return ccc(a) < ccc(b); });
    it = end;
  }
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes, int64_t pos) {
  const auto at = [&](int64_t i) { return static_cast<uint8_t>(bytes[static_cast<size_t>(i)]); };
  const uint8_t lead = at(pos);
  if (lead < 0x80) return {Utf8State::kValid, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return kBadByte;
  const int size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t value = lead & (0x7Fu >> size);
  for (int i = 1; i < size; ++i) {
    if (pos + i >= static_cast<int64_t>(bytes.size())) return {Utf8State::kIncomplete, i, kReplacement};
    const uint8_t b = at(pos + i);
    // The second byte's range excludes overlong forms, surrogates and what lies beyond U+10FFFF.
    uint8_t low = 0x80;
    uint8_t high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (b < low || b > high) return {Utf8State::kInvalid, i, kReplacement};
    value = (value << 6) | (b & 0x3Fu);
  }
  return {Utf8State::kValid, size, value};
}

std::optional<int64_t> find_invalid_utf8(std::string_view bytes) {
  for (int64_t pos = 0; pos < static_cast<int64_t>(bytes.size());) {
    const Utf8Step step = utf8_step(bytes, pos);
    if (step.state != Utf8State::kValid) return pos;
    pos += step.size;
  }
  return std::nullopt;
}

int64_t append_lossy(std::string_view bytes, bool final, std::string& out) {
  int64_t pos = 0;
  while (pos < static_cast<int64_t>(bytes.size())) {
    const Utf8Step step = utf8_step(bytes, pos);
    if (step.state == Utf8State::kIncomplete && !final) break;
    append_utf8(step.value, out);
    pos += step.size;
  }
  return pos;
}

void append_utf8(char32_t c, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word_character(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
  }
  // What else is Alphabetic: circled and squared letters.
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool is_numeric(char32_t c) {
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

bool is_ascii(std::string_view bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

std::string normalize(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (int64_t pos = 0; pos < static_cast<int64_t>(text.size());) {
    const Utf8Step step = utf8_step(text, pos);
    pos += step.size;
    std::array<utf8proc_int32_t, 64> parts{};
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.value), parts.data(),
                                                           static_cast<utf8proc_ssize_t>(parts.size()), options, &boundary);
    WEFT_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()), "decomposition of U+{:04X}: {}",
               static_cast<uint32_t>(step.value), count);
    points.insert(points.end(), parts.begin(), parts.begin() + count);
  }
  order_marks(points);
  auto size = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) {
    size = utf8proc_normalize_utf32(points.data(), size, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    WEFT_CHECK(size >= 0, "composition: {}", size);
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < size; ++i) append_utf8(static_cast<char32_t>(points[static_cast<size_t>(i)]), out);
  return out;
}

std::string_view byte_to_alphabet(uint8_t byte) { return byte_alphabet().utf8[byte]; }

std::optional<uint8_t> alphabet_to_byte(char32_t c) {
  const ByteAlphabet& alphabet = byte_alphabet();
  if (c >= alphabet.byte.size() || alphabet.byte[c] < 0) return std::nullopt;
  return static_cast<uint8_t>(alphabet.byte[c]);
}

}  // namespace weft::tok
