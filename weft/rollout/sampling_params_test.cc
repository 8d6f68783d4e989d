#include "weft/rollout/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "weft/base/error.h"

namespace weft {
namespace {

using testing::HasSubstr;

constexpr int64_t kVocab = 97;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The message of the refusal; empty when the params are accepted.
std::string refusal(const std::function<void(SamplingParams&)>& change) {
  SamplingParams p;
  change(p);
  try {
    p.validate(kVocab);
  } catch (const ValueError& e) {
    return e.what();
  }
  return "";
}

TEST(SamplingParams, DefaultsAndEdgesAreAccepted) {
  EXPECT_EQ(refusal([](SamplingParams&) {}), "");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.temperature = 0.0; }), "");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.temperature = 1e-3; }), "");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.n = 16384; }), "");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.top_k = -1; }), "");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.top_k = std::numeric_limits<int64_t>::max(); }), "");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.top_p = 1e-300; }), "");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.min_p = 1.0; }), "");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.min_tokens = p.max_tokens; }), "");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.stop_token_ids = {0, 96}; }), "");
  EXPECT_EQ(refusal([](SamplingParams& p) { p.logit_bias = {{0, -1e4f}, {96, 1e4f}}; }), "");
}

TEST(SamplingParams, RefusalsNameFieldValueAndRange) {
  const struct {
    std::function<void(SamplingParams&)> change;
    const char *field, *value;
  } cases[] = {
      {[](SamplingParams& p) { p.n = 0; }, "n = 0", "between 1 and 16384"},
      {[](SamplingParams& p) { p.n = 16385; }, "n = 16385", "between 1 and 16384"},
      {[](SamplingParams& p) { p.temperature = -0.5; }, "temperature = -0.5", "0 (greedy) or between"},
      {[](SamplingParams& p) { p.temperature = 1e-9; }, "temperature = 1e-09", "0 (greedy) or between"},
      {[](SamplingParams& p) { p.temperature = kNan; }, "temperature = nan", "0 (greedy) or between"},
      {[](SamplingParams& p) { p.temperature = INFINITY; }, "temperature = inf", "0 (greedy) or between"},
      {[](SamplingParams& p) { p.top_p = 0.0; }, "top_p = 0", "above 0 and at most 1"},
      {[](SamplingParams& p) { p.top_p = 1.5; }, "top_p = 1.5", "above 0 and at most 1"},
      {[](SamplingParams& p) { p.top_p = kNan; }, "top_p = nan", "above 0 and at most 1"},
      {[](SamplingParams& p) { p.top_k = -2; }, "top_k = -2", "-1, 0 (both off) or positive"},
      {[](SamplingParams& p) { p.min_p = -0.1; }, "min_p = -0.1", "between 0 and 1"},
      {[](SamplingParams& p) { p.min_p = kNan; }, "min_p = nan", "between 0 and 1"},
      {[](SamplingParams& p) { p.max_tokens = 0; }, "max_tokens = 0", "between 1 and"},
      {[](SamplingParams& p) { p.max_tokens = std::numeric_limits<int64_t>::max(); }, "max_tokens = 9223372036854775807",
       "between 1 and"},
      {[](SamplingParams& p) { p.min_tokens = 17; }, "min_tokens = 17", "between 0 and max_tokens"},
      {[](SamplingParams& p) { p.min_tokens = -1; }, "min_tokens = -1", "between 0 and max_tokens"},
      {[](SamplingParams& p) { p.n = 2, p.temperature = 0; }, "n = 2", "greedy samples are all the same"},
      {[](SamplingParams& p) {
         p.stop = {"a", ""};
       },
       "stop", "non-empty"},
      {[](SamplingParams& p) { p.stop_token_ids = {97}; }, "stop_token_ids = 97", "a token id of the model"},
      {[](SamplingParams& p) { p.stop_token_ids = {-1}; }, "stop_token_ids = -1", "a token id of the model"},
      {[](SamplingParams& p) {
         p.logit_bias = {{97, 1.0f}};
       },
       "logit_bias = 97", "token ids of the model"},
      {[](SamplingParams& p) {
         p.logit_bias = {{5, 1.0f}, {5, 2.0f}};
       },
       "logit_bias = 5", "given once"},
      {[](SamplingParams& p) {
         p.logit_bias = {{5, NAN}};
       },
       "logit_bias = 5: nan", "between -10000 and 10000"},
      {[](SamplingParams& p) {
         p.logit_bias = {{5, 1e38f}};
       },
       "logit_bias = 5: 1e+38", "between -10000 and 10000"},
  };
  for (const auto& c : cases) EXPECT_THAT(refusal(c.change), testing::AllOf(HasSubstr(c.field), HasSubstr(c.value)));
}

}  // namespace
}  // namespace weft
