#include "weft/refit/refit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "weft/base/random.h"
#include "weft/comm/launch.h"
#include "weft/kernels/elementwise.h"
#include "weft/mesh/test_random_layouts.h"
#include "weft/refit/test_elements.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using test::all_ranks;
using test::each_element;
using test::one_thread;
constexpr int kRanks = test::kRefitRanks;

// A tensor that goes from one layout to another.
struct Case {
  std::string name;
  Layout from, to;
  DType source = DType::kF32, wire = DType::kF32;
};

RefitTensor tensor_of(const Case& c) {
  return {c.name, c.from.shape(), c.wire, holder_sets_of(c.from, all_ranks()), holder_sets_of(c.to, all_ranks())};
}

// The value of an element, by its place in the whole tensor; no bf16.
float value_at(int64_t index) { return static_cast<float>(CounterRng(3).normal(static_cast<uint64_t>(index))); }

void put(std::byte* memory, DType dtype, int64_t at, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(memory + 4 * at, &value, 4);
  } else {
    bf16 rounded;
    kernels::convert(&value, &rounded, 1);
    std::memcpy(memory + 2 * at, &rounded, 2);
  }
}

struct Parts {
  std::vector<std::vector<std::byte>> memory;
  std::vector<TensorPart> parts;
  void add(const Layout& layout, int64_t rank, DType dtype) {
    const bool in = layout.mesh().contains(rank);
    memory.emplace_back(static_cast<size_t>(in ? layout.numel(rank) * dtype_bytes(dtype) + 1 : 0), std::byte{0x5a});
    parts.push_back({in ? memory.back().data() : nullptr, dtype, in ? layout.local_shape(rank) : std::vector<int64_t>{}});
  }
};

Parts sources_of(const std::vector<Case>& cases, int64_t rank) {
  Parts out;
  for (const Case& c : cases) {
    out.add(c.from, rank, c.source);
    if (out.parts.back().data)
      each_element(c.from, rank,
                   [&](int64_t here, int64_t there) { put(out.parts.back().data, c.source, here, value_at(there)); });
  }
  return out;
}
Parts destinations_of(const std::vector<Case>& cases, int64_t rank) {
  Parts out;
  for (const Case& c : cases) out.add(c.to, rank, c.wire);
  return out;
}
// As it should be, with the byte behind each part untouched.
Parts expected_of(const std::vector<Case>& cases, int64_t rank) {
  Parts out = destinations_of(cases, rank);
  for (size_t i = 0; i < cases.size(); ++i)
    if (out.parts[i].data)
      each_element(cases[i].to, rank,
                   [&](int64_t here, int64_t there) { put(out.parts[i].data, cases[i].wire, here, value_at(there)); });
  return out;
}

std::vector<Case> random_cases(uint64_t seed) {
  test::Dice dice(seed);
  std::vector<Case> cases;
  for (int64_t i = 0; i < 4; ++i) {
    const std::vector<int64_t> shape = test::random_shape(dice);
    Case c{fmt::format("t{}", i), test::random_layout(dice, shape), test::random_layout(dice, shape)};
    if (i % 2 == 1) c.wire = DType::kBF16;
    if (i == 3) c.source = DType::kBF16;
    cases.push_back(std::move(c));
  }
  return cases;
}

TEST(Refit, EveryRankGetsItsValuesAndNothingElse) {
  std::atomic<int64_t> moved{0}, buckets{0};
  run_ranks(kRanks, one_thread(), [&](Communicator& world) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const std::vector<Case> cases = random_cases(seed);
      std::vector<RefitTensor> tensors;
      int64_t needed = 0;
      for (const Case& c : cases) {
        tensors.push_back(tensor_of(c));
        if (c.to.mesh().contains(world.rank())) needed += missing_bytes(c.from, c.to, world.rank(), dtype_bytes(c.wire));
      }
      const int64_t watermark = seed % 3 == 0 ? 16 : seed % 3 == 1 ? 100 : 1 << 20;
      Refit refit(tensors, world, {watermark, true});
      Parts from = sources_of(cases, world.rank()), to = destinations_of(cases, world.rank());
      world.stats().clear();
      const RefitReport report = refit.run(from.parts, to.parts);
      ASSERT_EQ(to.memory, expected_of(cases, world.rank()).memory) << seed;
      // Counted by the communicator, not by the plan.
      const CommBytes bytes = world.stats().of(OpKind::kExchange, "world", "refit");
      ASSERT_EQ(bytes.received, needed) << seed;
      ASSERT_EQ(report.received, needed);
      ASSERT_EQ(report.sent, bytes.sent);
      ASSERT_LE(report.peak_in_flight, watermark);
      moved += needed > 0;
      buckets += report.buckets;
      // A second time by the same plan.
      to = destinations_of(cases, world.rank());
      refit.run(from.parts, to.parts);
      ASSERT_EQ(to.memory, expected_of(cases, world.rank()).memory) << seed;
    }
  });
  EXPECT_GT(moved, 200);
  EXPECT_GT(buckets, 40 * kRanks * 4);
}

Case simple_case(DType wire = DType::kF32) {
  const DeviceMesh trainer({"fsdp"}, {3}), rollout({"dp", "tp"}, {2, 2});
  return {"model.weight", Layout::replicated({7, 5}, trainer).with_cut({"fsdp", 0}),
          Layout::replicated({7, 5}, rollout).with_cut({"tp", 1}), DType::kF32, wire};
}

// One bit changed at the receiver, in any bucket: all ranks hear of the same tensor and box, and the next refit is whole.
TEST(Refit, AFlippedBitIsNamedEverywhere) {
  const std::vector<Case> cases{simple_case(), simple_case(DType::kBF16)};
  for (const bool verify : {true, false}) {
    std::atomic<int> threw{0}, whole{0};
    run_ranks(4, one_thread(), [&](Communicator& world) {
      std::vector<RefitTensor> tensors;
      for (const Case& c : cases) tensors.push_back(tensor_of(c));
      Parts from = sources_of(cases, world.rank()), to = destinations_of(cases, world.rank());
      bool flip = true;
      RefitOptions options{64, verify};
      options.progress = [&](int64_t done, int64_t of) {
        // What travels last: row 6 of the second tensor, from rank 2.
        if (flip && world.rank() == 3 && done == of) *(to.parts[1].data + 2 * (6 * 2 + 1)) ^= std::byte{16};
      };
      Refit refit(tensors, world, options);
      try {
        refit.run(from.parts, to.parts);
      } catch (const RefitError& e) {
        ++threw;
        EXPECT_THAT(e.what(), HasSubstr("1 of 2 tensors did not arrive as they are in the trainer"));
      }
      flip = false;
      refit.run(from.parts, to.parts);
      whole += to.memory == expected_of(cases, world.rank()).memory;
    });
    EXPECT_EQ(threw, verify ? 4 : 0) << "without verification nobody sees it";
    EXPECT_EQ(whole, 4);
  }
}

TEST(Refit, TheBoxThatChangedIsNamed) {
  const std::vector<Case> cases{simple_case()};
  std::atomic<int> named{0};
  run_ranks(4, one_thread(), [&](Communicator& world) {
    Parts from = sources_of(cases, world.rank()), to = destinations_of(cases, world.rank());
    bool done = false;
    RefitOptions options{1 << 20, true};
    Refit* running = nullptr;
    options.progress = [&](int64_t, int64_t) {
      // The bucket has landed and is hashed next. Rank 3 has columns 3 and 4; row 6 of it is rank 2's.
      if (!std::exchange(done, true) && world.rank() == 3) to.parts[0].data[(6 * 2 + 1) * 4] ^= std::byte{1};
      EXPECT_THROW(running->run(from.parts, to.parts), ValueError) << "a refit during a refit";
    };
    Refit refit({tensor_of(cases[0])}, world, options);
    running = &refit;
    try {
      refit.run(from.parts, to.parts);
    } catch (const RefitError& e) {
      named += std::string(e.what()).find("model.weight: [6:7, 3:5] from rank 2 to rank 3") != std::string::npos;
    }
  });
  EXPECT_EQ(named, 4);
}

TEST(Refit, SharedMemoryIsLeftAndOwnPartsDoNotTravel) {
  const DeviceMesh two({"r"}, {2});
  const std::vector<Case> cases{{"a", Layout::replicated({6}, two), Layout::replicated({6}, two)},
                                {"b", Layout::replicated({6}, two), Layout::replicated({6}, two).with_cut({"r", 0})}};
  run_ranks(2, one_thread(), [&](Communicator& world) {
    Refit refit({tensor_of(cases[0]), tensor_of(cases[1])}, world, {});
    Parts from = sources_of(cases, world.rank()), to = destinations_of(cases, world.rank());
    to.parts[0] = from.parts[0];
    const RefitReport report = refit.run(from.parts, to.parts);
    EXPECT_EQ(report.received, 0);
    EXPECT_EQ(report.copied, 12);
    EXPECT_EQ(to.memory[1], expected_of(cases, world.rank()).memory[1]);
  });
}

TEST(Refit, PartsThatDoNotFitAreRefusedBeforeAnythingMoves) {
  const std::vector<Case> cases{simple_case()};
  run_ranks(4, one_thread(), [&](Communicator& world) {
    Refit refit({tensor_of(cases[0])}, world, {});
    Parts from = sources_of(cases, world.rank()), to = destinations_of(cases, world.rank());
    Parts wrong = destinations_of(cases, world.rank());
    for (TensorPart& p : wrong.parts) p.shape = {3, 2};
    EXPECT_THAT([&] { refit.run(from.parts, wrong.parts); }, ThrowsMessage<ValueError>(HasSubstr("the destination of rank")));
    wrong = destinations_of(cases, world.rank());
    for (TensorPart& p : wrong.parts) p.dtype = DType::kBF16;
    EXPECT_THAT([&] { refit.run(from.parts, wrong.parts); }, ThrowsMessage<ValueError>(HasSubstr("planned as float32")));
    EXPECT_THROW(refit.run({}, to.parts), ValueError);
    EXPECT_THROW(Refit({tensor_of(cases[0])}, world, {8, true}), ValueError) << "a watermark below an element";
    refit.run(from.parts, to.parts);
    EXPECT_EQ(to.memory, expected_of(cases, world.rank()).memory);
  });
}

}  // namespace
}  // namespace weft
