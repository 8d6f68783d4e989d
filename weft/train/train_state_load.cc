// Loading of what train_state.cc saves.
#include <ATen/core/grad_mode.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/log.h"
#include "weft/checkpoint/manifest.h"
#include "weft/checkpoint/rank_agreement.h"
#include "weft/io/atomic_file.h"
#include "weft/io/json_file.h"
#include "weft/io/safetensors.h"
#include "weft/parallel/distributed_tensor.h"
#include "weft/train/checkpoint_dir.h"
#include "weft/train/run_tensors.h"
#include "weft/train/train_state.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

const char* const kProgress = "state/progress.json";

// Where a checkpoint is read from, and by whom.
struct Source {
  std::string root;  // this rank's path
  const Communicator* world;
  bool main;
  bool by_all = true;
  std::optional<CheckpointManifest> manifest;  // none: format 1
  std::string progress;                        // text of progress.json

  // A file's bytes on every rank.
  std::string everywhere(const std::function<std::string()>& read) const {
    std::string text;
    together(world, [&] {
      if (by_all || main) text = read();
    });
    return by_all ? text : broadcast_text(world, std::move(text));
  }
};

std::string text_or_nothing(const std::string& path) {
  try {
    return read_text_file(path);
  } catch (const FileError&) {
    return "";
  }
}

// Rank 0 checks what is there. A rank that finds the same manifest and progress under its own path sees the same checkpoint.
Source open_checkpoint(const std::string& root, const Communicator* world) {
  Source s{root, world, !world || world->rank() == 0, true, {}, ""};
  const std::string path = root + "/" + kManifestName;
  std::string text;
  together(world, [&] {
    if (!s.main) return;
    if (!fs::exists(root)) throw FileError(root, "", "there is no such checkpoint");
    if (!is_complete_checkpoint(root)) throw FileError(root, "", "is not a complete checkpoint: it has no manifest.json");
    if (fs::exists(path)) {
      text = read_text_file(path);
      const CheckpointManifest manifest = parse_manifest(text, path);
      check_sizes(manifest, root);
      for (const auto& [file, f] : manifest.files)
        if (file.starts_with("state/")) check_bytes(manifest, root, file);
    }
    s.progress = read_text_file(root + "/" + kProgress);
  });
  text = broadcast_text(world, std::move(text));
  s.progress = broadcast_text(world, std::move(s.progress));
  if (!text.empty()) s.manifest = parse_manifest(text, path);
  s.by_all = on_all_ranks(world, text_or_nothing(path) == text && text_or_nothing(root + "/" + kProgress) == s.progress);
  if (s.main && !s.by_all) log_warn("{} is not seen by all ranks: rank 0 reads for them", root);
  return s;
}

const TensorInfo& fitting_tensor(const SafetensorsFile& file, const StoredTensor& t) {
  const TensorInfo& info = file.tensor(t.entry.name);
  if (info.dtype != t.dtype || info.shape != t.entry.shape)
    throw FileError(file.path(), t.entry.name, "does not fit the model: was the recipe's model changed since this checkpoint?");
  return info;
}

// Fills this rank's tensors. Each rank hashes what it would write of what it reads, so that the sums are the manifest's hashes.
int64_t read_tensors(const Source& source, const RunTensors& tensors, const LoadedModel& model) {
  at::NoGradGuard guard;
  const std::vector<TensorFile> files = tensors.state_files();
  int64_t bytes = 0;
  std::vector<uint64_t> hashes;
  const auto each_file = [&] {
    for (const TensorFile& f : files) {
      const SafetensorsFile file(source.root + "/" + f.path);
      for (const StoredTensor& t : f.tensors) {
        const TensorInfo& info = fitting_tensor(file, t);
        bytes += read_part(file.bytes(info), t.dtype, t.entry, tensors.held(t.entry.parameter));
        hashes.push_back(hash_part(file.bytes(info), t.dtype, t.entry, tensors.to_write(t.entry.parameter).boxes));
        file.advise(MappedFile::Advice::kDontNeed, info);
      }
    }
  };
  const auto rank_zero_for_all = [&] {
    for (const TensorFile& f : files) {
      std::optional<SafetensorsFile> file;
      for (const StoredTensor& t : f.tensors) {
        at::Tensor full;
        uint64_t hash = 0;
        together(source.world, [&] {
          if (!source.main) return;
          if (!file) file.emplace(source.root + "/" + f.path);
          const TensorInfo& info = fitting_tensor(*file, t);
          full = read_box(file->bytes(info), t.dtype, t.entry.shape, t.entry.box);
          hash = hash_part(file->bytes(info), t.dtype, t.entry, {{t.entry.box, t.entry.box.offset}});
          bytes += info.num_bytes();
          file->advise(MappedFile::Advice::kDontNeed, info);
        });
        scatter_tensor(full, 0, tensors.layout(t.entry.parameter), tensors.item(t.entry.parameter).local, *model.mesh);
        hashes.push_back(hash);
      }
    }
  };
  if (source.by_all)
    together(source.world, each_file);
  else
    rank_zero_for_all();
  hashes = sum_over_ranks(source.world, hashes);
  if (!source.manifest) return bytes;
  size_t i = 0;
  for (const TensorFile& f : files)
    for (const StoredTensor& t : f.tensors) check_tensor(*source.manifest, source.root, f.path, t.entry.name, hashes[i++]);
  return bytes;
}

std::vector<std::vector<float>> rows_of(const std::string& bytes, const std::string& path,
                                        const std::vector<Trajectory>& trajectories) {
  if (bytes.empty()) return {};
  std::vector<float> flat(bytes.size() / sizeof(float));
  std::memcpy(flat.data(), bytes.data(), flat.size() * sizeof(float));
  std::vector<std::vector<float>> rows;
  size_t at = 0;
  for (const Trajectory& t : trajectories) {
    if (at + t.response_ids.size() > flat.size()) throw FileError(path, "", "is shorter than the responses");
    rows.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(at),
                      flat.begin() + static_cast<std::ptrdiff_t>(at + t.response_ids.size()));
    at += t.response_ids.size();
  }
  return rows;
}

StepUnderWay read_step_under_way(const Source& source, const nlohmann::json& j) {
  StepUnderWay u;
  u.updates_done = j.at("updates_done").get<int64_t>();
  u.sums = j.at("sums").get<std::map<std::string, double>>();
  const std::string trajectories = source.root + "/state/trajectories.bin", rows = source.root + "/state/step.safetensors";
  const std::string text = source.everywhere([&] { return read_text_file(trajectories, INT64_MAX); });
  u.trajectories = deserialize_trajectories(std::as_bytes(std::span(text)), trajectories);
  const auto log_probs = [&](const char* name) {
    const std::string bytes = source.everywhere([&]() -> std::string {
      const SafetensorsFile file(rows);
      if (!file.find(name)) return "";
      const auto span = file.bytes(name);
      return {reinterpret_cast<const char*>(span.data()), span.size()};
    });
    return rows_of(bytes, rows, u.trajectories);
  };
  u.old_log_probs = log_probs("old_log_probs");
  u.ref_log_probs = log_probs("ref_log_probs");
  return u;
}

TrainProgress read_progress(const Source& source) {
  const std::string path = source.root + "/" + kProgress;
  TrainProgress p;
  try {
    const nlohmann::json j = parse_json(source.progress, path);
    const int expected = source.manifest ? kCheckpointFormat : kFormatWithoutManifest;
    if (j.at("format").get<int>() != expected)
      throw FileError(path, "format", fmt::format("{} is not {}", j.at("format").dump(), expected));
    p.command = j.value("command", "");
    const auto count = [&](const nlohmann::json& value, const char* key) {
      if (!value.is_number_integer() || value.get<int64_t>() < 0)
        throw FileError(path, key, fmt::format("{} is no count: the checkpoint is damaged", value.dump()));
      return value.get<int64_t>();
    };
    p.step = count(j.at("step"), "step");
    p.updates = count(j.at("updates"), "updates");
    p.weight_version = count(j.at("weight_version"), "weight_version");
    p.cursor = {count(j.at("cursor").at("epoch"), "cursor.epoch"), count(j.at("cursor").at("position"), "cursor.position")};
    p.dataset_fingerprint = j.at("dataset_fingerprint").get<uint64_t>();
    p.values = j.at("values").get<std::map<std::string, double>>();
    if (j.contains("under_way")) p.under_way = read_step_under_way(source, j.at("under_way"));
  } catch (const nlohmann::json::exception& e) {
    throw FileError(path, "", fmt::format("{}: the checkpoint is damaged", e.what()));
  }
  return p;
}

TrainProgress progress_for(const std::string& command, const Source& source) {
  TrainProgress p = read_progress(source);
  if (p.command != command)
    throw UsageError(
        fmt::format("{} is a checkpoint of weft {}: weft {} starts from its huggingface/ folder (model.path), under another "
                    "trainer.run_name or with trainer.resume_mode = \"disable\"",
                    source.root, p.command, command));
  return p;
}

}  // namespace

TrainProgress load_progress(const std::string& checkpoint_dir, const std::string& command, const Communicator* all) {
  return progress_for(command, open_checkpoint(checkpoint_dir, all));
}

TrainProgress load_checkpoint(const std::string& checkpoint_dir, const std::string& command, const LoadedModel& model,
                              Optimizer& optimizer, CheckpointIo* io) {
  const Source source = open_checkpoint(checkpoint_dir, model.mesh ? &model.mesh->world : nullptr);
  const int64_t bytes = read_tensors(source, RunTensors(model, &optimizer), model);
  for (nn::Parameter* p : model.model->parameters()) p->updated();
  const TrainProgress p = progress_for(command, source);
  optimizer.set_updates(p.updates);
  if (io) *io = {bytes, source.by_all};
  return p;
}

int64_t load_masters(const std::string& checkpoint_dir, const LoadedModel& model) {
  const Source source = open_checkpoint(checkpoint_dir, model.mesh ? &model.mesh->world : nullptr);
  read_tensors(source, RunTensors(model, nullptr), model);
  for (nn::Parameter* p : model.model->parameters()) p->updated();
  return read_progress(source).step;
}

}  // namespace weft
