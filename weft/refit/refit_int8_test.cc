// Tensors that travel as int8: values and scales are those of the whole fp32 tensor, quantised on one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "weft/base/random.h"
#include "weft/comm/launch.h"
#include "weft/kernels/quantize.h"
#include "weft/kernels/quantize_reference.h"
#include "weft/mesh/test_random_layouts.h"
#include "weft/refit/refit.h"
#include "weft/refit/test_elements.h"

namespace weft {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A tensor, what it is on one rank, and where it goes.
struct Int8Case {
  std::string name;
  Layout from, to;
  DType wire = DType::kI8;
  std::vector<float> whole = {}, scales = {};
  std::vector<int8_t> q = {};
  int64_t width = 1;  // of a row

  Int8Case(std::string n, Layout f, Layout t, DType w = DType::kI8)
      : name(std::move(n)), from(std::move(f)), to(std::move(t)), wire(w) {
    int64_t numel = 1;
    for (int64_t s : from.shape()) numel *= s;
    width = from.shape().empty() ? 1 : from.shape().back();
    for (int64_t i = 0; i < numel; ++i) whole.push_back(static_cast<float>(CounterRng(5).normal(static_cast<uint64_t>(i))));
    if (numel > 2 * width) std::fill_n(whole.begin() + width, width, 0.0f);  // a row of zeros
    q.resize(whole.size());
    for (int64_t at = 0; at < numel; at += width) {
      scales.push_back(kernels::row_scale(kernels::reference::max_magnitude(whole.data() + at, width)));
      kernels::reference::quantize(whole.data() + at, scales.back(), q.data() + at, width);
    }
  }
  RefitTensor tensor() const {
    return {name, from.shape(), wire, holder_sets_of(from, test::all_ranks()), holder_sets_of(to, test::all_ranks())};
  }
};

// A rank's memory for the cases.
struct Int8Parts {
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::vector<float>> scales;
  std::vector<TensorPart> parts;

  void add(const Layout& layout, int64_t rank, DType dtype) {
    const bool in = layout.mesh().contains(rank);
    const std::vector<int64_t> shape = in ? layout.local_shape(rank) : std::vector<int64_t>{};
    memory.emplace_back(static_cast<size_t>(in ? layout.numel(rank) * dtype_bytes(dtype) + 1 : 0), std::byte{0x5a});
    scales.emplace_back(static_cast<size_t>(num_rows(shape)) + 1, -1.0f);
    parts.push_back({in ? memory.back().data() : nullptr, dtype, shape, dtype == DType::kI8 ? scales.back().data() : nullptr});
  }
};

Int8Parts int8_sources(const std::vector<Int8Case>& cases, int64_t rank) {
  Int8Parts out;
  for (const Int8Case& c : cases) {
    out.add(c.from, rank, DType::kF32);
    if (out.parts.back().data)
      test::each_element(c.from, rank, [&](int64_t here, int64_t there) {
        std::memcpy(out.parts.back().data + 4 * here, &c.whole[static_cast<size_t>(there)], 4);
      });
  }
  return out;
}
Int8Parts int8_destinations(const std::vector<Int8Case>& cases, int64_t rank) {
  Int8Parts out;
  for (const Int8Case& c : cases) out.add(c.to, rank, c.wire);
  return out;
}
// As it should be: nothing else is written.
Int8Parts int8_expected(const std::vector<Int8Case>& cases, int64_t rank) {
  Int8Parts out = int8_destinations(cases, rank);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Int8Case& c = cases[i];
    if (!out.parts[i].data) continue;
    const int64_t local = out.parts[i].shape.empty() ? 1 : out.parts[i].shape.back();
    test::each_element(c.to, rank, [&](int64_t here, int64_t there) {
      const auto at = static_cast<size_t>(there);
      if (c.wire == DType::kI8) {
        std::memcpy(out.parts[i].data + here, &c.q[at], 1);
        out.scales[i][static_cast<size_t>(here / local)] = c.scales[at / static_cast<size_t>(c.width)];
      } else if (c.wire == DType::kBF16) {
        const bf16 rounded = float_to_bf16(c.whole[at]);
        std::memcpy(out.parts[i].data + 2 * here, &rounded, 2);
      } else {
        std::memcpy(out.parts[i].data + 4 * here, &c.whole[at], 4);
      }
    });
  }
  return out;
}

std::vector<RefitTensor> int8_tensors(const std::vector<Int8Case>& cases) {
  std::vector<RefitTensor> out;
  for (const Int8Case& c : cases) out.push_back(c.tensor());
  return out;
}

// Elements that another rule would give: scales of the rows as far as a box of the trainer has them.
int64_t changed_by_shard_scales(const Int8Case& c, int64_t rank) {
  int64_t changed = 0;
  for (const LocalBox& b : c.from.boxes(rank)) {
    const int64_t rows = num_rows(b.box.size), width = b.box.size.empty() ? 1 : b.box.size.back();
    const int64_t column = b.box.size.empty() ? 0 : b.box.offset.back();
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = row_number(b.box.size, r, b.box.offset, c.from.shape());
      const auto at = static_cast<size_t>(row * c.width + column);
      std::vector<int8_t> q(static_cast<size_t>(width));
      kernels::quantize(c.whole.data() + at, kernels::row_scale(kernels::max_magnitude(c.whole.data() + at, width)), q.data(),
                        width);
      for (size_t i = 0; i < q.size(); ++i) changed += q[i] != c.q[at + i];
    }
  }
  return changed;
}

TEST(RefitInt8, ValuesAndScalesAreThoseOfTheWholeTensor) {
  std::atomic<int64_t> moved{0}, changed{0}, scale_bytes{0};
  run_ranks(test::kRefitRanks, test::one_thread(), [&](Communicator& world) {
    for (uint64_t seed = 0; seed < 16; ++seed) {
      test::Dice dice(seed + 1000);
      std::vector<Int8Case> cases;
      for (const DType wire : {DType::kI8, DType::kBF16, DType::kI8, DType::kF32}) {
        const std::vector<int64_t> shape = test::random_shape(dice);
        const Layout from = test::random_layout(dice, shape), to = test::random_layout(dice, shape);
        cases.emplace_back(fmt::format("t{}", cases.size()), from, to, wire);
      }
      int64_t needed = 0;
      for (const Int8Case& c : cases) {
        if (c.to.mesh().contains(world.rank())) needed += missing_bytes(c.from, c.to, world.rank(), dtype_bytes(c.wire));
        if (c.wire == DType::kI8) changed += changed_by_shard_scales(c, world.rank());
      }
      const int64_t watermark = seed % 3 == 0 ? 16 : seed % 3 == 1 ? 100 : 1 << 20;
      Refit refit(int8_tensors(cases), world, {watermark, seed % 4 != 0});
      Int8Parts from = int8_sources(cases, world.rank()), to = int8_destinations(cases, world.rank());
      const Int8Parts expected = int8_expected(cases, world.rank());
      world.stats().clear();
      const RefitReport report = refit.run(from.parts, to.parts);
      ASSERT_EQ(to.memory, expected.memory) << seed;
      ASSERT_EQ(to.scales, expected.scales) << seed;
      const CommBytes bytes = world.stats().of(OpKind::kExchange, "world", "refit");  // by the communicator's count
      ASSERT_EQ(bytes.received, needed) << seed;
      ASSERT_EQ(report.received, needed);
      ASSERT_LE(report.peak_in_flight, watermark);
      moved += needed;
      scale_bytes += world.stats().of(OpKind::kAllReduce, "world", "refit_scales").received;
      refit.run(from.parts, to.parts);  // once more by the same plan
      ASSERT_EQ(to.memory, expected.memory) << seed;
    }
  });
  EXPECT_GT(moved, 5000);
  EXPECT_GT(scale_bytes, 0);
  EXPECT_GT(changed, 100) << "the inverse: a scale for each trainer's part of a row";
}

std::vector<Int8Case> two_cut_tensors() {
  const DeviceMesh trainer({"fsdp"}, {3}), rollout({"dp", "tp"}, {2, 2});
  const Layout from = Layout::replicated({7, 5}, trainer).with_cut({"fsdp", 1});  // rows are cut in the trainer
  const Layout to = Layout::replicated({7, 5}, rollout).with_cut({"tp", 0});
  return {{"first.weight", from, to}, {"second.weight", from, to}};
}

TEST(RefitInt8, AFlippedBitOfAValueOrAScaleIsNamedEverywhere) {
  const std::vector<Int8Case> cases = two_cut_tensors();
  for (const bool scale : {false, true}) {
    std::atomic<int> threw{0}, whole{0};
    run_ranks(4, test::one_thread(), [&](Communicator& world) {
      Int8Parts from = int8_sources(cases, world.rank()), to = int8_destinations(cases, world.rank());
      bool flip = true;
      RefitOptions options{1 << 20, true};
      options.progress = [&](int64_t done, int64_t of) {
        if (!flip || world.rank() != 3 || done != of) return;
        if (scale) {
          uint32_t bits;
          std::memcpy(&bits, &to.scales[1][2], 4);
          bits ^= 1;
          std::memcpy(&to.scales[1][2], &bits, 4);
        } else {
          *(to.parts[1].data + 6) ^= std::byte{1};
        }
      };
      Refit refit(int8_tensors(cases), world, options);
      try {
        refit.run(from.parts, to.parts);
      } catch (const RefitError& e) {
        ++threw;
        EXPECT_THAT(e.what(), HasSubstr("second.weight"));
        EXPECT_THAT(e.what(), HasSubstr(scale ? "the scales in the rollout of rank 3" : "to rank 3"));
      }
      flip = false;
      refit.run(from.parts, to.parts);
      const Int8Parts expected = int8_expected(cases, world.rank());
      whole += to.memory == expected.memory && to.scales == expected.scales;
    });
    EXPECT_EQ(threw, 4);
    EXPECT_EQ(whole, 4);
  }
}

TEST(RefitInt8, WhatIsNotFiniteIsNamedBeforeAnythingMoves) {
  const std::vector<Int8Case> cases = two_cut_tensors();
  run_ranks(4, test::one_thread(), [&](Communicator& world) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      Int8Parts from = int8_sources(cases, world.rank()), to = int8_destinations(cases, world.rank());
      const Int8Parts before = int8_destinations(cases, world.rank());
      if (world.rank() == 1) std::memcpy(from.parts[1].data + 4 * (4 * 2 + 1), &bad, 4);
      Refit refit(int8_tensors(cases), world, {});
      EXPECT_THAT([&] { refit.run(from.parts, to.parts); },
                  ThrowsMessage<ValueError>(HasSubstr("second.weight: row 4 of 7 has a value that is not finite")));
      EXPECT_EQ(to.memory, before.memory);
      EXPECT_EQ(to.scales, before.scales);
      from = int8_sources(cases, world.rank());
      refit.run(from.parts, to.parts);
      EXPECT_EQ(to.memory, int8_expected(cases, world.rank()).memory);
    }
  });
}

TEST(RefitInt8, PartsThatDoNotFitAreRefused) {
  const std::vector<Int8Case> cases = two_cut_tensors();
  run_ranks(4, test::one_thread(), [&](Communicator& world) {
    Refit refit(int8_tensors(cases), world, {});
    Int8Parts from = int8_sources(cases, world.rank()), to = int8_destinations(cases, world.rank());
    std::vector<TensorPart> wrong = to.parts;
    for (TensorPart& p : wrong) p.scales = nullptr;
    EXPECT_THAT([&] { refit.run(from.parts, wrong); }, ThrowsMessage<ValueError>(HasSubstr("no place for scales")));
    wrong = from.parts;
    for (TensorPart& p : wrong) p.dtype = DType::kBF16;
    if (world.rank() < 3) {
      EXPECT_THAT([&] { refit.run(wrong, to.parts); }, ThrowsMessage<ValueError>(HasSubstr("bfloat16 cannot be sent as int8")));
    }
    EXPECT_THROW(Refit(int8_tensors(cases), world, {4, true}), ValueError) << "a watermark of two elements";
  });
}

}  // namespace
}  // namespace weft
