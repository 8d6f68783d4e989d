#include "weft/mesh/device_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "weft/base/error.h"
#include "weft/mesh/test_support.h"

namespace weft {
namespace {

using test::expect_value_error;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(DeviceMesh, NumbersRanksRowMajor) {
  const DeviceMesh mesh({"replicate", "fsdp", "tp"}, {2, 3, 2});
  EXPECT_EQ(mesh.num_ranks(), 12);
  EXPECT_EQ(mesh.size("fsdp"), 3);
  for (int64_t r = 0; r < 2; ++r)
    for (int64_t f = 0; f < 3; ++f)
      for (int64_t t = 0; t < 2; ++t) {
        const int64_t rank = (r * 3 + f) * 2 + t;
        EXPECT_THAT(mesh.coordinates(rank), ElementsAre(r, f, t));
        EXPECT_EQ(mesh.coordinate(rank, "replicate"), r);
        EXPECT_EQ(mesh.coordinate(rank, "fsdp"), f);
        EXPECT_EQ(mesh.coordinate(rank, "tp"), t);
      }
  EXPECT_THAT(mesh.group(7, "replicate"), ElementsAre(1, 7));
  EXPECT_THAT(mesh.group(7, "fsdp"), ElementsAre(7, 9, 11));
  EXPECT_THAT(mesh.group(7, "tp"), ElementsAre(6, 7));
  EXPECT_TRUE(mesh.has("tp"));
  EXPECT_FALSE(mesh.has("ep"));
  EXPECT_TRUE(mesh.contains(11));
  EXPECT_FALSE(mesh.contains(12));
  EXPECT_FALSE(mesh.contains(-1));
  EXPECT_EQ(mesh.to_string(), "(replicate=2, fsdp=3, tp=2)");
}

TEST(DeviceMesh, RanksMayBeAny) {
  const DeviceMesh mesh({"a", "b"}, {2, 2}, {7, 3, 10, 4});
  EXPECT_THAT(mesh.coordinates(10), ElementsAre(1, 0));
  EXPECT_THAT(mesh.group(3, "a"), ElementsAre(3, 4));
  EXPECT_THAT(mesh.group(3, "b"), ElementsAre(7, 3));
  EXPECT_FALSE(mesh.contains(0));
}

TEST(DeviceMesh, SliceKeepsTheOrderAsked) {
  const DeviceMesh mesh({"a", "b", "c"}, {2, 3, 2});
  EXPECT_THAT(mesh.slice({"a", "c"}, 2).ranks(), ElementsAre(2, 3, 8, 9));
  EXPECT_THAT(mesh.slice({"c", "a"}, 2).ranks(), ElementsAre(2, 8, 3, 9));
  EXPECT_EQ(mesh.slice({"a", "b", "c"}, 5), mesh);
  EXPECT_THAT(mesh.slice({}, 5).ranks(), ElementsAre(5));
}

TEST(DeviceMesh, FlattenAndBack) {
  const DeviceMesh mesh({"a", "b", "c"}, {2, 3, 2});
  const DeviceMesh flat = mesh.flatten({"b", "c"}, "bc");
  EXPECT_THAT(flat.axes(), ElementsAre("a", "bc"));
  EXPECT_THAT(flat.sizes(), ElementsAre(2, 6));
  EXPECT_EQ(flat.ranks(), mesh.ranks());
  EXPECT_EQ(flat.unflatten("bc", {"b", "c"}, {3, 2}), mesh);
  EXPECT_EQ(mesh.flatten({"b"}, "x").unflatten("x", {"b"}, {3}), mesh);
  EXPECT_THAT(flat.unflatten("bc", {"x", "y"}, {2, 3}).group(7, "y"), ElementsAre(6, 7, 8));
}

TEST(DeviceMesh, OneRankIsOrdinary) {
  const DeviceMesh none;
  EXPECT_EQ(none.num_ranks(), 1);
  EXPECT_TRUE(none.contains(0));
  EXPECT_TRUE(none.coordinates(0).empty());
  EXPECT_EQ(none.to_string(), "()");
  EXPECT_THAT(DeviceMesh({"tp"}, {1}).group(0, "tp"), ElementsAre(0));
  EXPECT_NE(none, DeviceMesh({"tp"}, {1}));
}

TEST(DeviceMesh, ErrorsSayWhatThereIs) {
  const DeviceMesh mesh({"a", "b", "c"}, {2, 3, 2});
  expect_value_error([&] { mesh.size("ep"); }, "mesh (a=2, b=3, c=2) has no axis 'ep'");
  expect_value_error([&] { mesh.coordinate(12, "a"); }, "rank 12 is not in mesh (a=2, b=3, c=2) of 12 ranks");
  expect_value_error([&] { mesh.flatten({"a", "c"}, "x"); }, "no neighbours");
  expect_value_error([&] { mesh.flatten({"b", "a"}, "x"); }, "no neighbours");
  expect_value_error([&] { mesh.flatten({}, "x"); }, "no axes");
  expect_value_error([&] { mesh.flatten({"b", "c"}, "a"); }, "'a' is there twice");
  expect_value_error([&] { mesh.unflatten("b", {"x", "y"}, {2, 2}); }, "'b' of size 3 cannot be split");
  expect_value_error([&] { mesh.slice({"a", "a"}, 0); }, "twice");
  expect_value_error([] { DeviceMesh({"a"}, {0}); }, "size 0");
  expect_value_error([] { DeviceMesh({"a"}, {1, 2}); }, "1 axes and 2 sizes");
  expect_value_error([] { DeviceMesh({""}, {1}); }, "no name");
  expect_value_error([] { DeviceMesh({"a"}, {2}, {1, 1}); }, "twice");
  expect_value_error([] { DeviceMesh({"a"}, {2}, {1, -1}); }, "rank -1");
  expect_value_error([] { DeviceMesh({"a"}, {2}, {0, 1, 2}); }, "was given 3");
  expect_value_error([] { DeviceMesh({"a", "b"}, {int64_t{1} << 40, int64_t{1} << 40}); }, "too many");
}

}  // namespace
}  // namespace weft
