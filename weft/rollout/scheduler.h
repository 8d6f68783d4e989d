#pragma once
// Continuous batching as pure decisions: which tokens of which requests run in the next step, on which cache blocks. No tensors.
//
// A request asks for n samples of one prompt. The prompt is prefilled once, in chunks, into blocks that the samples share; each
// sample owns blocks for its response, and a copy of the prompt's last, partly filled block (copied when the sample starts,
// before its first write). A sample is admitted only with every block it can ever need, so an admitted one always ends: no
// deadlock, no preemption. First come, first served: nothing overtakes a request that waits for blocks.
//
// A prompt's last chunk, the first draws and the first decode rows fall into three consecutive steps.
//
// Decisions depend on the order of calls only, never on time.

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "weft/rollout/block_pool.h"

namespace weft {

struct SchedulerLimits {
  int64_t num_blocks = 0;                 // of the cache
  int64_t block_size = 64;                // tokens a block
  int64_t max_num_seqs = 256;             // samples that run at once
  int64_t max_num_batched_tokens = 8192;  // rows of one forward
};

using RequestId = int64_t;

// Prompt positions [begin, end) of a request; `last`: its final logits row is that of position end-1.
struct PrefillChunk {
  RequestId request = 0;
  int64_t begin = 0, end = 0;
  bool last = false;
  const std::vector<BlockId>* blocks = nullptr;
};
// One response token of a sample, fed at `position`.
struct DecodeRow {
  RequestId request = 0;
  int64_t sample = 0, position = 0;
  const std::vector<BlockId>* blocks = nullptr;
};
// Positions [begin, end) of a sample whose keys were made with weights of before; no logits.
struct RecomputeChunk {
  RequestId request = 0;
  int64_t sample = 0, begin = 0, end = 0;
  const std::vector<BlockId>* blocks = nullptr;
};
struct BlockCopy {
  BlockId from = 0, to = 0;
};
struct SampleRef {
  RequestId request = 0;
  int64_t sample = 0;
  bool operator==(const SampleRef&) const = default;
};

// Blocks are valid until next() is called again or their sample or request ends.
struct StepPlan {
  std::vector<BlockCopy> copies;  // first
  std::vector<SampleRef> starts;  // then these samples draw their first token from the request's prompt logits
  std::vector<DecodeRow> decode;  // then one forward over decode rows, chunks to recompute and prefill chunks
  std::vector<RecomputeChunk> recompute;
  std::vector<PrefillChunk> prefill;
  bool has_forward() const { return !decode.empty() || !recompute.empty() || !prefill.empty(); }
  bool empty() const { return starts.empty() && !has_forward(); }
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerLimits limits);

  // ValueError, at once, for what can never fit (says how many blocks it needs and there are), for empty prompts, n < 1, and an
  // id that is in use.
  void add(RequestId id, int64_t prompt_tokens, int64_t max_new_tokens, int64_t n);
  // What runs next. Each decode row and each start is taken to produce one token; call finish() for samples that ended with it.
  StepPlan next();
  // The sample ended: its blocks are released. Its other samples go on.
  void finish(SampleRef sample);
  // The weights have changed, so every key in the cache is of older ones. Prompts whose samples have not all started are
  // prefilled again, running samples recompute what they have fed before they go on. Full prompt blocks that samples share are
  // recomputed once.
  void recompute_all();
  // Drops a request in any state with all its samples; unknown ids are ignored.
  void abort(RequestId id);

  int64_t num_running() const { return num_running_; }  // samples with blocks
  int64_t num_waiting() const;                          // requests not yet admitted
  bool idle() const { return requests_.empty(); }
  const BlockPool& pool() const { return pool_; }
  void check_integrity() const;

 private:
  struct Sample {
    int64_t generated = 0;  // tokens drawn so far
    int64_t valid = 0;      // positions whose keys are of these weights; all that were fed, but while it recomputes
    std::vector<BlockId> blocks;
  };
  struct Request {
    int64_t prompt_tokens = 0, max_new_tokens = 0, n = 1;
    int64_t prefilled = 0;
    int64_t allocated = 0;  // samples 0..allocated-1 have their own blocks
    int64_t started = 0;    // samples 0..started-1 have drawn
    int64_t finished = 0;
    bool admitted = false, holds_prompt = false;
    std::vector<BlockId> prompt_blocks;
    std::map<int64_t, std::vector<BlockId>> reserved;  // own blocks of samples not started
    std::map<int64_t, Sample> running;
  };

  int64_t blocks_for(int64_t tokens) const { return (tokens - 1) / limits_.block_size + 1; }
  int64_t blocks_of_sample(const Request& r) const { return blocks_for(r.prompt_tokens + r.max_new_tokens - 1); }
  // A lone sample goes on in the prompt's partial block; several get copies of it.
  bool adopts_prompt(const Request& r) const { return r.n == 1; }
  int64_t fed(const Request& r, const Sample& s) const { return r.prompt_tokens + s.generated - 1; }
  int64_t own_blocks(const Request& r) const;
  void reserve_samples(Request& r);
  void admit();
  void release_prompts();
  void recompute_samples(RequestId id, Request& r, int64_t& budget, StepPlan& plan);
  void start_samples(RequestId id, Request& r, StepPlan& plan);
  void drop(RequestId id);

  SchedulerLimits limits_;
  BlockPool pool_;
  std::map<RequestId, Request> requests_;
  std::deque<RequestId> order_;  // of arrival, all live requests; admitted ones come first
  int64_t num_running_ = 0;      // samples in `reserved` and `running` of all requests
};

}  // namespace weft
