// Parsing of verl's spellings of correction options.

#include <charconv>
#include <cmath>
#include <string_view>

#include "weft/base/error.h"
#include "weft/rl/correction.h"

namespace weft {
namespace {

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> out(1);
  for (char c : text) {
    if (c == by) {
      out.emplace_back();
    } else if (c != ' ') {
      out.back() += c;
    }
  }
  return out;
}

double parse_number(const std::string& text, const std::string& whole) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    throw ValueError(fmt::format("threshold `{}`: `{}` is not a number", whole, text));
  }
  return value;
}

struct Bounds {
  double lower = 0;
  double upper = 0;
  bool has_lower = false;
};

Bounds parse_bounds(const std::string& text) {
  const std::vector<std::string> parts = split(text, '_');
  if (parts.size() > 2) throw ValueError(fmt::format("threshold `{}`: expected a number or lower_upper", text));
  Bounds out;
  out.upper = parse_number(parts.back(), text);
  out.has_lower = parts.size() == 2;
  if (out.has_lower) out.lower = parse_number(parts[0], text);
  if (!(out.lower >= 0.0 && out.upper > out.lower)) {
    throw ValueError(fmt::format("threshold `{}`: needs 0 <= lower < upper", text));
  }
  return out;
}

struct NamedRule {
  std::string_view name;
  RejectionRule::Scope scope;
  RejectionRule::Statistic statistic;
};

using Scope = RejectionRule::Scope;
using Statistic = RejectionRule::Statistic;
// The maximum of k1 would bound one side of the row only; verl has none either.
constexpr NamedRule kRules[] = {
    {"token_k1", Scope::kToken, Statistic::kK1},   {"token_k2", Scope::kToken, Statistic::kK2},
    {"token_k3", Scope::kToken, Statistic::kK3},   {"seq_sum_k1", Scope::kSum, Statistic::kK1},
    {"seq_sum_k2", Scope::kSum, Statistic::kK2},   {"seq_sum_k3", Scope::kSum, Statistic::kK3},
    {"seq_mean_k1", Scope::kMean, Statistic::kK1}, {"seq_mean_k2", Scope::kMean, Statistic::kK2},
    {"seq_mean_k3", Scope::kMean, Statistic::kK3}, {"seq_max_k2", Scope::kMax, Statistic::kK2},
    {"seq_max_k3", Scope::kMax, Statistic::kK3},
};

RejectionRule parse_rule(const std::string& option, const std::string& threshold) {
  std::string known;
  for (const NamedRule& named : kRules) {
    if (option != named.name) {
      known += (known.empty() ? "" : ", ") + std::string(named.name);
      continue;
    }
    const Bounds bounds = parse_bounds(threshold);
    RejectionRule rule{named.scope, named.statistic, bounds.lower, bounds.upper};
    if (rule.statistic != Statistic::kK1) {
      if (bounds.has_lower) throw ValueError(fmt::format("threshold `{}`: {} has an upper bound only", threshold, option));
      return rule;
    }
    if (!bounds.has_lower) rule.lower = 1.0 / bounds.upper;
    if (!(rule.lower > 0.0 && rule.lower < rule.upper)) {
      throw ValueError(
          fmt::format("threshold `{}`: {} needs 0 < lower < upper (a single number must be above 1)", threshold, option));
    }
    return rule;
  }
  throw ValueError(fmt::format("unknown rejection option `{}`; known: {}", option, known));
}

}  // namespace

ImportanceLevel parse_importance_level(const std::string& name) {
  if (name.empty() || name == "null") return ImportanceLevel::kNone;
  if (name == "token") return ImportanceLevel::kToken;
  if (name == "sequence") return ImportanceLevel::kSequence;
  if (name == "geometric") return ImportanceLevel::kGeometric;
  throw ValueError(fmt::format("unknown rollout_is `{}`; known: token, sequence, geometric, null", name));
}

void parse_importance_threshold(const std::string& text, CorrectionOptions* options) {
  const Bounds bounds = parse_bounds(text);
  options->lower = bounds.lower;
  options->upper = bounds.upper;
  options->mask_outside = bounds.has_lower;
}

std::vector<RejectionRule> parse_rejection_rules(const std::string& options, const std::string& thresholds) {
  const std::vector<std::string> names = split(options, ',');
  const std::vector<std::string> bounds = split(thresholds, ',');
  if (bounds.size() != 1 && bounds.size() != names.size()) {
    throw ValueError(fmt::format("rollout_rs has {} options but rollout_rs_threshold {} thresholds; give one, or one each",
                                 names.size(), bounds.size()));
  }
  std::vector<RejectionRule> out;
  for (size_t i = 0; i < names.size(); ++i) out.push_back(parse_rule(names[i], bounds[bounds.size() == 1 ? 0 : i]));
  return out;
}

}  // namespace weft
