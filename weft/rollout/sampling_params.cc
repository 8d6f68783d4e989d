#include "weft/rollout/sampling_params.h"

#include <cmath>
#include <set>

#include "weft/base/error.h"

namespace weft {
namespace {

void require(bool ok, const char* field, const std::string& value, const char* range) {
  if (!ok) throw ValueError(fmt::format("{} = {}: must be {}", field, value, range));
}

}  // namespace

void SamplingParams::validate(int64_t vocab_size) const {
  require(n >= 1 && n <= 16384, "n", std::to_string(n), "between 1 and 16384");
  require(std::isfinite(temperature) && (temperature == 0.0 || (temperature >= 1e-3 && temperature <= 1e3)), "temperature",
          fmt::format("{}", temperature), "0 (greedy) or between 0.001 and 1000");
  require(top_p > 0.0 && top_p <= 1.0, "top_p", fmt::format("{}", top_p), "above 0 and at most 1");
  require(top_k >= -1, "top_k", std::to_string(top_k), "-1, 0 (both off) or positive");
  require(min_p >= 0.0 && min_p <= 1.0, "min_p", fmt::format("{}", min_p), "between 0 and 1");
  require(max_tokens >= 1 && max_tokens <= INT32_MAX, "max_tokens", std::to_string(max_tokens), "between 1 and 2147483647");
  require(min_tokens >= 0 && min_tokens <= max_tokens, "min_tokens", std::to_string(min_tokens), "between 0 and max_tokens");
  require(!(n > 1 && temperature == 0.0), "n", std::to_string(n), "1 when temperature is 0: greedy samples are all the same");
  for (const std::string& s : stop) require(!s.empty(), "stop", "\"\"", "a non-empty string");
  for (int32_t id : stop_token_ids)
    require(id >= 0 && id < vocab_size, "stop_token_ids", std::to_string(id), "a token id of the model");
  std::set<int32_t> biased;
  for (const auto& [id, value] : logit_bias) {
    require(id >= 0 && id < vocab_size, "logit_bias", std::to_string(id), "keyed by token ids of the model");
    require(biased.insert(id).second, "logit_bias", std::to_string(id), "given once for each token id");
    // A wider range could push a logit over the edge of fp32 once it is divided by the temperature.
    require(std::fabs(value) <= 1e4f, "logit_bias", fmt::format("{}: {}", id, value), "between -10000 and 10000");
  }
}

}  // namespace weft
