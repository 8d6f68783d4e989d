#include "weft/io/content_hash.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(ContentHash, AStatedValue) {  // manifests of older checkpoints hold such
  EXPECT_EQ(hash_text(hash_bytes("weft")), "15d05235f1304082");
}

}  // namespace
}  // namespace weft
