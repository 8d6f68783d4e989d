#pragma once
// What the ranks of this process did when, as JSON that chrome://tracing and Perfetto show (docs/communicator.md, "Traces"). The
// program turns it on (`weft train --trace FILE`); while it is off a span costs one relaxed atomic load.
//
//   const TraceSpan span("forward");   // a literal: it is not copied
//
// A span belongs to its thread, under the rank that the thread works for. Operations that run beside the thread (communication)
// are given with trace_operation and shown in lanes of their own. Any thread may call anything. Memory is bounded: each of at
// most kTraceThreads threads keeps its newest kTraceEvents events (6 MB); what was dropped is counted in the JSON's otherData.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

inline constexpr int64_t kTraceEvents = 1 << 16;
inline constexpr int64_t kTraceThreads = 256;

namespace detail {
inline std::atomic<bool> trace_is_on{false};
}
inline bool trace_on() { return detail::trace_is_on.load(std::memory_order_relaxed); }

// Forgets earlier events. Call while no span is open.
void start_trace(int64_t events_per_thread = kTraceEvents);
void stop_trace();

// What belongs to a communication operation, for its event and for those of the threads that wait for it. Texts are cut at 15
// bytes.
struct TraceDetail {
  std::string_view axis, purpose;
  int64_t bytes = -1;  // none: -1
};

int64_t trace_clock_ns();  // the steady clock, which processes of a host share

// An operation of `rank` that began and ended at these times, in whatever thread. `name`: a literal.
void trace_operation(const char* name, int rank, int64_t begin_ns, int64_t end_ns, const TraceDetail& detail);
// A span of the calling thread that has ended.
void trace_span(const char* name, const char* category, int64_t begin_ns, int64_t end_ns, const TraceDetail& detail = {});

class TraceSpan {
 public:
  explicit TraceSpan(const char* name, const char* category = "phase") : name_(name), category_(category) {
    if (trace_on()) begin_ns_ = trace_clock_ns();
  }
  ~TraceSpan() {
    if (begin_ns_ != 0) trace_span(name_, category_, begin_ns_, trace_clock_ns());
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  const char *name_, *category_;
  int64_t begin_ns_ = 0;
};

// All events so far: complete events ("ph": "X") with pid = rank, tid = thread or lane, ts and dur in microseconds, args bytes,
// axis, purpose; metadata with the names of ranks and threads.
std::string trace_json();
int64_t trace_dropped();

}  // namespace weft
