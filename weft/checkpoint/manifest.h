#pragma once
// manifest.json of a checkpoint directory: every file with its size and hashes, written last. A checkpoint is complete when it is
// there. It holds nothing of who wrote the files: the same state has the same manifest, whatever the mesh.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weft/checkpoint/tensor_files.h"

namespace weft {

inline constexpr const char* kManifestName = "manifest.json";

struct CheckpointManifest {
  struct File {
    int64_t size = 0;
    uint64_t hash = 0;                        // of its bytes; of a tensor file its header's
    std::map<std::string, uint64_t> tensors;  // of a tensor file: kernels/element_hash.h, so that each rank can hash its part
    bool operator==(const File&) const = default;
  };
  std::map<std::string, File> files;  // by path below the directory
  bool operator==(const CheckpointManifest&) const = default;
};

// `hashes`: the ranks' sums, as WrittenParts has them.
void add_tensor_files(CheckpointManifest& manifest, const std::vector<TensorFile>& files, const std::vector<uint64_t>& hashes);
// Every other file below `root`, read whole.
void add_other_files(CheckpointManifest& manifest, const std::string& root);

std::string manifest_text(const CheckpointManifest& manifest);
// FileError for what is no manifest or names files outside the directory; `path` is for its message.
CheckpointManifest parse_manifest(const std::string& text, const std::string& path);

// FileErrors that name the file: missing, or of another size.
void check_sizes(const CheckpointManifest& manifest, const std::string& root);
// Missing or of other bytes; of a tensor file the header only.
void check_bytes(const CheckpointManifest& manifest, const std::string& root, const std::string& file);
void check_tensor(const CheckpointManifest& manifest, const std::string& root, const std::string& file, const std::string& tensor,
                  uint64_t hash);
// Reads everything. Returns the number of bytes.
int64_t check_everything(const CheckpointManifest& manifest, const std::string& root);

}  // namespace weft
