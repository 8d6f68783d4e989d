#pragma once
// The rollout engine: continuous batching over a paged cache, on the trainer's own module code and kernels.
//
// On a mesh (dp, tp, ep) every rank has an engine. The tp ranks of one dp rank are given the same calls, and decide the same; dp
// ranks have requests of their own. Ranks that share experts step together: step() is collective over them, and one without
// requests makes empty steps until all are done.
//
// A request's tokens and log-probs depend on (weights, prompt, params, seed) only: not on companions, order of arrival, chunk
// sizes or threads. Random numbers are keyed by (seed, sample index, absolute position). Not for use from two threads at once.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "weft/io/trajectory.h"
#include "weft/kernels/sampling.h"
#include "weft/model/causal_lm.h"
#include "weft/rollout/kv_cache.h"
#include "weft/rollout/sampling_params.h"
#include "weft/rollout/scheduler.h"
#include "weft/text/tokenizer.h"

namespace weft {

// What becomes of running requests when the weights change, or the cache goes to sleep.
enum class RunningRequests {
  kPause,  // they go on afterwards; their keys are recomputed, with the weights of then
  kKeep,   // they go on afterwards with the keys that they have, of older weights
  kAbort,  // what they have is given as finished, with reason "abort"; those that wait are dropped
};

struct EngineConfig {
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 8192;
  int64_t block_size = 64;      // divides 64
  int64_t kv_cache_tokens = 0;  // 0: max_num_seqs * 1024, one longest request at least, a quarter of the machine's memory at most
  int64_t max_model_len = 0;    // prompt + response; 0: the model's max_position_embeddings, which is also the largest
  std::vector<int32_t> end_ids = {};  // the union of config.json's, generation_config.json's and the tokenizer's
  bool record_routing = false;        // R3
  int64_t weight_version = 0;
  RunningRequests running = RunningRequests::kPause;
};

struct GenerationRequest {
  RequestId id = 0;
  std::vector<int32_t> prompt_ids;
  SamplingParams params;
  uint64_t seed = 0;
  int64_t dataset_row = -1;
};

struct GeneratedSample {
  RequestId request = 0;
  Trajectory trajectory;             // kept sets and routing where asked for
  std::vector<float> raw_log_probs;  // with params.raw_logprobs
  std::string text;                  // of the response, cut at a stop string; empty without a tokenizer
};

class Engine {
 public:
  // The model outlives the engine, the tokenizer too. `tokenizer` may be null: no text, and stop strings are refused. UsageError
  // for a config that cannot work.
  Engine(CausalLM& model, EngineConfig config, const Tokenizer* tokenizer);
  ~Engine();

  // ValueError, at once, for what can never run: empty or too long prompts (nothing is truncated), bad params, too few cache
  // blocks, an id in use. The engine is as before then.
  void add(GenerationRequest request);
  // Drops a request in any state; unknown ids are ignored. Its finished samples stay.
  void abort(RequestId id);
  // One forward (or a first draw). False when nothing is left to do, here and on the ranks that step together. When it throws
  // (ValueError: the model's logits are not finite), all requests have been dropped.
  bool step();
  // Whether any of the ranks that step together says so. Collective over them.
  bool any(bool mine) const;
  // Samples that ended since the last call, in the order in which they ended.
  std::vector<GeneratedSample> take_finished();

  int64_t num_running() const { return scheduler_.num_running(); }
  int64_t num_waiting() const { return scheduler_.num_waiting(); }
  int64_t num_blocks() const { return scheduler_.pool().num_blocks(); }
  int64_t num_free_blocks() const { return scheduler_.pool().num_free(); }
  int64_t tokens_generated() const { return tokens_generated_; }
  int64_t rows_computed() const { return rows_computed_; }
  int64_t kv_cache_bytes() const { return cache_.bytes(); }
  const Arena& kv_cache_arena() const { return cache_.arena(); }
  const EngineConfig& config() const { return config_; }
  // The model's weights are others now. Running requests as config().running says: where their keys are recomputed, recorded
  // routes of what they have fed are those of the new keys. Each token's span keeps the version that drew it. Collective as
  // step().
  void weights_changed(int64_t version);
  // The cache's memory goes back to the system until wake(); until then add() and step() are a ValueError. Running requests as
  // config().running says; kKeep keeps the cache in a file in `store_dir` (SystemError: nothing has changed then).
  void sleep(const std::string& store_dir);
  void wake();
  // Until allow(), add() and step() are a ValueError that says why: there are no weights, or no memory, to generate with.
  void forbid(std::string why) { forbidden_ = std::move(why); }
  void allow() { forbidden_.clear(); }
  void check_integrity() const { scheduler_.check_integrity(); }

 private:
  struct Live;  // a request with its running samples
  struct Sample;
  struct Draw;  // one token to draw
  void check_allowed() const;
  void abort_all();  // with what they have as finished
  void run(const StepPlan& plan, bool forward_elsewhere);
  void forward(const StepPlan& plan);
  void draw(std::vector<Draw>& draws);
  kernels::Sampled sample(const Draw& d) const;
  void accept(Draw& d);
  bool ended(const Live& live, Sample& sample, int32_t token) const;
  void finish(Live& live, int64_t index, const std::string& reason);

  CausalLM& model_;
  const Communicator* together_;  // the ranks whose steps go together; null: this one alone
  EngineConfig config_;
  const Tokenizer* tokenizer_;
  KvCache cache_;
  Scheduler scheduler_;
  std::unordered_map<RequestId, std::unique_ptr<Live>> live_;
  std::vector<GeneratedSample> finished_;
  std::string forbidden_;  // empty: may generate
  int64_t tokens_generated_ = 0, rows_computed_ = 0;
};

// The union of the end ids that a checkpoint names, ascending.
std::vector<int32_t> end_token_ids(const HfConfig& hf, const GenerationConfig& generation, const Tokenizer* tokenizer);

}  // namespace weft
