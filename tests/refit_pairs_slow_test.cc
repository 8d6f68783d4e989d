// All pairs of which RefitPairs.ASeventhIsExactAndEven in weft/train/refit_pairs_test.cc takes 1 in 7.

#include "weft/train/test_refit_pairs.h"

namespace weft {
namespace {

TEST(RefitPairsProduct, AllAreExactAndEven) { testing::expect_exact_and_even(1); }

}  // namespace
}  // namespace weft
