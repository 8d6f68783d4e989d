#include "weft/io/json_file.h"

#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"

namespace weft {
namespace {

// The library repeats bytes of the file, which may be anything.
std::string printable(std::string_view text) {
  std::string out;
  for (const unsigned char c : text)
    out += c >= 0x20 && c < 0x7f ? std::string(1, static_cast<char>(c)) : fmt::format("\\x{:02x}", c);
  return out;
}

template <typename Json>
Json parse(std::string_view text, const std::string& path, const std::string& where, int max_depth) {
  // The library takes a NUL byte for the end of its input and would ignore the rest.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw FileError(path, where, fmt::format("JSON has a NUL byte at byte {}", nul));
  }
  std::vector<std::unordered_set<std::string>> open_objects;
  int depth = 0;
  const auto callback = [&](int, typename Json::parse_event_t event, Json& value) {
    using Event = typename Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (++depth > max_depth) throw FileError(path, where, fmt::format("JSON is nested deeper than {} levels", max_depth));
      if (event == Event::object_start) open_objects.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      --depth;
      if (event == Event::object_end) open_objects.pop_back();
    } else if (event == Event::key) {
      const auto& key = value.template get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) throw FileError(path, where, fmt::format("duplicate key \"{}\"", key));
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), callback);
  } catch (const typename Json::parse_error& error) {
    const std::string place = where.empty() ? fmt::format("byte {}", error.byte) : fmt::format("{}, byte {}", where, error.byte);
    throw FileError(path, place, fmt::format("malformed JSON: {}", printable(error.what())));
  } catch (const typename Json::exception& error) {
    throw FileError(path, where, fmt::format("malformed JSON: {}", error.what()));
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& path, const std::string& where, int max_depth) {
  return parse<nlohmann::json>(text, path, where, max_depth);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& path, const std::string& where,
                                          int max_depth) {
  return parse<nlohmann::ordered_json>(text, path, where, max_depth);
}

nlohmann::json read_json_file(const std::string& path) { return parse_json(read_text_file(path), path); }

std::optional<int64_t> find_invalid_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  size_t i = 0;
  while (i < text.size()) {
    const unsigned char lead = byte(i);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xc2 && lead <= 0xdf ? 2 : (lead & 0xf0) == 0xe0 ? 3 : lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
    if (length == 0 || i + length > text.size()) return static_cast<int64_t>(i);
    for (size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return static_cast<int64_t>(i);
    }
    const unsigned char second = byte(i + 1);
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second > 0x8f)) {
      return static_cast<int64_t>(i);
    }
    i += length;
  }
  return std::nullopt;
}

}  // namespace weft
