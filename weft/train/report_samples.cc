#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "weft/base/progress.h"
#include "weft/io/jsonl.h"
#include "weft/train/report_html.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr size_t kMaxText = 6000;
constexpr size_t kMaxTokens = 1500;

std::string text_of(const json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::string clip(const std::string& text) {
  if (text.size() <= kMaxText) return escape_html(text);
  size_t cut = kMaxText;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  return escape_html(text.substr(0, cut)) + fmt::format("<em> ... {} more bytes</em>", text.size() - cut);
}

// The response, each token coloured by how surprising it was.
std::string coloured(const json& row) {
  const auto tokens = row.find("tokens"), log_probs = row.find("rollout_log_probs");
  if (tokens == row.end() || log_probs == row.end() || !tokens->is_array() || !log_probs->is_array() ||
      tokens->size() != log_probs->size() || tokens->empty())
    return clip(text_of(row, "output"));
  std::string out;
  for (size_t i = 0; i < tokens->size() && i < kMaxTokens; ++i) {
    const json& token = (*tokens)[i];
    const json& log_prob = (*log_probs)[i];
    if (!token.is_string() || !log_prob.is_number()) return clip(text_of(row, "output"));
    const double lp = log_prob.get<double>();
    const double alpha = std::isfinite(lp) ? std::clamp(-lp / 4.0, 0.0, 1.0) : 1.0;
    out += fmt::format("<s style=\"--a:{:.2f}\" title=\"log-prob {:.4g}, p = {:.3g}\">{}</s>", alpha, lp, std::exp(lp),
                       escape_html(token.get<std::string>()));
  }
  if (tokens->size() > kMaxTokens) out += fmt::format("<em> ... {} more tokens</em>", tokens->size() - kMaxTokens);
  return out;
}

std::string card(const json& row) {
  std::string head;
  if (const auto score = row.find("score"); score != row.end() && score->is_number()) {
    const double value = score->get<double>();
    head += fmt::format("<span class=\"pill {}\">reward {}</span>", value > 0 ? "good" : "bad", format_quantity(value));
  }
  if (const auto rewards = row.find("rewards"); rewards != row.end() && rewards->is_object() && rewards->size() > 1)
    for (const auto& [name, value] : rewards->items())
      head += fmt::format("<span class=\"pill\">{} {}</span>", escape_html(name),
                          value.is_number() ? format_quantity(value.get<double>()) : "-");
  if (const std::string reason = text_of(row, "finish_reason"); !reason.empty())
    head += fmt::format("<span class=\"pill {}\">{}</span>", reason == "length" ? "bad" : "", escape_html(reason));
  if (const std::string truth = text_of(row, "gts"); !truth.empty())
    head += fmt::format("<span class=\"pill\">expected {}</span>", clip(truth));
  return fmt::format(
      "<article class=\"card sample\"><div class=\"pills\">{}</div><pre class=\"prompt\">{}</pre><pre>{}</pre></article>", head,
      clip(text_of(row, "input")), coloured(row));
}

}  // namespace

std::string sample_cards(const std::string& samples_dir, int64_t max_files, int64_t max_rows) {
  std::vector<std::pair<int64_t, std::string>> files;
  if (!std::filesystem::is_directory(samples_dir)) return "";
  for (const auto& entry : std::filesystem::directory_iterator(samples_dir)) {
    const std::string stem = entry.path().stem().string();
    int64_t step = 0;
    const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), step);
    if (entry.path().extension() == ".jsonl" && error == std::errc() && end == stem.data() + stem.size())
      files.emplace_back(step, entry.path().string());
  }
  std::sort(files.rbegin(), files.rend());
  std::string out;
  for (size_t i = 0; i < files.size() && static_cast<int64_t>(i) < max_files; ++i) {
    const JsonlFile file(files[i].second);
    const int64_t rows = std::min(file.size(), max_rows);
    out += fmt::format("<h3>step {} <small>{} of {} responses</small></h3><div class=\"samples\">", files[i].first, rows,
                       file.size());
    // Spread over the file: neighbours are often of one group.
    for (int64_t r = 0; r < rows; ++r) {
      const json row = file.json(r * file.size() / rows);
      if (row.is_object()) out += card(row);
    }
    out += "</div>";
  }
  return out;
}

}  // namespace weft
