// Forward, backward and update on every mesh against one rank.
#include "weft/train/test_mesh_oracle.h"

namespace weft {
namespace {

using namespace weft::testing;

void expect_all(const std::vector<std::string>& meshes, const OracleOptions& options) {
  const OracleRun one = run_oracle(options, nullptr, nullptr);
  for (const std::string& mesh : meshes) expect_mesh_equals_one_rank(mesh, options, one);
}

TEST(MeshOracle, EveryMeshOfFourRanksEqualsOne) {
  for (int64_t world = 1; world <= 4; ++world) expect_all(all_meshes(world, true), {});
}

TEST(MeshOracle, ReplicateTimesFsdpOfFiveSevenAndEightRanks) {
  for (const char* model : {"moe", "dense", "over_encoded"})
    for (const int64_t world : {5, 7, 8}) expect_all(all_meshes(world, false), {.model = model});
}

TEST(MeshOracle, EightRanksWithThreeAxesOfTwo) {
  for (const int64_t ep : {1, 2, 4, 8}) {
    expect_all({fmt::format("fsdp=2,cp=2,tp=2,ep={}", ep)}, {});
    if (ep == 8) continue;
    for (const char* dense : {"fsdp=2,cp=2", "fsdp=2,tp=2", "cp=2,tp=2"})
      expect_all({fmt::format("replicate=2,{},ep={}", dense, ep)}, {});
  }
}

TEST(MeshOracle, ThreeSteps) {
  for (const char* model : {"moe", "dense", "over_encoded"})
    expect_all({"fsdp=2", "replicate=2,fsdp=2", "fsdp=8", "fsdp=2,tp=2,ep=2", "tp=4", "cp=3", "fsdp=2,cp=2", "cp=2,tp=2,ep=4"},
               {.model = model, .steps = 3});
}

// What each rank of tp sees between the blocks, and of cp within a sequence, changes no bit.
TEST(MeshOracle, SequenceParallelAndContiguousContexts) {
  for (const char* model : {"moe", "dense", "over_encoded"}) {
    const OracleOptions options{.model = model, .sharing = {ContextSplit::kContiguous, true}};
    expect_all({"tp=2", "fsdp=2,tp=2", "fsdp=2,tp=2,ep=2", "fsdp=2,tp=2,ep=4", "tp=8", "replicate=2,tp=2", "cp=2", "cp=5",
                "cp=2,tp=2", "cp=2,tp=4,ep=8"},
               options);
  }
  expect_all({"tp=4", "cp=2,tp=2,ep=4"}, {.steps = 3, .sharing = {ContextSplit::kZigzag, true}});
  expect_all({"fsdp=2,tp=2,ep=2", "cp=3"}, {.recompute = true, .sharing = {ContextSplit::kZigzag, true}});
  expect_all({"tp=2", "fsdp=2,tp=2,oe=4"}, {.model = "over_encoded", .sharing = {ContextSplit::kZigzag, true}});
}

TEST(MeshOracle, AwkwardShapes) {
  expect_all(
      {"fsdp=3,tp=2,ep=6", "fsdp=7,ep=7", "tp=8,ep=8", "fsdp=8,ep=4", "cp=8", "fsdp=5,ep=5", "cp=7,ep=7", "fsdp=3,cp=2,ep=2"},
      {});
  expect_all({"fsdp=2,ep=2", "fsdp=4,ep=4", "fsdp=2,tp=2,ep=2", "tp=2,ep=2"}, {.model = "three_experts"});
  expect_all({"fsdp=2,oe=2", "fsdp=4,oe=2", "fsdp=2,tp=2,oe=4", "fsdp=2,tp=2,ep=2,oe=2", "tp=2"}, {.model = "over_encoded"});
  expect_all({"tp=2", "tp=8", "fsdp=2,tp=4"}, {.model = "dense"});
}

// Entries of a user: blocks that stay whole on an axis, and another fsdp dim, change no bit either.
TEST(MeshOracle, UserPlans) {
  const std::string attention = "*.self_attn.* tp replicated", mlp = "*.mlp.*_proj.* tp replicated",
                    vocabulary = "model.embed_tokens.weight tp replicated", head = "lm_head.weight tp replicated",
                    experts = "*.experts.* ep replicated-partial", dims = "*.mlp.*_proj.weight fsdp cut(1)",
                    whole = "*layernorm.weight fsdp replicated";
  const std::vector<std::pair<std::string, std::vector<std::string>>> plans = {
      {"tp=2", {attention}},
      {"fsdp=2,tp=2,ep=2", {attention, head, experts, dims}},
      {"cp=2,tp=2,ep=4", {mlp, vocabulary, whole}},
      {"fsdp=2,ep=2", {experts, dims, whole}},
      {"tp=4", {attention, mlp, vocabulary, head}}};
  for (const auto& [mesh, plan] : plans)
    for (const bool slices : {false, true}) {
      SCOPED_TRACE(fmt::format("{}", fmt::join(plan, "; ")));
      expect_all({mesh}, {.sharing = {ContextSplit::kZigzag, slices}, .plan = plan});
    }
  expect_all({"fsdp=2,oe=2"}, {.model = "over_encoded", .plan = {"*.embedding_list.* oe replicated-partial"}});

  const auto refused = [](const std::string& model, const std::vector<std::string>& plan, bool slices = false) -> std::string {
    const ModelConfig config = configure_model(HfConfig::parse(oracle_model(model), "config.json"));
    const CausalLM whole_model(config, at::kFloat);
    const std::vector<nn::Parameter*> all = whole_model.parameters();
    try {
      (void)plan_of(config, parse_parallel_dims("fsdp=2,tp=2,ep=2", 0, {"oe"}), slices, plan, {all.begin(), all.end()});
    } catch (const UsageError& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(refused("moe", {attention, experts, "*.q_proj.weight tp cut(0)"}),
            "the plan has model.layers.0.self_attn.k_proj.weight whole on tp and model.layers.0.self_attn.q_proj.weight not: "
            "self_attn is placed as one");
  EXPECT_EQ(refused("moe", {"*.q_proj.* tp cut(1)"}),
            "plan entry *.q_proj.* (tp: cut(1)): model.layers.0.self_attn.q_proj.weight is tp: cut(0), or tp: replicated with "
            "its block");
  EXPECT_EQ(refused("moe", {"*.mlp.gate.weight tp replicated"}, true),
            "plan entry *.mlp.gate.weight (tp: replicated): model.layers.0.mlp.gate.weight is tp: replicated-partial");
  EXPECT_EQ(refused("moe", {"*.wq.* tp replicated"}),
            "the plan's entry *.wq.* (tp) matches no parameter; the first of 36 is model.embed_tokens.weight");
  EXPECT_EQ(refused("moe", {"* dp replicated"}), "the plan's entry for * names the axis \"dp\": there are fsdp, tp, ep, oe");
  EXPECT_EQ(refused("moe", {"* tp cut"}),
            "plan entry \"* tp cut\": \"cut\" is no placement; expected \"PATTERN AXIS PLACEMENT\", where PLACEMENT is cut(DIM), "
            "replicated or replicated-partial");
  EXPECT_EQ(refused("moe", {"*.experts.* tp replicated"}).substr(0, 80),
            "plan entry *.experts.* (tp: replicated): tp takes no part in what it matches; it");
  EXPECT_EQ(refused("moe", {"*.experts.* ep cut(0)", "*.q_proj.weight tp cut(0)"}), "none");  // what it is anyway
}

TEST(MeshOracle, SizesThatTheModelForbids) {
  const auto refused = [](const std::string& model, const std::string& mesh) -> std::string {
    const ModelConfig config = configure_model(HfConfig::parse(oracle_model(model), "config.json"));
    const ParallelDims dims = parse_parallel_dims(mesh, 0, {"oe"});
    try {
      check_mesh(config, dims);
      const CausalLM whole(config, at::kFloat);
      for (const nn::Parameter* p : whole.parameters())
        (void)place_parameter(sharding_table(config), dims, p->name(), p->shape());
    } catch (const UsageError& e) {
      return e.what();
    }
    return "none";
  };
  EXPECT_EQ(refused("moe", "fsdp=2,oe=2"), "mesh fsdp=2,oe=2: qwen3_moe has no axis \"oe\", which cuts over-encoded embeddings");
  EXPECT_EQ(refused("moe", "tp=3"),
            "tp=3: model.embed_tokens.weight is cut on eighths of the vocabulary; tp can be 1, 2, 4 or 8");
  EXPECT_EQ(refused("over_encoded", "fsdp=2,tp=2,ep=4,oe=2"), "none");
  EXPECT_EQ(refused("dense", "fsdp=2,ep=2"), "none");  // without effect
}

TEST(MeshOracle, RecomputeAndOneMicroBatch) {
  expect_all({"fsdp=3", "fsdp=2,tp=2,ep=4"}, {.recompute = true});
  expect_all({"fsdp=3", "fsdp=2,tp=2,ep=4"}, {.max_tokens = 1000});
}

TEST(MeshOracle, Bf16) {
  const OracleOptions options{.dtype = at::kBFloat16};
  const OracleRun one = run_oracle(options, nullptr, nullptr);
  // The tolerance: two splits on one rank differ by up to half of it (5.3e-7).
  OracleOptions split = options;
  split.max_tokens = 1000;
  expect_gradients_close(run_oracle(split, nullptr, &one).steps[0], one.steps[0], gradient_tolerance(at::kBFloat16, false));
  for (const char* mesh : {"fsdp=2", "fsdp=4,ep=2", "cp=2", "tp=2", "fsdp=2,tp=2,ep=4"})
    expect_mesh_equals_one_rank(mesh, options, one);
  OracleOptions slices = options;
  slices.sharing.sequence_parallel = true;
  for (const char* mesh : {"tp=2", "cp=2,tp=2,ep=4"}) expect_mesh_equals_one_rank(mesh, slices, one);
}

}  // namespace
}  // namespace weft
