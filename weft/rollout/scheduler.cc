#include "weft/rollout/scheduler.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr int64_t kMaxPositions = INT32_MAX;  // positions are int32; also keeps the sums below from overflowing

}  // namespace

Scheduler::Scheduler(SchedulerLimits limits) : limits_(limits), pool_(limits.num_blocks) {
  WEFT_CHECK(limits.block_size > 0 && limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0,
             "scheduler limits must be positive");
}

// Blocks of a sample besides the shared prompt blocks. The last token drawn is never fed, so its key is never written.
int64_t Scheduler::own_blocks(const Request& r) const {
  return blocks_of_sample(r) - (adopts_prompt(r) ? blocks_for(r.prompt_tokens) : r.prompt_tokens / limits_.block_size);
}

void Scheduler::add(RequestId id, int64_t prompt_tokens, int64_t max_new_tokens, int64_t n) {
  if (requests_.count(id)) throw ValueError(fmt::format("request {}: there is one with this id already", id));
  if (prompt_tokens < 1) throw ValueError(fmt::format("request {}: the prompt is empty", id));
  if (n < 1 || max_new_tokens < 1)
    throw ValueError(fmt::format("request {}: n = {} and max_tokens = {} must be at least 1", id, n, max_new_tokens));
  if (prompt_tokens > kMaxPositions || max_new_tokens > kMaxPositions)
    throw ValueError(fmt::format("request {}: a prompt of {} and max_tokens = {}: at most {} each", id, prompt_tokens,
                                 max_new_tokens, kMaxPositions));
  Request r;
  r.prompt_tokens = prompt_tokens;
  r.max_new_tokens = max_new_tokens;
  r.n = n;
  const int64_t need = blocks_for(prompt_tokens) + own_blocks(r);
  if (need > limits_.num_blocks)
    throw ValueError(fmt::format(
        "request {}: a prompt of {} and a response of up to {} tokens need {} cache blocks of {} tokens, the cache has {}: "
        "shorten them or enlarge the cache",
        id, prompt_tokens, max_new_tokens, need, limits_.block_size, limits_.num_blocks));
  requests_.emplace(id, std::move(r));
  order_.push_back(id);
}

void Scheduler::reserve_samples(Request& r) {
  const int64_t own = own_blocks(r);
  while (r.allocated < r.n && own <= pool_.num_free() && num_running_ < limits_.max_num_seqs) {
    r.reserved[r.allocated++] = pool_.allocate(own);
    ++num_running_;
  }
}

void Scheduler::admit() {
  for (RequestId id : order_) {
    Request& r = requests_.at(id);
    if (!r.admitted) {
      // With room for one sample at least: then it ends even if nothing else ever frees a block.
      if (blocks_for(r.prompt_tokens) + own_blocks(r) > pool_.num_free() || num_running_ >= limits_.max_num_seqs) return;
      r.prompt_blocks = pool_.allocate(blocks_for(r.prompt_tokens));
      r.admitted = r.holds_prompt = true;
    }
    reserve_samples(r);
    if (r.allocated < r.n) return;  // strictly in order: later requests wait until these samples have their blocks
  }
}

// Prompts whose samples have all started: one step late, when the copies of that step have been made.
void Scheduler::release_prompts() {
  for (RequestId id : order_) {
    Request& r = requests_.at(id);
    if (!r.admitted) return;
    if (!r.holds_prompt || r.started < r.n) continue;
    pool_.release(r.prompt_blocks);
    r.prompt_blocks.clear();
    r.holds_prompt = false;
  }
}

void Scheduler::start_samples(RequestId id, Request& r, StepPlan& plan) {
  const int64_t full = r.prompt_tokens / limits_.block_size;
  const int64_t shared = adopts_prompt(r) ? blocks_for(r.prompt_tokens) : full;
  for (; r.started < r.allocated; ++r.started) {
    const std::vector<BlockId> own = std::move(r.reserved.extract(r.started).mapped());
    Sample s;
    s.blocks.assign(r.prompt_blocks.begin(), r.prompt_blocks.begin() + shared);
    for (BlockId b : s.blocks) pool_.add_reference(b);
    if (shared < static_cast<int64_t>(r.prompt_blocks.size())) plan.copies.push_back({r.prompt_blocks.back(), own.front()});
    s.blocks.insert(s.blocks.end(), own.begin(), own.end());
    s.generated = 1;
    s.valid = r.prompt_tokens;
    r.running.emplace(r.started, std::move(s));
    plan.starts.push_back({id, r.started});
  }
}

void Scheduler::recompute_all() {
  for (RequestId id : order_) {
    Request& r = requests_.at(id);
    if (r.started < r.n) r.prefilled = 0;
    for (auto& [index, s] : r.running) s.valid = 0;
  }
}

// The prompt's full blocks belong to all samples of a request: the first running one makes them, or the prompt does where samples
// have yet to start from it.
void Scheduler::recompute_samples(RequestId id, Request& r, int64_t& budget, StepPlan& plan) {
  const int64_t shared = adopts_prompt(r) ? 0 : r.prompt_tokens / limits_.block_size * limits_.block_size;
  const bool by_prompt = r.started < r.n;
  bool made = by_prompt ? r.prefilled == r.prompt_tokens : shared == 0;  // in steps before this one
  for (auto& [index, s] : r.running) {
    if (s.valid == fed(r, s)) {
      made = true;
      continue;
    }
    const bool first = !by_prompt && &s == &r.running.begin()->second;
    if (!made && !first) return;
    if (made) s.valid = std::max(s.valid, shared);
    if (first && s.valid >= shared) made = true;
    if (budget == 0) return;
    const int64_t take = std::min(budget, fed(r, s) - s.valid);
    if (take > 0) plan.recompute.push_back({id, index, s.valid, s.valid + take, &s.blocks});
    s.valid += take;
    budget -= take;
  }
}

StepPlan Scheduler::next() {
  StepPlan plan;
  release_prompts();
  admit();
  int64_t budget = limits_.max_num_batched_tokens;
  // Decode rows of all requests before any prompt: running samples never wait for a newcomer.
  for (RequestId id : order_) {
    Request& r = requests_.at(id);
    if (!r.admitted || budget == 0) break;
    for (auto& [index, s] : r.running) {
      if (budget == 0) break;
      if (s.valid < fed(r, s)) continue;
      plan.decode.push_back({id, index, fed(r, s), &s.blocks});
      ++s.generated;
      ++s.valid;
      --budget;
    }
  }
  for (RequestId id : order_) {
    Request& r = requests_.at(id);
    if (!r.admitted || budget == 0) break;
    recompute_samples(id, r, budget, plan);
  }
  for (RequestId id : order_) {
    Request& r = requests_.at(id);
    if (!r.admitted) break;
    if (r.prefilled == r.prompt_tokens) {
      start_samples(id, r, plan);
    } else if (budget > 0) {
      const int64_t take = std::min(budget, r.prompt_tokens - r.prefilled);
      plan.prefill.push_back({id, r.prefilled, r.prefilled + take, r.prefilled + take == r.prompt_tokens, &r.prompt_blocks});
      r.prefilled += take;
      budget -= take;
    }
  }
  return plan;
}

void Scheduler::finish(SampleRef sample) {
  const auto it = requests_.find(sample.request);
  WEFT_CHECK(it != requests_.end(), "request {} is not there", sample.request);
  Request& r = it->second;
  const auto node = r.running.extract(sample.sample);
  WEFT_CHECK(!node.empty(), "sample {} of request {} is not running", sample.sample, sample.request);
  pool_.release(node.mapped().blocks);
  --num_running_;
  if (++r.finished == r.n) drop(sample.request);
}

void Scheduler::abort(RequestId id) {
  if (requests_.count(id)) drop(id);
}

void Scheduler::drop(RequestId id) {
  Request& r = requests_.at(id);
  for (auto& [index, s] : r.running) pool_.release(s.blocks);
  for (auto& [index, blocks] : r.reserved) pool_.release(blocks);
  pool_.release(r.prompt_blocks);
  num_running_ -= static_cast<int64_t>(r.running.size() + r.reserved.size());
  requests_.erase(id);
  order_.erase(std::find(order_.begin(), order_.end(), id));
}

int64_t Scheduler::num_waiting() const {
  return std::count_if(requests_.begin(), requests_.end(), [](const auto& entry) { return !entry.second.admitted; });
}

void Scheduler::check_integrity() const {
  pool_.check_integrity();
  WEFT_CHECK(order_.size() == requests_.size(), "{} requests in order, {} live", order_.size(), requests_.size());
  std::map<BlockId, int32_t> held;
  int64_t running = 0;
  bool waiting = false;
  for (RequestId id : order_) {
    const Request& r = requests_.at(id);
    WEFT_CHECK(!(r.admitted && waiting), "request {} overtook an earlier one", id);
    waiting = !r.admitted || r.allocated < r.n;
    WEFT_CHECK(r.finished <= r.started && r.started <= r.allocated && r.allocated <= r.n && r.finished < r.n,
               "request {}: counts out of order", id);
    WEFT_CHECK(static_cast<int64_t>(r.running.size()) == r.started - r.finished, "request {}: {} running", id, r.running.size());
    WEFT_CHECK(static_cast<int64_t>(r.reserved.size()) == r.allocated - r.started, "request {}: {} reserved", id,
               r.reserved.size());
    WEFT_CHECK(r.holds_prompt == !r.prompt_blocks.empty(), "request {}: {} prompt blocks", id, r.prompt_blocks.size());
    running += r.allocated - r.finished;
    for (BlockId b : r.prompt_blocks) ++held[b];
    for (const auto& [index, blocks] : r.reserved)
      for (BlockId b : blocks) ++held[b];
    for (const auto& [index, s] : r.running) {
      WEFT_CHECK(s.generated >= 1 && s.generated <= r.max_new_tokens, "request {} sample {}: {} tokens of {}", id, index,
                 s.generated, r.max_new_tokens);
      WEFT_CHECK(0 <= s.valid && s.valid <= fed(r, s), "request {} sample {}: {} of {} positions are valid", id, index, s.valid,
                 fed(r, s));
      WEFT_CHECK(static_cast<int64_t>(s.blocks.size()) == blocks_of_sample(r), "request {} sample {}: {} blocks", id, index,
                 s.blocks.size());
      for (BlockId b : s.blocks) ++held[b];
    }
  }
  WEFT_CHECK(running == num_running_ && running <= limits_.max_num_seqs, "{} samples run, {} counted, {} may", running,
             num_running_, limits_.max_num_seqs);
  for (BlockId b = 0; b < pool_.num_blocks(); ++b)
    WEFT_CHECK(pool_.references(b) == (held.count(b) ? held.at(b) : 0), "block {}: {} references, {} holders", b,
               pool_.references(b), held.count(b) ? held.at(b) : 0);
}

}  // namespace weft
