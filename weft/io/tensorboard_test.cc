#include "weft/io/tensorboard.h"

#include <gmock/gmock.h>

#include "weft/io/atomic_file.h"
#include "weft/io/test_files.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

uint32_t crc_of(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

TEST(Crc32c, MatchesRfc3720) {
  EXPECT_EQ(crc_of("123456789"), 0xe3069283u);
  EXPECT_EQ(crc_of(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc_of(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc_of(""), 0u);
}

TEST(Tensorboard, WritesTheBytesOfTheFormat) {
  TemporaryDirectory dir;
  TensorboardWriter writer(dir.path(), 1.5);
  // Event{wall_time: 1.5, file_version: "brain.Event:2"}
  const std::string event = std::string("\x09\0\0\0\0\0\0\xf8\x3f\x1a\x0d", 11) + "brain.Event:2";
  const std::string content = read_text_file(writer.path());
  ASSERT_EQ(content.size(), 8 + 4 + event.size() + 4);
  EXPECT_EQ(content.substr(0, 8), std::string("\x18\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(content.substr(12, event.size()), event);
  EXPECT_THAT(writer.path(), HasSubstr("/events.out.tfevents.0000000001."));
}

TEST(Tensorboard, ReadsBackWhatItWrote) {
  TemporaryDirectory dir;
  TensorboardWriter writer(dir.path(), 1e9);
  const std::vector<std::pair<std::string, double>> values = {{"reward/mean", 0.25}, {"actor/lr", 1e-6}, {"val/\xc3\xa9", -3e30}};
  writer.add_scalars(int64_t{1} << 40, 1e9 + 0.5, values);
  writer.add_text(7, 1e9 + 1, "sample", std::string(500, 'x'));
  writer.add_scalars(0, 2e9, {});
  const auto events = read_tensorboard_file(writer.path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_EQ(events[1].step, int64_t{1} << 40);
  EXPECT_EQ(events[1].wall_time, 1e9 + 0.5);
  ASSERT_EQ(events[1].scalars.size(), 3u);
  for (const auto& [name, value] : values) EXPECT_EQ(events[1].scalars.at(name), static_cast<float>(value));
  EXPECT_EQ(events[2].texts.at("sample"), std::string(500, 'x'));
  EXPECT_TRUE(events[3].scalars.empty());
  // Two writers of one second have files of their own.
  EXPECT_NE(TensorboardWriter(dir.path(), 1e9).path(), writer.path());
}

TEST(Tensorboard, ReaderRefusesDamage) {
  TemporaryDirectory dir;
  TensorboardWriter writer(dir.path(), 1e9);
  const size_t head = read_text_file(writer.path()).size();
  writer.add_scalars(1, 1e9, std::vector<std::pair<std::string, double>>{{"a", 1}});
  const std::string good = read_text_file(writer.path());
  for (size_t n = 1; n < good.size(); ++n) {
    std::string bad = good;
    bad[n] = static_cast<char>(bad[n] ^ 4);
    EXPECT_THROW(read_tensorboard_file(dir.write("bad", bad)), FileError) << n;
    if (n != head) {
      EXPECT_THROW(read_tensorboard_file(dir.write("cut", good.substr(0, n))), FileError) << n;
    }
  }
  EXPECT_THROW(TensorboardWriter(dir.file("none"), 1), SystemError);
}

}  // namespace
}  // namespace weft
