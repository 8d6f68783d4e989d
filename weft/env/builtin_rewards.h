#pragma once
// The rewards that weft brings: 1 for right, 0 for wrong (length: a penalty). Each is made from the text behind the colon of
// its spec in reward.funcs; docs/rewards.md lists the forms. A spec that does not fit is a ValueError saying what would.
// Rewards that compare need a ground truth: a row without is a ValueError naming it; a JSON list holds answers of which one
// is enough.

#include <memory>
#include <string>
#include <string_view>

#include "weft/env/reward.h"

namespace weft {

// exact_match: completion and an answer are equal but for white space around them.
std::unique_ptr<RewardFunction> make_exact_match(const std::string& params);

// contains:TEXT: the completion holds TEXT; without TEXT, an answer of the row.
std::unique_ptr<RewardFunction> make_contains(const std::string& params);

// regex:PATTERN: found in the completion. With a group (?<answer>...) the group's text in the last match must equal an answer
// but for white space around it.
std::unique_ptr<RewardFunction> make_regex(const std::string& params);

// last_number: the stated number of the completion equals the answer's (answer_number of number.h on both, exactly).
std::unique_ptr<RewardFunction> make_last_number(const std::string& params);

// format:think,answer (or "<think>..</think><answer>..</answer>"; the default): these blocks in this order, each tag once,
// nothing but white space around and between them. A first opening tag at the end of the prompt counts. format:regex:PATTERN:
// the whole completion matches.
std::unique_ptr<RewardFunction> make_format(const std::string& params);

// length:target=N[,penalty=P][,shorter=S][,floor=F]: tokens of the completion; -P for each beyond N (default 1/N), -S for each
// that is missing (default 0), never below F (default -1).
std::unique_ptr<RewardFunction> make_length(const std::string& params);

// Without ASCII white space at both ends.
std::string_view trim_space(std::string_view text);

}  // namespace weft
