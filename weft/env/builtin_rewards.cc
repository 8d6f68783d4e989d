#include "weft/env/builtin_rewards.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <utility>

#include "weft/base/error.h"
#include "weft/env/number.h"
#include "weft/env/reward_pattern.h"

namespace weft {
namespace {

// One completion at a time, without state.
class PlainReward final : public RewardFunction {
 public:
  using Score = std::function<double(const RewardRequest&)>;
  PlainReward(std::string name, Score score) : name_(std::move(name)), score_(std::move(score)) {}
  std::string name() const override { return name_; }
  std::vector<RewardValue> score(std::span<const RewardRequest> requests) override {
    std::vector<RewardValue> values;
    values.reserve(requests.size());
    for (const auto& request : requests) values.push_back({score_(request), true, {}});
    return values;
  }

 private:
  std::string name_;
  Score score_;
};

std::unique_ptr<RewardFunction> plain(std::string name, PlainReward::Score score) {
  return std::make_unique<PlainReward>(std::move(name), std::move(score));
}

void no_params(const std::string& name, const std::string& params) {
  if (!params.empty()) throw ValueError(fmt::format("reward '{}' takes nothing after a colon, got '{}'", name, params));
}

// Runs a pattern and names the row when it gives up.
template <typename Match>
auto at_row(const RewardRequest& request, Match&& match) {
  try {
    return match();
  } catch (const ValueError& error) {
    throw ValueError(fmt::format("{}: {}", where(request), error.what()));
  }
}

bool is_tag_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

// "think,answer" or "<think>..</think><answer>..</answer>" as names.
std::vector<std::string> tag_names(const std::string& params) {
  const auto refuse = [&]() -> ValueError {
    return ValueError(
        fmt::format("reward 'format:{}': write format:think,answer or format:<think>..</think><answer>..</answer> "
                    "or format:regex:PATTERN",
                    params));
  };
  std::vector<std::string> names;
  std::string_view rest = params;
  while (!rest.empty()) {
    std::string name;
    if (params[0] == '<') {
      const size_t close = rest.find('>');
      if (rest[0] != '<' || close == std::string_view::npos) throw refuse();
      name = rest.substr(1, close - 1);
      const std::string body = fmt::format("..</{}>", name);
      if (!rest.substr(close + 1).starts_with(body)) throw refuse();
      rest.remove_prefix(close + 1 + body.size());
      rest = trim_space(rest);
    } else {
      const size_t comma = rest.find(',');
      name = trim_space(rest.substr(0, comma));
      rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
      if (comma != std::string_view::npos && rest.empty()) throw refuse();
    }
    if (!is_tag_name(name) || std::find(names.begin(), names.end(), name) != names.end()) throw refuse();
    names.push_back(name);
  }
  return names;
}

int64_t count(std::string_view text, std::string_view part) {
  int64_t n = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

bool has_blocks(std::string_view completion, std::string_view prompt, const std::vector<std::string>& names) {
  std::string_view rest = trim_space(completion);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string open = "<" + names[i] + ">", close = "</" + names[i] + ">";
    const bool given = i == 0 && trim_space(prompt).ends_with(open);
    if (count(completion, open) != (given ? 0 : 1) || count(completion, close) != 1) return false;
    if (!given) {
      if (!rest.starts_with(open)) return false;
      rest.remove_prefix(open.size());
    }
    const size_t end = rest.find(close);
    if (end == std::string_view::npos) return false;
    rest = trim_space(rest.substr(end + close.size()));
  }
  return rest.empty();
}

double parse_param(const std::string& params, std::string_view name, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    throw ValueError(fmt::format("reward 'length:{}': {} = '{}' is not a number", params, name, text));
  return value;
}

}  // namespace

std::string_view trim_space(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\f\v";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::unique_ptr<RewardFunction> make_exact_match(const std::string& params) {
  no_params("exact_match", params);
  return plain("exact_match", [](const RewardRequest& request) {
    const std::string_view given = trim_space(request.completion);
    for (const auto& answer : accepted_answers(request, "exact_match"))
      if (given == trim_space(answer)) return 1.0;
    return 0.0;
  });
}

std::unique_ptr<RewardFunction> make_contains(const std::string& params) {
  return plain("contains", [params](const RewardRequest& request) {
    if (!params.empty()) return request.completion.find(params) != std::string::npos ? 1.0 : 0.0;
    for (const auto& answer : accepted_answers(request, "contains"))
      if (request.completion.find(trim_space(answer)) != std::string::npos) return 1.0;
    return 0.0;
  });
}

std::unique_ptr<RewardFunction> make_regex(const std::string& params) {
  if (params.empty()) throw ValueError("reward 'regex' needs a pattern: regex:PATTERN");
  const RewardPattern pattern(params);
  const bool compares = pattern.has_group("answer");
  return plain("regex", [pattern, compares](const RewardRequest& request) {
    if (!compares) return at_row(request, [&] { return pattern.found_in(request.completion); }) ? 1.0 : 0.0;
    const auto answers = accepted_answers(request, "regex");
    const auto given = at_row(request, [&] { return pattern.last_group(request.completion, "answer"); });
    if (!given) return 0.0;
    for (const auto& answer : answers)
      if (trim_space(*given) == trim_space(answer)) return 1.0;
    return 0.0;
  });
}

std::unique_ptr<RewardFunction> make_last_number(const std::string& params) {
  no_params("last_number", params);
  return plain("last_number", [](const RewardRequest& request) {
    const auto given = answer_number(request.completion);
    double value = 0;
    for (const auto& answer : accepted_answers(request, "last_number")) {
      const auto wanted = answer_number(answer);
      if (!wanted)
        throw ValueError(fmt::format("{}: reward 'last_number': the ground truth '{}' holds no number", where(request), answer));
      if (given && *given == *wanted) value = 1;
    }
    return value;
  });
}

std::unique_ptr<RewardFunction> make_format(const std::string& params) {
  constexpr std::string_view kRegex = "regex:";
  if (params.starts_with(kRegex)) {
    const RewardPattern pattern(params.substr(kRegex.size()), true);
    return plain("format", [pattern](const RewardRequest& request) {
      return at_row(request, [&] { return pattern.found_in(request.completion); }) ? 1.0 : 0.0;
    });
  }
  const auto names = tag_names(params.empty() ? "think,answer" : params);
  return plain("format", [names](const RewardRequest& request) {
    return has_blocks(request.completion, request.prompt, names) ? 1.0 : 0.0;
  });
}

std::unique_ptr<RewardFunction> make_length(const std::string& params) {
  double target = -1, penalty = -1, shorter = 0, floor = -1;
  std::string_view rest = params;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view part = trim_space(rest.substr(0, comma));
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
    const size_t equals = part.find('=');
    const std::string_view name = trim_space(part.substr(0, equals));
    double* place = name == "target"    ? &target
                    : name == "penalty" ? &penalty
                    : name == "shorter" ? &shorter
                    : name == "floor"   ? &floor
                                        : nullptr;
    if (place == nullptr || equals == std::string_view::npos)
      throw ValueError(fmt::format("reward 'length:{}': '{}' is none of target=N, penalty=P, shorter=S, floor=F", params, part));
    *place = parse_param(params, name, trim_space(part.substr(equals + 1)));
    if (place != &floor && *place < 0) throw ValueError(fmt::format("reward 'length:{}': {} must not be negative", params, name));
  }
  if (!(target >= 1)) throw ValueError(fmt::format("reward 'length:{}': needs target=N with N >= 1 token", params));
  if (floor > 0) throw ValueError(fmt::format("reward 'length:{}': floor must not be above 0", params));
  if (penalty < 0) penalty = 1 / target;
  return plain("length", [=](const RewardRequest& request) {
    const double tokens = static_cast<double>(request.completion_ids.size());
    // Never -0: "no penalty" reads as 0.
    return std::max(floor, 0.0 - (penalty * std::max(0.0, tokens - target) + shorter * std::max(0.0, target - tokens)));
  });
}

}  // namespace weft
