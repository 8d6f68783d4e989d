#include "weft/rollout/scheduler.h"

#include <algorithm>

#include "weft/base/error.h"

namespace weft {

Scheduler::Scheduler(SchedulerLimits limits) : limits_(limits), pool_(limits.num_blocks) {
  WEFT_CHECK(limits.block_size > 0 && limits.max_num_seqs > 0 && limits.max_num_batched_tokens > 0, "scheduler limits must be positive");
}

// Blocks of a sample besides the shared full prompt blocks. The last token drawn is never fed, so its key is never written.
int64_t Scheduler::own_blocks(const Request& r) const {
  const int64_t total = blocks_for(r.prompt_tokens + r.max_new_tokens - 1);
  return total - (adopts_prompt(r) ? blocks_for(r.prompt_tokens) : r.prompt_tokens / limits_.block_size);
}

void Scheduler::add(RequestId id, int64_t prompt_tokens, int64_t max_new_tokens, int64_t n) {
  WEFT_CHECK(!requests_.count(id), "request {} is there already", id);
  if (prompt_tokens < 1) throw ValueError(fmt::format("request {}: the prompt is empty", id));
  if (n < 1 || max_new_tokens < 1) throw ValueError(fmt::format("request {}: n = {} and max_tokens = {} must be at least 1", id, n, max_new_tokens));
  Request r;
  r.prompt_tokens = prompt_tokens;
  r.max_new_tokens = max_new_tokens;
  r.n = n;
  const int64_t need = blocks_for(prompt_tokens) + own_blocks(r);
  if (need > limits_.num_blocks)
    throw ValueError(fmt::format("request {}: a prompt of {} and a response of up to {} tokens need {} cache blocks of {} tokens, the cache has {}: "
                                 "shorten them or enlarge the cache",
                                 id, prompt_tokens, max_new_tokens, need, limits_.block_size, limits_.num_blocks));
  requests_.emplace(id, std::move(r));
  order_.push_back(id);
}

void Scheduler::reserve_samples(Request& r) {
  const int64_t own = own_blocks(r);
  while (r.allocated < r.n && own <= pool_.num_free() && num_running() < limits_.max_num_seqs) {
    r.reserved[r.allocated] = pool_.allocate(own);
    ++r.allocated;
  }
}

void Scheduler::admit() {
  for (RequestId id : order_) {
    Request& r = requests_.at(id);
    if (!r.admitted) {
      if (blocks_for(r.prompt_tokens) + own_blocks(r) > pool_.num_free() || num_running() >= limits_.max_num_seqs) return;
      r.prompt_blocks = pool_.allocate(blocks_for(r.prompt_tokens));
      r.admitted = r.holds_prompt = true;
    }
    reserve_samples(r);
    if (r.allocated < r.n) return;  // strictly in order: later requests wait until these samples have their blocks
  }
}

void Scheduler::start_samples(RequestId id, Request& r, StepPlan& plan) {
  const int64_t full = r.prompt_tokens / limits_.block_size;
  while (r.started < r.allocated) {
    const int64_t index = r.started++;
    auto node = r.reserved.extract(index);
    Sample s;
    for (int64_t i = 0; i < full; ++i) {
      pool_.add_reference(r.prompt_blocks[static_cast<size_t>(i)]);
      s.blocks.push_back(r.prompt_blocks[static_cast<size_t>(i)]);
    }
    if (full < static_cast<int64_t>(r.prompt_blocks.size())) {
      if (adopts_prompt(r)) {
        pool_.add_reference(r.prompt_blocks.back());
        s.blocks.push_back(r.prompt_blocks.back());
      } else if (!node.mapped().empty()) {
        plan.copies.push_back({r.prompt_blocks.back(), node.mapped().front()});
      }
    }
    s.blocks.insert(s.blocks.end(), node.mapped().begin(), node.mapped().end());
    r.running.emplace(index, std::move(s));
    plan.starts.push_back({id, index});
  }
}

StepPlan Scheduler::next() {
  StepPlan plan;
  // Prompts whose samples have all started are released here and not in the step that copied from them.
  for (auto& [id, r] : requests_)
    if (r.holds_prompt && r.started == r.n) {
      pool_.release(r.prompt_blocks);
      r.prompt_blocks.clear();
      r.holds_prompt = false;
    }
  admit();
  int64_t budget = limits_.max_num_batched_tokens;
  for (RequestId id : order_) {
    Request& r = requests_.at(id);
    for (auto& [index, s] : r.running) {
      if (budget == 0) break;
      plan.decode.push_back({id, index, r.prompt_tokens + s.generated - 1, &s.blocks});
      ++s.generated;
      --budget;
    }
  }
  for (RequestId id : order_) {
    Request& r = requests_.at(id);
    if (!r.admitted) break;
    if (r.prefilled == r.prompt_tokens) {
      const size_t before = plan.starts.size();
      start_samples(id, r, plan);
      for (size_t i = before; i < plan.starts.size(); ++i) r.running.at(plan.starts[i].sample).generated = 1;
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
  Request& r = requests_.at(sample.request);
  auto node = r.running.extract(sample.sample);
  WEFT_CHECK(!node.empty(), "sample {} of request {} is not running", sample.sample, sample.request);
  pool_.release(node.mapped().blocks);
  ++r.finished;
  drop_if_done(sample.request);
}

void Scheduler::drop_if_done(RequestId id) {
  Request& r = requests_.at(id);
  if (r.finished < r.n) return;
  if (r.holds_prompt) pool_.release(r.prompt_blocks);
  requests_.erase(id);
  order_.erase(std::find(order_.begin(), order_.end(), id));
}

void Scheduler::abort(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  Request& r = it->second;
  for (auto& [index, s] : r.running) pool_.release(s.blocks);
  for (auto& [index, blocks] : r.reserved) pool_.release(blocks);
  if (r.holds_prompt) pool_.release(r.prompt_blocks);
  requests_.erase(it);
  order_.erase(std::find(order_.begin(), order_.end(), id));
}

int64_t Scheduler::num_running() const {
  int64_t n = 0;
  for (const auto& [id, r] : requests_) n += static_cast<int64_t>(r.running.size() + r.reserved.size());
  return n;
}

int64_t Scheduler::num_waiting() const {
  return std::count_if(requests_.begin(), requests_.end(), [](const auto& entry) { return !entry.second.admitted; });
}

void Scheduler::check_integrity() const {
  pool_.check_integrity();
  std::map<BlockId, int32_t> held;
  WEFT_CHECK(order_.size() == requests_.size(), "{} requests in order, {} live", order_.size(), requests_.size());
  for (const auto& [id, r] : requests_) {
    WEFT_CHECK(r.finished <= r.started && r.started <= r.allocated && r.allocated <= r.n, "request {}: counts out of order", id);
    WEFT_CHECK(static_cast<int64_t>(r.running.size()) == r.started - r.finished, "request {}: {} running", id, r.running.size());
    for (BlockId b : r.prompt_blocks) ++held[b];
    for (const auto& [index, blocks] : r.reserved)
      for (BlockId b : blocks) ++held[b];
    for (const auto& [index, s] : r.running) {
      WEFT_CHECK(s.generated <= r.max_new_tokens, "request {} sample {}: {} tokens of {}", id, index, s.generated, r.max_new_tokens);
      WEFT_CHECK(static_cast<int64_t>(s.blocks.size()) == blocks_for(r.prompt_tokens + r.max_new_tokens - 1),
                 "request {} sample {}: {} blocks", id, index, s.blocks.size());
      for (BlockId b : s.blocks) ++held[b];
    }
  }
  for (BlockId b = 0; b < pool_.num_blocks(); ++b)
    WEFT_CHECK(pool_.references(b) == (held.count(b) ? held.at(b) : 0), "block {}: {} references, {} holders", b, pool_.references(b),
               held.count(b) ? held.at(b) : 0);
}

}  // namespace weft
