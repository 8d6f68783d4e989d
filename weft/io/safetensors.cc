#include "weft/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "weft/base/error.h"
#include "weft/io/json_file.h"

namespace weft {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

// The reference implementation's own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName kNames[] = {{DType::kF64, "F64"}, {DType::kF32, "F32"},  {DType::kF16, "F16"}, {DType::kBF16, "BF16"},
                                {DType::kI64, "I64"}, {DType::kI32, "I32"},  {DType::kI16, "I16"}, {DType::kI8, "I8"},
                                {DType::kU8, "U8"},   {DType::kBool, "BOOL"}};

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const DTypeName& entry : kNames) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

int64_t unsigned_field(const nlohmann::json& value, const std::string& path, const std::string& where, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    throw FileError(path, where, fmt::format("{} {} is not a non-negative integer", what, value.dump()));
  }
  return value.get<int64_t>();
}

TensorInfo parse_tensor(const std::string& name, const nlohmann::json& entry, const std::string& path, int64_t data_start,
                        int64_t data_bytes) {
  const std::string where = fmt::format("tensor \"{}\"", name);
  if (!entry.is_object()) throw FileError(path, where, "header entry is not an object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) throw FileError(path, where, fmt::format("header entry lacks \"{}\"", key));
  }
  if (entry.size() != 3) throw FileError(path, where, "header entry has keys besides dtype, shape and data_offsets");
  TensorInfo info;
  info.name = name;
  info.file = path;
  const auto& dtype = entry["dtype"];
  const auto parsed = dtype.is_string() ? dtype_from_name(dtype.get_ref<const std::string&>()) : std::nullopt;
  if (!parsed) {
    throw FileError(path, where,
                    fmt::format("dtype {} is not one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL", dtype.dump()));
  }
  info.dtype = *parsed;
  const auto& shape = entry["shape"];
  if (!shape.is_array()) throw FileError(path, where, "shape is not an array");
  int64_t bytes = dtype_bytes(info.dtype);
  for (const auto& dim : shape) {
    info.shape.push_back(unsigned_field(dim, path, where, "shape entry"));
    if (__builtin_mul_overflow(bytes, info.shape.back(), &bytes)) {
      throw FileError(path, where, fmt::format("shape {} overflows", shape.dump()));
    }
  }
  const auto& offsets = entry["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) throw FileError(path, where, "data_offsets is not a pair");
  const int64_t begin = unsigned_field(offsets[0], path, where, "data offset");
  const int64_t end = unsigned_field(offsets[1], path, where, "data offset");
  if (begin > end || end > data_bytes) {
    throw FileError(
        path, where,
        fmt::format("data offsets [{}, {}) do not fit the {} data bytes of the file (truncated?)", begin, end, data_bytes));
  }
  if (end - begin != bytes) {
    throw FileError(path, where,
                    fmt::format("shape {} of {} needs {} bytes but data offsets [{}, {}) hold {}", shape.dump(),
                                safetensors_dtype(info.dtype), bytes, begin, end, end - begin));
  }
  info.begin = data_start + begin;
  info.end = data_start + end;
  return info;
}

}  // namespace

std::string_view safetensors_dtype(DType dtype) {
  for (const DTypeName& entry : kNames) {
    if (entry.dtype == dtype) return entry.name;
  }
  WEFT_CHECK(false, "dtype {} has no safetensors name", static_cast<int>(dtype));
  return {};
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const auto all = file_.bytes();
  if (all.size() < 8)
    throw FileError(path, "", fmt::format("{} bytes are too few for a safetensors file (truncated?)", all.size()));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, all.data(), 8);
  if (header_bytes > kMaxHeaderBytes || header_bytes > all.size() - 8) {
    throw FileError(path, "",
                    fmt::format("header length {} does not fit the file of {} bytes (truncated, or not safetensors)",
                                header_bytes, all.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(all.data()) + 8, header_bytes);
  const nlohmann::json header = parse_json(text, path, "header");
  if (!header.is_object()) throw FileError(path, "header", "not a JSON object");

  const int64_t data_start = 8 + static_cast<int64_t>(header_bytes);
  const int64_t data_bytes = file_.size() - data_start;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (!entry.is_object()) throw FileError(path, "__metadata__", "not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) throw FileError(path, "__metadata__", fmt::format("value of \"{}\" is not a string", key));
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    tensors_.push_back(parse_tensor(name, entry, path, data_start, data_bytes));
  }
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t expected = data_start;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const TensorInfo& info = tensors_[i];
    if (info.begin != expected) {
      const std::string before = i == 0 ? "the start of the data" : fmt::format("the end of \"{}\"", tensors_[i - 1].name);
      throw FileError(path, fmt::format("tensor \"{}\"", info.name),
                      fmt::format("starts at data byte {}, {} {} at {}", info.begin - data_start,
                                  info.begin < expected ? "overlapping" : "leaving a gap after", before, expected - data_start));
    }
    expected = info.end;
    by_name_.emplace(info.name, i);
  }
  if (expected != file_.size()) {
    throw FileError(path, "",
                    fmt::format("{} bytes after the last tensor (its data ends at {}, the file at {})", file_.size() - expected,
                                expected, file_.size()));
  }
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

const TensorInfo& SafetensorsFile::tensor(std::string_view name) const {
  const TensorInfo* info = find(name);
  if (info == nullptr) throw FileError(path(), "", fmt::format("no tensor \"{}\" among its {}", name, tensors_.size()));
  return *info;
}

std::span<const std::byte> SafetensorsFile::bytes(std::string_view name) const { return bytes(tensor(name)); }

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& info) const {
  WEFT_CHECK(0 <= info.begin && info.begin <= info.end && info.end <= file_.size(), "tensor {} is not of {}", info.name, path());
  return file_.bytes().subspan(static_cast<size_t>(info.begin), static_cast<size_t>(info.num_bytes()));
}

void SafetensorsFile::advise(MappedFile::Advice advice, const TensorInfo& info) const {
  file_.advise(advice, info.begin, info.end);
}

}  // namespace weft
