#include "weft/io/tensorboard.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"

namespace weft {
namespace {

// Castagnoli polynomial, reflected.
constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}();

// The rotation and constant of the TFRecord format: a CRC over data that holds CRCs is weak.
uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xa282ead8u; }

template <typename T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

// Protobuf wire types.
enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  bytes += static_cast<char>(value);
  return bytes;
}

std::string tag(uint32_t field, Wire wire) { return varint(field << 3 | wire); }
std::string field_varint(uint32_t field, uint64_t value) { return tag(field, kVarint) + varint(value); }
std::string field_double(uint32_t field, double value) { return tag(field, kFixed64) + raw(value); }
std::string field_float(uint32_t field, float value) { return tag(field, kFixed32) + raw(value); }
std::string field_bytes(uint32_t field, std::string_view value) {
  return tag(field, kBytes) + varint(value.size()) + std::string(value);
}

// Field numbers of tensorflow's event.proto, summary.proto and tensor.proto.
namespace event {
constexpr uint32_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary {
constexpr uint32_t kValue = 1, kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
constexpr uint32_t kPluginData = 1, kPluginName = 1;
}  // namespace summary
namespace tensor {
constexpr uint32_t kDtype = 1, kShape = 2, kStringVal = 8, kShapeDim = 2, kDimSize = 1;
constexpr uint64_t kDtString = 7;
}  // namespace tensor

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::string event_path(const std::string& dir, double wall_time) {
  // Two writers of one process within a second must not share a file.
  static std::atomic<int> counter{0};
  return fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}", dir, static_cast<int64_t>(wall_time), host_name(), ::getpid(),
                     counter.fetch_add(1));
}

std::string event_head(int64_t step, double wall_time) {
  return field_double(event::kWallTime, wall_time) + field_varint(event::kStep, static_cast<uint64_t>(step));
}

// One field of a message. `bytes` is the payload of kBytes; `number` holds the bits of the others.
struct WireField {
  uint32_t number = 0;
  Wire wire = kVarint;
  uint64_t bits = 0;
  std::string_view bytes;
};

class WireReader {
 public:
  WireReader(std::string_view bytes, const std::string& path, const std::string& where)
      : rest_(bytes), path_(path), where_(where) {}

  std::optional<WireField> next() {
    if (rest_.empty()) return std::nullopt;
    const uint64_t key = read_varint();
    WireField field;
    field.number = static_cast<uint32_t>(key >> 3);
    field.wire = static_cast<Wire>(key & 7);
    if (field.wire == kVarint) {
      field.bits = read_varint();
    } else if (field.wire == kFixed64) {
      std::memcpy(&field.bits, take(8).data(), 8);
    } else if (field.wire == kFixed32) {
      std::memcpy(&field.bits, take(4).data(), 4);
    } else if (field.wire == kBytes) {
      field.bytes = take(read_varint());
    } else {
      fail();
    }
    return field;
  }

 private:
  [[noreturn]] void fail() { throw FileError(path_, where_, "malformed protobuf"); }
  std::string_view take(uint64_t n) {
    if (n > rest_.size()) fail();
    const std::string_view result = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return result;
  }
  uint64_t read_varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
    fail();
  }

  std::string_view rest_;
  const std::string& path_;
  const std::string& where_;
};

void read_value(std::string_view bytes, const std::string& path, const std::string& where, TensorboardEvent& out) {
  WireReader reader(bytes, path, where);
  std::string name, text;
  std::optional<float> scalar;
  while (const auto field = reader.next()) {
    if (field->number == summary::kTag) name = field->bytes;
    if (field->number == summary::kSimpleValue) scalar = std::bit_cast<float>(static_cast<uint32_t>(field->bits));
    if (field->number == summary::kTensor) {
      WireReader content(field->bytes, path, where);
      while (const auto part = content.next()) {
        if (part->number == tensor::kStringVal) text = part->bytes;
      }
    }
  }
  if (scalar) {
    out.scalars[name] = *scalar;
  } else {
    out.texts[name] = text;
  }
}

TensorboardEvent read_event(std::string_view bytes, const std::string& path, const std::string& where) {
  TensorboardEvent result;
  WireReader reader(bytes, path, where);
  while (const auto field = reader.next()) {
    if (field->number == event::kWallTime) result.wall_time = std::bit_cast<double>(field->bits);
    if (field->number == event::kStep) result.step = static_cast<int64_t>(field->bits);
    if (field->number == event::kFileVersion) result.file_version = field->bytes;
    if (field->number == event::kSummary) {
      WireReader values(field->bytes, path, where);
      while (const auto value = values.next()) {
        if (value->number == summary::kValue) read_value(value->bytes, path, where, result);
      }
    }
  }
  return result;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = 0xffffffffu;
  for (const std::byte b : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint32_t>(b)) & 255];
  return ~crc;
}

TensorboardWriter::TensorboardWriter(const std::string& dir, double wall_time) : file_(event_path(dir, wall_time)) {
  write_event(field_double(event::kWallTime, wall_time) + field_bytes(event::kFileVersion, "brain.Event:2"));
}

void TensorboardWriter::write_event(std::string_view event) {
  const std::string length = raw(static_cast<uint64_t>(event.size()));
  const std::string record = length + raw(masked_crc(length)) + std::string(event) + raw(masked_crc(event));
  file_.append(std::as_bytes(std::span(record)));
}

void TensorboardWriter::add_scalars(int64_t step, double wall_time, std::span<const std::pair<std::string, double>> values) {
  std::string list;
  for (const auto& [name, value] : values) {
    list += field_bytes(summary::kValue,
                        field_bytes(summary::kTag, name) + field_float(summary::kSimpleValue, static_cast<float>(value)));
  }
  write_event(event_head(step, wall_time) + field_bytes(event::kSummary, list));
}

void TensorboardWriter::add_text(int64_t step, double wall_time, std::string_view name, std::string_view text) {
  const std::string shape = field_bytes(tensor::kShapeDim, field_varint(tensor::kDimSize, 1));
  const std::string content = field_varint(tensor::kDtype, tensor::kDtString) + field_bytes(tensor::kShape, shape) +
                              field_bytes(tensor::kStringVal, text);
  const std::string plugin = field_bytes(summary::kPluginData, field_bytes(summary::kPluginName, "text"));
  const std::string value =
      field_bytes(summary::kTag, name) + field_bytes(summary::kTensor, content) + field_bytes(summary::kMetadata, plugin);
  write_event(event_head(step, wall_time) + field_bytes(event::kSummary, field_bytes(summary::kValue, value)));
}

std::vector<TensorboardEvent> read_tensorboard_file(const std::string& path) {
  const std::string content = read_text_file(path);
  std::string_view rest = content;
  std::vector<TensorboardEvent> events;
  while (!rest.empty()) {
    const std::string where = fmt::format("record at byte {}", content.size() - rest.size());
    const auto take = [&](uint64_t n) {
      if (n > rest.size()) throw FileError(path, where, "truncated");
      const std::string_view result = rest.substr(0, n);
      rest.remove_prefix(n);
      return result;
    };
    const auto take_checked = [&](uint64_t n) {
      const std::string_view data = take(n);
      uint32_t crc = 0;
      std::memcpy(&crc, take(4).data(), 4);
      if (crc != masked_crc(data)) throw FileError(path, where, "the CRC does not match");
      return data;
    };
    uint64_t length = 0;
    std::memcpy(&length, take_checked(8).data(), 8);
    events.push_back(read_event(take_checked(length), path, where));
  }
  return events;
}

}  // namespace weft
