#include "weft/base/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "weft/base/this_rank.h"

namespace weft {
namespace {

using nlohmann::json;

class Trace : public testing::Test {
 protected:
  ~Trace() override { stop_trace(); }
  static std::vector<json> events() {
    std::vector<json> out;
    const json trace = json::parse(trace_json());
    for (const json& e : trace.at("traceEvents"))
      if (e.at("ph") == "X") out.push_back(e);
    return out;
  }
};

TEST_F(Trace, RecordsNothingWhileOff) {
  start_trace();
  stop_trace();
  { const TraceSpan span("forward"); }
  trace_operation("all_gather", 0, 1, 2, {});
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(json::parse(trace_json()).at("otherData").at("dropped_events"), 0);
}

TEST_F(Trace, SpansNestAndBelongToTheirThreadAndRank) {
  start_trace();
  std::thread other([] {
    set_this_rank(3);
    const TraceSpan span("backward");
  });
  other.join();
  {
    const TraceSpan outer("step");
    const TraceSpan inner("forward");
  }
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].at("name"), "backward");
  EXPECT_EQ(all[0].at("pid"), 3);
  const json &inner = all[1], &outer = all[2];
  EXPECT_EQ(inner.at("name"), "forward");
  EXPECT_EQ(outer.at("name"), "step");
  EXPECT_EQ(inner.at("pid"), 0);
  EXPECT_EQ(inner.at("tid"), outer.at("tid"));
  EXPECT_NE(inner.at("tid"), all[0].at("tid"));
  const auto begin = [](const json& e) { return e.at("ts").get<double>(); };
  const auto end = [&](const json& e) { return begin(e) + e.at("dur").get<double>(); };
  EXPECT_LE(begin(outer), begin(inner));
  EXPECT_LE(end(inner), end(outer) + 0.01);  // the digits of a double
}

TEST_F(Trace, OperationsThatOverlapHaveLanesOfTheirOwn) {
  start_trace();
  trace_operation("all_gather", 1, 1000, 5000, {"fsdp", "unshard", 64});
  trace_operation("reduce_scatter", 1, 2000, 3000, {"fsdp", "grad \"x\"\n", 128});
  trace_operation("barrier", 1, 5000, 6000, {"a name of more than 15 bytes", "", -1});
  const std::vector<json> all = events();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].at("ts").get<double>(), 1.0);
  EXPECT_EQ(all[0].at("dur").get<double>(), 4.0);
  EXPECT_EQ(all[0].at("args"), json({{"bytes", 64}, {"axis", "fsdp"}, {"purpose", "unshard"}}));
  EXPECT_NE(all[0].at("tid"), all[1].at("tid"));
  EXPECT_EQ(all[1].at("args").at("purpose"), "grad \"x\"?");
  EXPECT_EQ(all[0].at("tid"), all[2].at("tid"));
  EXPECT_EQ(all[2].at("args"), json({{"axis", "a name of more "}}));
}

TEST_F(Trace, KeepsTheNewestAndCountsTheRest) {
  start_trace(4);
  for (int64_t i = 0; i < 10; ++i) trace_span("x", "phase", i * 1000, i * 1000 + 1);
  EXPECT_EQ(trace_dropped(), 6);
  std::vector<double> times;
  for (const json& e : events()) times.push_back(e.at("ts").get<double>());
  std::sort(times.begin(), times.end());
  EXPECT_EQ(times, (std::vector<double>{6, 7, 8, 9}));
  start_trace();  // forgets
  EXPECT_TRUE(events().empty());
  EXPECT_EQ(trace_dropped(), 0);
}

TEST_F(Trace, ThreadsWriteAtTheSameTime) {
  start_trace();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 1000; ++i) const TraceSpan span("work");
    });
  for (int i = 0; i < 5; ++i) (void)trace_json();
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(events().size(), 4000u);
}

}  // namespace
}  // namespace weft
