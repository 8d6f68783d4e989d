#pragma once
// Finds the directory of a model: a directory itself, or a Hugging Face hub id (`org/name`, also `name`) in the local hub
// cache: $HF_HUB_CACHE, else $HF_HOME/hub, else ~/.cache/huggingface/hub, revision refs/main. Nothing is downloaded: an absent
// model is a FileError that holds the command to fetch it.

#include <string>

namespace weft {

std::string resolve_model_path(const std::string& path_or_id);
std::string hub_cache_directory();

}  // namespace weft
