#include "weft/io/npy.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "weft/base/error.h"

namespace weft {
namespace {

struct TypeName {
  NpyType type;
  std::string_view name;
  int64_t bytes;
};
constexpr TypeName kTypes[] = {{NpyType::kU8, "|u1", 1},  {NpyType::kU16, "<u2", 2}, {NpyType::kI16, "<i2", 2},
                               {NpyType::kI32, "<i4", 4}, {NpyType::kI64, "<i8", 8}, {NpyType::kF32, "<f4", 4}};

const TypeName& type_of(NpyType type) {
  return *std::find_if(std::begin(kTypes), std::end(kTypes), [&](const TypeName& entry) { return entry.type == type; });
}

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxNpyHeaderBytes = 4096;

// Bytes that shape and type need; nullopt: overflow or a negative dim.
std::optional<int64_t> byte_count(NpyType type, const std::vector<int64_t>& shape) {
  int64_t bytes = npy_type_bytes(type);
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  }
  return bytes;
}

// The header is the text of a Python dict with the three keys below in any order; this reads just that form.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  NpyArray parse() {
    NpyArray array;
    bool has_type = false, has_order = false, has_shape = false;
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !std::exchange(has_type, true)) {
        array.type = type(quoted());
      } else if (key == "fortran_order" && !std::exchange(has_order, true)) {
        if (!take_word("False")) throw ValueError("npy: only C order (fortran_order False) is read");
      } else if (key == "shape" && !std::exchange(has_shape, true)) {
        array.shape = shape();
      } else {
        throw ValueError("npy: unknown or repeated key in the header");
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty() || !has_type || !has_order || !has_shape) throw ValueError("npy: malformed header");
    return array;
  }

 private:
  void skip_space() {
    const size_t n = rest_.find_first_not_of(" \n");
    rest_.remove_prefix(n == std::string_view::npos ? rest_.size() : n);
  }
  bool take(char c) {
    skip_space();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) throw ValueError(fmt::format("npy: malformed header, '{}' expected", c));
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  std::string_view quoted() {
    expect('\'');
    const size_t end = rest_.find('\'');
    if (end == std::string_view::npos) throw ValueError("npy: malformed header, unterminated string");
    const std::string_view result = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return result;
  }
  static NpyType type(std::string_view name) {
    for (const TypeName& entry : kTypes) {
      if (entry.name == name || (entry.bytes == 1 && name == "<u1")) return entry.type;
    }
    throw ValueError("npy: element type is not one of |u1, <u2, <i2, <i4, <i8, <f4");
  }
  std::vector<int64_t> shape() {
    std::vector<int64_t> dims;
    expect('(');
    while (!take(')')) {
      skip_space();
      int64_t dim = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), dim);
      if (error != std::errc() || dims.size() >= 32) throw ValueError("npy: malformed shape");
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      dims.push_back(dim);
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return dims;
  }

  std::string_view rest_;
};

}  // namespace

int64_t npy_type_bytes(NpyType type) { return type_of(type).bytes; }

int64_t NpyArray::integer(int64_t index) const {
  WEFT_CHECK(0 <= index && index < num_elements(), "element {} of {}", index, num_elements());
  const std::byte* at = data.data() + index * npy_type_bytes(type);
  const auto read = [&](auto value) {
    std::memcpy(&value, at, sizeof value);
    return static_cast<int64_t>(value);
  };
  switch (type) {
    case NpyType::kU8: return read(uint8_t{});
    case NpyType::kU16: return read(uint16_t{});
    case NpyType::kI16: return read(int16_t{});
    case NpyType::kI32: return read(int32_t{});
    case NpyType::kI64: return read(int64_t{});
    case NpyType::kF32: break;
  }
  WEFT_CHECK(false, "an array of floats read as integers");
  return 0;
}

std::vector<std::byte> write_npy(const NpyArray& array) {
  WEFT_CHECK(byte_count(array.type, array.shape) == static_cast<int64_t>(array.data.size()), "npy: {} bytes do not fit the shape",
             array.data.size());
  std::string shape;
  for (const int64_t dim : array.shape) shape += fmt::format("{}, ", dim);
  // NumPy writes (3,) but (2, 3).
  if (array.shape.size() == 1) shape.pop_back();
  if (array.shape.size() > 1) shape.resize(shape.size() - 2);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type_of(array.type).name, shape);
  const size_t unpadded = kMagic.size() + 4 + header.size() + 1;
  header.append((unpadded + 63) / 64 * 64 - unpadded, ' ');
  header += '\n';
  std::string prefix(kMagic);
  prefix += {'\1', '\0', static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
  prefix += header;
  std::vector<std::byte> result;
  result.reserve(prefix.size() + array.data.size());
  const auto head = std::as_bytes(std::span(prefix));
  result.insert(result.end(), head.begin(), head.end());
  result.insert(result.end(), array.data.begin(), array.data.end());
  return result;
}

NpyArray read_npy(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic) || text.size() < 10) throw ValueError("npy: not an .npy array");
  const int major = static_cast<unsigned char>(text[6]);
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<unsigned char>(text[i])); };
  size_t length = byte(8) | byte(9) << 8, start = 10;
  if (major == 2 || major == 3) {
    if (text.size() < 12) throw ValueError("npy: truncated header");
    length |= byte(10) << 16 | byte(11) << 24;
    start = 12;
  } else if (major != 1) {
    throw ValueError(fmt::format("npy: format version {} is unknown", major));
  }
  if (length > kMaxNpyHeaderBytes || length > text.size() - start)
    throw ValueError(fmt::format("npy: header of {} bytes does not fit", length));
  NpyArray array = HeaderParser(text.substr(start, length)).parse();
  const auto data = bytes.subspan(start + length);
  const auto needed = byte_count(array.type, array.shape);
  if (needed != static_cast<int64_t>(data.size())) {
    throw ValueError(fmt::format("npy: {} bytes of data do not fit the shape{}", data.size(),
                                 needed ? fmt::format(", which needs {}", *needed) : ""));
  }
  array.data.assign(data.begin(), data.end());
  return array;
}

}  // namespace weft
