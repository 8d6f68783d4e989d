#pragma once
// The tensors of a run's state by name: fp32 masters as "master/NAME", AdamW's moments as "m/NAME" and "v/NAME". Which of them
// this rank holds, which it writes, and the files they go to.

#include <map>
#include <string>
#include <vector>

#include "weft/checkpoint/export_stream.h"
#include "weft/checkpoint/tensor_files.h"
#include "weft/train/loaded_model.h"
#include "weft/train/optimizer.h"

namespace weft {

class RunTensors {
 public:
  // Both live as long as this. Without an optimizer: the masters alone.
  RunTensors(const LoadedModel& model, const Optimizer* optimizer);

  struct Item {
    const nn::Parameter* parameter;  // whose shape and layout it has
    at::Tensor local;
  };
  const Item& item(const std::string& name) const { return items_.at(name); }
  Layout layout(const std::string& name) const;  // with a mesh
  ParameterPart held(const std::string& name) const;
  ParameterPart to_write(const std::string& name) const;
  // For a stream to the rank that writes for all.
  ExportSources sources() const;

  // state/master.safetensors and, with an optimizer, state/optimizer.safetensors.
  std::vector<TensorFile> state_files() const;
  // huggingface/model*.safetensors; `index` as plan_hf_weights says.
  std::vector<TensorFile> hf_files(std::string* index) const;

 private:
  const LoadedModel& model_;
  const Optimizer* optimizer_;
  std::map<std::string, Item> items_;
};

}  // namespace weft
