#include "weft/kernels/stream_copy.h"

#include <algorithm>

#include "weft/kernels/test_support.h"

namespace weft::kernels {
namespace {

class StreamCopy : public testing::Kernels {};

TEST_F(StreamCopy, AnyLengthFromAnyPlaceToAnyPlaceAndNoByteBesides) {
  std::vector<std::byte> from(4096), to(4096), expected(4096);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
  everywhere([&] {
    for (const size_t here : {0, 1, 17, 63})
      for (const size_t there : {0, 1, 31, 32, 60, 64, 65})
        for (const size_t length : {0, 1, 2, 31, 63, 64, 65, 127, 128, 129, 191, 192, 255, 256, 300, 1024, 1500, 3001}) {
          std::fill(to.begin(), to.end(), std::byte{0xee});
          expected = to;
          std::copy_n(from.begin() + static_cast<long>(here), length, expected.begin() + static_cast<long>(there));
          stream_copy(to.data() + there, from.data() + here, static_cast<int64_t>(length));
          finish_streams();
          ASSERT_EQ(to, expected) << length << " bytes from " << here << " to " << there;
        }
  });
}

}  // namespace
}  // namespace weft::kernels
