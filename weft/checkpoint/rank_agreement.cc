#include "weft/checkpoint/rank_agreement.h"

#include <unistd.h>

#include <exception>
#include <filesystem>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr const char* kPurpose = "checkpoint";

// What every rank says.
std::vector<int64_t> gather_one(const Communicator& world, int64_t mine) {
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  world.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), DType::kI64, kPurpose).wait();
  return all;
}

std::string broadcast_from(const Communicator& world, std::string text, int root, int64_t bytes) {
  text.resize(static_cast<size_t>(bytes));
  world.broadcast(text.data(), bytes, DType::kU8, root, kPurpose).wait();
  return text;
}

}  // namespace

void together(const Communicator* world, const std::function<void()>& fn) {
  if (!world) return fn();
  std::exception_ptr error;
  std::string message;
  try {
    fn();
  } catch (const PeerLostError&) {
    throw;  // the job is over
  } catch (const std::exception& e) {
    error = std::current_exception();
    message = *e.what() ? e.what() : "failed";
  }
  const std::vector<int64_t> lengths = gather_one(*world, static_cast<int64_t>(message.size()));
  size_t first = 0;
  while (first < lengths.size() && lengths[first] == 0) ++first;
  if (first == lengths.size()) return;
  message = broadcast_from(*world, message, static_cast<int>(first), lengths[first]);
  if (error) std::rethrow_exception(error);
  throw SystemError(fmt::format("rank {}: {}", first, message));
}

std::string broadcast_text(const Communicator* world, std::string text) {
  if (!world) return text;
  return broadcast_from(*world, text, 0, gather_one(*world, static_cast<int64_t>(text.size()))[0]);
}

bool on_all_ranks(const Communicator* world, bool mine) {
  if (!world) return mine;
  for (int64_t theirs : gather_one(*world, mine))
    if (!theirs) return false;
  return true;
}

bool seen_by_all(const Communicator* world, const std::string& path) {
  if (!world) return true;
  std::error_code none;
  bool seen = std::filesystem::exists(path, none);
  for (int i = 0; i < 20 && !seen; ++i) {
    ::usleep(50'000);
    seen = std::filesystem::exists(path, none);
  }
  return on_all_ranks(world, seen);
}

std::vector<uint64_t> sum_over_ranks(const Communicator* world, const std::vector<uint64_t>& mine) {
  if (!world) return mine;
  // Signed sums would overflow: each rank adds what it gathered.
  const size_t n = mine.size(), ranks = static_cast<size_t>(world->size());
  std::vector<uint64_t> all(n * ranks), out(n, 0);
  world->all_gather(mine.data(), all.data(), std::vector<int64_t>(ranks, static_cast<int64_t>(n)), DType::kI64, kPurpose).wait();
  for (size_t i = 0; i < all.size(); ++i) out[i % n] += all[i];
  return out;
}

}  // namespace weft
