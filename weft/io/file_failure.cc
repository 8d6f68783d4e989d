#include "weft/io/file_failure.h"

#include <cerrno>
#include <cstring>

#include "weft/base/error.h"

namespace weft {
namespace {

const char* advice_for(int error) {
  switch (error) {
    case ENOSPC: return "free space on this disk or choose another output directory";
    case EDQUOT: return "the disk quota is used up: free space or choose another output directory";
    case EFBIG: return "the file is larger than this file system or `ulimit -f` allows";
    case EACCES:
    case EPERM:
    case EROFS: return "choose a directory that you may write to";
    case ENOENT: return "create the directory first";
    default: return "check the disk and choose another output directory if it persists";
  }
}

}  // namespace

void throw_file_failure(const std::string& path, const char* action, int error) {
  throw SystemError(fmt::format("{}: cannot {}: {}; {}", path, action, std::strerror(error), advice_for(error)));
}

}  // namespace weft
