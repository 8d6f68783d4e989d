#include "weft/train/actor.h"

#include <bit>
#include <cmath>

#include "weft/rollout/engine.h"
#include "weft/train/prompts.h"
#include "weft/train/test_runs.h"
#include "weft/train/trainer.h"

namespace weft {
namespace {

class ActorTest : public RunTest {
 protected:
  void SetUp() override {
    model_ = load_model(tiny_model(), DType::kF32);
    tokenizer_ = Tokenizer::load(tiny_model());
    sample({});
  }
  void sample(const std::vector<std::string>& more) {
    recipe_ = recipe("unused", more);
    const PromptSource source(recipe_.data.train_files, recipe_, *tokenizer_, 5);
    std::vector<Prompt> prompts;
    for (int64_t row : source.rows()) prompts.push_back(source.prompt(row));
    samples_.clear(), pointers_.clear();
    for (ScoredSample& s :
         generate(*make_engine(recipe_, model_, *model_.model, *tokenizer_, true), prompts, training_params(recipe_), 3, {}))
      samples_.push_back(std::move(s.trajectory));
    for (const Trajectory& t : samples_) pointers_.push_back(&t);
  }
  std::vector<float> sampled() const {
    std::vector<float> out;
    for (const Trajectory& t : samples_) out.insert(out.end(), t.rollout_log_probs.begin(), t.rollout_log_probs.end());
    return out;
  }

  Recipe recipe_;
  LoadedModel model_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<Trajectory> samples_;
  std::vector<const Trajectory*> pointers_;
};

TEST_F(ActorTest, ForwardGivesTheSampledBitsWhateverTheSplit) {
  const ActorOutput whole = actor_forward(*model_.model, pointers_, {});
  EXPECT_EQ(whole.log_probs, sampled());
  ASSERT_EQ(whole.offsets.size(), samples_.size() + 1);
  std::vector<float> parts;
  for (const MicroBatch micro : split_micro_batches(pointers_, 17)) {
    const ActorOutput part = actor_forward(*model_.model, micro, {});
    parts.insert(parts.end(), part.log_probs.begin(), part.log_probs.end());
  }
  EXPECT_EQ(parts, whole.log_probs);
}

TEST_F(ActorTest, LogitBiasAndKeptSetsAreMatched) {
  sample({"rollout.top_p=0.8", "rollout.top_k=7", "rollout.temperature=0.6", "rollout.min_tokens=3",
          "rollout.logit_bias={5 = 2.0}"});
  kernels::LogitBias bias;
  bias.ids = {5}, bias.values = {2.0f};
  ActorOptions options;
  options.logit_bias = &bias;
  EXPECT_EQ(actor_forward(*model_.model, pointers_, options).log_probs, sampled());
  EXPECT_NE(actor_forward(*model_.model, pointers_, {}).log_probs, sampled()) << "without the bias";
  for (Trajectory& t : samples_) t.kept.clear();
  EXPECT_NE(actor_forward(*model_.model, pointers_, options).log_probs, sampled()) << "without the kept sets";
}

TEST_F(ActorTest, RecordedTracesAreThoseOfTheRollout) {
  std::vector<RoutingTrace> traces;
  ActorOptions options;
  options.record = &traces;
  actor_forward(*model_.model, pointers_, options);
  ASSERT_EQ(traces.size(), samples_.size());
  for (size_t i = 0; i < traces.size(); ++i) EXPECT_EQ(traces[i], *samples_[i].routing) << samples_[i].name();
}

TEST_F(ActorTest, ReplayTakesTheTraceNotTheLiveChoice) {
  ActorOptions options;
  options.replay = true;
  EXPECT_EQ(actor_forward(*model_.model, pointers_, options).log_probs, sampled());
  RoutingTrace& trace = *samples_[0].routing;
  for (int64_t r = 0; r < trace.num_rows(); ++r) {
    const std::vector<int32_t> other = {(trace.get(r, 0)[0] + 1) % 4, (trace.get(r, 0)[0] + 2) % 4};
    trace.set(r, 0, other);
  }
  EXPECT_NE(actor_forward(*model_.model, pointers_, options).log_probs, sampled());
  options.replay = false;
  EXPECT_EQ(actor_forward(*model_.model, pointers_, options).log_probs, sampled());
}

TEST_F(ActorTest, ReplayWithoutOrWithAShortTraceIsRefusedByName) {
  ActorOptions options;
  options.replay = true;
  const RoutingTrace whole = *samples_[1].routing;
  samples_[1].routing.reset();
  EXPECT_NE(message_of<ValueError>([&] { actor_forward(*model_.model, pointers_, options); }).find(samples_[1].name()),
            std::string::npos);
  samples_[1].routing = RoutingTrace(whole.num_rows() - 1, whole.layer_ids(), 2, 4);
  EXPECT_NE(message_of<Error>([&] { actor_forward(*model_.model, pointers_, options); }).find(samples_[1].name()),
            std::string::npos);
}

TEST_F(ActorTest, GreedySamplesAreRefused) {
  samples_[2].temperature = 0.0;
  const std::string text = message_of<ValueError>([&] { actor_forward(*model_.model, pointers_, {}); });
  EXPECT_NE(text.find(samples_[2].name()), std::string::npos) << text;
  EXPECT_NE(text.find("greedily"), std::string::npos) << text;
}

TEST_F(ActorTest, ParityFindsOneChangedBit) {
  EXPECT_TRUE(check_parity(*model_.model, pointers_, {}, 40).exact());
  float& value = samples_[3].rollout_log_probs[0];
  value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ 1u);
  const ParityResult log_prob = check_parity(*model_.model, pointers_, {}, 40);
  EXPECT_FALSE(log_prob.exact());
  EXPECT_EQ(log_prob.unequal_tokens, 1);
  EXPECT_EQ(log_prob.unequal_rows, 0);
  EXPECT_GT(log_prob.max_difference, 0.0);
  EXPECT_NE(log_prob.first.find(samples_[3].name()), std::string::npos) << log_prob.first;
  value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ 1u);

  RoutingTrace& trace = *samples_[4].routing;
  std::vector<int32_t> row = trace.get(1, 1);
  std::swap(row[0], row[1]);  // slot order counts
  trace.set(1, 1, row);
  const ParityResult route = check_parity(*model_.model, pointers_, {}, 40);
  EXPECT_EQ(route.unequal_tokens, 0);
  EXPECT_EQ(route.unequal_rows, 1);
  EXPECT_NE(route.first.find("layer 1"), std::string::npos) << route.first;
}

TEST_F(ActorTest, ParityTakesNanForADifference) {
  samples_[0].rollout_log_probs[0] = NAN;
  const ParityResult r = check_parity(*model_.model, pointers_, {}, 1000);
  EXPECT_FALSE(r.exact());
  EXPECT_TRUE(std::isinf(r.max_difference));
}

TEST_F(ActorTest, MicroBatchesCoverTheListWithinTheBudget) {
  for (int64_t budget : {1, 9, 20, 1000}) {
    std::vector<const Trajectory*> all;
    for (const MicroBatch part : split_micro_batches(pointers_, budget)) {
      EXPECT_FALSE(part.empty());
      int64_t tokens = 0;
      for (const Trajectory* t : part) tokens += t->num_tokens() - 1;
      EXPECT_TRUE(tokens <= budget || part.size() == 1) << tokens;
      all.insert(all.end(), part.begin(), part.end());
    }
    EXPECT_EQ(all, pointers_);
  }
  EXPECT_TRUE(split_micro_batches({}, 10).empty());
}

// The auxiliary loss of the router against central differences. The shares of choices are constants of the gradient, so a
// difference counts only where no token changes its experts between its two ends.
TEST_F(ActorTest, AuxiliaryLossMatchesFiniteDifferences) {
  const std::span<const Trajectory* const> some = std::span<const Trajectory* const>(pointers_).first(3);
  ActorOptions options;
  options.router_aux = 0.7;
  const auto zero = [](const ActorOutput& o) { return TokenGradients{std::vector<double>(o.log_probs.size(), 0.0), {}}; };
  auto loss = [&] { return options.router_aux * actor_backward(*model_.model, some, options, zero).router_aux; };
  auto choices = [&] {
    std::vector<RoutingTrace> traces;
    ActorOptions record;
    record.record = &traces;
    actor_forward(*model_.model, some, record);
    return traces;
  };
  for (nn::Parameter* p : model_.model->parameters()) p->zero_grad();
  const std::vector<RoutingTrace> before = choices();
  // Two choices of four experts: an even load gives 2 for each sequence, this one more.
  EXPECT_GT(loss(), 0.7 * 2 * 3);
  for (const char* name :
       {"model.layers.0.mlp.gate.weight", "model.layers.1.mlp.gate.weight", "model.layers.0.self_attn.v_proj.weight"}) {
    nn::Parameter* p = model_.model->find_parameter(name);
    ASSERT_NE(p, nullptr) << name;
    for (nn::Parameter* q : model_.model->parameters()) q->zero_grad();  // each call of loss() adds its gradient
    loss();
    const std::vector<float> grad(p->grad_data(), p->grad_data() + p->numel());
    const auto top = std::max_element(grad.begin(), grad.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    ASSERT_GT(std::fabs(*top), 0.0f) << name;
    float* x = p->master().data_ptr<float>() + (top - grad.begin());
    const float value = *x;
    bool compared = false;
    for (float step : {2e-3f, 1e-3f, 5e-4f}) {
      double ends[2], places[2];
      bool same = true;
      for (int side : {0, 1}) {
        *x = value + (side ? step : -step);
        p->updated();
        same = same && choices() == before;
        ends[side] = loss(), places[side] = *x;
      }
      if (!same) continue;
      EXPECT_NEAR((ends[1] - ends[0]) / (places[1] - places[0]), *top, 1e-2 * std::fabs(*top)) << name;
      compared = true;
      break;
    }
    *x = value;
    p->updated();
    EXPECT_TRUE(compared) << name << ": a token changes its experts at every step";
  }
}

TEST(RouterReplay, NamesAreParsed) {
  EXPECT_EQ(parse_router_replay("R3"), RouterReplayMode::kR3);
  EXPECT_NE(message_of<UsageError>([] { parse_router_replay("r3"); }).find("disabled, R2 or R3"), std::string::npos);
}

}  // namespace
}  // namespace weft
