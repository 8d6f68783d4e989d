#include "weft/io/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_hub_name(std::string_view name) {
  if (name.empty() || name[0] == '.' || name[0] == '-') return false;
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; });
}

bool is_hub_id(const std::string& id) {
  const size_t slash = id.find('/');
  if (slash == std::string::npos) return is_hub_name(id);
  return is_hub_name(std::string_view(id).substr(0, slash)) && is_hub_name(std::string_view(id).substr(slash + 1));
}

}  // namespace

std::string hub_cache_directory() {
  if (const std::string cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = environment("HF_HOME"); !home.empty()) return home + "/hub";
  if (const std::string cache = environment("XDG_CACHE_HOME"); !cache.empty()) return cache + "/huggingface/hub";
  return environment("HOME") + "/.cache/huggingface/hub";
}

std::string resolve_model_path(const std::string& path_or_id) {
  if (path_or_id.empty()) throw FileError("model.path", "", "is empty; give a directory or a hub id such as org/name");
  if (fs::is_directory(path_or_id)) return path_or_id;
  if (fs::exists(path_or_id)) throw FileError(path_or_id, "", "not a directory; give the directory of a Hugging Face checkpoint");
  if (!is_hub_id(path_or_id)) throw FileError(path_or_id, "", "no such directory");
  std::string folder = "models--" + path_or_id;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  const std::string cache = hub_cache_directory(), root = cache + "/" + folder, ref = root + "/refs/main";
  const std::string hint = fmt::format("fetch it with: hf download {}", path_or_id);
  if (!fs::exists(ref)) {
    throw FileError(path_or_id, "", fmt::format("no such directory, and not in the hub cache {}; {}", cache, hint));
  }
  std::string revision = read_text_file(ref, 4096);
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back())) != 0) revision.pop_back();
  if (!is_hub_name(revision)) throw FileError(ref, "", fmt::format("\"{}\" is not a revision", revision));
  const std::string snapshot = root + "/snapshots/" + revision;
  if (!fs::is_directory(snapshot)) throw FileError(snapshot, "", "snapshot is missing from the hub cache; " + hint);
  return snapshot;
}

}  // namespace weft
