#include "weft/base/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "weft/base/this_rank.h"

namespace weft {
namespace {

constexpr int kFirstLane = 1000;  // tid of the first lane of communication

struct Event {
  const char *name, *category;
  int64_t begin_ns, end_ns, bytes;
  int32_t rank;
  bool in_lane;
  char axis[16], purpose[16];
};

// One thread's events; the lock is free but for the moment of writing them out.
struct Buffer {
  std::mutex mutex;
  std::vector<Event> events;  // a ring once it is full: `next` is the oldest
  size_t next = 0;
  int64_t dropped = 0;
  int tid = 0;
};

std::mutex all_mutex;
std::vector<std::shared_ptr<Buffer>> all;
std::atomic<int64_t> capacity{kTraceEvents};
std::atomic<int64_t> dropped_threads{0};
std::atomic<uint64_t> generation{0};  // of start_trace: buffers of an earlier trace are not written any more

struct Mine {
  std::shared_ptr<Buffer> buffer;
  uint64_t generation = 0;
};
thread_local Mine mine;

Buffer* my_buffer() {
  if (mine.buffer && mine.generation == generation.load()) return mine.buffer.get();
  const std::lock_guard lock(all_mutex);
  if (static_cast<int64_t>(all.size()) >= kTraceThreads) return nullptr;
  mine.buffer = std::make_shared<Buffer>();
  mine.generation = generation.load();
  mine.buffer->tid = static_cast<int>(all.size()) + 1;
  all.push_back(mine.buffer);
  return mine.buffer.get();
}

template <size_t N>
void copy_text(char (&to)[N], std::string_view from) {
  const size_t n = std::min(from.size(), N - 1);
  std::memcpy(to, from.data(), n);
  to[n] = 0;
}

void add(Event event, const TraceDetail& detail) {
  if (!trace_on()) return;  // an operation that began before stop_trace
  copy_text(event.axis, detail.axis);
  copy_text(event.purpose, detail.purpose);
  event.bytes = detail.bytes;
  Buffer* buffer = my_buffer();
  if (!buffer) {
    dropped_threads.fetch_add(1);
    return;
  }
  const std::lock_guard lock(buffer->mutex);
  if (static_cast<int64_t>(buffer->events.size()) < capacity.load()) {
    buffer->events.push_back(event);
  } else {
    buffer->events[buffer->next] = event;
    buffer->next = (buffer->next + 1) % buffer->events.size();
    ++buffer->dropped;
  }
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      out += '?';  // a text may have been cut inside a character
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

void append(std::string* out, const Event& e, int tid) {
  std::string args;
  if (e.bytes >= 0) args += fmt::format("\"bytes\":{},", e.bytes);
  if (e.axis[0]) args += fmt::format("\"axis\":{},", quoted(e.axis));
  if (e.purpose[0]) args += fmt::format("\"purpose\":{},", quoted(e.purpose));
  if (!args.empty()) args.pop_back();
  *out += fmt::format(",\n{{\"ph\":\"X\",\"name\":{},\"cat\":{},\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{{{}}}}}",
                      quoted(e.name), quoted(e.category), e.rank, tid, microseconds(e.begin_ns),
                      microseconds(e.end_ns - e.begin_ns), args);
}

void append_name(std::string* out, const char* what, int rank, int tid, const std::string& name) {
  *out += fmt::format(",\n{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}", what, rank, tid,
                      quoted(name));
}

}  // namespace

void start_trace(int64_t events_per_thread) {
  const std::lock_guard lock(all_mutex);
  all.clear();
  capacity.store(std::max<int64_t>(events_per_thread, 1));
  dropped_threads.store(0);
  generation.fetch_add(1);
  detail::trace_is_on.store(true);
}

void stop_trace() { detail::trace_is_on.store(false); }

int64_t trace_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void trace_operation(const char* name, int rank, int64_t begin_ns, int64_t end_ns, const TraceDetail& detail) {
  add({name, "comm", begin_ns, end_ns, -1, rank, true, {}, {}}, detail);
}

void trace_span(const char* name, const char* category, int64_t begin_ns, int64_t end_ns, const TraceDetail& detail) {
  add({name, category, begin_ns, end_ns, -1, std::max(this_rank(), 0), false, {}, {}}, detail);
}

int64_t trace_dropped() {
  const std::lock_guard lock(all_mutex);
  int64_t dropped = dropped_threads.load();
  for (const auto& buffer : all) {
    const std::lock_guard buffer_lock(buffer->mutex);
    dropped += buffer->dropped;
  }
  return dropped;
}

std::string trace_json() {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_events\":" + std::to_string(trace_dropped()) +
                    "},\n\"traceEvents\":[";
  out += "{\"ph\":\"M\",\"name\":\"trace\",\"pid\":0,\"tid\":0,\"args\":{\"clock\":\"steady clock of the host\"}}";
  std::map<int, std::vector<Event>> lanes;  // by rank
  std::map<std::pair<int, int>, bool> threads;
  std::map<int, bool> ranks;
  const std::lock_guard lock(all_mutex);
  for (const auto& buffer : all) {
    const std::lock_guard buffer_lock(buffer->mutex);
    for (const Event& e : buffer->events) {
      ranks[e.rank] = true;
      if (e.in_lane) {
        lanes[e.rank].push_back(e);
        continue;
      }
      threads[{e.rank, buffer->tid}] = true;
      append(&out, e, buffer->tid);
    }
  }
  // Operations that are open at the same time need lanes of their own: each takes the first that is free.
  for (auto& [rank, events] : lanes) {
    std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.begin_ns < b.begin_ns; });
    std::vector<int64_t> free_at;
    for (const Event& e : events) {
      size_t lane = 0;
      while (lane < free_at.size() && free_at[lane] > e.begin_ns) ++lane;
      if (lane == free_at.size()) {
        free_at.push_back(0);
        const int number = static_cast<int>(lane);
        append_name(&out, "thread_name", rank, kFirstLane + number, number == 0 ? "comm" : fmt::format("comm {}", number + 1));
      }
      free_at[lane] = e.end_ns;
      append(&out, e, kFirstLane + static_cast<int>(lane));
    }
  }
  for (const auto& [rank, unused] : ranks) append_name(&out, "process_name", rank, 0, fmt::format("rank {}", rank));
  for (const auto& [key, unused] : threads)
    append_name(&out, "thread_name", key.first, key.second, fmt::format("thread {}", key.second));
  return out + "\n]}\n";
}

}  // namespace weft
