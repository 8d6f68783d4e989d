// The listing of a refit: its numbers against plan_refit and a rank's missing bytes, its text and JSON, what is refused.
#include "weft/train/refit_listing.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "weft/io/test_files.h"
#include "weft/train/test_refit_pairs.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

ParameterTable listed_table(const std::string& kind) {
  return parameter_table(HfConfig::parse(weft::testing::oracle_model(kind), "config.json"));
}

TEST(RefitListing, NumbersAreThePlans) {
  struct Case {
    const char *model, *train, *rollout, *train_ranks, *rollout_ranks;
    DType dtype;
  };
  for (const Case& c : {Case{"moe", "fsdp=4,ep=2", "dp=2,tp=2,ep=4", "", "", DType::kBF16},
                        Case{"moe", "fsdp=2,tp=2,ep=4", "dp=1,tp=4", "0-3", "4-7", DType::kF32},
                        Case{"three_experts", "fsdp=3,ep=3", "dp=2,tp=2,ep=4", "", "", DType::kBF16},
                        Case{"dense", "replicate=2,fsdp=2", "dp=1,tp=2", "1,3,5-6", "0,2", DType::kBF16},
                        Case{"over_encoded", "replicate=2", "dp=2", "", "", DType::kF32}}) {
    SCOPED_TRACE(fmt::format("{} {} -> {}", c.model, c.train, c.rollout));
    RefitListingOptions options;
    options.rollout_dtype = c.dtype, options.train_ranks = c.train_ranks, options.rollout_ranks = c.rollout_ranks;
    options.watermark = 20'000;
    const RefitListing r = list_refit(listed_table(c.model), c.train, c.rollout, options);
    const RefitPlan plan = plan_refit(r.tensors);
    int64_t received = 0, transfers = 0, lacking = 0;
    for (size_t rank = 0; rank < r.ranks.size(); ++rank) {
      const auto of = [&](const std::map<int64_t, int64_t>& bytes) {
        const auto at = bytes.find(static_cast<int64_t>(rank));
        return at == bytes.end() ? 0 : at->second;
      };
      int64_t missing = 0;
      for (const RefitTensor& t : r.tensors) missing += missing_bytes(t, static_cast<int64_t>(rank));
      EXPECT_EQ(r.ranks[rank].received, of(plan.received));
      EXPECT_EQ(r.ranks[rank].received, missing);
      EXPECT_EQ(r.ranks[rank].sent, of(plan.sent));
      EXPECT_EQ(r.ranks[rank].needed, r.ranks[rank].own + r.ranks[rank].received);
      received += of(plan.received), lacking += missing;
    }
    for (const auto& list : plan.transfers)
      for (const Transfer& t : list) transfers += t.source != t.destination;
    EXPECT_EQ(r.transfers, transfers);
    EXPECT_EQ(r.received, received);
    EXPECT_EQ(r.lacking, lacking);
    EXPECT_EQ(r.byte_ratio(), 1.0);
    EXPECT_LE(r.largest_sent, r.least_largest_sent + r.plan.largest_box);
    EXPECT_NEAR(static_cast<double>(r.least_largest_sent), weft::testing::fractional_optimum(r.tensors),
                2.0 * static_cast<double>(r.tensors.size()));
    // Buckets: no rank has more than half of the watermark in one, and all that travels is in one.
    std::map<std::pair<int64_t, int64_t>, int64_t> used;
    int64_t in_buckets = 0;
    const int64_t n = for_each_in_buckets(r.tensors, r.plan, options.watermark, [&](int64_t bucket, size_t i, const Transfer& t) {
      const int64_t bytes = t.box.numel() * dtype_bytes(r.tensors[i].dtype);
      used[{bucket, t.source}] += bytes, used[{bucket, t.destination}] += bytes;
      in_buckets += bytes;
    });
    EXPECT_EQ(r.buckets, n);
    EXPECT_EQ(in_buckets, received);
    for (const auto& [where, bytes] : used) EXPECT_LE(bytes, options.watermark / 2);
    EXPECT_EQ(received > 0, !used.empty());
    EXPECT_TRUE(used.empty() || used.rbegin()->first.first == n - 1);
  }
}

TEST(RefitListing, TextNamesWhoSendsWhatAndSaysWhatIsLeftOut) {
  RefitListingOptions options;
  options.rollout_dtype = DType::kF32;
  const RefitListing r = list_refit(listed_table("dense"), "fsdp=2", "dp=1,tp=2", options);
  const std::string some = refit_listing_text(r, {"*", 3});
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " not in:\n" << text;
  };
  has(some, "trainer fsdp=2 on ranks 0-1 -> rollout dp=1,tp=2 on ranks 0-1");
  has(some, "byte ratio 1.000");
  has(some, fmt::format("  {} transfers in 1 bucket", r.transfers));
  has(some, fmt::format("... {} more transfers of ", r.transfers - 3));
  has(some, fmt::format("{:>5}  {:<8} {:>16} {:>16} {:>16} {:>16}\n", 1, "both", r.ranks[1].needed, r.ranks[1].own,
                        r.ranks[1].received, r.ranks[1].sent));
  // One tensor, worked out by hand: o_proj [32, 48] is cut by rows at 16 for FSDP, by columns at 24 for tp; each rank lacks the
  // quarter that the other has.
  const std::string one = refit_listing_text(r, {"model.layers.0.self_attn.o_proj.weight", 0});
  has(one, "    0 -> 1  [0:16, 24:48]  1536 bytes\n");
  has(one, "    1 -> 0  [16:32, 0:24]  1536 bytes\n");
  has(one, fmt::format("... {} more tensors, whose names are not model.layers.0.self_attn.o_proj.weight", r.tensors.size() - 1));
  EXPECT_EQ(one.find("more transfers"), std::string::npos) << one;
  // Nothing travels: one rank keeps all.
  const RefitListing still = list_refit(listed_table("dense"), "replicate=2", "dp=2", options);
  has(refit_listing_text(still, {}), fmt::format("{} tensors do not travel", still.tensors.size()));
  const RefitListing wide = list_refit(listed_table("dense"), "replicate=64,fsdp=2", "dp=128", options);
  has(refit_listing_text(wide, {}), "... 64 more ranks (--limit 0 shows all)");
  EXPECT_EQ(refit_listing_text(wide, {"lm_head.weight", 0}).find("more ranks"), std::string::npos);
  has(refit_listing_text(still, {"lm_head.weight", 0}), ": nothing travels; ");
  EXPECT_EQ(refit_listing_text(still, {}).find(" -> 1 "), std::string::npos);
}

TEST(RefitListing, JsonHasTheSame) {
  const RefitListing r = list_refit(listed_table("moe"), "fsdp=2,ep=2", "dp=1,tp=2", {});
  const Json all = Json::parse(refit_listing_json(r, {"*", 0}));
  int64_t bytes = 0, transfers = 0;
  for (const Json& t : all["tensors"])
    for (const Json& transfer : t["transfers"]) bytes += transfer["bytes"].get<int64_t>(), ++transfers;
  EXPECT_EQ(bytes, r.received);
  EXPECT_EQ(transfers, r.transfers);
  EXPECT_EQ(all["transfers"], r.transfers);
  EXPECT_EQ(all["received_bytes"], r.received);
  EXPECT_EQ(all["transfers_not_listed"], 0);
  EXPECT_EQ(all["ranks"][1]["sent_bytes"], r.ranks[1].sent);
  const Json few = Json::parse(refit_listing_json(r, {"*.o_proj.weight", 2}));
  EXPECT_LT(few["tensors"].size(), all["tensors"].size());
  EXPECT_GT(few["transfers_not_listed"], 0);
  EXPECT_EQ(few["tensors"].size() + few["tensors_not_listed"].get<size_t>(), all["tensors"].size());
}

TEST(RefitListing, WhatCannotBeIsRefused) {
  const ParameterTable table = listed_table("dense");
  const auto refused = [&](const char* train, const char* rollout, const char* train_ranks = "", const char* rollout_ranks = "") {
    RefitListingOptions options;
    options.train_ranks = train_ranks, options.rollout_ranks = rollout_ranks;
    return message_of<UsageError>([&] { list_refit(table, train, rollout, options); });
  };
  const auto has = [](const std::string& text, const char* part) { EXPECT_NE(text.find(part), std::string::npos) << text; };
  has(refused("fsdp=2,tp=3", "dp=1"), "nearest meshes that work");
  has(refused("fsdp=2", "dp=1,tp=16"), "nearest meshes that work");
  has(refused("fsdp=2", "fsdp=2"), "unknown axis 'fsdp'");
  has(refused("fsdp=2", "dp=2", "0-2"), "--train-ranks = \"0-2\" are 3 ranks, the mesh fsdp=2 has 2");
  has(refused("fsdp=2", "dp=2", "0-1", "1-2"), "the trainer has ranks 0-1 and the rollout has ranks 1-2");
  has(refused("fsdp=2", "dp=2", "0-x"), "--train-ranks");
  has(refused("fsdp=4096", "dp=2048"), "weft plan shows their sums");
  const RefitListing r = list_refit(table, "fsdp=2", "dp=4", {});
  EXPECT_EQ(r.rollout_ranks, (std::vector<int>{2, 3, 4, 5})) << "behind the trainer's";
  has(message_of<UsageError>([&] { refit_listing_text(r, {"*.expert.*", 0}); }), "no tensor has such a name");
}

}  // namespace
}  // namespace weft
