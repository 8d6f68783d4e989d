#pragma once
// Options of the commands that plan from a config.json alone.

#include <string>

#include "weft/cli/command.h"
#include "weft/io/hf_config.h"

namespace weft {

// config.json itself, or a directory that has one. FileError.
HfConfig config_file(const std::string& path);
// float32, bfloat16 or, where `int8`, int8. UsageError.
DType dtype_option(const Arguments& args, const std::string& name, DType otherwise, bool int8 = false);

}  // namespace weft
