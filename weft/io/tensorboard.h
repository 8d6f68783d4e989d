#pragma once
// TensorBoard event files: TFRecord framing (length, masked CRC-32C, data, masked CRC-32C) around protobuf Event messages,
// written by hand so that neither protobuf nor TensorFlow is needed. Each event is one write, visible at once.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weft/io/append_file.h"

namespace weft {

uint32_t crc32c(std::span<const std::byte> bytes);

class TensorboardWriter {
 public:
  // Starts DIR/events.out.tfevents.<seconds>.<host>.<pid>.<number>; DIR must exist. `wall_time`: seconds since 1970.
  TensorboardWriter(const std::string& dir, double wall_time);

  void add_scalars(int64_t step, double wall_time, std::span<const std::pair<std::string, double>> values);
  void add_text(int64_t step, double wall_time, std::string_view tag, std::string_view text);  // shown as Markdown
  const std::string& path() const { return file_.path(); }

 private:
  void write_event(std::string_view event);

  AppendFile file_;
};

// What an event file holds, for tests and reports.
struct TensorboardEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string file_version;
  std::map<std::string, float> scalars;
  std::map<std::string, std::string> texts;
};

// FileError with the byte offset for a truncated record, a wrong CRC or malformed protobuf.
std::vector<TensorboardEvent> read_tensorboard_file(const std::string& path);

}  // namespace weft
