// Traces of whole runs, and what they say of overlap.
#include <map>

#include "tests/jobs.h"
#include "weft/base/trace.h"
#include "weft/parallel/test_support.h"

namespace weft {
namespace {

struct Event {
  std::string name, category, axis, purpose;
  int rank = 0, thread = 0;
  double begin = 0, end = 0;  // microseconds
};

std::vector<Event> events_of(const std::string& text) {
  std::vector<Event> out;
  const nlohmann::json trace = nlohmann::json::parse(text);
  for (const auto& e : trace.at("traceEvents")) {
    if (e.at("ph") != "X") continue;
    const double begin = e.at("ts").get<double>();
    out.push_back({e.at("name"), e.at("cat"), e.at("args").value("axis", ""), e.at("args").value("purpose", ""), e.at("pid"),
                   e.at("tid"), begin, begin + e.at("dur").get<double>()});
  }
  return out;
}

// Events of a thread, or of a lane of communication, lie one in the other or one after the other.
void expect_nested(std::vector<Event> events) {
  constexpr double kDigits = 0.01;  // of times since the host's start, in doubles
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return a.begin != b.begin ? a.begin < b.begin : a.end > b.end; });
  std::map<std::pair<int, int>, std::vector<Event>> open;
  for (const Event& e : events) {
    std::vector<Event>& stack = open[{e.rank, e.thread}];
    while (!stack.empty() && stack.back().end <= e.begin + kDigits) stack.pop_back();
    if (!stack.empty()) {
      EXPECT_LE(e.end, stack.back().end + kDigits) << e.name << " leaves " << stack.back().name;
    }
    stack.push_back(e);
  }
}

int count(const std::vector<Event>& events, int rank, const std::string& name) {
  return static_cast<int>(
      std::count_if(events.begin(), events.end(), [&](const Event& e) { return e.rank == rank && e.name == name; }));
}

void expect_run(const std::vector<Event>& events, const std::vector<int>& ranks) {
  expect_nested(events);
  for (const int rank : ranks) {
    EXPECT_EQ(count(events, rank, "step"), 2);
    for (const char* phase :
         {"generate", "reward", "parity", "old_log_prob", "forward", "backward", "optimizer", "refit", "checkpoint", "wait"})
      EXPECT_GE(count(events, rank, phase), 1) << phase << " of rank " << rank;
    for (const char* operation : {"all_gather", "reduce_scatter", "all_reduce"})
      EXPECT_GE(count(events, rank, operation), 1) << operation;
  }
  for (const Event& e : events) {
    EXPECT_NE(std::find(ranks.begin(), ranks.end(), e.rank), ranks.end()) << e.name << " of rank " << e.rank;
    if (e.name == "reduce_scatter") {
      EXPECT_TRUE(e.axis == "fsdp" || e.axis == "efsdp") << e.axis;  // experts have an axis of their own
      EXPECT_EQ(e.purpose, "grad");
    }
  }
}

TEST_F(JobTest, ATraceOfEachRank) {
  for (const Ranks ranks : all_kinds()) {
    const std::string run = ranks == Ranks::kThreads ? "threads" : "processes";
    train(ranks, run, 2, {"--trace", dir_.file(run + ".json")});
    if (ranks == Ranks::kThreads) {
      expect_run(events_of(read_bytes(dir_.file("threads.json"))), {0, 1});
    } else {
      for (const int rank : {0, 1})
        expect_run(events_of(read_bytes(dir_.file(fmt::format("processes.rank_{}.json", rank)))), {rank});
    }
    std::ifstream in(run_file(run, "metrics.jsonl"));
    for (std::string line; std::getline(in, line);) {
      const nlohmann::json row = nlohmann::json::parse(line);
      const double mean = row.at("perf/comm_wait_share/mean"), max = row.at("perf/comm_wait_share/max");
      EXPECT_GT(mean, 0);
      EXPECT_LE(mean, max);
      EXPECT_LE(max, 1);
    }
  }
}

TEST_F(JobTest, ATraceIsWrittenWhenTheRunFails) {
  spoil("throw", 6);
  Job job = start(Ranks::kThreads, "run", 5, {"--trace", dir_.file("t.json")});
  EXPECT_EQ(job.finish(), kExitFailed);
  EXPECT_EQ(count(events_of(read_bytes(dir_.file("t.json"))), 0, "step"), 2);
  Job nowhere = start(Ranks::kThreads, "run", 5, {"--trace=" + dir_.file("no/t.json")});
  EXPECT_EQ(nowhere.finish(), kExitUsage);
  EXPECT_NE(nowhere.output().find("there is no directory"), std::string::npos) << nowhere.output();
  Job typo = start(Ranks::kThreads, "run", 5, {"--trase", "x"});
  EXPECT_EQ(typo.finish(), kExitUsage);
  EXPECT_NE(typo.output().find("did you mean --trace?"), std::string::npos) << typo.output();
}

// Gathers of a group that were under way while another group computed: rank 0's, of one forward.
int overlapping(const std::vector<Event>& events) {
  int n = 0;
  for (const Event& gather : events) {
    if (gather.rank != 0 || gather.purpose != "unshard" || gather.category != "comm") continue;
    n += std::any_of(events.begin(), events.end(), [&](const Event& work) {
      return work.rank == 0 && work.name == "work" && std::max(work.begin, gather.begin) < std::min(work.end, gather.end);
    });
  }
  return n;
}

// The first forward learns the order of the groups and gathers each when it is needed; from the second on the next group's gather
// starts before this group computes.
TEST(TraceOverlap, PrefetchedGathersOverlapCompute) {
  std::vector<Event> first, second;
  CommOptions options;
  options.progress = CommProgress::kBackground;
  run_ranks(2, options, [&](Communicator& world) {
    auto mesh = make_rank_mesh(parse_parallel_dims("fsdp=2"), world);
    auto tree = testing::sharded_tree(mesh, at::kFloat);
    // Rank 1 computes for longer: a gather that rank 0 starts before it computes stays open until rank 1 has come as far.
    for (testing::Block* b : tree->blocks)
      b->watch = [&] {
        const TraceSpan span("work");
        real_clock().sleep(world.rank() == 0 ? 0.02 : 0.08);
      };
    const at::NoGradGuard guard;
    for (std::vector<Event>* out : {&first, &second}) {
      world.barrier().wait();
      if (world.rank() == 0) start_trace();
      world.barrier().wait();
      tree->forward(testing::ids_of(4, 5));
      world.barrier().wait();
      if (world.rank() == 0) {
        stop_trace();
        *out = events_of(trace_json());
      }
      world.barrier().wait();
    }
  });
  EXPECT_EQ(overlapping(first), 0);
  EXPECT_GE(overlapping(second), 1);
}

}  // namespace
}  // namespace weft
