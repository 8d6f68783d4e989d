#include "weft/io/safetensors.h"

#include <gmock/gmock.h>

#include <cstring>
#include <numeric>

#include "weft/io/atomic_file.h"
#include "weft/io/checkpoint_files.h"
#include "weft/io/test_files.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// A file with this header text and this many data bytes.
std::string raw_file(const std::string& header, int64_t data_bytes, int64_t length_offset = 0) {
  const uint64_t length = header.size() + static_cast<uint64_t>(length_offset);
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + header + std::string(static_cast<size_t>(data_bytes), '\1');
}

std::string error_of(const std::string& header, int64_t data_bytes, int64_t length_offset = 0) {
  TemporaryDirectory dir;
  const std::string path = dir.write("m.safetensors", raw_file(header, data_bytes, length_offset));
  const std::string message = message_of<FileError>([&] { SafetensorsFile file(path); });
  EXPECT_THAT(message, HasSubstr(path));
  return message;
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"w":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

std::vector<TensorToSave> to_save(const Checkpoint& checkpoint) {
  std::vector<TensorToSave> tensors;
  for (const TensorInfo& info : checkpoint.tensors()) {
    tensors.push_back(TensorToSave::from_bytes(info.name, info.dtype, info.shape, checkpoint.bytes(info.name)));
  }
  return tensors;
}

void expect_equal(const Checkpoint& a, const Checkpoint& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const TensorInfo& info : a.tensors()) {
    const TensorInfo& other = b.tensor(info.name);
    EXPECT_EQ(info.shape, other.shape) << info.name;
    EXPECT_EQ(info.dtype, other.dtype) << info.name;
    const auto x = a.bytes(info.name), y = b.bytes(info.name);
    ASSERT_EQ(x.size(), y.size());
    EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size()), 0) << info.name;
  }
}

TEST(Safetensors, ReadsPytorchFile) {
  const SafetensorsFile file(test_data("models/llama/model.safetensors"));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const TensorInfo& info = file.tensor("model.embed_tokens.weight");
  EXPECT_EQ(info.dtype, DType::kF32);
  EXPECT_THAT(info.shape, ElementsAre(97, 32));
  EXPECT_EQ(info.num_elements(), 97 * 32);
  EXPECT_EQ(static_cast<int64_t>(file.bytes(info.name).size()), 97 * 32 * 4);
  EXPECT_EQ(file.find("nope"), nullptr);
  EXPECT_THAT(message_of<FileError>([&] { file.bytes("nope"); }), HasSubstr("\"nope\""));
  const SafetensorsFile golden(test_data("models/llama/golden.safetensors"));
  EXPECT_EQ(golden.tensor("input_ids").dtype, DType::kI64);
  EXPECT_TRUE(golden.tensor("loss").shape.empty());
  EXPECT_EQ(golden.bytes("loss").size(), 4u);
}

TEST(Safetensors, WritesWhatItReads) {
  TemporaryDirectory dir;
  for (const char* model : {"llama", "llama3_rope", "qwen2", "qwen3", "qwen3_yarn", "qwen3_moe", "qwen3_moe_oe", "mixtral"}) {
    const Checkpoint source(test_data(std::string("models/") + model));
    ASSERT_GT(source.tensors().size(), 10u);
    const std::string out = dir.file(model);
    fs::create_directory(out);
    EXPECT_THAT(save_sharded_safetensors(out, to_save(source), int64_t{1} << 40), ElementsAre("model.safetensors"));
    expect_equal(source, Checkpoint(out));
    // The reference writer puts the same tensors in the same order, so a single file comes back byte for byte.
    const std::string original = source.dir() + "/model.safetensors";
    if (fs::exists(original)) {
      EXPECT_EQ(read_text_file(original), read_text_file(out + "/model.safetensors")) << model;
    }
  }
}

TEST(Safetensors, ShardsBySizeAndReadsThemBack) {
  TemporaryDirectory dir;
  const Checkpoint source(test_data("models/qwen3_moe"));
  const auto files = save_sharded_safetensors(dir.path(), to_save(source), 50000);
  ASSERT_GT(files.size(), 4u);
  EXPECT_EQ(files.back(), "model.safetensors.index.json");
  EXPECT_EQ(files[0], fmt::format("model-00001-of-{:05}.safetensors", files.size() - 1));
  const Checkpoint copy(dir.path());
  expect_equal(source, copy);
  EXPECT_THAT(read_text_file(dir.file(files.back())), HasSubstr(fmt::format("\"total_size\": {}", source.total_bytes())));
  for (const SafetensorsFile& file : copy.files()) {
    int64_t bytes = 0;
    for (const TensorInfo& info : file.tensors()) bytes += info.num_bytes();
    EXPECT_LE(bytes, 50000);
  }
  // One tensor larger than the limit gets a shard of its own.
  TemporaryDirectory tiny;
  EXPECT_EQ(save_sharded_safetensors(tiny.path(), to_save(source), 1).size(), source.tensors().size() + 1);
  expect_equal(source, Checkpoint(tiny.path()));
}

TEST(Safetensors, KeepsGivenOrderAndAlignsWidths) {
  TemporaryDirectory dir;
  const std::string data = "0123456789abcdefghijklmnop";
  const auto bytes = std::as_bytes(std::span(data));
  const std::vector<TensorToSave> plain = {TensorToSave::from_bytes("z", DType::kF32, {2}, bytes.subspan(0, 8)),
                                           TensorToSave::from_bytes("a \"q\" \xc3\xa9", DType::kF32, {1}, bytes.subspan(8, 4)),
                                           TensorToSave::from_bytes("none", DType::kBF16, {0, 3}, {})};
  save_safetensors(dir.file("x"), plain);
  const SafetensorsFile x(dir.file("x"));
  ASSERT_EQ(x.tensors().size(), 3u);
  EXPECT_EQ(x.tensors()[0].name, "z");
  EXPECT_EQ(x.tensors()[0].begin % 8, 0);
  EXPECT_EQ(static_cast<char>(x.bytes(plain[1].name)[0]), '8');
  EXPECT_EQ(x.bytes("none").size(), 0u);
  EXPECT_EQ(x.metadata(), kPytorchMetadata);

  save_safetensors(dir.file("y"), {TensorToSave::from_bytes("flag", DType::kBool, {1}, bytes.subspan(0, 1)),
                                   TensorToSave::from_bytes("half", DType::kF16, {3}, bytes.subspan(1, 6)),
                                   TensorToSave::from_bytes("wide", DType::kI64, {1}, bytes.subspan(7, 8))});
  const SafetensorsFile y(dir.file("y"));
  for (const TensorInfo& info : y.tensors()) EXPECT_EQ(info.begin % dtype_bytes(info.dtype), 0) << info.name;
  EXPECT_EQ(static_cast<char>(y.bytes("flag")[0]), '0');
  EXPECT_EQ(static_cast<char>(y.bytes("wide")[0]), '7');
}

TEST(Safetensors, StreamsPiecesAndChecksTheirSum) {
  TemporaryDirectory dir;
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.0f);
  const auto pieces = [&](size_t count) {
    return [&values, count](const TensorToSave::Write& write) {
      for (size_t i = 0; i < count; ++i) write(std::as_bytes(std::span(values).subspan(i * 10, 10)));
    };
  };
  save_safetensors(dir.file("x"), {{"w", DType::kF32, {1000}, pieces(100)}});
  EXPECT_EQ(std::memcmp(SafetensorsFile(dir.file("x")).bytes("w").data(), values.data(), 4000), 0);
  EXPECT_THROW(save_safetensors(dir.file("y"), {{"w", DType::kF32, {1000}, pieces(99)}}), InternalError);
  EXPECT_EQ(dir.num_entries(), 1);
}

TEST(Safetensors, RefusesLyingLengths) {
  const std::string good = one("F32", "[2]", "[0,8]");
  EXPECT_THAT(error_of(good, 8, 1000), HasSubstr("header length"));
  EXPECT_THAT(error_of(good, 8, -3), HasSubstr("malformed JSON"));
  EXPECT_THAT(error_of(good, 7), HasSubstr("do not fit the 7 data bytes"));
  EXPECT_THAT(error_of(good, 9), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(error_of(good, 8, int64_t{-1} << 40), HasSubstr("header length"));
  TemporaryDirectory dir;
  EXPECT_THAT(message_of<FileError>([&] { SafetensorsFile file(dir.write("m", "1234567")); }), HasSubstr("7 bytes are too few"));
}

TEST(Safetensors, RefusesBadEntries) {
  const struct {
    std::string header;
    const char* expected;
  } cases[] = {
      {one("F32", "[3]", "[0,8]"), "needs 12 bytes but data offsets [0, 8) hold 8"},
      {one("F32", "[2]", "[8,0]"), "[8, 0)"},
      {one("F32", "[2]", "[-8,0]"), "data offset -8"},
      {one("F32", "[2]", "[0,8.0]"), "data offset 8.0"},
      {one("F32", "[2]", "[0,18446744073709551615]"), "18446744073709551615"},
      {one("F32", "[4294967296,4294967296,4]", "[0,8]"), "overflows"},
      {one("F32", "[9223372036854775807,0]", "[0,8]"), "overflows"},
      {one("F32", "[-2]", "[0,8]"), "shape entry -2"},
      {one("F32", "\"2\"", "[0,8]"), "shape is not an array"},
      {one("F32", "[2]", "[0]"), "not a pair"},
      {one("F8_E4M3", "[8]", "[0,8]"), "F8_E4M3"},
      {one("float32", "[2]", "[0,8]"), "float32"},
      {R"({"w":{"dtype":"F32","shape":[2]}})", "lacks \"data_offsets\""},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", "keys besides"},
      {R"({"w":7})", "not an object"},
      {"[]", "not a JSON object"},
      {R"({"__metadata__":{"a":1}})", "not a string"},
      {R"({"__metadata__":[]})", "not an object"},
  };
  for (const auto& c : cases) EXPECT_THAT(error_of(c.header, 8), HasSubstr(c.expected)) << c.header;
}

TEST(Safetensors, RefusesGapsOverlapsAndDuplicates) {
  const auto two = [](const std::string& name, const std::string& a, const std::string& b) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a + R"(},")" + name +
           R"(":{"dtype":"U8","shape":[4],"data_offsets":)" + b + "}}";
  };
  EXPECT_THAT(error_of(two("b", "[0,4]", "[2,6]"), 6), HasSubstr("overlapping the end of \"a\" at 4"));
  EXPECT_THAT(error_of(two("b", "[0,4]", "[0,4]"), 4), HasSubstr("overlapping"));
  EXPECT_THAT(error_of(two("b", "[0,4]", "[6,10]"), 10), HasSubstr("leaving a gap after the end of \"a\""));
  EXPECT_THAT(error_of(two("b", "[2,6]", "[6,10]"), 10), HasSubstr("leaving a gap after the start of the data"));
  EXPECT_THAT(error_of(two("a", "[0,4]", "[4,8]"), 8), HasSubstr("duplicate key \"a\""));
}

TEST(Safetensors, EveryTruncationIsAnError) {
  TemporaryDirectory dir;
  const std::string whole = raw_file(one("F32", "[2]", "[0,8]"), 8);
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::string path = dir.write("m", whole.substr(0, n));
    EXPECT_THROW(SafetensorsFile{path}, FileError) << n;
  }
}

class BrokenCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string data(8, 'x');
    const auto bytes = std::as_bytes(std::span(data));
    save_safetensors(dir_.file("m1.safetensors"), {TensorToSave::from_bytes("a", DType::kF32, {2}, bytes)});
    save_safetensors(dir_.file("m2.safetensors"), {TensorToSave::from_bytes("b", DType::kF32, {2}, bytes)});
  }
  void index(const std::string& map) {
    dir_.write("model.safetensors.index.json", R"({"metadata":{},"weight_map":)" + map + "}");
  }
  std::string error() {
    return message_of<FileError>([&] { Checkpoint checkpoint(dir_.path()); });
  }
  TemporaryDirectory dir_;
};

TEST_F(BrokenCheckpoint, ReadsGoodIndex) {
  index(R"({"a":"m1.safetensors","b":"m2.safetensors"})");
  const Checkpoint checkpoint(dir_.path());
  EXPECT_EQ(checkpoint.tensor("b").file, dir_.file("m2.safetensors"));
  EXPECT_TRUE(checkpoint.contains("a"));
  EXPECT_THAT(message_of<FileError>([&] { checkpoint.bytes("c"); }), HasSubstr("no tensor \"c\" among the 2"));
  checkpoint.advise(MappedFile::Advice::kWillNeed, "a");
}

TEST_F(BrokenCheckpoint, NamesMissingAndExtraParts) {
  EXPECT_THAT(error(), HasSubstr("neither model.safetensors nor"));
  index(R"({"a":"m1.safetensors"})");
  EXPECT_TRUE(Checkpoint(dir_.path()).contains("a"));
  index(R"({"a":"m1.safetensors","b":"m1.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("tensor \"b\" is missing"));
  index(R"({"a":"m1.safetensors","b":"m3.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("m3.safetensors: shard is missing"));
  save_safetensors(dir_.file("m1.safetensors"),
                   {TensorToSave::from_bytes("a", DType::kF32, {0}, {}), TensorToSave::from_bytes("b", DType::kF32, {0}, {})});
  index(R"({"a":"m1.safetensors","b":"m2.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("extra tensor \"b\""));
  index(R"({"a":"m1.safetensors"})");
  EXPECT_THAT(error(), HasSubstr("does not list it"));
  dir_.write("pytorch_model.bin", "");
  fs::remove(dir_.file("model.safetensors.index.json"));
  EXPECT_THAT(error(), HasSubstr("safe_serialization"));
}

TEST_F(BrokenCheckpoint, RefusesShardNamesOutsideTheDirectory) {
  for (const char* name : {"../m1.safetensors", "/etc/m.safetensors", "sub/m1.safetensors", "..", "", ".safetensors", "m1.bin",
                           "a\\\\b.safetensors", "m1\\u0000.safetensors"}) {
    index(std::string(R"({"a":")") + name + "\"}");
    EXPECT_THAT(error(), HasSubstr("is not a plain *.safetensors file name")) << name;
  }
  index(R"({"a":7})");
  EXPECT_THAT(error(), HasSubstr("not a string"));
  index("{}");
  EXPECT_THAT(error(), HasSubstr("empty"));
  index("[]");
  EXPECT_THAT(error(), HasSubstr("no \"weight_map\" object"));
}

}  // namespace
}  // namespace weft
