#pragma once
// The names below a run's checkpoints/: global_step_N, `latest`, and what a save leaves on its way. One process, no
// communication.
//
// A save makes global_step_N.tmp-RANDOM, then latest.next ("global_step_N HASH", the hash of its manifest.json), renames the
// directory, writes `latest` and removes latest.next. So when it is killed the newest complete checkpoint is known: the one of
// latest.next if the directory has that manifest, else that of `latest`. Where a file system cannot exchange two names, a
// replaced directory is global_step_N.old for a moment.

#include <cstdint>
#include <optional>
#include <string>

namespace weft {

inline constexpr int kCheckpointFormat = 2, kFormatWithoutManifest = 1;  // of progress.json
inline constexpr const char *kLatest = "latest", *kLatestNext = "latest.next";

// It has a manifest, or is of format 1.
bool is_complete_checkpoint(const std::string& dir);
// The directory's name, nullopt where there is none. FileError as latest_checkpoint.
std::optional<std::string> newest_checkpoint(const std::string& checkpoints_dir);
// Of the complete checkpoints keeps max_keep (< 1: all): the one of step `saved`, then the newest of those before it, then those
// of later steps, which a run has left that began anew here (told by a warning). Left alone, and not counted: `spare`, a path;
// what is not complete; names that weft does not write. A directory goes at once or not at all. One that the file system does not
// let go, or only in part, is a warning: what was saved is complete.
void prune_checkpoints(const std::string& checkpoints_dir, int64_t max_keep, int64_t saved, const std::string& spare = {});

}  // namespace weft
