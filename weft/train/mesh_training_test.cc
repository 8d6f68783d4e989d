// Training on replicate x fsdp: one rank is the oracle.
#include <filesystem>

#include "weft/base/error.h"
#include "weft/comm/launch.h"
#include "weft/io/safetensors.h"
#include "weft/train/roles.h"
#include "weft/train/sft.h"
#include "weft/train/test_runs.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

class MeshTrainingTest : public RunTest {
 protected:
  void train(const std::string& run, const std::string& mesh, int64_t steps, std::vector<std::string> more = {},
             RecipeUse use = RecipeUse::kTrain) {
    more.push_back(fmt::format("trainer.total_training_steps={}", steps));
    more.push_back("actor.mesh=" + mesh);
    const Recipe r = recipe(run, more, use);
    CommOptions options;
    options.threads_per_rank = 1;
    const int64_t n = ranks_of_recipe(r);
    run_ranks(static_cast<int>(n), options, [&](Communicator& world) {
      if (use == RecipeUse::kSft)
        SftTrainer(r, registry_, make_rank_mesh(place_actor(r, n).actor.dims, world, actor_sharing(r))).run();
      else
        Trainer(r, registry_, make_roles(place_roles(r, n), world, actor_sharing(r))).run();
    });
  }

  // The first step samples the same tokens, so everything reported of it has the same bits but the norm, whose terms are summed
  // by shard.
  void expect_first_step_equal(const std::string& a, const std::string& b) const {
    const nlohmann::json x = metrics(a).at(0), y = metrics(b).at(0);
    EXPECT_EQ(x.size(), y.size());
    for (const auto& [key, value] : x.items()) {
      if (key == "actor/grad_norm")
        EXPECT_NEAR(value.get<double>(), y.at(key).get<double>(), 4e-6 * value.get<double>());
      else
        EXPECT_EQ(value, y.at(key)) << key << " of " << a << " and " << b;
    }
  }

  // After one step the first moments are a tenth of the clipped gradients: equal up to the order of sums.
  void expect_gradients_close(const std::string& a, const std::string& b, double tolerance, int64_t step = 1) const {
    const SafetensorsFile x(state_file(a, step, "optimizer.safetensors")), y(state_file(b, step, "optimizer.safetensors"));
    double largest = 0;
    const auto floats = [](const SafetensorsFile& file, const TensorInfo& info) {
      const auto bytes = file.bytes(info);
      return std::span<const float>(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float));
    };
    for (const TensorInfo& t : x.tensors())
      if (t.name.starts_with("m/"))
        for (float v : floats(x, t)) largest = std::max<double>(largest, std::fabs(v));
    ASSERT_GT(largest, 0);
    for (const TensorInfo& t : x.tensors()) {
      if (!t.name.starts_with("m/")) continue;
      const auto u = floats(x, t), v = floats(y, y.tensor(t.name));
      ASSERT_EQ(u.size(), v.size()) << t.name;
      double difference = 0, entry = 1e-3 * largest;
      for (size_t i = 0; i < u.size(); ++i) {
        difference = std::max<double>(difference, std::fabs(static_cast<double>(u[i]) - v[i]));
        entry = std::max<double>(entry, std::fabs(u[i]));
      }
      EXPECT_LE(difference / entry, tolerance) << t.name << " of " << a << " and " << b;
    }
  }
};

// What travels is what is missing: each rank receives its half of every gradient from the one peer, once; the rollout its other
// half.
TEST_F(MeshTrainingTest, BytesAreCounted) {
  train("two", "fsdp=2", 1);
  const LoadedModel whole = load_model(tiny_model(), DType::kF32);
  double numel = 0;
  for (const nn::Parameter* p : whole.model->parameters())
    numel += static_cast<double>(p->numel());
  const nlohmann::json row = metrics("two", true).at(0);
  // Experts travel on their own mesh's axis, without ep too.
  EXPECT_EQ(row.at("comm/fsdp/grad/received_bytes").get<double>() + row.at("comm/efsdp/grad/received_bytes").get<double>(),
            numel / 2 * sizeof(float));
  EXPECT_EQ(row.at("comm/world/refit/received_bytes").get<double>(), numel / 2 * sizeof(float));
  EXPECT_GE(row.at("comm/fsdp/unshard/received_bytes").get<double>() + row.at("comm/efsdp/unshard/received_bytes").get<double>(),
            numel / 2 * sizeof(float));
}

const std::vector<std::string> kMeshes = {"fsdp=2",
                                          "replicate=2",
                                          "fsdp=3",
                                          "replicate=2,fsdp=2",
                                          "fsdp=5",
                                          "fsdp=8",
                                          "fsdp=2,ep=2",
                                          "fsdp=4,ep=2",
                                          "replicate=2,fsdp=2,ep=2",
                                          "fsdp=3,ep=3",
                                          "fsdp=8,ep=4",
                                          "fsdp=8,ep=8",
                                          "tp=2",
                                          "tp=4",
                                          "fsdp=2,tp=2",
                                          "fsdp=2,tp=2,ep=4",
                                          "replicate=2,tp=2,ep=2",
                                          "fsdp=3,tp=2,ep=2",
                                          "cp=2",
                                          "cp=3,ep=3",
                                          "fsdp=2,cp=2,ep=2",
                                          "cp=2,tp=2,ep=4",
                                          "replicate=2,fsdp=2,cp=2"};

TEST_F(MeshTrainingTest, EveryMeshEqualsOneRank) {
  train("one", "fsdp=1", 1);
  for (const std::string& mesh : kMeshes) {
    train(mesh, mesh, 1);
    expect_first_step_equal("one", mesh);
    expect_gradients_close("one", mesh, 4e-6);
    EXPECT_EQ(metrics(mesh).at(0).at("parity/max_abs_diff").get<double>(), 0);
    for (const char* bound : {"min", "max"})
      EXPECT_EQ(metrics(mesh).at(0).at(std::string("actor/times_trained/") + bound).get<double>(), 1) << mesh;
  }
}

// Where the rollout and the reference run changes nothing: with the actor on other meshes, or on ranks of their own.
TEST_F(MeshTrainingTest, RolesOnTheirOwnMeshesAndRanks) {
  const std::vector<std::string> common = {"router_replay.mode=R3", "actor.use_kl_loss=true", "rollout.n=3",
                                           "data.val_files=" + dir_.file("val.jsonl"), "trainer.test_freq=1"};
  train("one", "fsdp=1", 1, common);
  const auto run = [&](const std::string& name, const std::string& mesh, int64_t steps, std::vector<std::string> more) {
    more.insert(more.end(), common.begin(), common.end());
    train(name, mesh, steps, more);
  };
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"fsdp=4", {"rollout.mesh=dp=2,tp=2"}},
      {"fsdp=4,ep=2", {"rollout.mesh=tp=4"}},
      {"fsdp=2,tp=2,ep=4", {"rollout.mesh=dp=4,ep=4", "refit.mode=transactional"}},
      {"cp=2,tp=2", {"rollout.mesh=dp=2,tp=2,ep=1", "refit.verify=false"}},
      {"fsdp=3", {"actor.ranks=0-2", "rollout.mesh=dp=2", "rollout.ranks=3-4"}},
      {"fsdp=2,ep=2", {"actor.ranks=2,3", "rollout.mesh=tp=2", "rollout.ranks=0,1"}},
      {"tp=2", {"actor.ranks=1-2", "rollout.ranks=0", "reference.mesh=fsdp=2", "reference.ranks=3-4", "refit.mode=in_place"}},
      {"fsdp=2", {"rollout.mesh=dp=1,tp=2", "reference.mesh=tp=2", "teacher.path=" + tiny_model()}},
  };
  train("one_teacher", "fsdp=1", 1, [&] {
    auto more = common;
    more.push_back("teacher.path=" + tiny_model());
    return more;
  }());
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto& [mesh, more] = cases[i];
    const std::string name = fmt::format("roles{}", i);
    SCOPED_TRACE(mesh + " " + more[0]);
    run(name, mesh, 1, more);
    const std::string one = i + 1 == cases.size() ? "one_teacher" : "one";
    expect_first_step_equal(one, name);
    expect_gradients_close(one, name, 4e-6);
    const nlohmann::json row = metrics(name, true).at(1);
    EXPECT_EQ(row.at("refit/byte_ratio").get<double>(), 1.0);
    // Later steps sample with refitted weights: in parity, and the run stopped in between is the run.
    run(name, mesh, 2, more);
    run(name + "whole", mesh, 2, more);
    expect_same_run(name, name + "whole", 2);
    for (const auto& r : metrics(name)) EXPECT_EQ(r.value("parity/max_abs_diff", 0.0), 0);
  }
}

// Parity fails where the rollout has other weights: in another type, or of an older version.
TEST_F(MeshTrainingTest, ARolloutInAnotherTypeIsNotInParity) {
  train("bf16", "fsdp=2", 1, {"rollout.dtype=bfloat16", "rollout.mesh=tp=2"});
  EXPECT_GT(metrics("bf16").at(0).at("parity/max_abs_diff").get<double>(), 0);
  EXPECT_THROW(train("refused", "fsdp=2", 1, {"rollout.dtype=bfloat16", "trainer.parity=require"}), UsageError);
}

// The norm's coefficient and the moments are those of the whole: three steps stay in parity and the mesh's own run repeats
// itself.
TEST_F(MeshTrainingTest, ModesHoldOnAMesh) {
  const std::vector<std::vector<std::string>> modes = {
      {"router_replay.mode=R3", "actor.use_kl_loss=true", "actor.ppo_epochs=2", "actor.mini_batch_size=2"},
      {"router_replay.mode=R2", "algorithm.use_kl_in_reward=true"},
      {"actor.recompute=true", "actor.max_tokens_per_micro_batch=25"},
      {"algorithm.adv_estimator=remax", "rollout.n=2", "data.val_files=" + dir_.file("val.jsonl"), "trainer.test_freq=1"},
      {"teacher.path=" + tiny_model(), "algorithm.rollout_correction.bypass_mode=false"}};
  for (size_t i = 0; i < modes.size(); ++i) {
    const std::string one = fmt::format("one{}", i);
    train(one, "fsdp=1", 1, modes[i]);
    for (const std::string mesh : {"replicate=2,fsdp=2", "cp=2,tp=2,ep=2"}) {
      const std::string many = fmt::format("{}_{}", mesh, i);
      std::vector<std::string> more = modes[i];
      if (mesh.find("tp") != std::string::npos)
        more.push_back("actor.sequence_parallel=true"), more.push_back("actor.cp_split=contiguous");
      train(many, mesh, 1, more);
      if (i != 0) expect_first_step_equal(one, many);  // several updates: the later ones start from other last bits
      if (i != 0) expect_gradients_close(one, many, 4e-6);
      train(many, mesh, 3, more);
      train(many + "again", mesh, 3, more);
      expect_same_run(many, many + "again", 3);
      for (const auto& row : metrics(many)) EXPECT_EQ(row.value("parity/max_abs_diff", 0.0), 0);
    }
  }
}

TEST_F(MeshTrainingTest, Bf16) {
  train("one", "fsdp=1", 1, {"actor.param_dtype=bfloat16"});
  train("two", "fsdp=2", 1, {"actor.param_dtype=bfloat16"});
  expect_first_step_equal("one", "two");
  // Two micro-batch splits on one rank differ by as much: gradients of activations are rounded to bf16 where rows are summed.
  train("split", "fsdp=1", 1, {"actor.param_dtype=bfloat16", "actor.max_tokens_per_micro_batch=25"});
  expect_gradients_close("one", "split", 1e-5);
  expect_gradients_close("one", "two", 1e-5);
}

// A checkpoint of any mesh is one of every other (checkpoint_mesh_test.cc: byte for byte): the next step samples the same tokens
// and reports the same bits, its update is equal up to the order of sums.
TEST_F(MeshTrainingTest, CheckpointsMoveBetweenMeshes) {
  train("source", "fsdp=3", 2);
  const std::string from = "trainer.resume_from_path=" + run_file("source", "checkpoints/global_step_2");
  for (const std::string mesh :
       {"fsdp=1", "fsdp=3", "fsdp=2", "replicate=2,fsdp=2", "fsdp=2,tp=2", "fsdp=2,ep=2", "fsdp=2,tp=2,ep=4", "fsdp=5"}) {
    train(mesh, mesh, 3, {"trainer.resume_mode=resume_path", from});
    expect_first_step_equal("fsdp=1", mesh);
    expect_gradients_close("fsdp=1", mesh, 4e-6, 3);
    EXPECT_EQ(metrics(mesh).at(0).at("parity/max_abs_diff").get<double>(), 0);
  }
  train("source", "fsdp=3", 3);  // the mesh it was saved on: bit for bit, in a run of its own too
  for (const char* name : {"master.safetensors", "optimizer.safetensors", "progress.json"})
    EXPECT_TRUE(read_bytes(state_file("source", 3, name)) == read_bytes(state_file("fsdp=3", 3, name))) << name;
}

TEST_F(MeshTrainingTest, StoppedRunGoesOnBitEqual) {
  const std::vector<std::string> more = {"actor.ppo_epochs=2", "trainer.save_freq=1", "actor.mini_batch_size=2"};
  train("whole", "fsdp=2", 3, more);
  train("parts", "fsdp=2", 1, more);
  train("parts", "fsdp=2", 3, more);
  expect_same_run("whole", "parts", 3);
}

TEST_F(MeshTrainingTest, SftEqualsOneRank) {
  std::string rows;
  for (int i = 0; i < 9; ++i)
    rows += fmt::format("{{\"prompt\": \"{}+{}=\", \"completion\": \"{}\"}}\n", i, 9 - i,
                        std::string(static_cast<size_t>(1 + i % 4), '7'));
  const std::vector<std::string> more = {"data.train_files=" + dir_.write("sft.jsonl", rows),
                                         "data.val_files=" + dir_.file("sft.jsonl"), "data.train_batch_size=5"};
  train("one", "fsdp=1", 1, more, RecipeUse::kSft);
  for (const std::string& mesh : kMeshes) {
    train(mesh, mesh, 1, more, RecipeUse::kSft);
    expect_gradients_close("one", mesh, 4e-6);
    EXPECT_EQ(metrics("one").at(0).at("sft/loss"), metrics(mesh).at(0).at("sft/loss"));
  }
}

}  // namespace
}  // namespace weft
