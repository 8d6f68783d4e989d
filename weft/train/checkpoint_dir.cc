#include "weft/train/checkpoint_dir.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/rank_agreement.h"
#include "weft/io/atomic_file.h"
#include "weft/io/content_hash.h"
#include "weft/train/train_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAside = ".old";

// -1 for every name that weft does not write: other digits for a number are other people's directories.
int64_t step_of(const std::string& directory) {
  constexpr std::string_view kPrefix = "global_step_";
  if (!directory.starts_with(kPrefix)) return -1;
  const std::string digits = directory.substr(kPrefix.size());
  if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  if (digits.size() > 1 && digits[0] == '0') return -1;
  return std::stoll(digits);
}

// What a file system refuses (no permission, busy, files that somebody holds open) is told, and the rest goes on.
bool attempt(const char* what, const fs::path& path, const std::function<void()>& fn) {
  try {
    fn();
    return true;
  } catch (const fs::filesystem_error& e) {
    log_warn("{} {}: {}; going on without", what, path.string(), e.code().message());
  } catch (const Error& e) {
    log_warn("{} {}: {}; going on without", what, path.string(), e.what());
  }
  return false;
}

// Whether the whole tree can go: a file goes with the permission of its directory.
void expect_removable(const fs::path& dir) {
  const auto check = [](const fs::path& p) {
    if (::faccessat(AT_FDCWD, p.c_str(), W_OK | X_OK, AT_EACCESS) != 0)
      throw fs::filesystem_error("cannot remove", p, std::error_code(errno, std::generic_category()));
  };
  if (fs::is_symlink(dir)) return;
  check(dir);
  for (const auto& entry : fs::recursive_directory_iterator(dir))
    if (entry.is_directory() && !entry.is_symlink()) check(entry.path());
}

// "global_step_3.tmp-12ab", "latest.tmp-9-1": a save's that was killed, or a checkpoint's on its way out.
bool is_temporary(const std::string& name) {
  const size_t at = name.find(".tmp-");
  if (at == std::string::npos) return false;
  const std::string what = name.substr(0, at);
  return step_of(what) >= 0 || what == kLatest || what == kLatestNext;
}

// Of latest.next, if the save that wrote it came as far as the rename.
std::optional<std::string> renamed_checkpoint(const fs::path& dir) {
  if (!fs::exists(dir / kLatestNext)) return std::nullopt;
  std::istringstream in(read_text_file((dir / kLatestNext).string(), 4096));
  std::string name, hash;
  in >> name >> hash;
  const fs::path manifest = dir / name / kManifestName;
  if (step_of(name) < 0 || !fs::exists(manifest) || hash_text(hash_file(manifest.string())) != hash) return std::nullopt;
  return name;
}

}  // namespace

bool is_complete_checkpoint(const std::string& dir) {
  const fs::path path(dir), progress = path / "state" / "progress.json";
  if (fs::exists(path / kManifestName)) return true;
  if (!fs::exists(progress)) return false;
  const auto j = nlohmann::json::parse(read_text_file(progress.string()), nullptr, /*allow_exceptions=*/false);
  return j.is_object() && j.value("format", nlohmann::json()) == kFormatWithoutManifest;
}

std::optional<std::string> newest_checkpoint(const std::string& checkpoints_dir) {
  const fs::path dir(checkpoints_dir), latest = dir / kLatest;
  if (auto name = renamed_checkpoint(dir)) return name;
  if (!fs::exists(latest)) {  // lost in a copy, say: to begin anew beside checkpoints would overwrite them
    std::optional<std::string> newest;
    for (const auto& entry : fs::exists(dir) ? fs::directory_iterator(dir) : fs::directory_iterator())
      attempt("looking at", entry.path(), [&] {
        if (const std::string name = entry.path().filename().string();
            step_of(name) > (newest ? step_of(*newest) : -1) && is_complete_checkpoint(entry.path().string()))
          newest = name;
      });
    if (newest) log_warn("{} is missing: taking the newest complete checkpoint, {}", latest.string(), *newest);
    return newest;
  }
  std::string name = read_text_file(latest.string(), 4096);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  if (step_of(name) < 0) throw FileError(latest.string(), "", fmt::format("names '{}', expected global_step_N", name));
  if (!fs::exists(dir / name) && fs::exists(dir / (name + kAside))) name += kAside;
  if (!fs::exists(dir / name))
    throw FileError(latest.string(), "", fmt::format("names '{}', which does not exist: point it at another one", name));
  if (!is_complete_checkpoint((dir / name).string()))
    throw FileError((dir / name).string(), "",
                    "has no manifest.json: the checkpoint is not complete; point `latest` at another one");
  return name;
}

void prune_checkpoints(const std::string& checkpoints_dir, int64_t max_keep, int64_t saved, const std::string& spare) {
  if (max_keep < 1) return;
  constexpr const char* kPruning = "pruning";
  std::vector<std::pair<int64_t, fs::path>> others;
  attempt(kPruning, checkpoints_dir, [&] {
    for (const auto& entry : fs::directory_iterator(checkpoints_dir)) {
      const int64_t step = step_of(entry.path().filename().string());
      std::error_code none;
      if (step < 0 || step == saved || (!spare.empty() && fs::equivalent(spare, entry.path(), none))) continue;
      attempt(kPruning, entry.path(), [&] {
        if (is_complete_checkpoint(entry.path().string())) others.emplace_back(step, entry.path());
      });
    }
  });
  std::sort(others.begin(), others.end(), [&](const auto& a, const auto& b) {
    return std::pair(a.first < saved, a.first) < std::pair(b.first < saved, b.first);
  });
  for (size_t i = 0; i + static_cast<size_t>(max_keep) <= others.size(); ++i) {
    const fs::path& path = others[i].second;
    const fs::path out = path.string() + ".tmp-removed";
    const bool gone = attempt(kPruning, path, [&] {
      expect_removable(path);
      fs::remove_all(out);
      fs::rename(path, out);
    });
    if (!gone) continue;
    if (others[i].first > saved)
      log_warn("{} was pruned: it is of a later step than {}, which was just saved: the run has begun anew", path.string(),
               saved);
    attempt(kPruning, out, [&] { fs::remove_all(out); });
  }
}

std::optional<std::string> latest_checkpoint(const std::string& checkpoints_dir, const Communicator* world) {
  std::string name;
  together(world, [&] {
    if (!world || world->rank() == 0) name = newest_checkpoint(checkpoints_dir).value_or("");
  });
  name = broadcast_text(world, std::move(name));
  if (name.empty()) return std::nullopt;
  return (fs::path(checkpoints_dir) / name).string();
}

void clean_checkpoints(const std::string& checkpoints_dir) {
  constexpr const char* kCleaning = "cleaning";
  const fs::path dir(checkpoints_dir);
  if (!fs::exists(dir)) return;
  attempt(kCleaning, dir / kLatestNext, [&] {
    if (const auto name = renamed_checkpoint(dir)) write_file_atomically((dir / kLatest).string(), *name + "\n");
    fs::remove(dir / kLatestNext);
  });
  std::vector<fs::path> found;
  attempt(kCleaning, dir, [&] {
    for (const auto& entry : fs::directory_iterator(dir)) found.push_back(entry.path());
  });
  for (const fs::path& p : found)
    attempt(kCleaning, p, [&] {
      const std::string name = p.filename().string();
      if (is_temporary(name)) {
        fs::remove_all(p);
      } else if (name.ends_with(kAside) && step_of(p.stem().string()) >= 0) {
        if (fs::exists(dir / p.stem()))
          fs::remove_all(p);
        else
          fs::rename(p, dir / p.stem());
      }
    });
}

}  // namespace weft
