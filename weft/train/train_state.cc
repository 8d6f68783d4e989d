#include "weft/train/train_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/io/atomic_file.h"
#include "weft/io/json_file.h"
#include "weft/io/safetensors.h"
#include "weft/parallel/fully_shard.h"
#include "weft/parallel/shard_reader.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormat = 1;

const std::string kMaster = "master/", kFirstMoment = "m/", kSecondMoment = "v/";

// Whole tensors and boxes of the run's state for the rank that writes: out of its own memory, or gathered from the mesh.
class StateReader {
 public:
  StateReader(const LoadedModel& model, const Optimizer& optimizer) {
    const auto add = [&](const std::string& name, const nn::Parameter& p, const at::Tensor& t) {
      tensors_[name] = t;
      if (model.mesh) sources_[name] = {t, layout_of(p, *model.mesh)};
    };
    for (const nn::Parameter* p : model.model->parameters()) add(kMaster + p->name(), *p, p->master());
    for (const Optimizer::Slot& s : optimizer.slots()) {
      add(kFirstMoment + s.parameter->name(), *s.parameter, s.m);
      add(kSecondMoment + s.parameter->name(), *s.parameter, s.v);
    }
    if (model.mesh) shards_ = std::make_unique<ShardReader>(std::move(sources_), model.mesh);
  }
  // On the ranks that do not write: until the one that does has finished. False there and then.
  bool writes(const LoadedModel& model) {
    if (!model.mesh || model.mesh->rank() == 0) return true;
    shards_->serve();
    return false;
  }
  at::Tensor read(const std::string& name, const Box& box) { return shards_ ? shards_->read(name, box) : narrow_to(tensors_.at(name), box); }
  TensorToSave to_save(const std::string& name, const std::string& on_disk, const std::vector<int64_t>& shape) {
    return {on_disk, DType::kF32, shape, [this, name, shape](const TensorToSave::Write& write) {
              const at::Tensor host = read(name, {std::vector<int64_t>(shape.size(), 0), shape}).to(at::kCPU).contiguous();
              write({static_cast<const std::byte*>(host.data_ptr()), static_cast<size_t>(host.numel()) * sizeof(float)});
            }};
  }
  void finish() {
    if (shards_) shards_->finish();
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, ShardReader::Source> sources_;
  std::unique_ptr<ShardReader> shards_;
};

// This rank's part of a tensor of p's shape.
void read_into(const SafetensorsFile& file, const std::string& name, const nn::Parameter& p, const at::Tensor& local) {
  const TensorInfo& info = file.tensor(name);
  if (info.dtype != DType::kF32 || info.shape != p.shape())
    throw FileError(file.path(), name, "does not fit the model: was the recipe's model changed since this checkpoint?");
  at::NoGradGuard guard;
  for (const LocalBox& part : local_boxes(p))
    narrow_to(local, {part.local_offset, part.box.size}).copy_(read_box(file.bytes(info), info.dtype, info.shape, part.box));
}

// Ragged rows as one flat tensor; the lengths are those of the responses.
void add_rows(const std::string& name, const std::vector<std::vector<float>>& rows, std::vector<TensorToSave>& out) {
  std::vector<float> flat;
  for (const auto& r : rows) flat.insert(flat.end(), r.begin(), r.end());
  const int64_t n = static_cast<int64_t>(flat.size());
  out.push_back({name, DType::kF32, {n}, [flat = std::move(flat)](const TensorToSave::Write& write) {
                   write(std::as_bytes(std::span<const float>(flat)));
                 }});
}

std::vector<std::vector<float>> get_rows(const SafetensorsFile& file, const std::string& name, const std::vector<Trajectory>& trajectories) {
  if (!file.find(name)) return {};
  const auto bytes = file.bytes(name);
  std::vector<float> flat(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(flat.data(), bytes.data(), flat.size() * sizeof(float));
  std::vector<std::vector<float>> rows;
  size_t at = 0;
  for (const Trajectory& t : trajectories) {
    if (at + t.response_ids.size() > flat.size()) throw FileError(file.path(), name, "is shorter than the responses");
    rows.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(at), flat.begin() + static_cast<std::ptrdiff_t>(at + t.response_ids.size()));
    at += t.response_ids.size();
  }
  return rows;
}

int64_t step_of(const std::string& directory) {
  constexpr std::string_view kPrefix = "global_step_";
  if (!directory.starts_with(kPrefix)) return -1;
  const std::string digits = directory.substr(kPrefix.size());
  if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoll(digits);
}

void prune(const std::string& dir, int64_t max_keep) {
  if (max_keep < 1) return;
  std::vector<std::pair<int64_t, fs::path>> found;
  for (const auto& entry : fs::directory_iterator(dir))
    if (const int64_t step = step_of(entry.path().filename().string()); step >= 0) found.emplace_back(step, entry.path());
  std::sort(found.begin(), found.end());
  for (size_t i = 0; i + static_cast<size_t>(max_keep) < found.size(); ++i) fs::remove_all(found[i].second);
}

}  // namespace

void save_checkpoint(const std::string& checkpoints_dir, const LoadedModel& model, const Optimizer& optimizer,
                     const TrainProgress& progress, int64_t max_keep) {
  StateReader reader(model, optimizer);
  if (!reader.writes(model)) return;
  fs::create_directories(checkpoints_dir);
  const std::string name = fmt::format("global_step_{}", progress.step);
  AtomicDirectory directory((fs::path(checkpoints_dir) / name).string(), /*replace=*/true);
  const fs::path root = directory.temporary_path(), state = root / "state";
  fs::create_directories(root / "huggingface");
  fs::create_directories(state);
  save_model(model, (root / "huggingface").string(), [&](const std::string& parameter, const Box& box) { return reader.read(kMaster + parameter, box); });

  std::vector<TensorToSave> masters, moments;
  for (const nn::Parameter* p : model.model->parameters()) masters.push_back(reader.to_save(kMaster + p->name(), p->name(), p->shape()));
  for (const Optimizer::Slot& s : optimizer.slots())
    for (const std::string& moment : {kFirstMoment, kSecondMoment})
      moments.push_back(reader.to_save(moment + s.parameter->name(), moment + s.parameter->name(), s.parameter->shape()));
  save_safetensors((state / "master.safetensors").string(), masters);
  save_safetensors((state / "optimizer.safetensors").string(), moments);
  reader.finish();

  json j = {{"format", kFormat},
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
  directory.commit();
  write_file_atomically((fs::path(checkpoints_dir) / "latest").string(), name + "\n");
  prune(checkpoints_dir, max_keep);
}

std::optional<std::string> latest_checkpoint(const std::string& checkpoints_dir) {
  const fs::path latest = fs::path(checkpoints_dir) / "latest";
  if (!fs::exists(latest)) return std::nullopt;
  std::string name = read_text_file(latest.string(), 4096);
  while (!name.empty() && (name.back() == '\n' || name.back() == ' ')) name.pop_back();
  if (step_of(name) < 0) throw FileError(latest.string(), "", fmt::format("names '{}', expected global_step_N", name));
  const fs::path directory = fs::path(checkpoints_dir) / name;
  if (!fs::exists(directory / "state" / "progress.json"))
    throw FileError(directory.string(), "", "has no state/progress.json: the checkpoint is not complete; point `latest` at another one");
  return directory.string();
}

TrainProgress load_checkpoint(const std::string& checkpoint_dir, const std::string& command, const LoadedModel& model, Optimizer& optimizer) {
  const fs::path state = fs::path(checkpoint_dir) / "state";
  const SafetensorsFile masters((state / "master.safetensors").string()), moments((state / "optimizer.safetensors").string());
  for (nn::Parameter* p : model.model->parameters()) {
    read_into(masters, p->name(), *p, p->master());
    p->updated();
  }
  for (const Optimizer::Slot& s : optimizer.slots()) {
    read_into(moments, kFirstMoment + s.parameter->name(), *s.parameter, s.m);
    read_into(moments, kSecondMoment + s.parameter->name(), *s.parameter, s.v);
  }
  const std::string path = (state / "progress.json").string();
  TrainProgress p;
  try {
    const json j = json::parse(read_text_file(path));
    if (j.at("format").get<int>() != kFormat) throw FileError(path, "format", fmt::format("{} is not {}", j.at("format").dump(), kFormat));
    p.command = j.value("command", "");
    p.step = j.at("step").get<int64_t>();
    p.updates = j.at("updates").get<int64_t>();
    p.weight_version = j.at("weight_version").get<int64_t>();
    p.cursor = {j.at("cursor").at("epoch").get<int64_t>(), j.at("cursor").at("position").get<int64_t>()};
    p.dataset_fingerprint = j.at("dataset_fingerprint").get<uint64_t>();
    p.values = j.at("values").get<std::map<std::string, double>>();
    if (j.contains("under_way")) {
      StepUnderWay u;
      u.updates_done = j.at("under_way").at("updates_done").get<int64_t>();
      u.sums = j.at("under_way").at("sums").get<std::map<std::string, double>>();
      u.trajectories = load_trajectories((state / "trajectories.bin").string());
      const SafetensorsFile rows((state / "step.safetensors").string());
      u.old_log_probs = get_rows(rows, "old_log_probs", u.trajectories);
      u.ref_log_probs = get_rows(rows, "ref_log_probs", u.trajectories);
      p.under_way = std::move(u);
    }
  } catch (const json::exception& e) {
    throw FileError(path, "", e.what());
  }
  if (p.command != command)
    throw UsageError(fmt::format("{} is a checkpoint of weft {}: weft {} starts from its huggingface/ folder (model.path), under another "
                                 "trainer.run_name or with trainer.resume_mode = \"disable\"",
                                 checkpoint_dir, p.command, command));
  optimizer.set_updates(p.updates);
  return p;
}

}  // namespace weft
