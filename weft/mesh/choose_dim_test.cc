#include "weft/mesh/choose_dim.h"

#include <gtest/gtest.h>

#include "weft/base/error.h"

namespace weft {
namespace {

std::string chosen(const std::vector<int64_t>& shape, const std::vector<int64_t>& taken, int64_t shards) {
  const DimChoice choice = choose_dim(shape, taken, shards);
  EXPECT_FALSE(choice.reason.empty());
  return choice.dim ? std::to_string(*choice.dim) : "none";
}

TEST(ChooseDim, WithoutAPlanTheFirstDivisibleElseTheFirst) {
  EXPECT_EQ(chosen({128, 64}, {}, 4), "0");
  EXPECT_EQ(chosen({13, 64}, {}, 4), "1");
  EXPECT_EQ(chosen({13, 7, 8}, {}, 4), "2");
  EXPECT_EQ(chosen({5, 7}, {}, 4), "0");  // ceil chunks 2, 2, 1, 0
  EXPECT_EQ(chosen({3}, {}, 8), "0");
  EXPECT_EQ(chosen({}, {}, 8), "none");
  EXPECT_EQ(chosen({7, 5}, {}, 1), "0");
  EXPECT_EQ(choose_dim({13, 64}, {}, 4).reason, "dim 1: the first that 4 divides");
  EXPECT_EQ(choose_dim({5, 7}, {}, 4).reason, "dim 0: 4 divides no dim of [5, 7], so ceil chunks");
}

TEST(ChooseDim, BesideAPlanADimNotTaken) {
  EXPECT_EQ(chosen({128, 64, 32}, {0}, 4), "1");
  EXPECT_EQ(chosen({128, 63, 32}, {0}, 4), "2");
  EXPECT_EQ(chosen({128, 63, 31}, {0}, 4), "1");  // the longest
  EXPECT_EQ(chosen({128, 31, 63}, {0}, 4), "2");
  EXPECT_EQ(chosen({128, 63, 63}, {0}, 4), "1");  // ties to the lower
  EXPECT_EQ(chosen({64, 32}, {1}, 4), "0");
  EXPECT_EQ(chosen({64}, {0}, 4), "none");
  EXPECT_EQ(chosen({64, 32}, {0, 1}, 4), "none");
  EXPECT_EQ(choose_dim({64}, {0}, 4).reason, "replicated: no dim left (cut already: dim 0)");
  EXPECT_THROW(choose_dim(std::vector<int64_t>{64}, {}, 0), ValueError);
}

TEST(ChooseDim, StackedExperts) {
  // [128, H, I] -ep=4-> [32, H, I] -fsdp-> [32, H/f, I]
  const int64_t h = 96, i = 40;
  const DeviceMesh mesh({"replicate", "efsdp", "ep"}, {1, 3, 4});
  Layout layout = Layout::replicated({128, h, i}, mesh).with_cut({.axis = "ep", .dim = 0});
  EXPECT_EQ(layout.local_shape(5), (std::vector<int64_t>{32, h, i}));
  const DimChoice choice = choose_dim(layout, "efsdp");
  EXPECT_EQ(choice.dim, 1);
  EXPECT_EQ(choice.reason, "dim 1: the first that 3 divides (cut already: dim 0)");
  layout = layout.with_cut({.axis = "efsdp", .dim = *choice.dim});
  for (int64_t rank = 0; rank < 12; ++rank) {
    EXPECT_EQ(layout.local_shape(rank), (std::vector<int64_t>{32, h / 3, i}));
    EXPECT_EQ(layout.intervals(rank, 0), (std::vector<Interval>{{rank % 4 * 32, rank % 4 * 32 + 32}}));
    EXPECT_EQ(layout.intervals(rank, 1), (std::vector<Interval>{{rank / 4 * 32, rank / 4 * 32 + 32}}));
  }
}

}  // namespace
}  // namespace weft
