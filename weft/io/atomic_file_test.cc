#include "weft/io/atomic_file.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "weft/io/json_file.h"
#include "weft/io/mapped_file.h"
#include "weft/io/test_files.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

// While alive, files may not grow beyond `bytes`: the same failure path as a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    old_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    ::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  sighandler_t old_handler_;
};

TEST(AtomicFile, AppearsOnlyAtCommit) {
  TemporaryDirectory dir;
  const std::string path = dir.write("x", "old");
  {
    AtomicFile file(path);
    file.write("new ");
    file.write(std::string(3 << 20, 'z'));
    EXPECT_EQ(read_text_file(path), "old");
    file.commit();
    EXPECT_EQ(file.bytes_written(), 4 + (3 << 20));
  }
  EXPECT_EQ(read_text_file(path), "new " + std::string(3 << 20, 'z'));
  EXPECT_EQ(dir.num_entries(), 1);
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  TemporaryDirectory dir;
  { AtomicFile(dir.file("x")).write("abc"); }
  EXPECT_EQ(dir.num_entries(), 0);
}

TEST(AtomicFile, KeepsOldFileWhenDiskIsFull) {
  TemporaryDirectory dir;
  const std::string path = dir.write("x", "old");
  const FileSizeLimit limit(1 << 20);
  AtomicFile file(path);
  const std::string message = message_of<SystemError>([&] { file.write(std::string(3 << 20, 'z')); });
  EXPECT_THAT(message, HasSubstr(path));
  EXPECT_THAT(message, HasSubstr("ulimit -f"));
  EXPECT_EQ(read_text_file(path), "old");
  EXPECT_EQ(dir.num_entries(), 1);
}

TEST(AtomicFile, NamesMissingDirectory) {
  TemporaryDirectory dir;
  EXPECT_THAT(message_of<SystemError>([&] { AtomicFile file(dir.file("none/x")); }), HasSubstr("create the directory first"));
}

TEST(AtomicDirectory, AppearsOnlyAtCommit) {
  TemporaryDirectory dir;
  {
    AtomicDirectory out(dir.file("a/b/"));
    fs::create_directory(out.temporary_path() + "/sub");
    write_file_atomically(out.temporary_path() + "/sub/x", "hello");
    EXPECT_FALSE(fs::exists(dir.file("a/b")));
    out.commit();
  }
  EXPECT_EQ(read_text_file(dir.file("a/b/sub/x")), "hello");
  { AtomicDirectory out(dir.file("a/c")); }
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.file("a")), fs::directory_iterator()), 1);
}

TEST(AtomicDirectory, ReplacesOnlyWhenAsked) {
  TemporaryDirectory dir;
  fs::create_directory(dir.file("a"));
  dir.write("a/old", "1");
  EXPECT_THAT(message_of<SystemError>([&] { AtomicDirectory out(dir.file("a")); }), HasSubstr("already exists"));
  AtomicDirectory out(dir.file("a"), /*replace=*/true);
  write_file_atomically(out.temporary_path() + "/new", "2");
  EXPECT_TRUE(fs::exists(dir.file("a/old")));
  out.commit();
  EXPECT_FALSE(fs::exists(dir.file("a/old")));
  EXPECT_EQ(read_text_file(dir.file("a/new")), "2");
  EXPECT_EQ(dir.num_entries(), 1);
}

TEST(MappedFile, MapsBytesAndSurvivesMoveAndAdvice) {
  TemporaryDirectory dir;
  MappedFile file(dir.write("x", std::string(10000, 'a') + "b"));
  const auto bytes = file.bytes();
  MappedFile moved(std::move(file));
  EXPECT_EQ(moved.bytes().data(), bytes.data());
  for (const auto advice : {MappedFile::Advice::kSequential, MappedFile::Advice::kRandom, MappedFile::Advice::kWillNeed,
                            MappedFile::Advice::kDontNeed}) {
    moved.advise(advice, 5000, 10001);
    EXPECT_EQ(static_cast<char>(bytes[10000]), 'b');
  }
  EXPECT_EQ(MappedFile(dir.write("empty", "")).size(), 0);
  EXPECT_THROW(MappedFile{dir.file("none")}, FileError);
  EXPECT_THROW(MappedFile{dir.path()}, FileError);
}

TEST(ReadTextFile, RefusesDirectoriesAndOversize) {
  TemporaryDirectory dir;
  EXPECT_THROW(read_text_file(dir.path()), FileError);
  EXPECT_THAT(message_of<FileError>([&] { read_text_file(dir.write("x", "12345"), 4); }), HasSubstr("limit of 4"));
}

TEST(Json, NamesPathAndByteOfSyntaxErrors) {
  const std::string message = message_of<FileError>([] { parse_json("{\"a\": 1, oops}", "f.json"); });
  EXPECT_THAT(message, HasSubstr("f.json: byte 10"));
  EXPECT_THAT(message_of<FileError>([] { parse_json("{} {}", "f.json", "line 3"); }), HasSubstr("line 3, byte 4"));
}

TEST(Json, RefusesWhatIsNotPlainJson) {
  EXPECT_THAT(message_of<FileError>([] { parse_json(R"({"a": {"b": 1, "b": 2}})", "f"); }), HasSubstr("duplicate key \"b\""));
  EXPECT_EQ(parse_json(R"([{"a": {"a": 1}}, {"a": 2}])", "f").size(), 2u);
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(message_of<FileError>([&] { parse_json(deep, "f"); }), HasSubstr("deeper than 64"));
  EXPECT_EQ(parse_json(std::string(64, '[') + std::string(64, ']'), "f").size(), 1u);
  EXPECT_THAT(message_of<FileError>([] { parse_json(std::string_view("{}\0x", 4), "f"); }), HasSubstr("NUL byte at byte 2"));
  for (const char* text : {"", "nul", "[1,]", "\"\xff\"", "[1e999]", "NaN", "{\"a\":1", "'a'", "\"\\ud800\""}) {
    EXPECT_THROW(parse_json(text, "f"), FileError) << text;
  }
}

TEST(Json, OrderedKeepsKeyOrder) { EXPECT_EQ(parse_ordered_json(R"({"z":1,"a":2})", "f").dump(), R"({"z":1,"a":2})"); }

TEST(Utf8, FindsFirstBadByte) {
  for (const char* good : {"", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_EQ(find_invalid_utf8(good), std::nullopt) << good;
  }
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80",
                          "\xf5\x80\x80\x80", "\xc3", "\xe2\x82", "\xff"}) {
    EXPECT_EQ(find_invalid_utf8(std::string("ab") + bad), 2) << bad;
  }
}

}  // namespace
}  // namespace weft
