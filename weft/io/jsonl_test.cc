#include "weft/io/jsonl.h"

#include <algorithm>
#include <cstring>

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "weft/io/atomic_file.h"
#include "weft/io/dataset.h"
#include "weft/io/json_file.h"
#include "weft/io/test_files.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Jsonl, GivesRowsWithTheirLines) {
  TemporaryDirectory dir;
  const JsonlFile file(dir.write("x.jsonl", "{\"a\":1}\n\n  \t\n{\"a\":2}\r\n\r\n[3]"));
  ASSERT_EQ(file.size(), 3);
  EXPECT_EQ(file.text(1), "{\"a\":2}");
  EXPECT_EQ(file.json(0)["a"], 1);
  EXPECT_EQ(file.line_number(1), 4);
  EXPECT_EQ(file.location(2), "line 6");
  EXPECT_EQ(JsonlFile(dir.write("empty.jsonl", "")).size(), 0);
  EXPECT_EQ(JsonlFile(dir.write("blank.jsonl", "\n\n")).size(), 0);
}

TEST(Jsonl, NamesFileLineAndReason) {
  TemporaryDirectory dir;
  const JsonlFile file(dir.write("x.jsonl", "{}\n{\"a\": }\n{\"a\":1,\"a\":2}\n"));
  const std::string message = message_of<FileError>([&] { file.json(1); });
  EXPECT_THAT(message, HasSubstr(file.path() + ": line 2, byte 7: malformed JSON"));
  // What the file holds may be anything: an escape sequence does not reach the terminal.
  try {
    (void)parse_json("{\"\x1b[31m\xa0", "f", "");
    ADD_FAILURE() << "no error";
  } catch (const FileError& e) {
    EXPECT_TRUE(std::all_of(e.what(), e.what() + std::strlen(e.what()), [](char c) { return c >= 0x20 && c < 0x7f; }))
        << e.what();
  }
  EXPECT_THAT(message_of<FileError>([&] { file.json(2); }), HasSubstr("line 3: duplicate key"));
  EXPECT_THAT(message_of<FileError>([&] { JsonlFile f(dir.write("y.jsonl", "{}\n{\"a\":\"\xc3\"}\n")); }),
              HasSubstr("line 2: invalid UTF-8 at byte 6"));
  EXPECT_THAT(message_of<FileError>([&] { JsonlFile f(dir.write("z.jsonl", "{}\n\"12345678\"\n"), {8}); }),
              HasSubstr("line 2: longer than the limit of 8"));
  EXPECT_THAT(message_of<FileError>([] { JsonlFile f("a/train.parquet"); }), HasSubstr("tools/to_jsonl.py a/train.parquet"));
}

TEST(Jsonl, StreamsTheSameRows) {
  const std::string text = "{\"a\":1}\n\n{\"a\":2}\r\n  \n[3]";
  std::istringstream stream(text);
  JsonlStream rows(stream, "<stdin>");
  EXPECT_EQ(rows.next(), "{\"a\":1}");
  EXPECT_EQ(rows.next(), "{\"a\":2}");
  EXPECT_EQ(rows.line_number(), 3);
  EXPECT_THAT(message_of<FileError>([&] { rows.parse("{"); }), HasSubstr("<stdin>: line 3"));
  EXPECT_EQ(rows.next(), "[3]");
  EXPECT_EQ(rows.next(), std::nullopt);
  std::istringstream endless(std::string(1000, 'x'));
  JsonlStream limited(endless, "<stdin>", {10});
  EXPECT_THAT(message_of<FileError>([&] { limited.next(); }), HasSubstr("longer than the limit"));
  EXPECT_EQ(endless.rdbuf()->in_avail(), 1000 - 12);
}

TEST(Jsonl, WriterAppendsAndCutsBackToACheckpoint) {
  TemporaryDirectory dir;
  int64_t kept = 0;
  {
    JsonlWriter writer(dir.file("m.jsonl"));
    writer.write("{\"step\":1}");
    kept = writer.size();
    writer.write("{\"step\":2}");
    EXPECT_EQ(read_text_file(dir.file("m.jsonl")), "{\"step\":1}\n{\"step\":2}\n");
  }
  JsonlWriter(dir.file("m.jsonl")).write("3");
  EXPECT_EQ(JsonlFile(dir.file("m.jsonl")).size(), 3);
  JsonlWriter(dir.file("m.jsonl"), kept).write("4");
  EXPECT_EQ(read_text_file(dir.file("m.jsonl")), "{\"step\":1}\n4\n");
  EXPECT_THAT(message_of<FileError>([&] { JsonlWriter w(dir.file("m.jsonl"), 1000); }), HasSubstr("1000 expected"));
  EXPECT_THROW(JsonlWriter(dir.file("none/m.jsonl")), SystemError);
  EXPECT_THROW(JsonlWriter(dir.file("m.jsonl")).write("a\nb"), InternalError);
}

TEST(Dataset, JoinsFiles) {
  TemporaryDirectory dir;
  const Dataset data({dir.write("a", "{\"i\":0}\n{\"i\":1}\n"), dir.write("b", "\n{\"i\":2}\n")});
  ASSERT_EQ(data.size(), 3);
  for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(data.json(i)["i"], i);
  EXPECT_EQ(data.location(2), dir.file("b") + ": line 2");
  EXPECT_EQ(data.text(1), "{\"i\":1}");
  EXPECT_THROW(data.text(3), InternalError);
  EXPECT_NE(data.fingerprint(), Dataset({dir.file("b"), dir.file("a")}).fingerprint());
  EXPECT_EQ(data.fingerprint(), Dataset({dir.file("a"), dir.file("b")}).fingerprint());
}

TEST(Dataset, RefusesEmptyAndMalformedFilesAtOpening) {
  TemporaryDirectory dir;
  EXPECT_THAT(message_of<FileError>([&] { Dataset d({dir.write("a", "\n")}); }), HasSubstr("dataset is empty"));
  EXPECT_THAT(message_of<FileError>([&] { Dataset d({dir.write("a", "{}\n[]\n")}); }),
              HasSubstr("line 2: the row is not a JSON object"));
  EXPECT_THAT(message_of<FileError>([&] { Dataset d({dir.write("a", "{}\n{\n")}); }), HasSubstr("line 2"));
  EXPECT_THROW(Dataset({dir.file("none")}), FileError);
  EXPECT_THROW(Dataset(std::vector<std::string>{}), UsageError);
}

TEST(Dataset, ShuffleIsAPermutationFixedBySeedAndEpoch) {
  for (const int64_t size : {1, 2, 7, 1000}) {
    const auto rows = shuffled_rows(size, 5, 0);
    EXPECT_EQ(std::set<int64_t>(rows.begin(), rows.end()).size(), static_cast<size_t>(size));
    EXPECT_EQ(*std::max_element(rows.begin(), rows.end()), size - 1);
    EXPECT_EQ(rows, shuffled_rows(size, 5, 0));
  }
  EXPECT_NE(shuffled_rows(100, 5, 0), shuffled_rows(100, 5, 1));
  EXPECT_NE(shuffled_rows(100, 5, 0), shuffled_rows(100, 6, 0));
  // Every row is about equally likely to come first: 6000 draws over 6 rows, 5 sigma = 145.
  std::vector<int64_t> first(6, 0);
  for (int64_t epoch = 0; epoch < 6000; ++epoch) ++first[static_cast<size_t>(shuffled_rows(6, 1, epoch)[0])];
  for (const int64_t count : first) EXPECT_NEAR(static_cast<double>(count), 1000, 145);
}

TEST(DatasetSampler, GoesOnFromAnyCursor) {
  for (const bool shuffle : {false, true}) {
    DatasetSampler whole(5, 9, shuffle);
    const auto rows = whole.next_batch(17);
    for (int64_t cut = 0; cut <= 17; ++cut) {
      DatasetSampler before(5, 9, shuffle);
      auto joined = before.next_batch(cut);
      DatasetSampler after(5, 9, shuffle, before.cursor());
      for (const int64_t row : after.next_batch(17 - cut)) joined.push_back(row);
      EXPECT_EQ(joined, rows) << cut;
      EXPECT_EQ(after.cursor(), whole.cursor());
    }
    EXPECT_EQ(std::set<int64_t>(rows.begin() + 5, rows.begin() + 10).size(), 5u);
  }
  DatasetSampler plain(3, 0, false);
  EXPECT_THAT(plain.next_batch(4), ElementsAre(0, 1, 2, 0));
  EXPECT_EQ(plain.cursor(), (DatasetCursor{1, 1}));
  EXPECT_THROW(plain.seek({0, 4}), ValueError);
  EXPECT_THROW(plain.seek({-1, 0}), ValueError);
}

}  // namespace
}  // namespace weft
