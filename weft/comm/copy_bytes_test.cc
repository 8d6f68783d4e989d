#include "weft/comm/copy_bytes.h"

#include <gtest/gtest.h>

#include <vector>

namespace weft {
namespace {

TEST(CopyBytes, EveryDistanceWithinAPageAndLengthsAroundALine) {
  std::vector<std::byte> from(3 * 4096), to(3 * 4096);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  for (const size_t ahead : {0, 1, 16, 63, 64, 4095})
    for (const size_t length : {0, 1, 63, 64, 65, 127, 4096, 5000}) {
      std::fill(to.begin(), to.end(), std::byte{0xee});
      copy_bytes(to.data() + ahead, from.data(), static_cast<int64_t>(length));
      ASSERT_TRUE(std::equal(from.begin(), from.begin() + static_cast<int64_t>(length), to.begin() + static_cast<int64_t>(ahead)));
      ASSERT_TRUE(to[ahead + length] == std::byte{0xee});
      for (size_t i = 0; i < ahead; ++i) ASSERT_TRUE(to[i] == std::byte{0xee});
    }
  copy_bytes(from.data(), from.data(), 100);  // in place: nothing
}

}  // namespace
}  // namespace weft
