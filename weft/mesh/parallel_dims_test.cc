#include "weft/mesh/parallel_dims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ParallelDims, FourByTwo) {
  const ParallelDims dims = parse_parallel_dims("fsdp=4,ep=2");
  EXPECT_EQ(dims.world(), 4);
  EXPECT_EQ(dims.fsdp, 4);
  EXPECT_EQ(dims.ep, 2);
  EXPECT_EQ(dims.efsdp(), 2);
  EXPECT_EQ(dims.to_string(), "fsdp=4,ep=2");
  EXPECT_EQ(dims.dense_mesh().to_string(), "(replicate=1, fsdp=4, tp=1)");
  const DeviceMesh experts = dims.expert_mesh();
  EXPECT_EQ(experts.to_string(), "(replicate=1, efsdp=2, ep=2)");
  EXPECT_THAT(experts.group(0, "ep"), ElementsAre(0, 1));
  EXPECT_THAT(experts.group(1, "efsdp"), ElementsAre(1, 3));
}

TEST(ParallelDims, EightRanksOfFourAxes) {
  const ParallelDims dims = parse_parallel_dims(" replicate=2, fsdp = 2,tp=2,ep=4 ", 8);
  EXPECT_EQ(dims.world(), 8);
  EXPECT_EQ(dims.efsdp(), 1);
  const DeviceMesh mesh = dims.mesh();
  EXPECT_EQ(mesh.to_string(), "(replicate=2, fsdp=2, cp=1, tp=2)");
  EXPECT_THAT(mesh.coordinates(6), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(dims.expert_mesh().group(5, "ep"), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(dims.dense_mesh().group(5, "tp"), ElementsAre(4, 5));
  EXPECT_THAT(dims.dense_mesh().group(5, "fsdp"), ElementsAre(5, 7));
}

TEST(ParallelDims, CpJoinsFsdpForDenseParameters) {
  const ParallelDims dims = parse_parallel_dims("fsdp=2,cp=3,tp=2,ep=4,oe=6", 0, {"oe"});
  EXPECT_EQ(dims.world(), 12);
  EXPECT_THAT(dims.mesh().group(1, "cp"), ElementsAre(1, 3, 5));
  EXPECT_THAT(dims.dense_mesh().group(1, "fsdp"), ElementsAre(1, 3, 5, 7, 9, 11));
  EXPECT_EQ(dims.expert_mesh().to_string(), "(replicate=1, efsdp=3, ep=4)");
  EXPECT_THAT(dims.expert_mesh().group(1, "efsdp"), ElementsAre(1, 5, 9));
  const DeviceMesh view = dims.view_mesh("oe");
  EXPECT_EQ(view.to_string(), "(replicate=1, oe_fsdp=2, oe=6)");
  EXPECT_THAT(view.group(7, "oe"), ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_EQ(dims.to_string(), "fsdp=2,cp=3,tp=2,ep=4,oe=6");
  EXPECT_THAT([&] { dims.view_mesh("pe"); }, ThrowsMessage<ValueError>(HasSubstr("no own axis 'pe'")));
}

TEST(ParallelDims, OneAxisMayBeLeftOpen) {
  EXPECT_EQ(parse_parallel_dims("fsdp=-1,tp=2", 8).fsdp, 4);
  EXPECT_EQ(parse_parallel_dims("replicate=-1,fsdp=4", 8).replicate, 2);
  EXPECT_EQ(parse_parallel_dims("fsdp=8,tp=-1", 8).tp, 1);
  EXPECT_EQ(parse_parallel_dims("fsdp=4,tp=2,ep=-1").ep, 8);
  EXPECT_EQ(parse_parallel_dims("fsdp=4,oe=-1", 4, {"oe"}).own[0].second, 4);
  // An own axis that the string does not name is there with size 1.
  EXPECT_EQ(parse_parallel_dims("fsdp=4", 4, {"oe"}).view_mesh("oe").to_string(), "(replicate=1, oe_fsdp=4, oe=1)");
}

TEST(ParallelDims, NothingIsOneRank) {
  EXPECT_EQ(parse_parallel_dims(""), ParallelDims());
  EXPECT_EQ(parse_parallel_dims("  ", 1).world(), 1);
  EXPECT_EQ(ParallelDims().to_string(), "fsdp=1");
  EXPECT_EQ(parse_parallel_dims("fsdp=1"), ParallelDims());
}

TEST(ParallelDims, EveryViewPartitionsEveryReplica) {
  int64_t meshes = 0;
  for (int64_t replicate : {1, 2, 3})
    for (int64_t fsdp : {1, 2, 4})
      for (int64_t cp : {1, 2})
        for (int64_t tp : {1, 2, 3})
          for (int64_t ep = 1; ep <= fsdp * cp * tp; ++ep) {
            const std::string text = fmt::format("replicate={},fsdp={},cp={},tp={},ep={}", replicate, fsdp, cp, tp, ep);
            const int64_t replica = fsdp * cp * tp;
            if (replica % ep != 0) {
              EXPECT_THROW(parse_parallel_dims(text), UsageError);
              continue;
            }
            const ParallelDims dims = parse_parallel_dims(text, replicate * replica);
            EXPECT_EQ(parse_parallel_dims(dims.to_string()), dims);
            const DeviceMesh experts = dims.expert_mesh();
            for (int64_t rank = 0; rank < dims.world(); ++rank) {
              const int64_t within = rank % replica;
              ASSERT_THAT(experts.coordinates(rank), ElementsAre(rank / replica, within / ep, within % ep)) << text;
              ASSERT_THAT(dims.mesh().coordinates(rank),
                          ElementsAre(rank / replica, within / (cp * tp), within / tp % cp, within % tp))
                  << text;
              ASSERT_THAT(dims.dense_mesh().coordinates(rank), ElementsAre(rank / replica, within / tp, within % tp)) << text;
            }
            ++meshes;
          }
  EXPECT_EQ(meshes, 3 * 66);  // divisors of the 18 products, for each replicate
}

void expect_error(const std::string& text, int64_t world, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_THAT([&] { parse_parallel_dims(text, world, {"oe"}); }, ThrowsMessage<UsageError>(HasSubstr(part))) << text;
}

TEST(ParallelDims, ErrorsPrintTheNumbersAndWhatWouldWork) {
  expect_error("fsdpp=4", 0, {"mesh 'fsdpp=4'", "unknown axis 'fsdpp'", "did you mean fsdp?", "replicate, fsdp, cp, tp, ep, oe"});
  expect_error("dp_shard=4", 0, {"did you mean fsdp?"});
  expect_error("dp_replicate=4", 0, {"did you mean replicate?"});
  expect_error("pp=2", 0, {"no pipeline stages"});
  expect_error("zzzzzz=2", 0, {"unknown axis 'zzzzzz' (axes:"});
  expect_error("fsdp=0", 0, {"fsdp has size 0; sizes are 1 or more, or -1"});
  expect_error("tp=-2", 0, {"tp has size -2"});
  expect_error("fsdp=-1,tp=-1", 8, {"both fsdp and tp are -1"});
  expect_error("fsdp=-1,ep=-1", 8, {"both fsdp and ep are -1"});
  expect_error("fsdp=-1", 0, {"-1 needs the number of ranks"});
  expect_error("fsdp=-1,tp=3", 8, {"multiply to 3", "divide the 8 ranks", "divisors: 1, 2, 4, 8"});
  expect_error("fsdp=4,tp=2", 16,
               {"replicate=1 x fsdp=4 x cp=1 x tp=2 is 8", "there are 16 ranks", "fsdp=8 or replicate=2 or tp=4 would fit"});
  expect_error("", 2, {"is 1, but there are 2 ranks"});
  expect_error("fsdp=3,tp=3", 8, {"divisors: 1, 2, 4, 8"});
  expect_error("fsdp=3,tp=2,ep=4", 0,
               {"ep=4 takes its ranks from fsdp=3 x cp=1 x tp=2 = 6 and does not divide it", "ep can be 1, 2, 3, 6"});
  expect_error("fsdp=4,oe=3", 0,
               {"oe=3 takes its ranks from fsdp=4 x cp=1 x tp=1 = 4 and does not divide it", "oe can be 1, 2, 4"});
  expect_error("ep=2", 0, {"takes its ranks from fsdp=1 x cp=1 x tp=1 = 1", "write fsdp=2,ep=2"});
  expect_error("replicate=4,ep=2", 4, {"ep can be 1"});  // whole copies have no ranks to lend
  expect_error("fsdp=2,tp=2,fsdp=4", 0, {"fsdp is there twice, as 2 and 4"});
  expect_error("fsdp=99999999999999999999", 0, {"too large"});
  expect_error("fsdp=4294967296,tp=4294967296", 0, {"more than 1048576 ranks"});
  expect_error("fsdp=4", int64_t{1} << 40, {"1 to 1048576"});
  expect_error("fsdp=4", -3, {"a world of -3 ranks"});
  for (const char* garbage : {"fsdp", "fsdp=", "=4", "fsdp=4,", ",", "fsdp=4,,tp=2", "="})
    expect_error(garbage, 0, {"is not axis=size"});
  for (const char* garbage : {"fsdp=four", "fsdp=4x", "fsdp=4=4", "fsdp=4 2", "fsdp=0x4", "fsdp=+4", "fsdp=2.0"})
    expect_error(garbage, 0, {"is no number"});
}

TEST(ParallelDims, RandomTextIsReadOrRefused) {
  const CounterRng rng(3);
  const std::vector<std::string> words = {"fsdp", "tp", "ep", "cp", "oe", "replicate", "=", "=",          "=", ",",
                                          ",",    "-1", "2",  "4",  "1",  " ",         "0", "9999999999", "x"};
  uint64_t at = 0;
  int64_t read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint64_t n = rng.below(at++, 12); n > 0; --n) text += words[rng.below(at++, words.size())];
    try {
      const ParallelDims dims = parse_parallel_dims(text, 0, {"oe"});
      ASSERT_EQ(parse_parallel_dims(dims.to_string(), dims.world(), {"oe"}), dims) << text;
      ASSERT_EQ(dims.expert_mesh().num_ranks(), dims.world());
      ++read;
    } catch (const UsageError&) {
    }
  }
  EXPECT_GT(read, 100);
}

TEST(RolloutDims, EpTakesItsRanksFromAll) {
  const ParallelDims dims = parse_rollout_dims("dp=3,tp=2,ep=6");
  EXPECT_EQ(dims.world(), 6);
  EXPECT_EQ(dims.fsdp, 3);
  EXPECT_EQ(dims.ep, 6);
  EXPECT_EQ(rollout_text(dims), "dp=3,tp=2,ep=6");
  EXPECT_EQ(parse_rollout_dims("dp=2,tp=4").ep, 4);
  EXPECT_EQ(parse_rollout_dims("dp=2,tp=4,ep=1").ep, 1);
  EXPECT_EQ(parse_rollout_dims("dp=2,ep=-1,tp=4").ep, 8);
  EXPECT_EQ(parse_rollout_dims("", 1), ParallelDims{});
  EXPECT_EQ(parse_rollout_dims("dp=-1,tp=2", 8).fsdp, 4);
  for (const char* text : {"dp=1", "dp=4,tp=2", "dp=4,tp=2,ep=1", "dp=2,ep=2"})
    EXPECT_EQ(rollout_text(parse_rollout_dims(text)), text);
}

TEST(RolloutDims, ErrorsSayWhatWouldWork) {
  const auto fails = [](const char* text, int64_t world, const char* part) {
    EXPECT_THAT([&] { parse_rollout_dims(text, world); }, ThrowsMessage<UsageError>(HasSubstr(part))) << text;
  };
  fails("fsdp=2", 0, "unknown axis 'fsdp'");
  fails("dp=2,tp=2,ep=3", 0, "ep=3 takes its ranks from dp=2 x tp=2 = 4 and does not divide it; ep can be 1, 2, 4");
  fails("ep=4", 0, "write dp=4,ep=4");
  fails("dp=3,tp=2", 8, "dp=3 x tp=2 is 6, but there are 8 ranks: dp=4 would fit");
}

}  // namespace
}  // namespace weft
