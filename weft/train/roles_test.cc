#include "weft/train/roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Recipe with(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = overrides;
  all.push_back("reward.funcs=[\"math\"]");
  return parse_recipe("[model]\npath = \"m\"\n[data]\ntrain_files = [\"t.jsonl\"]\n", "r.toml", all, RecipeUse::kTrain);
}
RolePlaces places(const std::vector<std::string>& overrides, int64_t world = 0) {
  const Recipe r = with(overrides);
  return place_roles(r, world > 0 ? world : ranks_of_recipe(r));
}

TEST(Roles, RanksAreLists) {
  EXPECT_THAT(parse_ranks("0-3", "actor.ranks"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(parse_ranks(" 5 - 6 , 0,2", "actor.ranks"), ElementsAre(0, 2, 5, 6));
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{{"", "a rank is a number"},
                                                                                   {"0-", "a rank is a number"},
                                                                                   {"-1", "a rank is a number"},
                                                                                   {"1,1", "rank 1 is there twice"},
                                                                                   {"0-4,3", "rank 3 is there twice"},
                                                                                   {"4-2", "4-2 goes backwards"},
                                                                                   {"1;2", "separated by commas"},
                                                                                   {"0-99999999999", "a rank is a number"},
                                                                                   {"0-9999999", "a rank is a number"}})
    EXPECT_THAT([&] { parse_ranks(text, "actor.ranks"); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("actor.ranks = \"" + text), HasSubstr(part))))
        << text;
}

TEST(Roles, DefaultsAreTheActorsRanks) {
  const RolePlaces p = places({"actor.mesh=fsdp=2,tp=2"});
  EXPECT_EQ(p.world, 4);
  EXPECT_THAT(p.actor.ranks, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(rollout_text(p.rollout.dims), "dp=4");
  EXPECT_EQ(p.reference, p.actor);
  EXPECT_TRUE(p.colocated());
  EXPECT_EQ(places({}).world, 1);
  EXPECT_EQ(places({"actor.mesh=fsdp=-1", "rollout.mesh=tp=-1"}, 8).rollout.dims.tp, 8);
}

TEST(Roles, WhoAsksForTheRanksIsNamed) {
  EXPECT_EQ(key_of_ranks(with({"actor.mesh=fsdp=2,tp=2"})), "actor.mesh = \"fsdp=2,tp=2\"");
  EXPECT_EQ(key_of_ranks(with({"actor.ranks=0-3", "rollout.ranks=4-5"})), "rollout.ranks = \"4-5\"");
  EXPECT_EQ(key_of_ranks(with({"actor.ranks=4-7", "rollout.ranks=0-3"})), "actor.ranks = \"4-7\"");
}

TEST(Roles, RanksOfTheirOwn) {
  const RolePlaces p = places({"actor.mesh=fsdp=4", "actor.ranks=0-3", "rollout.mesh=dp=1,tp=2", "rollout.ranks=4-5",
                               "actor.use_kl_loss=true", "reference.mesh=tp=2", "reference.ranks=6-7"});
  EXPECT_EQ(p.world, 8);
  EXPECT_FALSE(p.colocated());
  EXPECT_THAT(p.rollout.ranks, ElementsAre(4, 5));
  EXPECT_EQ(p.rollout.dims.ep, 2);
  EXPECT_THAT(p.reference.ranks, ElementsAre(6, 7));
  EXPECT_THAT(RolePlaces::both(p.actor, p.rollout), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(Roles, WhatCannotBeIsToldWithBothSides) {
  const auto fails = [](const std::vector<std::string>& overrides, const std::string& part, int64_t world = 0) {
    EXPECT_THAT([&] { places(overrides, world); }, ThrowsMessage<UsageError>(HasSubstr(part))) << part;
  };
  fails({"actor.mesh=fsdp=2", "actor.ranks=0-1", "rollout.ranks=1-2"},
        "actor has ranks 0,1 and rollout has ranks 1,2: two roles have the same ranks, or none in common");
  fails({"actor.mesh=fsdp=2", "actor.ranks=0-2", "rollout.ranks=3"}, "actor.mesh: mesh 'fsdp=2'");
  fails({"actor.mesh=fsdp=2", "actor.ranks=0-1", "rollout.ranks=3"}, "rank 2 of 4 has no role");
  fails({"actor.mesh=fsdp=2", "actor.ranks=0-1", "rollout.ranks=2-5"}, "rollout.ranks = \"2-5\": there are 4 ranks", 4);
  fails({"actor.mesh=fsdp=4", "rollout.mesh=dp=3"}, "dp=3 x tp=1 is 3, but there are 4 ranks: dp=4 would fit");
}

TEST(Roles, RanksOfARoleThatIsNotThereAreAnError) {
  for (const auto& [text, part] :
       std::vector<std::pair<std::string, std::string>>{{"critic.ranks=4", "it comes with algorithm.adv_estimator"},
                                                        {"reward_model.ranks=4", "it comes with reward_model.path"},
                                                        {"reference.ranks=4", "it comes with actor.use_kl_loss"},
                                                        {"trainer.critic_warmup=1", "without a critic"}})
    EXPECT_THAT([&] { with({text}); }, ThrowsMessage<UsageError>(HasSubstr(part))) << text;
}

}  // namespace
}  // namespace weft
