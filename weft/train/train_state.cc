// Saving. Loading: train_state_load.cc.
#include "weft/train/train_state.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/rank_agreement.h"
#include "weft/io/atomic_file.h"
#include "weft/io/content_hash.h"
#include "weft/io/safetensors.h"
#include "weft/train/checkpoint_dir.h"
#include "weft/train/run_tensors.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Ragged rows as one flat tensor; the lengths are those of the responses.
void add_rows(const std::string& name, const std::vector<std::vector<float>>& rows, std::vector<TensorToSave>& out) {
  std::vector<float> flat;
  for (const auto& r : rows) flat.insert(flat.end(), r.begin(), r.end());
  const int64_t n = static_cast<int64_t>(flat.size());
  out.push_back({name, DType::kF32, {n}, [flat = std::move(flat)](const TensorToSave::Write& write) {
                   write(std::as_bytes(std::span<const float>(flat)));
                 }});
}

void write_progress(const fs::path& state, const TrainProgress& progress) {
  json j = {{"format", kCheckpointFormat},
            {"command", progress.command},
            {"step", progress.step},
            {"updates", progress.updates},
            {"weight_version", progress.weight_version},
            {"cursor", {{"epoch", progress.cursor.epoch}, {"position", progress.cursor.position}}},
            {"dataset_fingerprint", progress.dataset_fingerprint},
            {"values", progress.values}};
  if (progress.under_way) {
    const StepUnderWay& u = *progress.under_way;
    j["under_way"] = {{"updates_done", u.updates_done}, {"sums", u.sums}};
    save_trajectories((state / "trajectories.bin").string(), u.trajectories);
    std::vector<TensorToSave> rows;
    add_rows("old_log_probs", u.old_log_probs, rows);
    if (!u.ref_log_probs.empty()) add_rows("ref_log_probs", u.ref_log_probs, rows);
    save_safetensors((state / "step.safetensors").string(), rows);
  }
  write_file_atomically((state / "progress.json").string(), j.dump(2) + "\n");
}

// Each rank its parts, or rank 0 everything, a tensor at a time.
WrittenParts write_tensors(const std::string& root, const std::vector<TensorFile>& files, const RunTensors& tensors, bool by_all,
                           const RankMesh* mesh) {
  if (by_all) return write_parts(root, files, [&](const WeightEntry& e) { return tensors.to_write(e.parameter); });
  PartWriter writer(root, files);
  const std::vector<StoredTensor> all = tensors_in(files);
  export_stream(all, tensors.sources(), mesh, {},
                [&](const StoredTensor& t, const at::Tensor& full) { writer.write(whole_tensor(t.entry, full)); });
  if (mesh->rank() == 0) return writer.finish();
  WrittenParts none;
  none.hashes.resize(all.size());
  return none;
}

// The commit. What comes before is found by nobody; a crash between the renames is made good by latest.next (checkpoint_dir.h).
void commit_checkpoint(const std::string& checkpoints_dir, const std::string& name, AtomicDirectory& directory,
                       const CheckpointManifest& manifest) {
  const fs::path dir(checkpoints_dir);
  const std::string text = manifest_text(manifest);
  write_file_atomically((fs::path(directory.temporary_path()) / kManifestName).string(), text);
  write_file_atomically((dir / kLatestNext).string(), name + " " + hash_text(hash_bytes(text)) + "\n");
  directory.commit();
  write_file_atomically((dir / kLatest).string(), name + "\n");
  std::error_code none;  // `latest` says the same
  fs::remove(dir / kLatestNext, none);
}

}  // namespace

void save_checkpoint(const std::string& checkpoints_dir, const LoadedModel& model, const Optimizer& optimizer,
                     const TrainProgress& progress, int64_t max_keep, CheckpointIo* io, const std::string& spare) {
  const Communicator* world = model.mesh ? &model.mesh->world : nullptr;
  const bool main = !world || world->rank() == 0;
  const RunTensors tensors(model, &optimizer);
  std::string index;
  std::vector<TensorFile> files = tensors.hf_files(&index);
  for (TensorFile& f : tensors.state_files()) files.push_back(std::move(f));

  const std::string name = fmt::format("global_step_{}", progress.step);
  std::optional<AtomicDirectory> directory;  // rank 0's
  together(world, [&] {
    if (!main) return;
    fs::create_directories(checkpoints_dir);
    directory.emplace((fs::path(checkpoints_dir) / name).string(), /*replace=*/true);
    const fs::path root = directory->temporary_path();
    fs::create_directories(root / "huggingface");
    fs::create_directories(root / "state");
    save_model_files(model, (root / "huggingface").string());
    if (!index.empty()) write_file_atomically((root / "huggingface" / kSafetensorsIndex).string(), index);
    create_tensor_files(root.string(), files);
  });
  // Each rank looks below its own path: the name is new, so whoever finds it sees rank 0's directory.
  const std::string temporary = broadcast_text(world, main ? fs::path(directory->temporary_path()).filename().string() : "");
  const std::string root = (fs::path(checkpoints_dir) / temporary).string();
  const bool by_all = seen_by_all(world, root);
  if (main && !by_all) log_warn("{} is not seen by all ranks: rank 0 writes for them", checkpoints_dir);

  WrittenParts written;
  together(world, [&] { written = write_tensors(root, files, tensors, by_all, model.mesh.get()); });
  const std::vector<uint64_t> hashes = sum_over_ranks(world, written.hashes);
  together(world, [&] {
    if (!main) return;
    write_progress(fs::path(root) / "state", progress);
    CheckpointManifest manifest;
    add_tensor_files(manifest, files, hashes);
    add_other_files(manifest, root);
    commit_checkpoint(checkpoints_dir, name, *directory, manifest);
    prune_checkpoints(checkpoints_dir, max_keep, progress.step, spare);
  });
  if (io) *io = {written.bytes, by_all};
}

}  // namespace weft
