#include "weft/base/dtype.h"

#include <gtest/gtest.h>

#include <limits>

namespace weft {
namespace {

TEST(DType, NamesRoundTrip) {
  for (DType d : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16, DType::kI64, DType::kI32, DType::kI16, DType::kI8,
                  DType::kU8, DType::kBool})
    EXPECT_EQ(parse_dtype(dtype_name(d)), d);
  EXPECT_EQ(parse_dtype("torch.bfloat16"), DType::kBF16);
  EXPECT_EQ(parse_dtype("complex64"), std::nullopt);
}

TEST(DType, Bf16RoundsToNearestEvenAndKeepsNaN) {
  EXPECT_EQ(float_to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // tie to even
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x7f800001u)).bits, 0x7fc0);  // signalling NaN stays NaN
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);  // overflow to inf
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x00008001u)).bits, 0x0001);  // denormals are not flushed here
}

}  // namespace
}  // namespace weft
