#include "weft/io/checkpoint_files.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/io/json_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char *kSingle = "/model.safetensors", *kIndex = "/model.safetensors.index.json";

bool is_plain_shard_name(const std::string& name) {
  return name.ends_with(".safetensors") && name.find('/') == std::string::npos && name.find('\\') == std::string::npos &&
         name.find('\0') == std::string::npos && name[0] != '.';
}

// tensor name -> shard file name
std::map<std::string, std::string> read_index(const std::string& path) {
  const nlohmann::json index = read_json_file(path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw FileError(path, "", "no \"weight_map\" object");
  }
  std::map<std::string, std::string> result;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string where = fmt::format("weight_map: \"{}\"", name);
    if (!file.is_string()) throw FileError(path, where, "shard name is not a string");
    const auto& shard = file.get_ref<const std::string&>();
    if (!is_plain_shard_name(shard)) {
      throw FileError(path, where,
                      fmt::format("shard name {} is not a plain *.safetensors file name of this directory", file.dump()));
    }
    result[name] = shard;
  }
  if (result.empty()) throw FileError(path, "", "\"weight_map\" is empty");
  return result;
}

}  // namespace

bool has_weights(const std::string& dir) { return fs::exists(dir + kSingle) || fs::exists(dir + kIndex); }

Checkpoint::Checkpoint(const std::string& dir) : dir_(dir) {
  if (!fs::is_directory(dir)) throw FileError(dir, "", "not a directory; give the directory of a Hugging Face checkpoint");
  const std::string single = dir + kSingle, index_path = dir + kIndex;
  if (fs::exists(single)) {
    files_.emplace_back(single);
  } else if (fs::exists(index_path)) {
    const auto index = read_index(index_path);
    std::map<std::string, std::vector<std::string>> by_file;
    for (const auto& [name, file] : index) by_file[file].push_back(name);
    for (const auto& [file, names] : by_file) {
      const std::string path = dir + "/" + file;
      if (!fs::exists(path)) {
        throw FileError(
            path, "",
            fmt::format("shard is missing; {} lists {} tensors in it, the first \"{}\"", index_path, names.size(), names[0]));
      }
      files_.emplace_back(path);
      for (const std::string& name : names) {
        if (files_.back().find(name) == nullptr) {
          throw FileError(path, "", fmt::format("tensor \"{}\" is missing; {} says that it is here", name, index_path));
        }
      }
      for (const TensorInfo& info : files_.back().tensors()) {
        const auto it = index.find(info.name);
        if (it == index.end() || it->second != file) {
          throw FileError(path, "",
                          fmt::format("extra tensor \"{}\": {} {}", info.name, index_path,
                                      it == index.end() ? "does not list it" : "says that it is in " + it->second));
        }
      }
    }
  } else {
    const bool pickled = fs::exists(dir + "/pytorch_model.bin") || fs::exists(dir + "/pytorch_model.bin.index.json");
    throw FileError(dir, "",
                    pickled ? "has pytorch_model.bin but no model.safetensors; save it again with safe_serialization=True"
                            : "has neither model.safetensors nor model.safetensors.index.json");
  }
  for (size_t f = 0; f < files_.size(); ++f) {
    for (const TensorInfo& info : files_[f].tensors()) {
      by_name_.emplace(info.name, tensors_.size());
      tensors_.push_back(info);
      file_of_.push_back(f);
    }
  }
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

size_t Checkpoint::position(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  if (it == by_name_.end()) {
    throw FileError(dir_, "", fmt::format("no tensor \"{}\" among the {} of this checkpoint", name, tensors_.size()));
  }
  return it->second;
}

const TensorInfo& Checkpoint::tensor(std::string_view name) const { return tensors_[position(name)]; }

std::span<const std::byte> Checkpoint::bytes(std::string_view name) const {
  const size_t i = position(name);
  return files_[file_of_[i]].bytes(tensors_[i]);
}

void Checkpoint::advise(MappedFile::Advice advice, std::string_view name) const {
  const size_t i = position(name);
  files_[file_of_[i]].advise(advice, tensors_[i]);
}

int64_t Checkpoint::total_bytes() const {
  int64_t total = 0;
  for (const TensorInfo& info : tensors_) total += info.num_bytes();
  return total;
}

}  // namespace weft
