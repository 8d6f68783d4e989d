#include "weft/base/dtype.h"

#include "weft/base/error.h"

namespace weft {

int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16: return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool: return 1;
  }
  throw InternalError("dtype_bytes: unknown dtype");
}

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF64: return "float64";
    case DType::kF32: return "float32";
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    case DType::kI64: return "int64";
    case DType::kI32: return "int32";
    case DType::kI16: return "int16";
    case DType::kI8: return "int8";
    case DType::kU8: return "uint8";
    case DType::kBool: return "bool";
  }
  throw InternalError("dtype_name: unknown dtype");
}

std::optional<DType> parse_dtype(std::string_view name) {
  if (name.starts_with("torch.")) name.remove_prefix(6);
  struct Row { std::string_view name; DType dtype; };
  static constexpr Row kRows[] = {
      {"float64", DType::kF64}, {"double", DType::kF64}, {"fp64", DType::kF64}, {"F64", DType::kF64},
      {"float32", DType::kF32}, {"float", DType::kF32},  {"fp32", DType::kF32}, {"F32", DType::kF32},
      {"float16", DType::kF16}, {"half", DType::kF16},   {"fp16", DType::kF16}, {"F16", DType::kF16},
      {"bfloat16", DType::kBF16}, {"bf16", DType::kBF16}, {"BF16", DType::kBF16},
      {"int64", DType::kI64}, {"I64", DType::kI64}, {"int32", DType::kI32}, {"I32", DType::kI32},
      {"int16", DType::kI16}, {"I16", DType::kI16}, {"int8", DType::kI8},   {"I8", DType::kI8},
      {"uint8", DType::kU8},  {"U8", DType::kU8},   {"bool", DType::kBool}, {"BOOL", DType::kBool}};
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

}  // namespace weft
