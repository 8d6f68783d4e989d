#include "weft/rollout/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {
namespace {

using testing::HasSubstr;

// Runs a scheduler as an engine would, and checks each plan against a model of the cache: which token's key is in which slot. A
// copy, a shared block or a reused one that went wrong shows as a key that is not there.
class Machine {
 public:
  struct Ask {
    int64_t prompt = 1, max_new = 1, n = 1;
    std::vector<int64_t> lengths;  // tokens that sample i draws, 1 .. max_new
  };

  explicit Machine(SchedulerLimits l) : limits(l), scheduler(l) {}

  void add(RequestId id, Ask ask) {
    scheduler.add(id, ask.prompt, ask.max_new, ask.n);
    asks[id] = std::move(ask);
    arrival.push_back(id);
  }
  void abort(RequestId id) {
    scheduler.abort(id);
    forget(id);
    scheduler.check_integrity();
  }

  // One step, or false when the scheduler is idle.
  bool step() {
    if (scheduler.idle()) return false;
    const StepPlan plan = scheduler.next();
    EXPECT_FALSE(plan.empty()) << "a scheduler with requests has nothing to run: deadlock";
    if (plan.empty()) return false;
    scheduler.check_integrity();
    check_order();
    int64_t rows = static_cast<int64_t>(plan.decode.size());
    for (const PrefillChunk& c : plan.prefill) rows += c.end - c.begin;
    EXPECT_LE(rows, limits.max_num_batched_tokens);
    EXPECT_LE(scheduler.num_running(), limits.max_num_seqs);
    most_running = std::max(most_running, scheduler.num_running());

    for (const BlockCopy& c : plan.copies)
      for (int64_t i = 0; i < limits.block_size; ++i) {
        keys.erase({c.to, i});
        if (keys.count({c.from, i})) keys[{c.to, i}] = keys.at({c.from, i});
      }
    std::vector<SampleRef> ended;
    for (const SampleRef& s : plan.starts) {
      EXPECT_EQ(prefilled[s.request], asks.at(s.request).prompt) << "drew before the prompt was read";
      EXPECT_TRUE(drawn[s.request].emplace(s.sample, 0).second) << "sample started twice";
      draw(s, ended);
    }
    // First all writes, then all reads: what another row of this step overwrote is found out.
    for (const DecodeRow& d : plan.decode) write(*d.blocks, d.position, d.request, d.sample);
    for (const PrefillChunk& c : plan.prefill) {
      EXPECT_EQ(c.begin, prefilled[c.request]);
      EXPECT_LT(c.begin, c.end);
      for (int64_t p = c.begin; p < c.end; ++p) write(*c.blocks, p, c.request, -1);
      prefilled[c.request] = c.end;
      EXPECT_EQ(c.last, c.end == asks.at(c.request).prompt);
    }
    for (const DecodeRow& d : plan.decode) read(*d.blocks, d.position, d.request, d.sample);
    for (const PrefillChunk& c : plan.prefill) read(*c.blocks, c.end - 1, c.request, -1);
    for (const DecodeRow& d : plan.decode) {
      EXPECT_EQ(d.position, asks.at(d.request).prompt + drawn[d.request].at(d.sample) - 1);
      draw({d.request, d.sample}, ended);
    }
    for (const SampleRef& s : ended) {
      scheduler.finish(s);
      scheduler.check_integrity();
      if (static_cast<int64_t>(++finished[s.request]) == asks.at(s.request).n) {
        completed.push_back(s.request);
        forget(s.request);
      }
    }
    ++steps;
    return true;
  }

  SchedulerLimits limits;
  Scheduler scheduler;
  std::map<RequestId, Ask> asks;
  std::vector<RequestId> arrival, completed, first_rows;
  int64_t steps = 0, most_running = 0;

 private:
  struct Key {
    RequestId request;
    int64_t sample, position;  // sample -1: the prompt's, for all
  };

  void write(const std::vector<BlockId>& blocks, int64_t position, RequestId id, int64_t sample) {
    const size_t b = static_cast<size_t>(position / limits.block_size);
    ASSERT_LT(b, blocks.size());
    ASSERT_GT(scheduler.pool().references(blocks[b]), 0);
    keys[{blocks[b], position % limits.block_size}] = {id, sample, position};
    if (std::find(first_rows.begin(), first_rows.end(), id) == first_rows.end()) first_rows.push_back(id);
  }
  void read(const std::vector<BlockId>& blocks, int64_t last, RequestId id, int64_t sample) {
    for (int64_t p = 0; p <= last; ++p) {
      const auto it = keys.find({blocks[static_cast<size_t>(p / limits.block_size)], p % limits.block_size});
      ASSERT_NE(it, keys.end()) << "request " << id << " reads position " << p << ", which was never written";
      ASSERT_EQ(it->second.request, id);
      ASSERT_EQ(it->second.position, p);
      ASSERT_EQ(it->second.sample, p < asks.at(id).prompt ? -1 : sample);
    }
  }
  void draw(SampleRef s, std::vector<SampleRef>& ended) {
    const int64_t n = ++drawn[s.request].at(s.sample);
    const Ask& ask = asks.at(s.request);
    EXPECT_LE(n, ask.max_new);
    if (n == ask.lengths[static_cast<size_t>(s.sample)]) ended.push_back(s);
  }
  // A request starts to run only after all that arrived before it.
  void check_order() {
    EXPECT_LE(scheduler.num_waiting(), static_cast<int64_t>(asks.size()));
    std::vector<RequestId> expected;
    for (RequestId id : arrival)
      if (std::find(first_rows.begin(), first_rows.end(), id) != first_rows.end()) expected.push_back(id);
    EXPECT_EQ(first_rows, expected);
  }
  void forget(RequestId id) { asks.erase(id), prefilled.erase(id), drawn.erase(id), finished.erase(id); }

  std::map<std::pair<BlockId, int64_t>, Key> keys;
  std::map<RequestId, int64_t> prefilled;
  std::map<RequestId, std::map<int64_t, int64_t>> drawn;
  std::map<RequestId, int64_t> finished;
};

Machine::Ask ask(int64_t prompt, int64_t max_new, int64_t n) {
  return {prompt, max_new, n, std::vector<int64_t>(static_cast<size_t>(n), max_new)};
}

std::string refusal(Scheduler& s, int64_t prompt, int64_t max_new, int64_t n) {
  try {
    s.add(1, prompt, max_new, n);
  } catch (const ValueError& e) {
    return e.what();
  }
  return "";
}

TEST(Scheduler, RandomLoadsEndWithoutDeadlock) {
  int64_t aborted = 0, refused = 0, ended = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const CounterRng rng(seed);
    uint64_t counter = 0;
    auto pick = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(rng.below(counter++, static_cast<uint64_t>(high - low + 1)));
    };
    Machine m(
        {.num_blocks = pick(1, 14), .block_size = pick(1, 5), .max_num_seqs = pick(1, 6), .max_num_batched_tokens = pick(1, 20)});
    RequestId next_id = 0;
    int64_t accepted = 0, dropped = 0;
    auto arrive = [&] {
      Machine::Ask a{pick(1, 18), pick(1, 12), pick(1, 5), {}};
      for (int64_t i = 0; i < a.n; ++i) a.lengths.push_back(pick(1, a.max_new));
      try {
        m.add(next_id++, a);
        ++accepted;
      } catch (const ValueError&) {
        ++refused;
      }
    };
    for (int64_t i = 0; i < 4; ++i) arrive();
    for (int64_t i = 0; i < 30; ++i) {
      m.step();
      if (pick(0, 2) == 0) arrive();
      if (pick(0, 5) == 0) {
        const RequestId victim = pick(0, next_id);
        dropped += static_cast<int64_t>(m.asks.count(victim));
        m.abort(victim);
      }
      if (HasFailure()) FAIL() << "seed " << seed;
    }
    while (m.step())
      if (HasFailure() || m.steps > 5000) FAIL() << "seed " << seed;
    EXPECT_EQ(static_cast<int64_t>(m.completed.size()), accepted - dropped);
    EXPECT_EQ(m.scheduler.pool().num_free(), m.limits.num_blocks);
    EXPECT_EQ(m.scheduler.num_running(), 0);
    EXPECT_EQ(m.scheduler.num_waiting(), 0);
    m.scheduler.check_integrity();
    if (HasFailure()) FAIL() << "seed " << seed;
    aborted += dropped, ended += static_cast<int64_t>(m.completed.size());
  }
  // The loads did exercise all three.
  EXPECT_GT(ended, 500);
  EXPECT_GT(aborted, 50);
  EXPECT_GT(refused, 50);
}

TEST(Scheduler, RefusesAtOnceWhatNeverFits) {
  Scheduler s({.num_blocks = 4, .block_size = 16, .max_num_seqs = 8, .max_num_batched_tokens = 64});
  // 40 + 26 - 1 = 65 positions are 5 blocks.
  EXPECT_THAT(refusal(s, 40, 26, 1),
              testing::AllOf(HasSubstr("prompt of 40"), HasSubstr("26 tokens need 5 cache blocks of 16"), HasSubstr("has 4")));
  // With n > 1 the partial prompt block is copied: 3 + 4 - 2.
  EXPECT_THAT(refusal(s, 40, 20, 2), HasSubstr("need 5 cache blocks"));
  EXPECT_THAT(refusal(s, 0, 5, 1), HasSubstr("empty"));
  EXPECT_THAT(refusal(s, 5, 0, 1), HasSubstr("max_tokens = 0"));
  EXPECT_THAT(refusal(s, 5, 5, 0), HasSubstr("n = 0"));
  EXPECT_THAT(refusal(s, INT64_MAX, INT64_MAX, 1), HasSubstr("at most"));
  EXPECT_THAT(refusal(s, 5, INT32_MAX, 1), HasSubstr("the cache has 4"));
  EXPECT_TRUE(s.idle());
  EXPECT_EQ(refusal(s, 40, 25, 1), "");
  EXPECT_THAT(refusal(s, 1, 1, 1), HasSubstr("id already"));
}

TEST(Scheduler, SamplesShareFullPromptBlocksAndCopyThePartialOne) {
  Machine m({.num_blocks = 100, .block_size = 4, .max_num_seqs = 16, .max_num_batched_tokens = 64});
  m.add(1, ask(10, 6, 3));  // 15 positions: 4 blocks, of which 2 shared
  EXPECT_EQ(m.scheduler.num_waiting(), 1);
  const StepPlan prefill = m.scheduler.next();
  ASSERT_EQ(prefill.prefill.size(), 1u);
  EXPECT_TRUE(prefill.prefill[0].last);
  const std::vector<BlockId> prompt = *prefill.prefill[0].blocks;
  EXPECT_EQ(m.scheduler.pool().num_free(), 100 - 3 - 3 * 2);
  const StepPlan start = m.scheduler.next();
  EXPECT_EQ(start.starts.size(), 3u);
  ASSERT_EQ(start.copies.size(), 3u);
  for (const BlockCopy& c : start.copies) EXPECT_EQ(c.from, prompt[2]);
  EXPECT_TRUE(start.decode.empty());
  const StepPlan decode = m.scheduler.next();
  ASSERT_EQ(decode.decode.size(), 3u);
  std::set<BlockId> third;
  for (size_t i = 0; i < 3; ++i) {
    const DecodeRow& d = decode.decode[i];
    EXPECT_EQ(d.position, 10);
    ASSERT_EQ(d.blocks->size(), 4u);
    EXPECT_EQ(d.blocks->at(0), prompt[0]);
    EXPECT_EQ(d.blocks->at(1), prompt[1]);
    EXPECT_EQ(d.blocks->at(2), start.copies[i].to);
    third.insert(d.blocks->at(2));
  }
  EXPECT_EQ(third.size(), 3u);
  EXPECT_EQ(m.scheduler.pool().references(prompt[0]), 3);
  EXPECT_EQ(m.scheduler.pool().references(prompt[2]), 0);  // released once all have their copy
  EXPECT_EQ(m.scheduler.pool().num_free(), 100 - 2 - 3 * 2);
}

TEST(Scheduler, LoneSampleGoesOnInThePromptsBlock) {
  Machine m({.num_blocks = 4, .block_size = 4, .max_num_seqs = 1, .max_num_batched_tokens = 64});
  m.add(1, ask(10, 7, 1));  // 16 positions: exactly the cache
  m.scheduler.next();
  EXPECT_TRUE(m.scheduler.next().copies.empty());
  EXPECT_EQ(m.scheduler.pool().num_free(), 0);
}

TEST(Scheduler, NothingOvertakesARequestThatWaitsForBlocks) {
  Machine m({.num_blocks = 8, .block_size = 4, .max_num_seqs = 16, .max_num_batched_tokens = 64});
  m.add(1, ask(4, 21, 1));  // 6 blocks
  m.add(2, ask(4, 17, 1));  // 5 blocks: waits
  m.add(3, ask(2, 2, 1));   // 1 block: would fit, but waits behind 2
  m.step();
  EXPECT_EQ(m.scheduler.num_waiting(), 2);
  while (m.step()) {
  }
  EXPECT_EQ(m.first_rows, (std::vector<RequestId>{1, 2, 3}));
  EXPECT_EQ(m.completed.front(), 1);
}

TEST(Scheduler, AbortLetsTheNextOneIn) {
  Machine m({.num_blocks = 8, .block_size = 4, .max_num_seqs = 16, .max_num_batched_tokens = 64});
  m.add(1, ask(4, 21, 1));
  m.add(2, ask(4, 21, 1));
  m.step();
  EXPECT_EQ(m.scheduler.num_waiting(), 1);
  m.abort(1);
  EXPECT_EQ(m.scheduler.pool().num_free(), 8);
  m.abort(1);    // twice
  m.abort(777);  // unknown
  m.step();
  EXPECT_EQ(m.scheduler.num_waiting(), 0);
  while (m.step()) {
  }
  EXPECT_EQ(m.completed, std::vector<RequestId>{2});
}

TEST(Scheduler, MoreSamplesThanFitRunInTurns) {
  Machine m({.num_blocks = 100, .block_size = 4, .max_num_seqs = 3, .max_num_batched_tokens = 64});
  m.add(1, ask(6, 4, 8));
  while (m.step()) {
  }
  EXPECT_EQ(m.most_running, 3);
  EXPECT_EQ(m.completed, std::vector<RequestId>{1});
  EXPECT_EQ(m.scheduler.pool().num_free(), 100);
}

TEST(Scheduler, DecodeRowsComeBeforePromptsAndPromptsFillTheBudget) {
  Machine m({.num_blocks = 100, .block_size = 4, .max_num_seqs = 8, .max_num_batched_tokens = 10});
  m.add(1, ask(3, 9, 2));
  m.step();  // prompt
  m.step();  // first draws
  m.add(2, ask(21, 2, 1));
  StepPlan plan = m.scheduler.next();
  EXPECT_EQ(plan.decode.size(), 2u);
  ASSERT_EQ(plan.prefill.size(), 1u);
  EXPECT_EQ(plan.prefill[0].end, 8);
  EXPECT_FALSE(plan.prefill[0].last);
  plan = m.scheduler.next();
  EXPECT_EQ(plan.prefill[0].begin, 8);
  EXPECT_EQ(plan.prefill[0].end, 16);
}

TEST(Scheduler, OneTokenResponsesNeverDecode) {
  Machine m({.num_blocks = 2, .block_size = 4, .max_num_seqs = 8, .max_num_batched_tokens = 10});
  m.add(1, ask(8, 1, 1));
  m.add(2, ask(4, 1, 2));
  while (m.step()) {
  }
  EXPECT_EQ(m.completed, (std::vector<RequestId>{1, 2}));
  EXPECT_EQ(m.scheduler.pool().num_free(), 2);
}

TEST(Scheduler, MisuseIsCaught) {
  EXPECT_THROW(Scheduler({.num_blocks = 4, .block_size = 0}), InternalError);
  EXPECT_THROW(Scheduler({.num_blocks = 4, .max_num_seqs = 0}), InternalError);
  Scheduler s({.num_blocks = 4});
  EXPECT_THROW(s.finish({1, 0}), InternalError);
  s.add(1, 4, 4, 1);
  EXPECT_THROW(s.finish({1, 0}), InternalError);
}

}  // namespace
}  // namespace weft
