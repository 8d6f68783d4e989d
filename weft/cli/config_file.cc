#include "weft/cli/config_file.h"

#include <filesystem>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"

namespace weft {

HfConfig config_file(const std::string& path) {
  if (std::filesystem::is_directory(path)) return HfConfig::load(path);
  return HfConfig::parse(read_text_file(path, int64_t{16} << 20), path);
}

DType dtype_option(const Arguments& args, const std::string& name, DType otherwise, bool int8) {
  const std::string text = args.get(name);
  if (text.empty()) return otherwise;
  const auto dtype = parse_dtype(text);
  if (dtype != DType::kF32 && dtype != DType::kBF16 && !(int8 && dtype == DType::kI8))
    throw UsageError(fmt::format("{} {}: {}", name, text, int8 ? "float32, bfloat16 or int8" : "float32 or bfloat16"));
  return *dtype;
}

}  // namespace weft
