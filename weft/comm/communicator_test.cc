#include "weft/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>

#include "weft/comm/comm_test_cases.h"
#include "weft/comm/launch.h"

namespace weft {
namespace {

using comm_cases::Bytes;
using comm_cases::Checker;
using comm_cases::Counts;

CommOptions progress(CommProgress how) {
  CommOptions options;
  options.progress = how;
  return options;
}

uint64_t hash_of_everything(int n, CommProgress how) {
  std::atomic<uint64_t> hash{0};
  run_ranks(n, progress(how), [&](Communicator& world) {
    Checker checker;
    comm_cases::everything(world, &checker);
    EXPECT_GT(checker.results(), 500);
    const uint64_t common = comm_cases::common_hash(world, checker);
    if (world.rank() == 0) hash = common;
  });
  return hash;
}

TEST(Communicator, EveryOperationDtypeAndSizeIsWhatPlainLoopsSay) {
  for (const int n : {1, 2, 3, 4, 5, 8}) {
    const uint64_t inline_hash = hash_of_everything(n, CommProgress::kInline);
    EXPECT_EQ(inline_hash, hash_of_everything(n, CommProgress::kBackground)) << n << " ranks";
  }
}

class BothProgress : public testing::TestWithParam<CommProgress> {};
INSTANTIATE_TEST_SUITE_P(Communicator, BothProgress, testing::Values(CommProgress::kInline, CommProgress::kBackground),
                         [](const auto& how) { return how.param == CommProgress::kInline ? "Inline" : "Background"; });

TEST_P(BothProgress, ManyOpenOperationsWaitedForInReverse) {
  run_ranks(4, progress(GetParam()), [&](Communicator& world) {
    constexpr int kOpen = 40, kCount = 3000;
    std::vector<std::vector<float>> in(kOpen), out(kOpen);
    std::vector<Work> open;
    for (int i = 0; i < kOpen; ++i) {
      in[static_cast<size_t>(i)].assign(kCount, static_cast<float>(i + world.rank()));
      out[static_cast<size_t>(i)].resize(kCount);
      // Sizes on both sides of the two ways of an all-reduce.
      open.push_back(world.all_reduce(in[static_cast<size_t>(i)].data(), out[static_cast<size_t>(i)].data(), i % 2 ? kCount : 10,
                                      DType::kF32, ReduceOp::kSum));
    }
    for (int i = kOpen - 1; i >= 0; --i) {
      open[static_cast<size_t>(i)].wait();
      EXPECT_TRUE(open[static_cast<size_t>(i)].done());
      EXPECT_EQ(out[static_cast<size_t>(i)][9], static_cast<float>(4 * i + 6));
    }
  });
}

TEST_P(BothProgress, DestroyingAWorkWaits) {
  run_ranks(2, progress(GetParam()), [&](Communicator& world) {
    std::vector<int64_t> all(2);
    const int64_t mine = world.rank() + 1;
    { const Work work = world.all_gather(&mine, all.data(), Counts{1, 1}, DType::kI64); }
    EXPECT_EQ(all, (std::vector<int64_t>{1, 2}));
  });
}

// Rows and columns of a 2 x 3 mesh, and the mesh itself, with operations of all three open at once.
TEST_P(BothProgress, OverlappingAxes) {
  run_ranks(6, progress(GetParam()), [&](Communicator& world) {
    const int row = world.rank() / 3, column = world.rank() % 3;
    Communicator tp = world.sub(std::vector<int>{3 * row, 3 * row + 1, 3 * row + 2}, "tp");
    Communicator fsdp = world.sub(std::vector<int>{column, column + 3}, "fsdp");
    EXPECT_EQ(tp.rank(), column);
    EXPECT_EQ(fsdp.rank(), row);
    EXPECT_EQ(fsdp.world_rank(1), column + 3);
    for (int repeat = 0; repeat < 50; ++repeat) {
      const float x = static_cast<float>(world.rank() + repeat);
      float of_tp = 0, of_fsdp = 0, of_world = 0;
      Work a = tp.all_reduce(&x, &of_tp, 1, DType::kF32, ReduceOp::kSum);
      Work b = world.all_reduce(&x, &of_world, 1, DType::kF32, ReduceOp::kSum);
      Work c = fsdp.all_reduce(&x, &of_fsdp, 1, DType::kF32, ReduceOp::kSum);
      c.wait();
      b.wait();
      a.wait();
      EXPECT_EQ(of_tp, static_cast<float>(9 * row + 3 + 3 * repeat));
      EXPECT_EQ(of_fsdp, static_cast<float>(2 * column + 3 + 2 * repeat));
      EXPECT_EQ(of_world, static_cast<float>(15 + 6 * repeat));
    }
    // A group within a group, in an order of its own; groups of the same ranks and name are still different ones.
    Communicator turned = tp.sub(std::vector<int>{2, 1, 0}, "turned"), again = tp.sub(std::vector<int>{2, 1, 0}, "turned");
    std::vector<int32_t> first(3), second(3);
    const int32_t mine = world.rank(), other = -mine;
    Work two = again.all_gather(&other, second.data(), Counts{1, 1, 1}, DType::kI32);
    Work one = turned.all_gather(&mine, first.data(), Counts{1, 1, 1}, DType::kI32);
    one.wait();
    two.wait();
    EXPECT_EQ(first, (std::vector<int32_t>{3 * row + 2, 3 * row + 1, 3 * row}));
    EXPECT_EQ(second, (std::vector<int32_t>{-3 * row - 2, -3 * row - 1, -3 * row}));
  });
}

// Of the small kind with two halves, and of the large.
void writers_wait_for_readers(CommProgress how, int count) {
  constexpr int kRanks = 4, kRounds = 30;
  std::atomic<int> reading{0};  // ranks between wait and release, where every part must stay as it is
  run_ranks(kRanks, progress(how), [&](Communicator& world) {
    SharedBuffer buffer = world.shared_buffer(kRanks * count * 4);
    std::vector<int32_t> mine(static_cast<size_t>(count));
    const Counts counts(kRanks, count);
    for (int round = 0; round < kRounds; ++round) {
      std::fill(mine.begin(), mine.end(), round * kRanks + world.rank());
      world.all_gather_shared(mine.data(), counts, DType::kI32, buffer).wait();
      reading.fetch_add(1);
      const auto* all = reinterpret_cast<const int32_t*>(buffer.data());
      for (int r = 0; r < kRanks; ++r)
        for (const int i : {0, count / 2, count - 1}) ASSERT_EQ(all[r * count + i], round * kRanks + r);
      reading.fetch_sub(1);
      buffer.release();
    }
    // Another number of elements in the same memory.
    world.all_gather_shared(mine.data(), Counts(kRanks, 2), DType::kI32, buffer).wait();
    EXPECT_EQ(reinterpret_cast<const int32_t*>(buffer.data())[2 * world.rank()], mine[0]);
    EXPECT_THROW((void)world.all_gather_shared(mine.data(), counts, DType::kI32, buffer), ValueError);  // not released
  });
  EXPECT_EQ(reading.load(), 0);
}

TEST_P(BothProgress, WritersOfASharedBufferWaitForItsReaders) {
  writers_wait_for_readers(GetParam(), 20000);
  writers_wait_for_readers(GetParam(), 70000);
}

TEST(Communicator, SharedBufferIsOneForAllRanksOfTheProcess) {
  std::vector<const std::byte*> seen(3);
  run_ranks(3, {}, [&](Communicator& world) {
    SharedBuffer buffer = world.shared_buffer(100);
    seen[static_cast<size_t>(world.rank())] = buffer.data();
    world.barrier().wait();
  });
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
}

// A peer's part moves while this rank does nothing about it: the work is done although nobody waits.
TEST(Communicator, OperationsMoveWhileTheRankComputes) {
  run_ranks(2, progress(CommProgress::kBackground), [&](Communicator& world) {
    std::vector<float> mine(1 << 20, 1.0f), sum(1 << 20);
    Work work = world.all_reduce(mine.data(), sum.data(), std::ssize(mine), DType::kF32, ReduceOp::kSum);
    while (!work.done()) std::this_thread::yield();  // computes; a hang ends by the test's time limit
    EXPECT_EQ(sum[12345], 2.0f);
    work.wait();
  });
}

TEST(Communicator, CountsBytesExactly) {
  run_ranks(3, {}, [&](Communicator& world) {
    const int me = world.rank();
    Communicator tp = world.sub(std::vector<int>{0, 1, 2}, "tp");
    CommStats& stats = world.stats();
    std::vector<float> a(9000), b(9000);
    const Counts counts{1, 2, 3};
    const int64_t own = counts[static_cast<size_t>(me)];
    tp.all_gather(a.data(), b.data(), counts, DType::kF32, "unshard").wait();
    EXPECT_EQ(stats.of(OpKind::kAllGather, "tp", "unshard"), (CommBytes{1, 2 * own * 4, (6 - own) * 4}));
    tp.reduce_scatter(b.data(), a.data(), counts, DType::kBF16, ReduceOp::kSum, "grad").wait();
    tp.reduce_scatter(b.data(), a.data(), counts, DType::kBF16, ReduceOp::kSum, "grad").wait();
    EXPECT_EQ(stats.of(OpKind::kReduceScatter, "tp", "grad"), (CommBytes{2, 2 * (6 - own) * 2, 2 * 2 * own * 2}));
    world.all_reduce(a.data(), b.data(), 10, DType::kF64, ReduceOp::kMax, "norm").wait();
    EXPECT_EQ(stats.of(OpKind::kAllReduce, "world", "norm"), (CommBytes{1, 160, 160}));
    world.all_reduce(a.data(), b.data(), 9000, DType::kF32, ReduceOp::kSum, "big").wait();
    // Shares of 3008, 3008 and 2984 elements: what others join, and the own share to two peers.
    const int64_t share = me < 2 ? 3008 : 2984;
    EXPECT_EQ(stats.of(OpKind::kAllReduce, "world", "big"),
              (CommBytes{1, 4 * (9000 - share + 2 * share), 4 * (2 * share + 9000 - share)}));
    const Counts to{5, 0, 1}, from{me == 0 ? 5 : me == 1 ? 0 : 1, me == 0 ? 5 : me == 1 ? 0 : 1, me == 0 ? 5 : me == 1 ? 0 : 1};
    world.all_to_all(a.data(), to, b.data(), from, DType::kU8, "dispatch").wait();
    EXPECT_EQ(stats.of(OpKind::kAllToAll, "world", "dispatch"), (CommBytes{1, 6 - to[static_cast<size_t>(me)], 2 * from[0]}));
    world.broadcast(a.data(), 7, DType::kI16, 1).wait();
    EXPECT_EQ(stats.of(OpKind::kBroadcast, "world", ""), (me == 1 ? CommBytes{1, 28, 0} : CommBytes{1, 0, 14}));
    world.gather(a.data(), b.data(), counts, DType::kI8, 2).wait();
    EXPECT_EQ(stats.of(OpKind::kGather, "world", ""), (me == 2 ? CommBytes{1, 0, 3} : CommBytes{1, own, 0}));
    world.scatter(a.data(), b.data(), counts, DType::kI8, 2).wait();
    EXPECT_EQ(stats.of(OpKind::kScatter, "world", ""), (me == 2 ? CommBytes{1, 3, 0} : CommBytes{1, 0, own}));
    world.barrier().wait();
    EXPECT_EQ(stats.of(OpKind::kBarrier, "world", ""), (CommBytes{1, 0, 0}));
    if (me == 0) world.send(a.data(), 11, DType::kI64, 1, "refit").wait();
    if (me == 1) world.recv(a.data(), 11, DType::kI64, 0, "refit").wait();
    EXPECT_EQ(stats.of(OpKind::kSend, "world", "refit"), (me == 0 ? CommBytes{1, 88, 0} : CommBytes{}));
    EXPECT_EQ(stats.of(OpKind::kRecv, "world", "refit"), (me == 1 ? CommBytes{1, 0, 88} : CommBytes{}));
    SharedBuffer buffer = tp.shared_buffer(24);
    tp.all_gather_shared(a.data(), counts, DType::kF32, buffer, "unshard").wait();
    EXPECT_EQ(stats.of(OpKind::kSharedGather, "tp", "unshard"), (CommBytes{1, own * 4, (6 - own) * 4}));
    CommBytes sum;
    for (const CommStatsRow& row : stats.rows()) {
      sum.operations += row.bytes.operations;
      sum.sent += row.bytes.sent;
      sum.received += row.bytes.received;
    }
    EXPECT_EQ(stats.total(), sum);
    EXPECT_EQ(sum.operations, me == 2 ? 17 : 18);  // four of them made the axis, two the shared buffer
  });
}

TEST(Communicator, RefusesWhatCannotBeMeant) {
  run_ranks(2, {}, [&](Communicator& world) {
    float x[4] = {};
    EXPECT_THROW((void)world.all_gather(x, x, Counts{1}, DType::kF32), ValueError);
    EXPECT_THROW((void)world.all_gather(x, x, Counts{1, -1}, DType::kF32), ValueError);
    EXPECT_THROW((void)world.broadcast(x, 1, DType::kF32, 2), ValueError);
    EXPECT_THROW((void)world.send(x, 1, DType::kF32, world.rank()), ValueError);
    EXPECT_THROW((void)world.all_reduce(x, x, 1, DType::kI32, ReduceOp::kAvg), ValueError);
    EXPECT_THROW((void)world.sub(std::vector<int>{1 - world.rank()}, "other"), ValueError);
    EXPECT_THROW((void)world.sub(std::vector<int>{0, 1, 1}, "twice"), ValueError);
    EXPECT_THROW((void)world.shared_buffer(-1), ValueError);
    world.barrier().wait();  // nothing of the above was enqueued
  });
}

TEST(Communicator, AnOperationThatAnExceptionLeavesIsTakenBack) {
  // Rank 0's buffer is gone before rank 1 reads it; with the address sanitizer a read would be reported.
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_THROW(run_ranks(2, {},
                           [&](Communicator& world) {
                             std::vector<float> mine(100000, 1.0f), all(200000);
                             Work work = world.all_gather(mine.data(), all.data(), Counts{100000, 100000}, DType::kF32);
                             if (world.rank() == 0) throw SystemError("disk full");
                             work.wait();
                             world.barrier().wait();
                           }),
                 SystemError);
  }
}

// Without NCCL in the build, without its libraries, without a GPU: one error each, which says what is missing.
TEST(Communicator, DeviceMemoryThatIsNotThereIsAnErrorThatSaysSo) {
  try {
    run_ranks(1, {}, [](Communicator& world) { (void)world.on_device({.device = 1 << 20}); });
    FAIL() << "a million GPUs";
  } catch (const SystemError& error) {
    EXPECT_THAT(error.what(), ::testing::ContainsRegex("NCCL|device"));
  }
}

}  // namespace
}  // namespace weft
