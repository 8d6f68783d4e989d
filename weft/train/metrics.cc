#include "weft/train/metrics.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "weft/base/error.h"
#include "weft/base/progress.h"
#include "weft/io/append_file.h"
#include "weft/io/json_file.h"
#include "weft/io/jsonl.h"
#include "weft/io/tensorboard.h"

namespace weft {
namespace {

using Names = std::map<std::string, std::string, std::less<>>;

const Names& alias_table(const std::string& framework) {
  static const Names none;
  static const Names verl = {
      {"reward/mean", "critic/rewards/mean"},      {"reward/max", "critic/rewards/max"},
      {"reward/min", "critic/rewards/min"},        {"advantages/mean", "critic/advantages/mean"},
      {"advantages/max", "critic/advantages/max"}, {"advantages/min", "critic/advantages/min"},
  };
  static const Names trl = {
      {"reward/mean", "reward"},
      {"reward/std", "reward_std"},
      {"reward/frac_zero_std", "frac_reward_zero_std"},
      {"response_length/mean", "completions/mean_length"},
      {"response_length/min", "completions/min_length"},
      {"response_length/max", "completions/max_length"},
      {"response_length/clip_ratio", "completions/clipped_ratio"},
      {"actor/kl_loss", "kl"},
      {"actor/pg_loss", "loss"},
      {"actor/pg_clipfrac", "clip_ratio/region_mean"},
      {"actor/entropy", "entropy"},
      {"actor/grad_norm", "grad_norm"},
      {"actor/lr", "learning_rate"},
      {"timing_s/step", "step_time"},
  };
  if (framework == "verl") return verl;
  if (framework == "trl") return trl;
  WEFT_CHECK(framework == "none", "metric aliases '{}'", framework);
  return none;
}

double unix_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// Bytes of the rows up to `step`; a cut-short last row is not among them.
int64_t bytes_up_to(const std::string& path, int64_t step) {
  const JsonlFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  int64_t keep = 0;
  for (int64_t row = 0; row < file.size(); ++row) {
    const std::string_view text = file.text(row);
    const auto end = static_cast<size_t>(text.data() + text.size() - bytes.data());
    const size_t newline = bytes.find('\n', end);
    if (newline == std::string_view::npos) break;
    const auto json = file.json(row);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
      throw FileError(path, file.location(row), "no row of metrics: \"step\" is missing; move the file away to start it anew");
    if (json["step"].get<int64_t>() > step) break;
    keep = static_cast<int64_t>(newline) + 1;
  }
  return keep;
}

}  // namespace

void MetricsRow::set(std::string name, double value) {
  for (auto& [known, old] : entries_)
    if (known == name) {
      old = value;
      return;
    }
  entries_.emplace_back(std::move(name), value);
}

std::optional<double> MetricsRow::find(std::string_view name) const {
  for (const auto& [known, value] : entries_)
    if (known == name) return value;
  return std::nullopt;
}

std::optional<std::string> metric_alias(std::string_view name, const std::string& framework) {
  const Names& table = alias_table(framework);
  if (const auto found = table.find(name); found != table.end()) return found->second;
  if (framework == "trl" && name.starts_with("reward/") && std::count(name.begin(), name.end(), '/') >= 2)
    return "rewards/" + std::string(name.substr(7));
  if (framework == "verl" && name.starts_with("val/") && name.find("/mean@") != std::string_view::npos) {
    // val/<source>/<reward>/mean@N -> val-core/<source>/acc/mean@N
    const size_t source = name.find('/', 4);
    return "val-core" + std::string(name.substr(3, source - 3)) + "/acc" + std::string(name.substr(name.rfind('/')));
  }
  return std::nullopt;
}

MetricsLog::MetricsLog(const std::string& run_dir, MetricsLogOptions options) : framework_(std::move(options.metric_aliases)) {
  const std::string path = run_dir + "/metrics.jsonl";
  int64_t keep = 0;
  if (options.resume_step && std::filesystem::exists(path)) keep = bytes_up_to(path, *options.resume_step);
  file_ = std::make_unique<AppendFile>(path, keep);
  if (options.tensorboard) {
    const std::string dir = run_dir + "/tensorboard";
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    if (error) throw SystemError(fmt::format("{}: cannot be made: {}", dir, error.message()));
    tensorboard_ = std::make_unique<TensorboardWriter>(dir, unix_time());
  }
}

MetricsLog::~MetricsLog() = default;

void MetricsLog::write(int64_t step, const MetricsRow& row) { write(step, row, unix_time()); }

void MetricsLog::write(int64_t step, const MetricsRow& row, double wall_time) {
  WEFT_CHECK(step >= last_step_, "metrics of step {} after step {}", step, last_step_);
  last_step_ = step;
  std::vector<std::pair<std::string, double>> scalars;
  nlohmann::ordered_json json;
  json["step"] = step;
  json["wall_time"] = wall_time;
  const auto put = [&](const std::string& name, double value) {
    if (std::isfinite(value)) {
      json[name] = value;
    } else {
      json[name] = nullptr;
    }
    scalars.emplace_back(name, value);
  };
  for (const auto& [name, value] : row.entries()) {
    put(name, value);
    if (const auto alias = metric_alias(name, framework_)) put(*alias, value);
  }
  const std::string line = json.dump() + "\n";
  file_->append(std::as_bytes(std::span(line)));
  if (tensorboard_) tensorboard_->add_scalars(step, wall_time, scalars);
}

MetricsHistory read_metrics(const std::string& path) {
  const JsonlFile file(path);
  MetricsHistory out;
  const auto bytes = file.bytes();
  const bool whole = bytes.empty() || bytes.back() == std::byte{'\n'};
  for (int64_t row = 0; row < file.size(); ++row) {
    if (row + 1 == file.size() && !whole) break;
    const auto json = file.json(row);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer())
      throw FileError(path, file.location(row), "no row of metrics: \"step\" is missing");
    const auto step = json["step"].get<int64_t>();
    for (const auto& [name, value] : json.items()) {
      if (name == "step") continue;
      if (name == "wall_time" && value.is_number()) {
        out.last_time = value.get<double>();
        if (out.first_time == 0) out.first_time = out.last_time;
      } else if (value.is_number()) {
        out.series[name].push_back({step, value.get<double>()});
      } else if (value.is_null()) {
        out.series[name].push_back({step, std::numeric_limits<double>::quiet_NaN()});
      } else {
        throw FileError(path, file.location(row), fmt::format("\"{}\" is no number", name));
      }
    }
    out.last_step = std::max(out.last_step, step);
  }
  return out;
}

std::string format_metrics_line(const MetricsRow& row) {
  static constexpr std::pair<const char*, const char*> kShown[] = {
      {"reward/mean", "reward"},       {"sft/loss", "loss"},    {"response_length/mean", "length"},
      {"actor/entropy", "entropy"},    {"actor/kl_loss", "kl"}, {"actor/pg_clipfrac", "clip"},
      {"actor/grad_norm", "grad"},     {"actor/lr", "lr"},      {"parity/max_abs_diff", "parity"},
      {"perf/throughput", "tokens/s"},
  };
  std::string out;
  for (const auto& [name, label] : kShown)
    if (const auto value = row.find(name)) out += fmt::format("{}{} {}", out.empty() ? "" : "  ", label, format_quantity(*value));
  for (const auto& [name, value] : row.entries())
    if (name.starts_with("val/")) out += fmt::format("{}{} {}", out.empty() ? "" : "  ", name, format_quantity(value));
  return out;
}

}  // namespace weft
