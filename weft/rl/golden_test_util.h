#pragma once
// Test only: the reference cases in tests/data/rl (see its README) and comparison element by element.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "weft/io/safetensors.h"
#include "weft/rl/aggregation.h"
#include "weft/rl/rows.h"

namespace weft::rl_test {

using Values = std::vector<double>;

inline std::string data_path(const std::string& name) { return std::string(WEFT_SOURCE_DIR "/tests/data/rl/") + name; }

inline std::map<std::string, Values> load_values(const std::string& stem) {
  const SafetensorsFile file(data_path(stem + ".f64.safetensors"));
  std::map<std::string, Values> out;
  for (const TensorInfo& info : file.tensors()) {
    const std::span<const std::byte> bytes = file.bytes(info);
    Values& values = out[info.name];
    for (size_t at = 0; at < bytes.size(); at += 8) {
      double value = 0;
      int64_t integer = 0;
      std::memcpy(&value, bytes.data() + at, 8);
      std::memcpy(&integer, bytes.data() + at, 8);
      values.push_back(info.dtype == DType::kI64 ? static_cast<double>(integer) : value);
    }
  }
  return out;
}

// The batch all cases share: 10 rows of 17 positions, as packed rows whose padding is masked.
struct Golden {
  static constexpr int64_t kRows = 10;
  static constexpr int64_t kWidth = 17;

  std::map<std::string, Values> inputs = load_values("inputs");
  std::vector<int64_t> offsets;
  std::vector<uint8_t> mask;
  std::vector<int64_t> group;

  Golden() {
    for (int64_t i = 0; i <= kRows; ++i) offsets.push_back(i * kWidth);
    for (double m : inputs.at("mask")) mask.push_back(m != 0);
    for (double g : inputs.at("group")) group.push_back(static_cast<int64_t>(g));
  }

  PackedRows rows() const { return {offsets, mask}; }
  const Values& input(const std::string& name) const { return inputs.at(name); }

  // Per-row sums over all positions, the masked ones too: what verl's outcome estimators call the reward.
  Values all_position_sums(const std::string& name) const {
    Values out(kRows, 0.0);
    for (int64_t t = 0; t < kRows * kWidth; ++t) out[t / kWidth] += input(name)[t];
    return out;
  }
};

inline const Golden& golden() {
  static const Golden instance;
  return instance;
}

struct Case {
  std::string name;
  std::string package;
  std::string function;
  nlohmann::json params;
  nlohmann::json inputs;
  std::vector<std::string> metrics;
  bool nonfinite = false;
  std::map<std::string, Values> outputs;

  double number(const char* key, double otherwise) const {
    return params.contains(key) && params[key].is_number() ? params[key].get<double>() : otherwise;
  }
  std::string text(const char* key) const {
    return params.contains(key) && params[key].is_string() ? params[key].get<std::string>() : "";
  }
  const Values& input(const char* argument) const { return golden().input(inputs.at(argument).get<std::string>()); }
  bool has_input(const char* argument) const { return inputs.contains(argument); }
  double metric(const std::string& key) const {
    for (size_t i = 0; i < metrics.size(); ++i) {
      if (metrics[i] == key) return outputs.at("metrics")[i];
    }
    ADD_FAILURE() << name << " has no metric " << key;
    return 0;
  }
  bool has_metric(const std::string& key) const { return std::find(metrics.begin(), metrics.end(), key) != metrics.end(); }
  // mild, wild, onpol or nan
  bool uses(const std::string& set) const { return name.find("/" + set) != std::string::npos; }
};

// Cases of one file whose name starts with `prefix`, in order. Never empty.
inline std::vector<Case> golden_cases(const std::string& file, const std::string& prefix) {
  static const nlohmann::json all = nlohmann::json::parse(std::ifstream(data_path("cases.json")));
  const std::map<std::string, Values> values = load_values(file);
  std::vector<Case> out;
  for (const nlohmann::json& entry : all["cases"]) {
    const auto name = entry["name"].get<std::string>();
    if (entry["file"] != file || !name.starts_with(prefix)) continue;
    Case c;
    c.name = name;
    c.package = entry["source"]["package"].get<std::string>();
    c.function = entry["source"]["function"].get<std::string>();
    c.params = entry.value("params", nlohmann::json::object());
    if (c.params.is_null()) c.params = nlohmann::json::object();
    c.inputs = entry.value("inputs", nlohmann::json::object());
    if (entry.contains("metrics")) c.metrics = entry["metrics"].get<std::vector<std::string>>();
    c.nonfinite = entry.contains("nonfinite_counts");
    for (const auto& key : entry["outputs"]) c.outputs[key.get<std::string>()] = values.at(name + "/" + key.get<std::string>());
    out.push_back(std::move(c));
  }
  EXPECT_FALSE(out.empty()) << file << " " << prefix;
  return out;
}

// Relative, element by element; the absolute term only serves values that should be 0.
inline void expect_close(std::span<const double> actual, std::span<const double> expected, const std::string& what,
                         double relative = 1e-7) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(std::fabs(actual[i] - expected[i]) <= relative * std::fabs(expected[i]) + 1e-13)
        << what << " at " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

inline void expect_close(double actual, double expected, const std::string& what, double relative = 1e-7) {
  expect_close(std::span<const double>(&actual, 1), std::span<const double>(&expected, 1), what, relative);
}

// The mode and denominators of a verl case over rows [begin, end) of the golden batch.
inline Aggregation aggregation_of(const Case& c, int64_t begin = 0, int64_t end = Golden::kRows) {
  const Golden& g = golden();
  nlohmann::json sizes = c.params.contains("global_batch_info") ? c.params["global_batch_info"] : c.params;
  Aggregation out;
  out.mode = parse_aggregation_mode(c.text("loss_agg_mode"));
  for (int64_t i = begin; i < end; ++i) {
    const int64_t n = row_tokens(g.rows(), i);
    out.denominators.tokens += static_cast<double>(n);
    out.denominators.rows += n > 0;
  }
  const auto take = [&sizes](const char* key, double otherwise) {
    return sizes.contains(key) && sizes[key].is_number() ? sizes[key].get<double>() : otherwise;
  };
  // verl multiplies by dp_size because FSDP averages gradients over ranks; a denominator divided by it says the same.
  const double dp = take("dp_size", 1.0);
  out.denominators.tokens = take("batch_num_tokens", out.denominators.tokens) / dp;
  out.denominators.rows = take("global_batch_size", out.denominators.rows) / dp;
  out.denominators.max_length = take("loss_scale_factor", Golden::kWidth);
  return out;
}

}  // namespace weft::rl_test
