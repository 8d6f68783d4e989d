#include "weft/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "weft/base/error.h"
#include "weft/base/math.h"

namespace weft {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

// The dimension at which a frequency turns `rotations` times over the original context.
double correction_dim(double rotations, double dim, double theta, double context) {
  return dim * det_log(context / (rotations * kTwoPi)) / (2.0 * det_log(theta));
}

double yarn_mscale(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * det_log(factor) + 1.0; }

void apply_yarn(const RopeConfig& r, double context, double dim, std::vector<double>& inv, double& attention_factor) {
  double low = correction_dim(r.beta_fast, dim, r.theta, context), high = correction_dim(r.beta_slow, dim, r.theta, context);
  if (r.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inv.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv[i] = inv[i] / r.factor * ramp + inv[i] * (1.0 - ramp);
  }
  if (r.attention_factor) attention_factor = *r.attention_factor;
  else if (r.mscale && r.mscale_all_dim && *r.mscale != 0.0 && *r.mscale_all_dim != 0.0)
    attention_factor = yarn_mscale(r.factor, *r.mscale) / yarn_mscale(r.factor, *r.mscale_all_dim);
  else attention_factor = yarn_mscale(r.factor, 1.0);
}

void apply_llama3(const RopeConfig& r, double context, std::vector<double>& inv) {
  const double low_wavelength = context / r.low_freq_factor, high_wavelength = context / r.high_freq_factor;
  for (double& f : inv) {
    const double wavelength = kTwoPi / f;
    if (wavelength > low_wavelength) {
      f /= r.factor;
    } else if (wavelength >= high_wavelength) {
      const double smooth = (context / wavelength - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
      f = (1.0 - smooth) * f / r.factor + smooth * f;
    }
  }
}

}  // namespace

bool ModelConfig::has_moe() const { return std::find(moe_layers.begin(), moe_layers.end(), true) != moe_layers.end(); }

std::vector<int32_t> ModelConfig::moe_layer_ids() const {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < moe_layers.size(); ++i)
    if (moe_layers[i]) ids.push_back(static_cast<int32_t>(i));
  return ids;
}

int64_t over_encoding_tables(const OverEncodingConfig& c) { return (c.emb_neighbor_num - 1) * c.emb_split_num; }

int64_t over_encoding_rows(const OverEncodingConfig& c, int64_t vocab, int64_t e) { return c.ngram_vocab_size_ratio * vocab + 2 * e + 1; }

void set_rope(const HfConfig& hf, ModelConfig& config) {
  const RopeConfig& r = hf.rope;
  if (r.partial_rotary_factor != 1.0)
    throw FileError(hf.path, "partial_rotary_factor", fmt::format("{} is not supported: only 1.0 is", r.partial_rotary_factor));
  if (config.head_dim % 2 != 0) throw FileError(hf.path, "head_dim", fmt::format("{} is odd: rotary embedding needs pairs", config.head_dim));
  std::vector<double> inv(static_cast<size_t>(config.head_dim / 2));
  for (size_t i = 0; i < inv.size(); ++i)
    inv[i] = 1.0 / det_pow(r.theta, 2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
  const double context = static_cast<double>(r.original_max_position_embeddings > 0 ? r.original_max_position_embeddings
                                                                                     : hf.max_position_embeddings);
  config.rope_attention_factor = 1.0;
  switch (r.type) {
    case RopeType::kDefault: break;
    case RopeType::kLinear:
      for (double& f : inv) f /= r.factor;
      break;
    case RopeType::kDynamic: throw FileError(hf.path, "rope_type", "dynamic is not supported: use default, linear, yarn or llama3");
    case RopeType::kYarn: apply_yarn(r, context, static_cast<double>(config.head_dim), inv, config.rope_attention_factor); break;
    case RopeType::kLlama3: apply_llama3(r, context, inv); break;
  }
  config.inv_freq.assign(inv.begin(), inv.end());
}

}  // namespace weft
