#include "weft/train/run_tensors.h"

#include "weft/mesh/single_writer.h"
#include "weft/parallel/fully_shard.h"

namespace weft {
namespace {

const std::string kMaster = "master/", kFirstMoment = "m/", kSecondMoment = "v/";

StoredTensor stored(const std::string& on_disk, const std::string& name, const nn::Parameter& p) {
  return {{on_disk, p.shape(), name, {std::vector<int64_t>(p.shape().size(), 0), p.shape()}}, DType::kF32};
}

}  // namespace

RunTensors::RunTensors(const LoadedModel& model, const Optimizer* optimizer) : model_(model), optimizer_(optimizer) {
  for (const nn::Parameter* p : model.model->parameters()) items_[kMaster + p->name()] = {p, p->master()};
  if (!optimizer) return;
  for (const Optimizer::Slot& s : optimizer->slots()) {
    items_[kFirstMoment + s.parameter->name()] = {s.parameter, s.m};
    items_[kSecondMoment + s.parameter->name()] = {s.parameter, s.v};
  }
}

Layout RunTensors::layout(const std::string& name) const { return layout_of(*item(name).parameter, *model_.mesh); }

ParameterPart RunTensors::held(const std::string& name) const { return {item(name).local, local_boxes(*item(name).parameter)}; }

ParameterPart RunTensors::to_write(const std::string& name) const {
  if (!model_.mesh) return held(name);
  return {item(name).local, boxes_to_write(layout(name), model_.mesh->rank())};
}

ExportSources RunTensors::sources() const {
  return [this](const std::string& name) { return ExportSource{item(name).local, model_.mesh ? layout(name) : Layout()}; };
}

std::vector<TensorFile> RunTensors::state_files() const {
  std::vector<StoredTensor> masters, moments;
  for (const nn::Parameter* p : model_.model->parameters()) masters.push_back(stored(p->name(), kMaster + p->name(), *p));
  std::vector<TensorFile> files;
  files.push_back(plan_tensor_file("state/master.safetensors", std::move(masters)));
  if (!optimizer_) return files;
  for (const Optimizer::Slot& s : optimizer_->slots())
    for (const std::string& moment : {kFirstMoment, kSecondMoment}) {
      const std::string name = moment + s.parameter->name();
      moments.push_back(stored(name, name, *s.parameter));
    }
  files.push_back(plan_tensor_file("state/optimizer.safetensors", std::move(moments)));
  return files;
}

std::vector<TensorFile> RunTensors::hf_files(std::string* index) const {
  std::vector<TensorFile> files = plan_hf_weights("huggingface", model_.manifest, model_.entries, model_.tied_head, index);
  for (TensorFile& f : files)
    for (StoredTensor& t : f.tensors) t.entry.parameter = kMaster + t.entry.parameter;
  return files;
}

}  // namespace weft
