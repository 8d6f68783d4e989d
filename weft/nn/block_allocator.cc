#include "weft/nn/block_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>
#include <memory>

#include "weft/base/block_cache.h"

namespace weft::nn {
namespace {

// What the deleter has to know; not in front of the block, whose size would then pass its whole pages.
struct Held {
  void* block;
  size_t bytes;
};

// allocate() is const in libtorch 1.13 and not in newer versions, which want copy_data() too: without `override`, each finds its own.
class BlockAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) const { return make(bytes); }
  at::DataPtr allocate(size_t bytes) { return make(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const { std::memcpy(to, from, bytes); }

 private:
  static at::DataPtr make(size_t bytes) {
    if (bytes == 0) return {nullptr, nullptr, &release, at::Device(at::kCPU)};
    auto held = std::make_unique<Held>(Held{take_block(bytes), bytes});
    void* block = held->block;
    return {block, held.release(), &release, at::Device(at::kCPU)};
  }
  static void release(void* context) {
    const std::unique_ptr<Held> held(static_cast<Held*>(context));
    if (held) give_block(held->block, held->bytes);
  }
};

}  // namespace

void use_block_cache_for_tensors() {
  static BlockAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/10);
}

}  // namespace weft::nn
