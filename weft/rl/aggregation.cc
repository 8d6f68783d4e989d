#include "weft/rl/aggregation.h"

#include <array>
#include <utility>

#include "weft/base/error.h"

namespace weft {
namespace {

constexpr std::array<std::pair<const char*, AggregationMode>, 5> kNames = {{
    {"token-mean", AggregationMode::kTokenMean},
    {"seq-mean-token-mean", AggregationMode::kSeqMeanTokenMean},
    {"seq-mean-token-sum", AggregationMode::kSeqMeanTokenSum},
    {"seq-mean-token-sum-norm", AggregationMode::kSeqMeanTokenSumNorm},
    {"token-sum", AggregationMode::kTokenSum},
}};

double positive(const char* name, double value) {
  WEFT_CHECK(value > 0, "denominator `{}` is {} although there are tokens that count", name, value);
  return value;
}

}  // namespace

AggregationMode parse_aggregation_mode(const std::string& name) {
  std::string known;
  for (const auto& [text, mode] : kNames) {
    if (name == text) return mode;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  throw ValueError(fmt::format("unknown loss aggregation mode `{}`; known: {}", name, known));
}

std::string aggregation_mode_name(AggregationMode mode) {
  for (const auto& [text, value] : kNames) {
    if (value == mode) return text;
  }
  throw InternalError("aggregation mode without a name");
}

Denominators count_denominators(const PackedRows& rows, double max_length) {
  check_rows(rows);
  Denominators out;
  out.max_length = max_length;
  for (int64_t i = 0; i < rows.count(); ++i) {
    const int64_t n = row_tokens(rows, i);
    out.tokens += static_cast<double>(n);
    out.rows += n > 0;
  }
  return out;
}

double token_weight(const Aggregation& aggregation, int64_t tokens_in_row) {
  if (tokens_in_row == 0) return 0.0;
  const Denominators& d = aggregation.denominators;
  switch (aggregation.mode) {
    case AggregationMode::kTokenMean: return 1.0 / positive("tokens", d.tokens);
    case AggregationMode::kSeqMeanTokenMean: return 1.0 / (static_cast<double>(tokens_in_row) * positive("rows", d.rows));
    case AggregationMode::kSeqMeanTokenSum: return 1.0 / positive("rows", d.rows);
    case AggregationMode::kSeqMeanTokenSumNorm: return 1.0 / (positive("rows", d.rows) * positive("max_length", d.max_length));
    case AggregationMode::kTokenSum: return 1.0;
  }
  throw InternalError("unknown aggregation mode");
}

AggregateResult aggregate(const PackedRows& rows, std::span<const double> values, const Aggregation& aggregation) {
  check_rows(rows);
  check_size("values", values.size(), rows.tokens());
  AggregateResult out;
  out.grad.assign(rows.tokens(), 0.0);
  for (int64_t i = 0; i < rows.count(); ++i) {
    const double weight = token_weight(aggregation, row_tokens(rows, i));
    for (int64_t t = rows.offsets[i]; t < rows.offsets[i + 1]; ++t) {
      if (!rows.mask[t]) continue;
      out.value += weight * values[t];
      out.grad[t] = weight;
    }
  }
  return out;
}

}  // namespace weft
