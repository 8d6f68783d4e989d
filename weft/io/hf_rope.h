#pragma once
// The RoPE part of config.json, in the spelling of transformers 5 (rope_parameters) or 4 (rope_theta + rope_scaling).

#include <string>
#include <vector>

#include "weft/io/hf_config.h"
#include "weft/io/json_fields.h"

namespace weft {

// Appends nested keys that it does not know to `unread`.
RopeConfig read_rope(JsonFields& fields, const std::string& path, int64_t max_position_embeddings, double default_theta,
                     std::vector<std::string>& unread);

}  // namespace weft
