#include "weft/io/content_hash.h"

#include <xxhash.h>

#include "weft/base/error.h"
#include "weft/io/mapped_file.h"

namespace weft {

uint64_t hash_bytes(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t hash_file(const std::string& path) {
  const MappedFile file(path);
  return XXH3_64bits(file.bytes().data(), file.bytes().size());
}

std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace weft
