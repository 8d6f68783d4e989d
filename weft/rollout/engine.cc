#include "weft/rollout/engine.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "weft/base/error.h"
#include "weft/base/threads.h"
#include "weft/model/routing.h"

namespace weft {
namespace {

// Room for 1024 tokens a running sample, and for one request of the greatest length. Pages are taken when first written, so what
// is never used costs nothing; total memory, not free memory, bounds it: what is admitted must not depend on the machine's mood.
int64_t default_cache_tokens(const ModelConfig& c, int64_t kv_heads, at::ScalarType dtype, const EngineConfig& config) {
  const int64_t bytes_per_token = 2 * kv_heads * c.head_dim * c.num_layers * (dtype == at::kFloat ? 4 : 2);
  const int64_t memory = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  const int64_t wanted = std::max(config.max_num_seqs * 1024, config.max_model_len + config.block_size);
  return std::max(config.block_size, std::min(wanted, memory / 4 / bytes_per_token));
}

// Of this rank's heads.
kernels::KvShape kv_shape(const CausalLM& model, int64_t block_size) {
  const nn::AttentionShape heads = model.attention_shape();
  return {heads.num_kv_heads, heads.head_dim, block_size, model.param_dtype() == at::kFloat ? DType::kF32 : DType::kBF16};
}

// tp ranks work on the same rows, ep ranks (and those of a model's own axes) exchange theirs. All are runs of consecutive ranks,
// so the smallest runs that hold whole ones of each are theirs in common.
const Communicator* stepping_together(const CausalLM& model) {
  const RankMesh* mesh = model.mesh();
  if (!mesh) return nullptr;
  int64_t ranks = std::lcm(mesh->dims.tp, mesh->dims.ep);
  for (const auto& [axis, size] : mesh->dims.own) ranks = std::lcm(ranks, size);
  return ranks == 1 ? nullptr : &mesh->neighbours(mesh->world, ranks);
}

void require_positive(const char* name, int64_t value) {
  if (value < 1 || value > INT32_MAX)
    throw UsageError(fmt::format("rollout.{} = {}: must be between 1 and {}", name, value, INT32_MAX));
}

EngineConfig resolved(EngineConfig config, const CausalLM& model) {
  const ModelConfig& c = model.config();
  if (config.block_size < 1 || kernels::kKeyBlock % config.block_size != 0)
    throw UsageError(fmt::format("rollout.block_size = {}: must divide {}", config.block_size, kernels::kKeyBlock));
  require_positive("max_num_seqs", config.max_num_seqs);
  require_positive("max_num_batched_tokens", config.max_num_batched_tokens);
  if (config.max_model_len <= 0) config.max_model_len = c.max_position_embeddings;
  if (config.max_model_len > c.max_position_embeddings)
    throw UsageError(
        fmt::format("max_model_len = {}: the model has {} positions", config.max_model_len, c.max_position_embeddings));
  if (config.kv_cache_tokens <= 0) {
    config.kv_cache_tokens = default_cache_tokens(c, model.attention_shape().num_kv_heads, model.param_dtype(), config);
    // tp ranks decide the same on hosts that are not.
    if (const RankMesh* mesh = model.mesh())
      mesh->tp.all_reduce(&config.kv_cache_tokens, &config.kv_cache_tokens, 1, DType::kI64, ReduceOp::kMin, "engine").wait();
  }
  if ((config.kv_cache_tokens - 1) / config.block_size >= INT32_MAX)
    throw UsageError(fmt::format("rollout.kv_cache_tokens = {}: more than {} blocks of {} tokens", config.kv_cache_tokens,
                                 INT32_MAX, config.block_size));
  // Ids beyond the model's vocabulary can never be drawn (tokenizers name such).
  std::erase_if(config.end_ids, [&](int32_t id) { return id < 0 || id >= c.vocab_size; });
  std::sort(config.end_ids.begin(), config.end_ids.end());
  config.end_ids.erase(std::unique(config.end_ids.begin(), config.end_ids.end()), config.end_ids.end());
  config.record_routing = config.record_routing && c.has_moe();
  return config;
}

SchedulerLimits limits(const EngineConfig& c) {
  return {(c.kv_cache_tokens - 1) / c.block_size + 1, c.block_size, c.max_num_seqs, c.max_num_batched_tokens};
}

}  // namespace

struct Engine::Sample {
  explicit Sample(int64_t i) : index(i) {}
  int64_t index;
  std::vector<int32_t> tokens;  // prompt and response
  std::vector<float> log_probs, raw_log_probs;
  std::vector<KeptSet> kept;
  std::vector<int32_t> routes;  // [response rows fed][L][k]
  std::vector<WeightSpan> versions;
  bool any_removed = false;
  std::optional<StreamDecoder> decoder;
  std::string text;
};

struct Engine::Live {
  GenerationRequest request;
  kernels::LogitBias bias;
  std::vector<int32_t> banned;  // what min_tokens forbids: end ids and stop ids, ascending
  std::set<int32_t> stop_ids;
  std::vector<float> prompt_logits;                    // of the last prompt position, until all n samples have drawn from it
  std::vector<int32_t> prompt_routes;                  // [prompt rows][L][k]
  std::map<int64_t, std::unique_ptr<Sample>> samples;  // running
  int64_t started = 0, finished = 0;
};

struct Engine::Draw {
  Live* live = nullptr;
  Sample* sample = nullptr;
  const float* logits = nullptr;
  kernels::Sampled drawn;
};

Engine::Engine(CausalLM& model, EngineConfig config, const Tokenizer* tokenizer)
    : model_(model),
      together_(stepping_together(model)),
      config_(resolved(std::move(config), model)),
      tokenizer_(tokenizer),
      cache_(kv_shape(model, config_.block_size), model.config().num_layers, limits(config_).num_blocks),
      scheduler_(limits(config_)) {}

Engine::~Engine() = default;

void Engine::check_allowed() const {
  if (!forbidden_.empty()) throw ValueError(forbidden_);
  cache_.arena().require();
}

void Engine::add(GenerationRequest request) {
  check_allowed();
  const int64_t vocab = model_.config().vocab_size, prompt = static_cast<int64_t>(request.prompt_ids.size());
  request.params.validate(vocab);
  if (!request.params.stop.empty() && !tokenizer_) throw ValueError("stop strings need a tokenizer: use stop_token_ids");
  for (size_t i = 0; i < request.prompt_ids.size(); ++i)
    if (request.prompt_ids[i] < 0 || request.prompt_ids[i] >= vocab)
      throw ValueError(fmt::format("request {}: prompt token {} at position {} is outside the vocabulary of {}", request.id,
                                   request.prompt_ids[i], i, vocab));
  if (prompt > config_.max_model_len || request.params.max_tokens > config_.max_model_len - prompt)
    throw ValueError(
        fmt::format("request {}: a prompt of {} and max_tokens = {} exceed the limit of {} positions; nothing is truncated",
                    request.id, prompt, request.params.max_tokens, config_.max_model_len));
  auto live = std::make_unique<Live>();
  for (const auto& [id, value] : std::map<int32_t, float>(request.params.logit_bias.begin(), request.params.logit_bias.end())) {
    live->bias.ids.push_back(id);
    live->bias.values.push_back(value);
  }
  live->stop_ids.insert(request.params.stop_token_ids.begin(), request.params.stop_token_ids.end());
  if (!request.params.ignore_eos) live->stop_ids.insert(config_.end_ids.begin(), config_.end_ids.end());
  live->banned.assign(live->stop_ids.begin(), live->stop_ids.end());
  if (request.params.min_tokens > 0 && static_cast<int64_t>(live->banned.size()) == vocab)
    throw ValueError(fmt::format("request {}: min_tokens = {}, but every token of the vocabulary ends the response", request.id,
                                 request.params.min_tokens));
  live->request = std::move(request);
  const GenerationRequest& r = live->request;
  scheduler_.add(r.id, prompt, r.params.max_tokens, r.params.n);
  live_.emplace(r.id, std::move(live));
}

void Engine::abort(RequestId id) {
  scheduler_.abort(id);
  live_.erase(id);
}

void Engine::abort_all() {
  while (!live_.empty()) {
    const RequestId id = live_.begin()->first;
    while (live_.count(id) > 0 && !live_.at(id)->samples.empty())
      finish(*live_.at(id), live_.at(id)->samples.begin()->first, "abort");
    abort(id);
  }
}

void Engine::weights_changed(int64_t version) {
  config_.weight_version = version;
  if (config_.running == RunningRequests::kPause) scheduler_.recompute_all();
  if (config_.running == RunningRequests::kAbort) abort_all();
}

void Engine::sleep(const std::string& store_dir) {
  if (!cache_.arena().has_memory()) return;
  if (config_.running == RunningRequests::kAbort) abort_all();
  if (config_.running == RunningRequests::kKeep && !scheduler_.idle()) return cache_.arena().store(store_dir);
  scheduler_.recompute_all();
  cache_.arena().discard();
}

void Engine::wake() {
  cache_.arena().wake();
  cache_.arena().filled();  // what was lost is nobody's, or is recomputed
}

bool Engine::any(bool mine) const {
  int64_t flag = mine;
  if (together_) together_->all_reduce(&flag, &flag, 1, DType::kI64, ReduceOp::kMax, "engine").wait();
  return flag > 0;
}

bool Engine::step() {
  check_allowed();
  at::NoGradGuard guard;
  const bool idle = scheduler_.idle();
  if (idle && !together_) return false;
  const StepPlan plan = idle ? StepPlan() : scheduler_.next();
  WEFT_CHECK(idle || !plan.empty(), "the scheduler has {} requests and nothing to run", live_.size());
  // 0: nothing to do, 1: draws only, 2: a forward.
  int64_t most = idle ? 0 : plan.has_forward() ? 2 : 1;
  const bool forward_here = most == 2;
  if (together_) together_->all_reduce(&most, &most, 1, DType::kI64, ReduceOp::kMax, "engine").wait();
  if (most == 0) return false;
  try {
    run(plan, most == 2 && !forward_here);
  } catch (...) {
    // Some samples have their token and others not: no request can go on.
    while (!live_.empty()) abort(live_.begin()->first);
    throw;
  }
  return true;
}

void Engine::run(const StepPlan& plan, bool forward_elsewhere) {
  for (const BlockCopy& c : plan.copies) cache_.copy_block(c.from, c.to);
  std::vector<Draw> draws;
  for (const SampleRef& ref : plan.starts) {
    Live& live = *live_.at(ref.request);
    auto sample = std::make_unique<Sample>(ref.sample);
    sample->tokens = live.request.prompt_ids;
    if (tokenizer_) sample->decoder.emplace(*tokenizer_, live.request.params.skip_special_tokens);
    draws.push_back({&live, sample.get(), live.prompt_logits.data(), {}});
    live.samples.emplace(ref.sample, std::move(sample));
    ++live.started;
  }
  draw(draws);
  if (forward_elsewhere || plan.has_forward()) forward(plan);
}

void Engine::forward(const StepPlan& plan) {
  const ModelConfig& c = model_.config();
  std::vector<SequenceSpan> spans;
  std::vector<kernels::AttentionSequence> sequences;
  std::vector<int64_t> logit_rows;
  int64_t rows = 0;
  auto push = [&](std::span<const int32_t> tokens, int64_t begin, int64_t end, const std::vector<BlockId>& blocks) {
    spans.push_back({tokens, begin, end});
    sequences.push_back({rows, rows + end - begin, begin, blocks.data()});
    rows += end - begin;
  };
  for (const DecodeRow& d : plan.decode) {
    push(live_.at(d.request)->samples.at(d.sample)->tokens, d.position, d.position + 1, *d.blocks);
    logit_rows.push_back(rows - 1);
  }
  for (const RecomputeChunk& r : plan.recompute)
    push(live_.at(r.request)->samples.at(r.sample)->tokens, r.begin, r.end, *r.blocks);
  for (const PrefillChunk& p : plan.prefill) {
    push(live_.at(p.request)->request.prompt_ids, p.begin, p.end, *p.blocks);
    if (p.last) logit_rows.push_back(rows - 1);
  }
  rows_computed_ += rows;

  const TokenBatch batch = TokenBatch::pack(spans, c.history());
  nn::PagedAttention attention(model_.attention_shape(), cache_.shape(), sequences, cache_.layers());
  RoutingBuffer routes = RoutingBuffer::make(c.moe_layer_ids(), config_.record_routing ? rows : 0, c.moe.top_k);
  RecordRouting recording(routes);
  LiveRouting live_routing;
  Routing& routing = config_.record_routing ? static_cast<Routing&>(recording) : live_routing;
  at::Tensor hidden = model_.forward(batch, attention, routing);

  if (config_.record_routing) {
    const int64_t width = static_cast<int64_t>(routes.layers.size()) * routes.top_k;
    int64_t row = 0;
    // Of position `at` of a request's prompt, or of a sample; again where it is recomputed.
    const auto keep = [&](Live& live, Sample* sample, int64_t at) {
      const int64_t prompt = std::ssize(live.request.prompt_ids);
      std::vector<int32_t>& out = at < prompt ? live.prompt_routes : sample->routes;
      const size_t begin = static_cast<size_t>((at < prompt ? at : at - prompt) * width);
      if (out.size() < begin + static_cast<size_t>(width)) out.resize(begin + static_cast<size_t>(width));
      std::copy_n(routes.at(row++, 0), width, out.begin() + static_cast<std::ptrdiff_t>(begin));
    };
    for (const DecodeRow& d : plan.decode)
      keep(*live_.at(d.request), live_.at(d.request)->samples.at(d.sample).get(), d.position);
    for (const RecomputeChunk& r : plan.recompute)
      for (int64_t at = r.begin; at < r.end; ++at)
        keep(*live_.at(r.request), live_.at(r.request)->samples.at(r.sample).get(), at);
    for (const PrefillChunk& p : plan.prefill)
      for (int64_t at = p.begin; at < p.end; ++at) keep(*live_.at(p.request), nullptr, at);
  }
  if (logit_rows.empty()) return;
  at::Tensor index =
      at::from_blob(logit_rows.data(), {static_cast<int64_t>(logit_rows.size())}, at::TensorOptions().dtype(at::kLong));
  at::Tensor logits = model_.logits(model_.final_norm(at::index_select(hidden, 0, index.to(hidden.device())))).to(at::kCPU);
  const float* p = logits.data_ptr<float>();
  std::vector<Draw> draws;
  for (const DecodeRow& d : plan.decode) {
    Live& live = *live_.at(d.request);
    draws.push_back({&live, live.samples.at(d.sample).get(), p, {}});
    p += c.vocab_size;
  }
  for (const PrefillChunk& chunk : plan.prefill)
    if (chunk.last) {
      live_.at(chunk.request)->prompt_logits.assign(p, p + c.vocab_size);
      p += c.vocab_size;
    }
  draw(draws);
}

void Engine::draw(std::vector<Draw>& draws) {
  parallel_for(static_cast<int64_t>(draws.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) draws[static_cast<size_t>(i)].drawn = sample(draws[static_cast<size_t>(i)]);
  });
  for (Draw& d : draws) accept(d);
}

kernels::Sampled Engine::sample(const Draw& d) const {
  const SamplingParams& params = d.live->request.params;
  const int64_t vocab = model_.config().vocab_size,
                drawn = static_cast<int64_t>(d.sample->tokens.size() - d.live->request.prompt_ids.size());
  kernels::SampleParams ask;
  ask.temperature = static_cast<float>(params.temperature);
  ask.top_p = static_cast<float>(params.top_p);
  ask.top_k = static_cast<int32_t>(std::min(params.top_k, vocab));
  ask.min_p = static_cast<float>(params.min_p);
  ask.bias = d.live->bias.ids.empty() ? nullptr : &d.live->bias;
  if (drawn < params.min_tokens) ask.banned = d.live->banned;
  ask.seed = d.live->request.seed;
  ask.sample_index = static_cast<uint64_t>(d.sample->index);
  ask.position = d.sample->tokens.size();
  thread_local std::vector<float> scratch;  // the sampler works in place, and a prompt's logits serve n samples
  scratch.assign(d.logits, d.logits + vocab);
  std::string reason = "its log-probability is not finite";
  try {
    kernels::Sampled s = kernels::sample(scratch.data(), vocab, ask, params.raw_logprobs);
    if (std::isfinite(s.log_prob)) return s;
  } catch (const ValueError& e) {
    reason = e.what();
  }
  throw ValueError(
      fmt::format("request {}, sample {}, response token {}: {}", d.live->request.id, d.sample->index, drawn, reason));
}

// Not before all tokens of a step are drawn: a sample that ends takes its request with it.
void Engine::accept(Draw& d) {
  Live& live = *d.live;
  Sample& sample = *d.sample;
  const SamplingParams& params = live.request.params;
  kernels::Sampled& s = d.drawn;
  sample.tokens.push_back(s.token);
  sample.log_probs.push_back(s.log_prob);
  const int64_t drawn = std::ssize(sample.log_probs);
  if (!sample.versions.empty() && sample.versions.back().version == config_.weight_version)
    sample.versions.back().end = drawn;
  else
    sample.versions.push_back({config_.weight_version, drawn - 1, drawn});
  if (params.raw_logprobs) sample.raw_log_probs.push_back(s.raw_log_prob);
  sample.kept.push_back(s.kept.all ? KeptSet() : KeptSet::from_ids(std::move(s.kept.ids), model_.config().vocab_size));
  sample.any_removed = sample.any_removed || !s.kept.all;
  ++tokens_generated_;
  if (live.started == params.n) std::vector<float>().swap(live.prompt_logits);
  if (ended(live, sample, s.token))
    finish(live, sample.index, "stop");
  else if (static_cast<int64_t>(sample.tokens.size() - live.request.prompt_ids.size()) == params.max_tokens)
    finish(live, sample.index, "length");
}

// Whether the token just drawn ends the sample. Tokens are kept whatever ends it; text is cut at a stop string.
bool Engine::ended(const Live& live, Sample& sample, int32_t token) const {
  const SamplingParams& params = live.request.params;
  const bool stop = live.stop_ids.count(token) > 0;
  if (!sample.decoder) return stop;
  const size_t before = sample.text.size();
  sample.text += sample.decoder->push(token);
  const int64_t drawn = static_cast<int64_t>(sample.tokens.size() - live.request.prompt_ids.size());
  if (params.stop.empty() || drawn <= params.min_tokens) return stop;
  // Looked for in the text as it would be if the response ended here: a decoder may hold back a character that is already whole.
  std::string text = sample.text + StreamDecoder(*sample.decoder).flush();
  size_t cut = std::string::npos;
  for (const std::string& s : params.stop) {
    // A match ends behind the text that was final before, so it starts at most its length before that.
    const size_t at = text.find(s, before >= s.size() ? before - s.size() + 1 : 0);
    if (at != std::string::npos) cut = std::min(cut, params.include_stop_str_in_output ? at + s.size() : at);
  }
  if (cut == std::string::npos) return stop;
  text.resize(cut);
  sample.text = std::move(text);
  sample.decoder.reset();
  return true;
}

void Engine::finish(Live& live, int64_t index, const std::string& reason) {
  const auto node = live.samples.extract(index);
  Sample& s = *node.mapped();
  if (s.decoder) s.text += s.decoder->flush();
  GeneratedSample out;
  out.request = live.request.id;
  out.text = std::move(s.text);
  out.raw_log_probs = std::move(s.raw_log_probs);
  Trajectory& t = out.trajectory;
  const int64_t prompt = static_cast<int64_t>(live.request.prompt_ids.size()), total = static_cast<int64_t>(s.tokens.size());
  t.dataset_row = live.request.dataset_row;
  t.sample_index = index;
  t.seed = live.request.seed;
  t.temperature = live.request.params.temperature;
  t.prompt_ids = live.request.prompt_ids;
  t.response_ids.assign(s.tokens.begin() + prompt, s.tokens.end());
  t.rollout_log_probs = std::move(s.log_probs);
  t.response_mask.assign(t.response_ids.size(), 1);
  t.weight_versions = std::move(s.versions);
  if (s.any_removed) t.kept = std::move(s.kept);
  t.finish_reason = reason;
  if (config_.record_routing) {
    const ModelConfig& c = model_.config();
    RoutingTrace trace(total - 1, c.moe_layer_ids(), static_cast<int>(c.moe.top_k), static_cast<int>(c.moe.num_experts));
    const int64_t layers = trace.num_layers(), k = c.moe.top_k;
    for (int64_t row = 0; row + 1 < total; ++row) {
      const int32_t* from =
          row < prompt ? live.prompt_routes.data() + row * layers * k : s.routes.data() + (row - prompt) * layers * k;
      for (int64_t l = 0; l < layers; ++l) trace.set(row, l, {from + l * k, static_cast<size_t>(k)});
    }
    t.routing = std::move(trace);
  }
  finished_.push_back(std::move(out));
  const RequestId id = live.request.id;
  scheduler_.finish({id, index});
  if (++live.finished == live.request.params.n) live_.erase(id);
}

std::vector<GeneratedSample> Engine::take_finished() { return std::exchange(finished_, {}); }

std::vector<int32_t> end_token_ids(const HfConfig& hf, const GenerationConfig& generation, const Tokenizer* tokenizer) {
  std::set<int32_t> ids;
  for (int64_t id : hf.eos_token_ids) ids.insert(static_cast<int32_t>(id));
  for (int64_t id : generation.eos_token_ids) ids.insert(static_cast<int32_t>(id));
  if (tokenizer && tokenizer->eos_id()) ids.insert(*tokenizer->eos_id());
  return {ids.begin(), ids.end()};
}

}  // namespace weft
