#include "weft/io/trajectory.h"

#include <gmock/gmock.h>
#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "weft/base/random.h"
#include "weft/io/base64.h"
#include "weft/io/test_files.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// k different experts for an entry, by counter.
std::vector<int32_t> some_experts(int64_t counter, int k, int num_experts) {
  const CounterRng rng(7);
  std::vector<int32_t> experts;
  for (int64_t i = 0; static_cast<int>(experts.size()) < k; ++i) {
    const auto e = static_cast<int32_t>(rng.below(static_cast<uint64_t>(counter * 1000 + i), static_cast<uint64_t>(num_experts)));
    if (std::find(experts.begin(), experts.end(), e) == experts.end()) experts.push_back(e);
  }
  return experts;
}

RoutingTrace full_trace(int64_t rows, std::vector<int32_t> layers, int k, int num_experts) {
  RoutingTrace trace(rows, std::move(layers), k, num_experts);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t l = 0; l < trace.num_layers(); ++l) trace.set(r, l, some_experts(r * trace.num_layers() + l, k, num_experts));
  }
  return trace;
}

Trajectory example(bool wide = false) {
  Trajectory t;
  t.dataset_row = 12;
  t.sample_index = 3;
  t.seed = 0xfedcba9876543210u;
  t.prompt_ids = {5, 6, 7};
  t.response_ids = {8, 2};
  t.rollout_log_probs = {-0.1f, -std::numeric_limits<float>::denorm_min()};
  t.response_mask = {1, 0};
  t.weight_versions = {{3, 0, 1}, {4, 1, 2}};
  t.routing = full_trace(4, {0, 2}, 2, wide ? 300 : 6);
  t.kept = {KeptSet{}, KeptSet::from_ids({2, 90}, 97)};
  t.finish_reason = "stop";
  t.temperature = 0.6;
  t.rewards = {{"format", 0.1}, {"my.py:fn", 1.0 / 3}};
  t.reward = 0.4;
  t.reward_valid = true;
  return t;
}

TEST(RoutingTrace, HoldsWhatWasSet) {
  for (const int num_experts : {6, 256, 257, 65536}) {
    RoutingTrace trace(3, {1, 4}, 2, num_experts);
    EXPECT_EQ(trace.is_wide(), num_experts > 256);
    EXPECT_FALSE(trace.is_valid(2, 1));
    trace.set(2, 1, std::vector<int32_t>{num_experts - 1, 0});
    EXPECT_THAT(trace.get(2, 1), ElementsAre(num_experts - 1, 0));
    EXPECT_FALSE(trace.is_valid(2, 0));
    EXPECT_EQ(trace.raw_ids().size(), 3u * 2 * 2 * (num_experts > 256 ? 2 : 1));
    EXPECT_THROW(trace.get(2, 0), InternalError);
    EXPECT_THROW(trace.set(0, 0, std::vector<int32_t>{1, 1}), InternalError);
    EXPECT_THROW(trace.set(0, 0, std::vector<int32_t>{num_experts, 1}), InternalError);
  }
  EXPECT_EQ(RoutingTrace(1, {1, 4}, 1, 2).index_of_layer(4), 1);
  EXPECT_EQ(RoutingTrace(1, {1, 4}, 1, 2).index_of_layer(2), std::nullopt);
  EXPECT_THROW(RoutingTrace(1, {4, 1}, 1, 2), InternalError);
}

TEST(RoutingTrace, SlicesAndJoinsAreExact) {
  const RoutingTrace whole = full_trace(11, {0, 1, 5}, 2, 6);
  for (int64_t cut = 0; cut <= 11; ++cut) {
    RoutingTrace joined = whole.rows(0, cut);
    joined.append(whole.rows(cut, 11));
    EXPECT_EQ(joined, whole) << cut;
    RoutingTrace grown = whole;
    grown.resize_rows(cut);
    EXPECT_EQ(grown, whole.rows(0, cut)) << cut;
    grown.resize_rows(11);
    if (cut < 11) {
      EXPECT_FALSE(grown.is_valid(cut, 0));
    }
  }
  std::vector<int32_t> rows(6);
  whole.copy_rows(2, 4, rows);
  for (int64_t r = 0; r < 3; ++r) {
    EXPECT_THAT(whole.get(4 + r, 2), ElementsAre(rows[static_cast<size_t>(r * 2)], rows[static_cast<size_t>(r * 2 + 1)]));
  }
  RoutingTrace twice = whole;
  twice.append(twice);
  EXPECT_EQ(twice.rows(11, 22), whole);
}

TEST(RoutingTrace, ValidateFailsClosed) {
  const RoutingTrace good = full_trace(4, {0, 2}, 2, 6);
  const std::vector<int32_t> layers = {0, 2}, others = {0, 1};
  good.validate(4, layers, "t");
  const auto error = [&](const RoutingTrace& trace, int64_t rows, std::span<const int32_t> expected) {
    return message_of<ValueError>([&] { trace.validate(rows, expected, "row 7, sample 1"); });
  };
  EXPECT_THAT(error(good, 5, layers), HasSubstr("trajectory row 7, sample 1: has 4 rows, expected 5"));
  EXPECT_THAT(error(good, 4, others), HasSubstr("has layers [0, 2], the model's MoE layers are [0, 1]"));
  RoutingTrace hole = good;
  hole.resize_rows(3);
  hole.resize_rows(4);
  hole.set(3, 0, std::vector<int32_t>{1, 2});
  EXPECT_THAT(error(hole, 4, layers), HasSubstr("row 3, layer 2: missing"));
}

TEST(RoutingTrace, CrossesNpyAndBase64) {
  for (const int num_experts : {6, 300}) {
    const RoutingTrace trace = full_trace(5, {1, 2}, 2, num_experts);
    const std::string text = base64_encode(write_npy(trace.to_npy()));
    const NpyArray array = read_npy(base64_decode(text));
    EXPECT_THAT(array.shape, ElementsAre(5, 2, 2));
    EXPECT_EQ(RoutingTrace::from_npy(array, {1, 2}, 4, num_experts, "t"), trace);
  }
}

template <typename T>
NpyArray foreign(NpyType type, std::vector<int64_t> shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {type, std::move(shape), {bytes.begin(), bytes.end()}};
}

TEST(RoutingTrace, TakesForeignTensorsOfAllLayers) {
  // 2 rows, 3 layers of which 0 and 2 are MoE, k = 2; the dense layer holds zeros.
  const std::vector<int32_t> values = {1, 0, 0, 0, 2, 3, 4, 5, 0, 0, 0, 1};
  const RoutingTrace expected = RoutingTrace::from_npy(foreign<int32_t>(NpyType::kI32, {2, 3, 2}, values), {0, 2}, 3, 6, "t");
  EXPECT_THAT(expected.get(0, 0), ElementsAre(1, 0));
  EXPECT_THAT(expected.get(0, 1), ElementsAre(2, 3));
  EXPECT_THAT(expected.get(1, 1), ElementsAre(0, 1));
  const std::vector<int16_t> narrow(values.begin(), values.end());
  EXPECT_EQ(RoutingTrace::from_npy(foreign(NpyType::kI16, {2, 3, 2}, narrow), {0, 2}, 3, 6, "t"), expected);
  const std::vector<uint8_t> only = {1, 0, 2, 3, 4, 5, 0, 1};
  EXPECT_EQ(RoutingTrace::from_npy(foreign(NpyType::kU8, {2, 2, 2}, only), {0, 2}, 3, 6, "t"), expected);
}

TEST(RoutingTrace, RefusesBadForeignTensors) {
  const auto error = [](std::vector<int64_t> shape, const std::vector<int32_t>& values) {
    return message_of<ValueError>([&] {
      RoutingTrace::from_npy(foreign(NpyType::kI32, shape, values), {0, 2}, 3, 6, "row 1, sample 2");
    });
  };
  EXPECT_THAT(error({1, 2, 2}, {1, 2, 3, 6}), HasSubstr("row 1, sample 2: row 0, layer 2: expert 6 is not one of 6"));
  EXPECT_THAT(error({1, 2, 2}, {1, 2, 3, 3}), HasSubstr("layer 2: expert 3 appears twice in [3, 3]"));
  EXPECT_THAT(error({1, 2, 2}, {-1, -1, 3, 4}), HasSubstr("row 0, layer 0: missing"));
  EXPECT_THAT(error({1, 2, 2}, {-2, 1, 3, 4}), HasSubstr("is not one of 6"));
  EXPECT_THAT(error({2, 2, 2}, {1, 2, 0, 0, 1, 2, 0, 0}), HasSubstr("layer 2 holds zeros only"));
  EXPECT_THAT(error({1, 4, 1}, {1, 2, 3, 4}), HasSubstr("has 4 layers; the model has 2 MoE layers of 3"));
  EXPECT_THAT(error({2, 2}, {1, 2, 3, 4}), HasSubstr("2 dims"));
  EXPECT_THAT(error({1, 2, 0}, {}), HasSubstr("0 experts"));
  // With k = 1 every token may well take expert 0.
  EXPECT_EQ(RoutingTrace::from_npy(foreign<int32_t>(NpyType::kI32, {2, 2, 1}, {0, 1, 0, 1}), {0, 2}, 3, 6, "t").top_k(), 1);
}

TEST(KeptSet, PicksTheSmallerForm) {
  const KeptSet few = KeptSet::from_ids({3, 64, 96}, 97);
  EXPECT_EQ(few.raw_ids().size(), 3u);
  std::vector<int32_t> many;
  for (int32_t i = 0; i < 90; ++i) many.push_back(i);
  const KeptSet bitmap = KeptSet::from_ids(many, 97);
  EXPECT_EQ(bitmap.raw_words().size(), 2u);
  EXPECT_EQ(bitmap.ids(97), many);
  EXPECT_TRUE(bitmap.contains(89));
  for (const int32_t id : {-1, 90, 128, 1000}) EXPECT_FALSE(bitmap.contains(id)) << id;
  EXPECT_TRUE(few.contains(64));
  EXPECT_FALSE(few.contains(65));
  EXPECT_EQ(KeptSet::from_bitmap({1u << 3, 1 | uint64_t{1} << 32}, 97), few);
  EXPECT_EQ(KeptSet::from_bitmap(bitmap.raw_words(), 97), bitmap);
  many.resize(97);
  for (int32_t i = 0; i < 97; ++i) many[static_cast<size_t>(i)] = i;
  EXPECT_TRUE(KeptSet::from_ids(many, 97).is_all());
  EXPECT_EQ(KeptSet{}.ids(97), many);
}

TEST(KeptSet, RefusesWhatIsNoSet) {
  EXPECT_THROW(KeptSet::from_ids({}, 97), ValueError);
  EXPECT_THROW(KeptSet::from_ids({3, 3}, 97), ValueError);
  EXPECT_THROW(KeptSet::from_ids({-1}, 97), ValueError);
  EXPECT_THROW(KeptSet::from_ids({97}, 97), ValueError);
  EXPECT_THROW(KeptSet::from_bitmap({0, 0}, 97), ValueError);
  EXPECT_THROW(KeptSet::from_bitmap({1}, 97), ValueError);
  EXPECT_THROW(KeptSet::from_bitmap({0, uint64_t{1} << 33}, 97), ValueError);
}

TEST(Trajectory, RoundTripsExactly) {
  TemporaryDirectory dir;
  std::vector<Trajectory> trajectories = {example(), example(true), example()};
  trajectories[2].routing.reset();
  trajectories[2].kept.clear();
  trajectories[2].rewards.clear();
  trajectories[2].reward_valid = false;
  trajectories[2].kept = {KeptSet::from_bitmap({~uint64_t{1}, 3}, 97), KeptSet{}};
  save_trajectories(dir.file("t"), trajectories);
  EXPECT_EQ(load_trajectories(dir.file("t")), trajectories);
  EXPECT_TRUE(deserialize_trajectories(serialize_trajectories({}), "x").empty());
  // A NaN keeps its payload.
  trajectories[0].reward = std::bit_cast<double>(uint64_t{0x7ff8000000001234});
  const auto bytes = serialize_trajectories(trajectories);
  EXPECT_EQ(serialize_trajectories(deserialize_trajectories(bytes, "x")), bytes);
}

TEST(Trajectory, RefusesPartsThatDoNotFit) {
  const auto error = [](auto&& change) {
    Trajectory t = example();
    change(t);
    return message_of<ValueError>([&] { validate_trajectory(t); });
  };
  validate_trajectory(example());
  EXPECT_THAT(error([](Trajectory& t) { t.rollout_log_probs.pop_back(); }), HasSubstr("(row 12, sample 3): 1 log-probs for 2"));
  EXPECT_THAT(error([](Trajectory& t) { t.response_mask.pop_back(); }), HasSubstr("1 mask entries"));
  EXPECT_THAT(error([](Trajectory& t) { t.response_mask[0] = 2; }), HasSubstr("mask entry 2"));
  EXPECT_THAT(error([](Trajectory& t) { t.kept.pop_back(); }), HasSubstr("1 kept sets"));
  EXPECT_THAT(error([](Trajectory& t) { t.routing->resize_rows(5); }), HasSubstr("5 routing rows for 5 tokens"));
  EXPECT_THAT(error([](Trajectory& t) { t.weight_versions[1].start = 0; }), HasSubstr("weight version 4 spans [0, 2)"));
  EXPECT_THAT(error([](Trajectory& t) { t.weight_versions[1].end = 3; }), HasSubstr("weight version 4"));
  EXPECT_THAT(error([](Trajectory& t) { t.finish_reason = "eos"; }), HasSubstr("\"eos\""));
  EXPECT_THAT(error([](Trajectory& t) { t.prompt_ids.clear(); }), HasSubstr("prompt is empty"));
  EXPECT_THAT(error([](Trajectory& t) { t.response_ids[0] = -1; }), HasSubstr("token id -1"));
}

TEST(TrajectoryFile, RefusesDamageAnywhere) {
  const auto good = serialize_trajectories(std::vector<Trajectory>{example()});
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_THROW(deserialize_trajectories(std::span(good).first(n), "x"), FileError) << n;
    auto flipped = good;
    flipped[n] ^= std::byte{16};
    EXPECT_THROW(deserialize_trajectories(flipped, "x"), FileError) << n;
  }
}

TEST(TrajectoryFile, SurvivesHostileContentWithARightChecksum) {
  const auto good = serialize_trajectories(std::vector<Trajectory>{example()});
  const size_t body = good.size() - 8;
  int refused = 0;
  for (size_t n = 8; n < body; ++n) {
    for (const std::byte value : {std::byte{0}, std::byte{0x7f}, std::byte{0xff}}) {
      auto bad = good;
      bad[n] = value;
      const uint64_t hash = XXH3_64bits(bad.data(), body);
      std::memcpy(bad.data() + body, &hash, 8);
      try {
        // Content that is still consistent is read as what it says.
        EXPECT_EQ(serialize_trajectories(deserialize_trajectories(bad, "x")), bad) << n;
      } catch (const FileError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 200);
}

TEST(Npy, MatchesNumpyBytes) {
  // numpy.save of numpy.arange(6, dtype=numpy.uint16).reshape(2, 3)
  const std::vector<uint16_t> values = {0, 1, 2, 3, 4, 5};
  std::string expected = "\x93NUMPY";
  expected += std::string("\1\0\x76\0", 4) + "{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }";
  expected.resize(127, ' ');
  expected += '\n';
  expected.append(reinterpret_cast<const char*>(values.data()), 12);
  const NpyArray array = foreign(NpyType::kU16, {2, 3}, values);
  const auto bytes = write_npy(array);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), expected);
  EXPECT_EQ(read_npy(bytes), array);
  EXPECT_EQ(array.integer(4), 4);
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{}, {1}, {0, 5}, {1, 1, 1, 1}}) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    for (const NpyType type : {NpyType::kU8, NpyType::kU16, NpyType::kI16, NpyType::kI32, NpyType::kI64, NpyType::kF32}) {
      const NpyArray small{type, shape, std::vector<std::byte>(static_cast<size_t>(count * npy_type_bytes(type)))};
      EXPECT_EQ(read_npy(write_npy(small)), small);
    }
  }
}

TEST(Npy, RefusesHostileBytes) {
  const auto parse = [](const std::string& header, size_t data) {
    std::string text = "\x93NUMPY";
    text += {'\1', '\0', static_cast<char>(header.size()), '\0'};
    text += header + std::string(data, '\0');
    return read_npy(std::as_bytes(std::span(text)));
  };
  EXPECT_EQ(parse("{'shape':(2,),'descr':'<i4','fortran_order':False}\n", 8).num_elements(), 2);
  for (const char* header :
       {"", "{", "{}", "{'descr': '<i4'}", "{'descr':'<f8','fortran_order':False,'shape':(1,)}",
        "{'descr':'>i4','fortran_order':False,'shape':(2,)}", "{'descr':'<i4','fortran_order':True,'shape':(2,)}",
        "{'descr':'<i4','fortran_order':False,'shape':(-2,)}", "{'descr':'<i4','fortran_order':False,'shape':(3,)}",
        "{'descr':'<i4','fortran_order':False,'shape':(99999999999999999999,)}",
        "{'descr':'<i4','fortran_order':False,'shape':(4294967296,4294967296,)}",
        "{'descr':'<i4','fortran_order':False,'shape':(2,),'x':'y'}", "{'descr':'<i4','descr':'<i4','shape':(2,)}",
        "{'descr':'<i4','fortran_order':False,'shape':(2,)} x", "{'descr':'<i4','fortran_order':False,'shape':(2"}) {
    EXPECT_THROW(parse(header, 8), ValueError) << header;
  }
  const auto good = write_npy({NpyType::kU8, {3}, std::vector<std::byte>(3)});
  for (size_t n = 0; n < good.size(); ++n) EXPECT_THROW(read_npy(std::span(good).first(n)), ValueError) << n;
}

TEST(Base64, MatchesTheStandard) {
  const std::pair<const char*, const char*> cases[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"},
                                                       {"\xff\xfe\xfd", "//79"}};
  for (const auto& [plain, coded] : cases) {
    const auto bytes = std::as_bytes(std::span(plain, std::strlen(plain)));
    EXPECT_EQ(base64_encode(bytes), coded);
    const auto decoded = base64_decode(coded);
    EXPECT_TRUE(std::equal(decoded.begin(), decoded.end(), bytes.begin(), bytes.end())) << plain;
  }
  for (const char* bad :
       {"Z", "Zg", "Zg=", "Zg==Zg==", "Z===", "====", "Zh==", "Zm9=", "Zm 9", "Zm9_", "Zg=a", "\xff\xff\xff\xff"}) {
    EXPECT_THROW(base64_decode(bad), ValueError) << bad;
  }
}

}  // namespace
}  // namespace weft
