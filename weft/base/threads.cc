#include "weft/base/threads.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "weft/base/cores.h"
#include "weft/base/this_rank.h"

namespace weft {
namespace {

thread_local bool inside_parallel = false;

// One call of parallel_for. Workers hold it by shared_ptr: a late one finds no range left and touches nothing else.
struct Job {
  const std::function<void(int64_t, int64_t)>* body;
  int64_t n, chunk, num_chunks;
  std::atomic<int64_t> next{0}, done{0};
  std::mutex mutex;
  std::condition_variable finished;
  std::exception_ptr error;

  void work() {
    inside_parallel = true;
    for (int64_t i; (i = next.fetch_add(1)) < num_chunks;) {
      try {
        (*body)(i * chunk, std::min(n, (i + 1) * chunk));
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
      if (done.fetch_add(1) + 1 == num_chunks) {
        std::lock_guard lock(mutex);
        finished.notify_all();
      }
    }
    inside_parallel = false;
  }
};

// Workers of one rank. They spin for about 20 us after a job (decode issues jobs a few us apart), then sleep: spinning for ever
// collapses on a shared machine.
class Pool {
 public:
  explicit Pool(int workers) {
    for (int i = 0; i < workers; ++i)
      threads_.emplace_back([this, rank = this_rank()] {
        set_this_rank(rank);
        loop();
      });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& t : threads_) t.join();
  }
  int workers() const { return static_cast<int>(threads_.size()); }

  void run(const std::shared_ptr<Job>& job) {
    {
      std::lock_guard lock(mutex_);
      job_ = job;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    job->work();
    for (int i = 0; i < 4000 && job->done.load() < job->num_chunks; ++i) pause();
    std::unique_lock lock(job->mutex);
    job->finished.wait(lock, [&] { return job->done.load() == job->num_chunks; });
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
  }

  void loop() {
    set_denormals_flushed();
    uint64_t seen = 0;
    for (;;) {
      for (int i = 0; i < 2000 && generation_.load() == seen; ++i) pause();
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load() != seen; });
        seen = generation_.load();
        if (stop_) return;
        job = job_;
      }
      if (job) job->work();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> generation_{0};
  std::shared_ptr<Job> job_;
  bool stop_ = false;
};

thread_local int threads_wanted = 0;
thread_local std::unique_ptr<Pool> pool;

}  // namespace

void set_num_threads(int n) {
  threads_wanted = n > 0 ? n : available_cores();
  if (pool && pool->workers() != threads_wanted - 1) pool.reset();
}

int num_threads() {
  if (threads_wanted == 0) threads_wanted = available_cores();
  return threads_wanted;
}

void set_denormals_flushed() {
#if defined(__x86_64__)
  _mm_setcsr(_mm_getcsr() | 0x8040u);
#endif
}

bool denormals_flushed() {
#if defined(__x86_64__)
  return (_mm_getcsr() & 0x8040u) == 0x8040u;
#else
  return false;
#endif
}

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  if (n <= 0) return;
  const int threads = num_threads();
  grain = std::max<int64_t>(grain, 1);
  if (threads == 1 || inside_parallel || n <= grain) {
    body(0, n);
    return;
  }
  auto job = std::make_shared<Job>();
  // Four ranges a thread balance uneven work; fewer where the grain asks for it.
  job->chunk = std::max(grain, (n + threads * 4 - 1) / (threads * 4));
  job->num_chunks = (n + job->chunk - 1) / job->chunk;
  job->body = &body;
  job->n = n;
  if (!pool) pool = std::make_unique<Pool>(threads - 1);
  pool->run(job);
  if (job->error) std::rethrow_exception(job->error);
}

}  // namespace weft
