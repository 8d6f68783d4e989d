#pragma once
// For tests: every byte of CPU tensors, by the rank whose thread allocated it.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace weft::testing {

// Live and most bytes of one rank. Lives until everything that it counted is freed.
struct ByteMeter {
  std::atomic<int64_t> live{0}, peak{0};
  void add(int64_t bytes) {
    const int64_t now = live += bytes;
    int64_t seen = peak;
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
  }
  void restart() { peak = live.load(); }
};

inline thread_local ByteMeter* this_ranks_meter = nullptr;

// allocate() is const in libtorch 1.13 and not in newer versions, which want copy_data() too: without `override`, each finds its
// own.
class CountingAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) const { return counted(bytes); }
  at::DataPtr allocate(size_t bytes) { return counted(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }
  c10::DeleterFnPtr raw_deleter() const { return nullptr; }

 private:
  static constexpr size_t kHeader = 64;
  struct Header {
    ByteMeter* meter;
    int64_t bytes;
  };
  static at::DataPtr counted(size_t bytes) {
    void* block = std::aligned_alloc(64, kHeader + (bytes + 63) / 64 * 64);
    if (!block) throw std::bad_alloc();
    new (block) Header{this_ranks_meter, static_cast<int64_t>(bytes)};
    if (this_ranks_meter) this_ranks_meter->add(static_cast<int64_t>(bytes));
    return {static_cast<char*>(block) + kHeader, block, &release, at::Device(at::kCPU)};
  }
  static void release(void* block) {
    const auto* header = static_cast<Header*>(block);
    if (header->meter) header->meter->add(-header->bytes);
    std::free(block);
  }
};

// Counts while it lives; one at a time in a process.
class CountBytes {
 public:
  CountBytes() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(&allocator(), /*priority=*/100); }
  ~CountBytes() { c10::SetCPUAllocator(before_, /*priority=*/100); }
  CountBytes(const CountBytes&) = delete;
  CountBytes& operator=(const CountBytes&) = delete;

 private:
  static CountingAllocator& allocator() {
    static CountingAllocator a;
    return a;
  }
  at::Allocator* before_;
};

}  // namespace weft::testing
