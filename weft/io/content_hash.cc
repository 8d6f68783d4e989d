#include "weft/io/content_hash.h"

#include <xxhash.h>

#include <cstring>

#include "weft/base/error.h"
#include "weft/base/random.h"
#include "weft/io/mapped_file.h"

namespace weft {
namespace {

template <typename Bits>
uint64_t sum_of_hashes(const std::byte* at, int64_t count, int64_t first) {
  uint64_t sum = 0, key = (static_cast<uint64_t>(first) + 1) * kGoldenGamma;
  for (int64_t i = 0; i < count; ++i, key += kGoldenGamma) {
    Bits bits;
    std::memcpy(&bits, at + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    sum += mix64(key ^ bits);
  }
  return sum;
}

}  // namespace

uint64_t hash_elements(std::span<const std::byte> bytes, int64_t item, int64_t first) {
  const int64_t count = static_cast<int64_t>(bytes.size()) / item;
  switch (item) {
    case 1: return sum_of_hashes<uint8_t>(bytes.data(), count, first);
    case 2: return sum_of_hashes<uint16_t>(bytes.data(), count, first);
    case 4: return sum_of_hashes<uint32_t>(bytes.data(), count, first);
    default: return sum_of_hashes<uint64_t>(bytes.data(), count, first);
  }
}

uint64_t hash_bytes(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t hash_file(const std::string& path) {
  const MappedFile file(path);
  return XXH3_64bits(file.bytes().data(), file.bytes().size());
}

std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace weft
