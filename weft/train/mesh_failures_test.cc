// What went wrong in others' expert, tensor and context parallelism and router replay, tried on whole models (docs/sharding.md
// lists the failures; weft/parallel/known_failures_test.cc has those of single groups).
#include "weft/train/test_mesh_oracle.h"

namespace weft {
namespace {

using namespace weft::testing;

// Routes that no router chose: different for every token, so that a row that takes another's is seen.
std::vector<RoutingTrace> made_up_routes(const CausalLM& model, const std::vector<Trajectory>& rows,
                                         const std::function<int32_t(size_t, int64_t, int64_t)>& first) {
  const ModelConfig& c = model.config();
  std::vector<RoutingTrace> out;
  for (size_t i = 0; i < rows.size(); ++i) {
    RoutingTrace trace(rows[i].num_tokens() - 1, c.moe_layer_ids(), static_cast<int>(c.moe.top_k),
                       static_cast<int>(c.moe.num_experts));
    for (int64_t r = 0; r < trace.num_rows(); ++r)
      for (int64_t l = 0; l < trace.num_layers(); ++l) {
        std::vector<int32_t> ids;
        for (int64_t k = 0; k < c.moe.top_k; ++k) ids.push_back(static_cast<int32_t>((first(i, r, l) + k) % c.moe.num_experts));
        trace.set(r, l, ids);
      }
    out.push_back(std::move(trace));
  }
  return out;
}

OracleRun with_routes(const OracleOptions& options, const std::function<int32_t(size_t, int64_t, int64_t)>& first) {
  const CausalLM model(configure_model(HfConfig::parse(oracle_model(options.model), "config.json")), at::kFloat);
  OracleRun run;
  run.traces.push_back(made_up_routes(model, oracle_rows(model.config().vocab_size), first));
  return run;
}

const std::vector<std::string> kTopologies = {
    "fsdp=2,tp=2", "fsdp=4,ep=4", "fsdp=2,tp=2,ep=4", "replicate=2,fsdp=2,tp=2,ep=4", "cp=2,ep=2", "fsdp=2,cp=2,tp=2,ep=8"};

// Replay on every topology executes each token's recorded experts (miles #3146: rows in another order, and no error): with routes
// made up for each token log-probs are one rank's, bit for bit, and not those of the live router. With routes shifted by one
// token they are others.
TEST(MeshFailures, EachTokenExecutesItsRecordedExperts) {
  for (const TokenSharing sharing : {TokenSharing{}, TokenSharing{ContextSplit::kContiguous, true}}) {
    const OracleOptions options{.sharing = sharing};
    const auto route = [](size_t i, int64_t r, int64_t l) {
      return static_cast<int32_t>(3 * i + 5 * static_cast<size_t>(r) + static_cast<size_t>(l));
    };
    const OracleRun replay = with_routes(options, route);
    const OracleRun shifted = with_routes(options, [&](size_t i, int64_t r, int64_t l) { return route(i, r + 1, l); });
    OracleRun one = run_oracle(options, nullptr, &replay);
    one.traces = replay.traces;
    EXPECT_FALSE(one.steps[0].log_probs == run_oracle(options, nullptr, nullptr).steps[0].log_probs);
    EXPECT_FALSE(one.steps[0].log_probs == run_oracle(options, nullptr, &shifted).steps[0].log_probs);
    for (const std::string& mesh : kTopologies) expect_mesh_equals_one_rank(mesh, options, one);
  }
}

// ms-swift #9981: ids above 255 wrapped, and contexts cut zigzag got the routes of contiguous ones.
TEST(MeshFailures, ThreeHundredExpertsOnBothSplitsOfAContext) {
  for (const ContextSplit split : {ContextSplit::kZigzag, ContextSplit::kContiguous}) {
    const OracleOptions options{.model = "many_experts", .sharing = {split, false}};
    const OracleRun replay = with_routes(options, [](size_t i, int64_t r, int64_t l) {
      return static_cast<int32_t>(254 + 40 * i + 3 * static_cast<size_t>(r + l));
    });
    OracleRun one = run_oracle(options, nullptr, &replay);
    one.traces = replay.traces;
    for (const char* mesh : {"cp=2", "cp=2,ep=2", "cp=3"}) expect_mesh_equals_one_rank(mesh, options, one);
  }
}

// What is recorded on a mesh (R2's pass) is what one rank records, token by token, and so are the experts of the rollout's trace.
TEST(MeshFailures, RecordedRoutesAreOneRanks) {
  for (const TokenSharing sharing : {TokenSharing{}, TokenSharing{ContextSplit::kContiguous, true}})
    for (const std::string& text : kTopologies) {
      const OracleOptions options{.sharing = sharing};
      const OracleRun one = run_oracle(options, nullptr, nullptr);
      const ParallelDims dims = parse_parallel_dims(text, 0, {"oe"});
      run_ranks(static_cast<int>(dims.world()), {}, [&](Communicator& world) {
        const auto mesh = make_rank_mesh(dims, world, sharing);
        const OracleRun ours = run_oracle(options, mesh, nullptr);
        const DataParallel ranks(mesh);
        std::vector<Trajectory> rows = oracle_rows(53);
        std::vector<const Trajectory*> list;
        for (const Trajectory& t : rows) list.push_back(&t);
        const std::vector<RoutingTrace> all = ranks.gather_traces(ranks.share(list, options.max_tokens), list, ours.traces[0]);
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        ASSERT_EQ(all.size(), one.traces[0].size());
        for (size_t i = 0; i < all.size(); ++i)
          for (int64_t r = 0; r < all[i].num_rows(); ++r)
            for (int64_t l = 0; l < all[i].num_layers(); ++l)
              EXPECT_EQ(all[i].get(r, l), one.traces[0][i].get(r, l)) << text << " " << i << " " << r;
      });
    }
}

// All tokens to one expert (pytorch #158719, torchtitan #2747, slime PR #1010: mismatch or hang): the gradients of the others are
// exactly zero.
TEST(MeshFailures, AllTokensOnTheFirstExperts) {
  const OracleOptions options;
  const OracleRun replay = with_routes(options, [](size_t, int64_t, int64_t) { return 0; });
  OracleRun one = run_oracle(options, nullptr, &replay);
  one.traces = replay.traces;
  for (const std::string& mesh : kTopologies) expect_mesh_equals_one_rank(mesh, options, one);
  for (const auto& [name, g] : one.steps[0].grads) {
    if (name.find(".experts.") == std::string::npos) continue;
    EXPECT_GT(g.narrow(0, 0, 2).abs().max().item<float>(), 0.0f);
    EXPECT_EQ(g.narrow(0, 2, g.size(0) - 2).abs().max().item<float>(), 0.0f);  // experts 0 and 1 have all
  }
  CommOptions soon;
  soon.timeout_s = 20;
  run_ranks(4, soon, [&](Communicator& world) {
    const OracleRun ours = run_oracle(options, make_rank_mesh(parse_parallel_dims("fsdp=4,ep=4", 0, {"oe"}), world), &replay);
    for (const auto& [name, g] : ours.steps[0].grads)
      if (name.find(".experts.") != std::string::npos) {
        EXPECT_EQ(g.narrow(0, 2, g.size(0) - 2).abs().max().item<float>(), 0.0f) << name;
      }
  });
}

// Megatron-LM #5956, VeOmni #185: expert gradients ep times too large. Over dp x ep sweeps every parameter's gradient is one
// rank's.
TEST(MeshFailures, ExpertGradientsDoNotKnowTheMesh) {
  const OracleOptions options;
  const OracleRun one = run_oracle(options, nullptr, nullptr);
  for (const int64_t fsdp : {2, 4, 6})
    for (int64_t ep = 1; ep <= fsdp; ++ep) {
      if (fsdp % ep != 0) continue;
      const ParallelDims dims = parse_parallel_dims(fmt::format("fsdp={},ep={}", fsdp, ep), 0, {"oe"});
      run_ranks(static_cast<int>(fsdp), {}, [&](Communicator& world) {
        const OracleRun ours = run_oracle(options, make_rank_mesh(dims, world), &one);
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        for (const auto& [name, g] : one.steps[0].grads) {
          const double ratio = ours.steps[0].grads.at(name).norm().item<double>() / g.norm().item<double>();
          EXPECT_NEAR(ratio, 1, 1e-5) << name << ", ep " << ep << " of " << fsdp;
        }
      });
    }
}

// pytorch #180346, #170862: a norm over parameters of several meshes that was partial, or another on each rank.
TEST(MeshFailures, NormsOverSeveralMeshes) {
  const OracleOptions options;
  const OracleRun one = run_oracle(options, nullptr, nullptr);
  for (const double p : {1.0, 2.0, static_cast<double>(INFINITY)}) {
    double expected = 0;
    for (const auto& [name, g] : one.steps[0].grads) {
      const at::Tensor magnitude = g.to(at::kDouble).abs();
      if (std::isinf(p))
        expected = std::max(expected, magnitude.max().item<double>());
      else
        expected += magnitude.pow(p).sum().item<double>();
    }
    if (!std::isinf(p)) expected = std::pow(expected, 1 / p);
    for (const char* text :
         {"replicate=2,fsdp=2,ep=2", "replicate=2,fsdp=2,tp=2,ep=4", "fsdp=2,cp=2,tp=2,ep=4", "fsdp=3,tp=2,ep=6"}) {
      const ParallelDims dims = parse_parallel_dims(text, 0, {"oe"});
      std::vector<double> norms(static_cast<size_t>(dims.world()));
      run_ranks(static_cast<int>(dims.world()), {}, [&](Communicator& world) {
        const auto mesh = make_rank_mesh(dims, world);
        OracleOptions keep = options;
        keep.after_backward = [&](CausalLM& model) {
          norms[static_cast<size_t>(world.rank())] = gradient_norm(model.parameters(), p, *mesh);
        };
        (void)run_oracle(keep, mesh, &one);
      });
      for (const double n : norms) {
        EXPECT_EQ(n, norms[0]) << text << ", p " << p;
        EXPECT_NEAR(n, expected, 4e-6 * expected) << text << ", p " << p;
      }
    }
  }
}

}  // namespace
}  // namespace weft
