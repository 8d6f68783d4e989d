#pragma once
// What a request asks of the sampler. Names are vLLM's; the contract is docs/rollout.md.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace weft {

struct SamplingParams {
  int64_t n = 1;
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;
  int64_t top_k = 0;  // 0 or -1: off
  double min_p = 0.0;
  int64_t max_tokens = 16;
  int64_t min_tokens =
      0;  // the first min_tokens tokens end nothing: end and stop ids cannot be drawn, stop strings are not looked for
  std::vector<std::string> stop;  // in the decoded response; the tokens that complete one are kept, the text is cut before it
  std::vector<int32_t> stop_token_ids;  // kept, have a log-prob
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  std::vector<std::pair<int32_t, float>> logit_bias;  // added to the logit, before the temperature
  bool raw_logprobs = false;                          // also report log-softmax of the untouched logits at temperature 1
  bool skip_special_tokens = true;                    // in the text

  // ValueError naming the field, the value and the range.
  void validate(int64_t vocab_size) const;
};

}  // namespace weft
