// Runs whose memory sleeps between phases: what they compute is what a run that never sleeps computes, within the limit.
#include <algorithm>

#include "weft/base/error.h"
#include "weft/comm/launch.h"
#include "weft/train/actor.h"
#include "weft/train/optimizer.h"
#include "weft/train/roles.h"
#include "weft/train/test_runs.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

class MemoryLimitTest : public RunTest {
 protected:
  struct Case {
    std::string name;
    std::vector<std::string> recipe;
  };

  void on_ranks(const Recipe& r, const std::function<void(Trainer&)>& fn) {
    const int64_t n = ranks_of_recipe(r);
    if (n == 1) {
      Trainer t(r, registry_);
      return fn(t);
    }
    CommOptions options;
    options.threads_per_rank = 1;
    run_ranks(static_cast<int>(n), options, [&](Communicator& world) {
      Trainer t(r, registry_, make_roles(place_roles(r, n), world, actor_sharing(r)));
      fn(t);
    });
  }

  Recipe of(const std::string& run, const Case& c, std::vector<std::string> more) {
    std::vector<std::string> all = {"trainer.total_training_steps=3",
                                    "trainer.save_freq=2",
                                    "data.val_files=" + dir_.file("val.jsonl"),
                                    "trainer.test_freq=2",  // between refits and saves
                                    "rollout.kv_cache_tokens=512",
                                    "refit.watermark_mb=1"};
    all.insert(all.end(), c.recipe.begin(), c.recipe.end());
    all.insert(all.end(), more.begin(), more.end());
    return recipe(run, all);
  }

  // The least that the run's plan accepts [bytes].
  int64_t least_limit(const Case& c) {
    int64_t low = 1, high = int64_t{1} << 25;
    while (high - low > 4096) {
      const int64_t middle = (low + high) / 2;
      try {
        on_ranks(of("probe", c, {fmt::format("memory.limit={}B", middle)}), [](Trainer&) {});
        high = middle;
      } catch (const UsageError&) {
        low = middle;
      }
    }
    return high;
  }

  double peak(const std::string& run, const std::string& phase = "") const {
    double most = 0;
    for (const nlohmann::json& row : metrics(run, true))
      for (const auto& [key, value] : row.items())
        if (key.starts_with("memory/peak_mb/" + phase)) most = std::max(most, value.get<double>() * 1e6);
    return most;
  }
};

TEST_F(MemoryLimitTest, ChangesNoBit) {
  const std::vector<Case> cases = {
      {"one", {"actor.use_kl_loss=true", "algorithm.rollout_correction.bypass_mode=false"}},
      {"fsdp", {"actor.mesh=fsdp=2", "actor.use_kl_loss=true"}},
      {"shared", {"actor.mesh=replicate=2"}},
      {"bf16", {"actor.mesh=fsdp=2,ep=2", "rollout.mesh=tp=2", "actor.param_dtype=bfloat16", "router_replay.mode=R3"}},
      {"transactional", {"actor.mesh=fsdp=2", "rollout.mesh=tp=2", "refit.mode=transactional"}},
      {"apart", {"actor.mesh=fsdp=2", "actor.ranks=0-1", "rollout.mesh=tp=2", "rollout.ranks=2-3"}},
      {"ppo",
       {"algorithm.adv_estimator=gae", "actor.mesh=fsdp=2", "critic.mesh=fsdp=2", "actor.use_kl_loss=true",
        "reward_model.path=" + std::string(WEFT_SOURCE_DIR) + "/models/tiny-reward"}},
  };
  for (const Case& c : cases) {
    on_ranks(of(c.name, c, {}), [](Trainer& t) { t.run(); });
    const int64_t limit = least_limit(c);
    const std::string small = c.name + "_small";
    on_ranks(of(small, c, {fmt::format("memory.limit={}B", limit)}), [](Trainer& t) { t.run(); });
    expect_same_run(c.name, small, 3);
    // Pages are whole, and small allocations share them: at most one of each kind and rank.
    EXPECT_LE(peak(small), static_cast<double>(limit) * 1.05 + 4096.0 * 30) << c.name;
    EXPECT_GT(peak(c.name), static_cast<double>(limit) * 1.2) << c.name;  // the inverse: without sleeping it is passed
    EXPECT_GT(metrics(small, true).at(1).at("memory/stored_mb").get<double>(), 0) << c.name;
  }
}

// The bound of a colocated step: each phase alone, and both sets of weights at the refit, whose buckets are in no arena. Of a
// model so large that whole pages are no matter.
TEST_F(MemoryLimitTest, NeedsNoMoreThanItsLargestPhase) {
  const std::string model = dir_.file("wide");
  write_tiny_model(model, [](nlohmann::ordered_json& c) {
    c["hidden_size"] = 160, c["intermediate_size"] = 640, c["moe_intermediate_size"] = 96;
  });
  const LoadedModel whole = load_model(model, DType::kF32);
  double numel = 0;
  for (const nn::Parameter* p : whole.model->parameters()) numel += static_cast<double>(p->numel());
  const Case c{"bound", {"model.path=" + model, "actor.mesh=fsdp=2", "refit.mode=in_place"}};
  on_ranks(of("free", c, {}), [](Trainer& t) { t.run(); });
  const int64_t limit = least_limit(c);
  on_ranks(of("small", c, {fmt::format("memory.limit={}B", limit)}), [](Trainer& t) { t.run(); });
  // Both ranks are in one process: one set of the actor's, two of the rollout's. Its panels take about as much again, tables
  // aside.
  const double weights = 4 * numel, training = 4 * weights, refit = 3 * weights, cache = 2 * 512 * 2 * 2 * 2 * 8 * 4;
  const double bound = 1.05 * std::max({training, 2 * (weights + weights) + cache, refit});
  ASSERT_GT(weights, 1e6);
  EXPECT_LE(static_cast<double>(limit), bound);
  EXPECT_LE(peak("small"), bound);
  EXPECT_GT(peak("free"), 1.3 * bound);
  for (const char* phase : {"generate", "update_actor", "refit", "save"}) EXPECT_GT(peak("small", phase), 0) << phase;
}

TEST_F(MemoryLimitTest, AStoppedRunGoesOn) {
  std::atomic<int> left = -1;
  add_reward("stops", [&](const RewardRequest& r) {
    if (left >= 0 && left-- == 0) request_stop(SIGTERM);
    return even_digits(r);
  });
  const Case c{"whole", {"actor.mesh=fsdp=2", "actor.mini_batch_size=1", "reward.funcs=stops"}};
  on_ranks(of("whole", c, {}), [](Trainer& t) { t.run(); });
  const std::string limit = fmt::format("memory.limit={}B", least_limit(c));
  const auto run = [&] { on_ranks(of("stopped", c, {limit}), [](Trainer& t) { t.run(); }); };
  left = 6 + 2 * 12 + 6 + 3;  // in the third step
  EXPECT_THROW(run(), StoppedError);
  clear_stop_request();
  left = -1;
  run();
  expect_same_run("whole", "stopped", 3);
}

TEST_F(MemoryLimitTest, WhatDoesNotFitIsToldBeforeTheFirstStep) {
  const Case c{"small", {}};
  try {
    on_ranks(of("small", c, {"memory.limit=100kB"}), [](Trainer& t) { t.run(); });
    FAIL();
  } catch (const UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("memory.limit = 0.1 MB: the phase update_actor needs"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("actor.optimizer"), std::string::npos) << e.what();
  }
  for (const char* size : {"lots", "'12'", "0GB", "'1 GB x'"})
    EXPECT_THROW(of("small", c, {std::string("memory.limit=") + size}), UsageError) << size;
  EXPECT_THROW(of("small", c, {"memory.limit=1GB", "memory.store_dir=~/here"}), UsageError);
  EXPECT_THROW(recipe("small", {"memory.limit=1GB"}, RecipeUse::kSft), UsageError);
  EXPECT_THROW(of("small", c, {"memory.limit=1GB", "trainer.device=cuda"}), UsageError);
  const int64_t limit = least_limit(c);
  EXPECT_THROW(on_ranks(of("dir", c, {fmt::format("memory.limit={}B", limit), "memory.store_dir=/dev/null/here"}),
                        [](Trainer& t) { t.run(); }),
               SystemError);
}

// Whoever reads what sleeps is told.
TEST_F(MemoryLimitTest, NothingTrainsAsleep) {
  const auto arena = [](const char* name) { return std::make_shared<Arena>(name); };
  const nn::ParameterMemory memory{arena("actor.weights"), arena("actor.panels"), arena("actor.gradients")};
  const auto moments = arena("actor.optimizer");
  LoadedModel m = load_model(tiny_model(), DType::kF32, "cpu", {}, nullptr, {}, ModelHead::kVocabulary, memory);
  Optimizer optimizer(m.model->parameters(), {}, 10, {}, moments);
  Trajectory t;
  t.prompt_ids = {1, 2, 3}, t.response_ids = {4, 5};
  t.rollout_log_probs = {0, 0}, t.response_mask = {1, 1};
  const std::vector<const Trajectory*> list{&t};
  const auto forward = [&] { return actor_forward(*m.model, list, {}).log_probs; };
  const auto backward = [&] {
    (void)actor_backward(*m.model, list, {}, [](const ActorOutput& o) {
      return TokenGradients{std::vector<double>(o.log_probs.size(), 1.0), {}};
    });
  };
  const auto before = forward();
  backward();
  const double norm = optimizer.grad_norm();
  const auto expect_told = [](const std::string& text, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << text;
    } catch (const ValueError& e) {
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  };
  memory.panels->discard();
  expect_told("actor.panels is asleep", forward);
  memory.panels->wake();
  memory.panels->filled();
  EXPECT_EQ(forward(), before);  // packed anew
  EXPECT_EQ(memory.panels->bytes(), m.model->panel_bytes());
  memory.weights->store(dir_.path());
  expect_told("actor.weights is asleep", forward);
  expect_told("actor.weights is asleep", [&] { optimizer.update(norm); });
  memory.weights->wake();
  EXPECT_EQ(forward(), before);
  moments->store(dir_.path());
  expect_told("actor.optimizer is asleep", [&] { optimizer.update(norm); });
  expect_told("actor.optimizer is asleep", [&] { (void)optimizer.slots(); });
  moments->wake();
  memory.gradients->discard();
  expect_told("actor.gradients is asleep", backward);
  expect_told("actor.gradients is asleep", [&] { optimizer.zero_grad(); });
  memory.gradients->wake();
  memory.gradients->filled();
  optimizer.zero_grad();
  backward();
  EXPECT_EQ(optimizer.grad_norm(), norm);
  optimizer.update(norm);
  EXPECT_NE(forward(), before);
  memory.weights->discard();
  memory.weights->wake();
  expect_told("fill it first (weights: by a refit)", forward);
}

}  // namespace
}  // namespace weft
