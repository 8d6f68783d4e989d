#include "weft/io/hf_rope.h"

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr double kMaxTheta = 1e15;

RopeType rope_type(JsonFields& rope) {
  const auto new_name = rope.text("rope_type"), old_name = rope.text("type");
  if (new_name && old_name && *new_name != *old_name) {
    rope.fail("type", fmt::format("\"{}\" contradicts \"rope_type\": \"{}\"", *old_name, *new_name));
  }
  const std::string name = new_name ? *new_name : old_name.value_or("default");
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "dynamic") return RopeType::kDynamic;
  if (name == "yarn") return RopeType::kYarn;
  if (name == "llama3") return RopeType::kLlama3;
  rope.fail("rope_type", fmt::format("\"{}\" is not supported; supported: default, linear, dynamic, yarn, llama3", name));
}

double required(JsonFields& fields, const std::string& key, double low, double high) {
  const auto value = fields.number(key, low, high);
  if (!value) fields.fail(key, "missing");
  return *value;
}

// `fields`: the whole config, for what older files keep at the top.
void read_scaling(JsonFields& rope, JsonFields& fields, int64_t max_positions, RopeConfig& result) {
  const auto inside = rope.integer("original_max_position_embeddings", 1, int64_t{1} << 30);
  const auto original = inside ? inside : fields.integer("original_max_position_embeddings", 1, int64_t{1} << 30);
  const auto factor = rope.number("factor", 1.0, 1e6);
  if (factor) {
    result.factor = *factor;
  } else if (result.type == RopeType::kYarn && original) {
    result.factor = static_cast<double>(max_positions) / static_cast<double>(*original);
    if (result.factor < 1)
      rope.fail("original_max_position_embeddings",
                fmt::format("{} is above max_position_embeddings {}", *original, max_positions));
  } else {
    rope.fail("factor", "missing");
  }
  result.original_max_position_embeddings = original.value_or(max_positions);
  if (result.type == RopeType::kLlama3) {
    if (!original) rope.fail("original_max_position_embeddings", "missing");
    result.low_freq_factor = required(rope, "low_freq_factor", 1e-6, 1e6);
    result.high_freq_factor = required(rope, "high_freq_factor", 1e-6, 1e6);
    if (result.high_freq_factor <= result.low_freq_factor) {
      rope.fail("high_freq_factor",
                fmt::format("{} is not above low_freq_factor {}", result.high_freq_factor, result.low_freq_factor));
    }
  }
  if (result.type == RopeType::kYarn) {
    // transformers treats 0 like absent for these five.
    const auto positive = [&](const char* key) {
      const auto value = rope.number(key, 0, 1e6);
      return value && *value > 0 ? value : std::nullopt;
    };
    result.beta_fast = positive("beta_fast").value_or(32.0);
    result.beta_slow = positive("beta_slow").value_or(1.0);
    if (result.beta_fast < result.beta_slow)
      rope.fail("beta_fast", fmt::format("{} is below beta_slow {}", result.beta_fast, result.beta_slow));
    result.attention_factor = positive("attention_factor");
    result.mscale = positive("mscale");
    result.mscale_all_dim = positive("mscale_all_dim");
    result.truncate = rope.boolean("truncate").value_or(true);
  }
}

}  // namespace

RopeConfig read_rope(JsonFields& fields, const std::string& path, int64_t max_position_embeddings, double default_theta,
                     std::vector<std::string>& unread) {
  RopeConfig result;
  const nlohmann::json* parameters = fields.object("rope_parameters");
  const nlohmann::json* scaling = fields.object("rope_scaling");
  const std::string key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    fields.fail("rope_scaling", "contradicts \"rope_parameters\"");
  }
  const nlohmann::json empty = nlohmann::json::object();
  const nlohmann::json& object = parameters != nullptr ? *parameters : scaling != nullptr ? *scaling : empty;
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) fields.fail(key + "." + name, "RoPE parameters per layer type are not supported");
  }
  JsonFields rope(object, path, key + ".");
  const auto outer_theta = fields.number("rope_theta", 1.0, kMaxTheta), inner_theta = rope.number("rope_theta", 1.0, kMaxTheta);
  if (outer_theta && inner_theta && *outer_theta != *inner_theta) {
    fields.fail("rope_theta", fmt::format("{} contradicts \"{}.rope_theta\": {}", *outer_theta, key, *inner_theta));
  }
  result.theta = inner_theta ? *inner_theta : outer_theta.value_or(default_theta);
  const auto outer_partial = fields.number("partial_rotary_factor", 1e-6, 1.0);
  const auto inner_partial = rope.number("partial_rotary_factor", 1e-6, 1.0);
  if (outer_partial && inner_partial && *outer_partial != *inner_partial) {
    fields.fail("partial_rotary_factor",
                fmt::format("{} contradicts \"{}.partial_rotary_factor\": {}", *outer_partial, key, *inner_partial));
  }
  result.partial_rotary_factor = inner_partial ? *inner_partial : outer_partial.value_or(1.0);
  result.type = rope_type(rope);
  if (result.type == RopeType::kDefault) {
    result.original_max_position_embeddings = max_position_embeddings;
    // Written by some tools beside "default", and without effect there.
    rope.mark_read("original_max_position_embeddings");
  } else {
    read_scaling(rope, fields, max_position_embeddings, result);
  }
  const auto more = rope.unread();
  unread.insert(unread.end(), more.begin(), more.end());
  return result;
}

}  // namespace weft
