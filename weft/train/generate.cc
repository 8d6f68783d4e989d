#include "weft/train/generate.h"

#include <algorithm>
#include <map>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/base/signals.h"
#include "weft/base/trace.h"

namespace weft {

SamplingParams training_params(const Recipe& recipe) {
  const RolloutRecipe& r = recipe.rollout;
  SamplingParams p;
  p.n = r.n;
  p.temperature = r.temperature;
  p.top_p = r.top_p;
  p.top_k = r.top_k;
  p.min_p = r.min_p;
  p.max_tokens = recipe.data.max_response_length;
  p.min_tokens = r.min_tokens;
  p.stop = r.stop;
  p.stop_token_ids.assign(r.stop_token_ids.begin(), r.stop_token_ids.end());
  p.ignore_eos = r.ignore_eos;
  for (const auto& [id, bias] : parse_logit_bias(r.logit_bias))
    p.logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(bias));
  return p;
}

SamplingParams validation_params(const Recipe& recipe) {
  SamplingParams p = training_params(recipe);
  const ValSamplingRecipe& v = recipe.rollout.val_kwargs;
  p.n = v.n;
  p.temperature = v.temperature;
  p.top_p = v.top_p;
  p.top_k = v.top_k;
  p.min_p = v.min_p;
  return p;
}

std::vector<ScoredSample> generate(Engine& engine, const std::vector<Prompt>& prompts, const SamplingParams& params,
                                   uint64_t seed, const std::function<void(int64_t, int64_t)>& progress) {
  const TraceSpan span("generate");
  auto abort_all = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) engine.abort(static_cast<RequestId>(i));
  };
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request;
    request.id = static_cast<RequestId>(i);
    request.prompt_ids = prompts[i].ids;
    request.params = params;
    request.seed = hash_combine(seed, static_cast<uint64_t>(prompts[i].row));
    request.dataset_row = prompts[i].row;
    try {
      engine.add(std::move(request));
    } catch (...) {
      abort_all(i);
      throw;
    }
  }
  const int64_t total = static_cast<int64_t>(prompts.size()) * params.n;
  std::vector<ScoredSample> out(static_cast<size_t>(total));
  int64_t done = 0;
  while (engine.step()) {
    for (GeneratedSample& s : engine.take_finished()) {
      const size_t slot = static_cast<size_t>(s.request * params.n + s.trajectory.sample_index);
      out[slot] = {std::move(s.trajectory), std::move(s.text)};
      ++done;
    }
    if (progress) progress(done, total);
    if (engine.any(stop_requested())) {
      abort_all(prompts.size());
      throw StoppedError(fmt::format("stopped by {} while generating", stop_signal_name()));
    }
  }
  WEFT_CHECK(done == total, "{} of {} samples ended", done, total);
  return out;
}

void score(RewardSet& rewards, const PromptSource& source, const std::vector<Prompt>& prompts,
           std::vector<ScoredSample>& samples) {
  if (samples.empty()) return;
  const TraceSpan span("reward");
  const size_t n = samples.size() / prompts.size();
  std::vector<RewardRequest> requests;
  for (size_t i = 0; i < samples.size(); ++i)
    requests.push_back(
        source.request(prompts[i / n], samples[i].trajectory.sample_index, samples[i].text, samples[i].trajectory.response_ids));
  const std::vector<CombinedReward> scored = rewards.score(requests);
  for (size_t i = 0; i < samples.size(); ++i) {
    Trajectory& t = samples[i].trajectory;
    t.reward = scored[i].value;
    t.reward_valid = scored[i].valid;
    for (size_t f = 0; f < rewards.size(); ++f) {
      if (!scored[i].parts[f].applicable) continue;
      t.rewards[rewards.names()[f]] = scored[i].parts[f].value;
      for (const auto& [key, value] : scored[i].parts[f].extra) t.rewards[rewards.names()[f] + "/" + key] = value;
    }
  }
}

std::vector<ScoredSample> generate_scored(const RolloutShare& rollout, const Job& job, RewardSet& rewards,
                                          const PromptSource& source, const Tokenizer& tokenizer,
                                          const std::vector<Prompt>& prompts, const SamplingParams& params, uint64_t seed,
                                          const std::function<void(int64_t done, int64_t total)>& progress) {
  // Ceil chunks of the prompts.
  const int64_t n = std::ssize(prompts), chunk = (n + rollout.places - 1) / rollout.places;
  const int64_t begin = std::min(n, rollout.place * chunk), end = std::min(n, begin + chunk);
  const std::vector<Prompt> mine(prompts.begin() + begin, prompts.begin() + end);
  std::vector<ScoredSample> samples;
  // A signal may reach the ranks at different moments.
  job.phase(rollout.engine != nullptr, [&] {
    samples = generate(*rollout.engine, mine, params, seed, progress);
    if (!rollout.answers) samples.clear();
    score(rewards, source, mine, samples);
  });
  if (job.size() == 1) return samples;
  std::vector<Trajectory> light;
  std::vector<std::pair<std::optional<RoutingTrace>, std::vector<KeptSet>>> details;
  for (ScoredSample& s : samples) {
    details.emplace_back(std::move(s.trajectory.routing), std::move(s.trajectory.kept));
    s.trajectory.routing.reset(), s.trajectory.kept.clear();
    light.push_back(std::move(s.trajectory));
  }
  samples.clear();
  int rank = 0;
  for (const std::vector<std::byte>& bytes : job.gather_bytes(serialize_trajectories(light))) {
    const bool ours = rank++ == job.rank();
    size_t i = 0;
    for (Trajectory& t : deserialize_trajectories(bytes, "a peer's samples")) {
      if (ours) t.routing = std::move(details[i].first), t.kept = std::move(details[i++].second);
      std::string text = tokenizer.decode(t.response_ids, true);
      samples.push_back({std::move(t), std::move(text), ours, ours});
    }
  }
  return samples;
}

}  // namespace weft
