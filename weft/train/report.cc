#include "weft/train/report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <set>

#include "weft/base/config.h"
#include "weft/base/error.h"
#include "weft/base/progress.h"
#include "weft/io/atomic_file.h"
#include "weft/train/metrics.h"
#include "weft/train/recipe.h"
#include "weft/train/report_html.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// Collects charts and remembers which metrics they showed; the rest goes into a fold at the end.
class Charts {
 public:
  explicit Charts(const MetricsHistory& history) : history_(history) {}

  // One chart of those of `names` that the run has; series named by what follows the last slash, or by `labels`.
  void lines(const std::string& title, const std::string& note, const std::vector<std::pair<std::string, std::string>>& names) {
    std::vector<ChartSeries> series;
    for (const auto& [name, label] : names)
      if (const auto found = history_.series.find(name); found != history_.series.end()) {
        series.push_back({label, found->second});
        shown_.insert(name);
      }
    if (!series.empty()) html_ += line_chart(title, note, series);
  }

  // All metrics that begin with `prefix`, except `skip`.
  std::vector<ChartSeries> with_prefix(const std::string& prefix, const std::set<std::string>& skip = {}) {
    std::vector<ChartSeries> series;
    for (auto it = history_.series.lower_bound(prefix); it != history_.series.end() && it->first.starts_with(prefix); ++it) {
      if (skip.contains(it->first)) continue;
      shown_.insert(it->first);
      series.push_back({it->first.substr(prefix.size()), it->second});
    }
    return series;
  }

  void add(const std::string& html) { html_ += html; }
  const std::string& html() const { return html_; }

  std::string rest() const {
    std::string out;
    for (const auto& [name, points] : history_.series)
      if (!shown_.contains(name)) out += line_chart(name, "", {{name, points}});
    return out;
  }

 private:
  const MetricsHistory& history_;
  std::set<std::string> shown_;
  std::string html_;
};

const std::vector<MetricsHistory::Point>* find_series(const MetricsHistory& history, const std::string& name) {
  const auto found = history.series.find(name);
  return found == history.series.end() || found->second.empty() ? nullptr : &found->second;
}

std::string tile(const std::string& label, const std::string& value, const char* kind = "") {
  return fmt::format("<div class=\"card tile\"><span>{}</span><b class=\"{}\">{}</b></div>", escape_html(label), kind,
                     escape_html(value));
}

std::string change(const std::vector<MetricsHistory::Point>& points) {
  if (points.size() < 2) return format_quantity(points.back().value);
  return format_quantity(points.front().value) + " \u2192 " + format_quantity(points.back().value);
}

std::string tiles(const MetricsHistory& history) {
  std::string out = tile("steps", fmt::format("{}", history.last_step));
  if (history.last_time > history.first_time) out += tile("time", format_duration(history.last_time - history.first_time));
  if (const auto* reward = find_series(history, "reward/mean")) out += tile("reward", change(*reward));
  if (const auto* loss = find_series(history, "sft/loss")) out += tile("loss", change(*loss));
  int64_t validations = 0;
  for (auto it = history.series.lower_bound("val/");
       it != history.series.end() && it->first.starts_with("val/") && validations < 3; ++it) {
    if (it->second.empty() || it->first.find("/mean@") == std::string::npos) continue;
    out += tile(it->first, change(it->second));
    ++validations;
  }
  if (const auto* parity = find_series(history, "parity/max_abs_diff")) {
    double worst = 0;
    for (const auto& p : *parity) worst = std::isfinite(p.value) ? std::max(worst, p.value) : INFINITY;
    out += tile("parity, worst step", format_quantity(worst), worst == 0 ? "good" : "bad");
  }
  if (const auto* speed = find_series(history, "perf/throughput"))
    out += tile("tokens/s, last step", format_quantity(speed->back().value));
  return "<section class=\"tiles\">" + out + "</section>";
}

// Last value of moe/load/LAYER/EXPERT, as multiples of the layer's even share.
std::string expert_load(Charts* charts) {
  std::map<int64_t, std::map<int64_t, double>> layers;
  for (const ChartSeries& series : charts->with_prefix("moe/load/")) {
    const size_t slash = series.name.find('/');
    if (slash == std::string::npos || series.points.empty()) continue;
    int64_t layer = -1, expert = -1;
    const char* begin = series.name.data();
    const auto a = std::from_chars(begin, begin + slash, layer);
    const auto b = std::from_chars(begin + slash + 1, begin + series.name.size(), expert);
    if (a.ec != std::errc() || b.ec != std::errc() || layer < 0 || expert < 0 || expert > 4095) continue;
    layers[layer][expert] = series.points.back().value;
  }
  std::vector<HeatMapRow> rows;
  for (const auto& [layer, experts] : layers) {
    HeatMapRow row{fmt::format("{}", layer), std::vector<double>(static_cast<size_t>(experts.rbegin()->first) + 1, 0)};
    double sum = 0;
    for (const auto& [expert, value] : experts) sum += row.values[static_cast<size_t>(expert)] = value;
    if (!(sum > 0)) continue;
    for (double& v : row.values) v *= static_cast<double>(row.values.size()) / sum;
    rows.push_back(std::move(row));
  }
  return rows.empty() ? "" : heat_map("Expert load, last step", "layers down, experts across", rows);
}

void add_charts(const MetricsHistory& history, Charts* charts) {
  charts->lines("Reward", "mean over responses", {{"reward/mean", "mean"}, {"reward/std", "std"}});
  charts->lines("Loss", "sft, mean over tokens", {{"sft/loss", "loss"}, {"sft/val_loss", "validation"}});
  if (const auto validation = charts->with_prefix("val/"); !validation.empty())
    charts->add(line_chart("Validation", "", validation));
  std::vector<std::pair<std::string, std::string>> parts;
  for (const auto& [name, points] : history.series)
    if (name.starts_with("reward/") && name.ends_with("/mean") && name != "reward/mean")
      parts.emplace_back(name, name.substr(7, name.size() - 12));
  if (parts.size() > 1) charts->lines("Reward by function", "", parts);
  charts->lines("Response length", "tokens",
                {{"response_length/mean", "mean"}, {"response_length/max", "max"}, {"response_length/min", "min"}});
  charts->lines("Cut off at the limit", "share of responses", {{"response_length/clip_ratio", "share"}});
  charts->lines("Groups with equal rewards", "share of groups; they teach nothing", {{"reward/frac_zero_std", "share"}});
  charts->lines("Entropy", "nats a token", {{"actor/entropy", "entropy"}});
  charts->lines("KL", "nats a token",
                {{"actor/kl_loss", "to the reference"},
                 {"actor/reward_kl_penalty", "in the reward"},
                 {"actor/ppo_kl", "to the old policy"}});
  charts->lines("Clip fraction", "share of tokens", {{"actor/pg_clipfrac", "clipped"}, {"actor/pg_clipfrac_lower", "dual clip"}});
  charts->lines("Gradient norm", "before clipping", {{"actor/grad_norm", "norm"}});
  charts->lines("Policy loss", "", {{"actor/pg_loss", "loss"}});
  const auto* parity = find_series(history, "parity/max_abs_diff");
  const bool equal = parity && std::all_of(parity->begin(), parity->end(), [](const auto& p) { return p.value == 0; });
  charts->lines("Parity",
                equal ? fmt::format("trainer = rollout bit for bit, {} of {} steps", parity->size(), parity->size())
                      : "largest |trainer - rollout| log-prob",
                {{"parity/max_abs_diff", "difference"}});
  charts->lines("Learning rate", "", {{"actor/lr", "lr"}});
  charts->lines("Time to sleep and wake", "seconds a step, part of the phases' times", {{"timing_s/sleep_wake", "seconds"}});
  charts->add(stacked_chart("Time per phase", "seconds a step",
                            charts->with_prefix("timing_s/", {"timing_s/step", "timing_s/sleep_wake"})));
  if (const auto memory = charts->with_prefix("memory/peak_mb/"); !memory.empty())
    charts->add(line_chart("Memory by phase", "MB of the roles' arenas, largest process", memory));
  charts->lines("Throughput", "tokens/s", {{"perf/throughput", "tokens/s"}});
  charts->add(expert_load(charts));
}

}  // namespace

std::string render_report(const std::string& run_dir) {
  const MetricsHistory history = read_metrics(run_dir + "/metrics.jsonl");
  const std::string name = fs::weakly_canonical(run_dir).filename().string();
  std::string model, recipe_text;
  if (fs::exists(run_dir + "/recipe.toml")) {
    recipe_text = read_config_bytes(run_dir + "/recipe.toml");
    Recipe recipe;
    ConfigFields fields;
    recipe.visit(fields);
    try {
      read_config_text(recipe_text, run_dir + "/recipe.toml", fields, recipe_names());
      model = fmt::format("{} \u00b7 {} prompts x {} responses a step \u00b7 lr {:g} \u00b7 {}", recipe.model.path,
                          recipe.data.train_batch_size, recipe.rollout.n, recipe.actor.optim.lr, recipe.actor.param_dtype);
    } catch (const UsageError&) {
      // A recipe of another version is still shown as text.
      model = "recipe of another version of weft";
    }
  }
  Charts charts(history);
  add_charts(history, &charts);
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">"
      "<meta name=\"color-scheme\" content=\"light dark\"><title>{} - "
      "weft</title><style>{}</style></head><body><main><header><h1>{}</h1><p>{}</p></header>",
      escape_html(name), kReportStyle, escape_html(name), escape_html(model));
  out += tiles(history);
  out += "<h2>Curves</h2><section class=\"charts\">" + charts.html() + "</section>";
  if (const std::string rest = charts.rest(); !rest.empty())
    out += "<details><summary>All other metrics</summary><div class=\"charts\">" + rest + "</div></details>";
  if (const std::string samples = sample_cards(run_dir + "/samples", 3, 8); !samples.empty())
    out += "<h2>Samples <small>the warmer a token, the less likely it was; point at it for its log-prob</small></h2>" + samples;
  if (!recipe_text.empty())
    out += "<h2>Recipe</h2><details class=\"card\"><summary>resolved, with defaults</summary><pre>" + escape_html(recipe_text) +
           "</pre></details>";
  return out + "</main><div id=\"tip\"></div><script>" + kReportScript + "</script></body></html>\n";
}

void write_report(const std::string& run_dir) { write_file_atomically(run_dir + "/report.html", render_report(run_dir)); }

}  // namespace weft
