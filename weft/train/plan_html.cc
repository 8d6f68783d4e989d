// `weft plan --html`: one page; an SVG of who holds what and who sends what to whom.
#include <algorithm>
#include <numeric>

#include "weft/train/plan.h"
#include "weft/train/plan_format.h"
#include "weft/train/report_html.h"

namespace weft {
namespace {

constexpr double kWidth = 1180, kBarWidth = 190, kLeft = 150, kGap = 8, kTop = 44, kHeight = 640;
constexpr double kRight = kWidth - kLeft - kBarWidth;  // where the rollout's column begins

// Ranks [begin, end) of a role and the bytes of weights that they hold together.
struct RankBlock {
  int64_t begin = 0, end = 0;
  std::vector<int64_t> held;  // by category
  double moved = 0;           // bytes of the refit
  double y = 0, height = 0;   // in the picture
};

std::vector<RankBlock> blocks_of(const std::vector<std::vector<int64_t>>& shares, int64_t world, int64_t block) {
  std::vector<RankBlock> out;
  for (int64_t begin = 0; begin < world; begin += block) {
    RankBlock b{begin, std::min(world, begin + block), {}, 0, 0, 0};
    for (const std::vector<int64_t>& bytes : shares)
      b.held.push_back(std::accumulate(bytes.begin() + b.begin, bytes.begin() + b.end, int64_t{0}));
    out.push_back(std::move(b));
  }
  const double height = (kHeight - kGap * static_cast<double>(out.size() - 1)) / static_cast<double>(out.size());
  for (size_t i = 0; i < out.size(); ++i) out[i].y = kTop + static_cast<double>(i) * (height + kGap), out[i].height = height;
  return out;
}

std::string block_svg(const RankBlock& b, double x, bool left, int64_t first_rank, const char* verb) {
  const double total = static_cast<double>(std::accumulate(b.held.begin(), b.held.end(), int64_t{0}));
  const int64_t ranks = b.end - b.begin;
  std::string title = fmt::format("ranks {} to {} keep {}", b.begin + first_rank, b.end - 1 + first_rank, size_text(total));
  std::string out, bar;
  double at = x;
  for (size_t c = 0; c < b.held.size(); ++c) {
    const double width = total > 0 ? kBarWidth * static_cast<double>(b.held[c]) / total : 0;
    if (b.held[c] > 0) title += fmt::format("\n{} {}", weight_categories()[c], size_text(b.held[c]));
    bar +=
        fmt::format(R"(<rect x="{:.1f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" class="f{}"/>)", at, b.y, width, b.height, c);
    at += width;
  }
  title += fmt::format("\n{} {}", verb, size_text(b.moved));
  out += fmt::format(R"(<g><title>{}</title>{})", escape_html(title), bar);
  const double tx = left ? x - 8 : x + kBarWidth + 8, middle = b.y + b.height / 2;
  const char* anchor = left ? "end" : "start";
  const std::string name = ranks == 1 ? fmt::format("rank {}", b.begin + first_rank)
                                      : fmt::format("ranks {}-{}", b.begin + first_rank, b.end - 1 + first_rank);
  const bool two = b.height >= 26;
  out += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="name">{}</text>)", tx, middle + (two ? -3 : 4),
                     anchor, name);
  if (two)
    out += fmt::format(R"(<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}{}</text>)", tx, middle + 11, anchor,
                       size_text(total / static_cast<double>(ranks)), ranks == 1 ? "" : " each");
  return out + "</g>";
}

// Ribbons as thick as their bytes, in the order of the other side's blocks.
std::string ribbons(const Plan& p, std::vector<RankBlock>& from, std::vector<RankBlock>& to) {
  const auto& flows = p.refit.flows;
  double most_from = 0, most_to = 0;
  for (size_t i = 0; i < from.size(); ++i)
    for (size_t j = 0; j < to.size(); ++j) from[i].moved += flows[i][j], to[j].moved += flows[i][j];
  for (const RankBlock& b : from) most_from = std::max(most_from, b.moved);
  for (const RankBlock& b : to) most_to = std::max(most_to, b.moved);
  if (most_from == 0) return "";
  const double scale = std::min(from[0].height / most_from, to[0].height / most_to);
  std::vector<double> in(to.size());
  for (size_t j = 0; j < to.size(); ++j) in[j] = to[j].y + (to[j].height - to[j].moved * scale) / 2;
  std::string out;
  const double x0 = kLeft + kBarWidth, x1 = kRight, mid = (x0 + x1) / 2;
  for (size_t i = 0; i < from.size(); ++i) {
    double y = from[i].y + (from[i].height - from[i].moved * scale) / 2;
    for (size_t j = 0; j < to.size(); ++j) {
      const double h = flows[i][j] * scale;
      if (h <= 0) continue;
      if (h > 0.02)
        out += fmt::format(
            R"(<path class="flow f{}" d="M{:.1f} {:.2f}C{:.1f} {:.2f} {:.1f} {:.2f} {:.1f} {:.2f}L{:.1f} {:.2f}C{:.1f} {:.2f} {:.1f} {:.2f} {:.1f} {:.2f}Z"><title>{}</title></path>)",
            i % 8, x0, y, mid, y, mid, in[j], x1, in[j], x1, in[j] + h, mid, in[j] + h, mid, y + h, x0, y + h,
            escape_html(fmt::format("trainer ranks {}-{} send {} to rollout ranks {}-{}", from[i].begin, from[i].end - 1,
                                    size_text(flows[i][j]), p.rollout_rank(to[j].begin), p.rollout_rank(to[j].end - 1))));
      y += h, in[j] += h;
    }
  }
  return out;
}

std::string picture(const Plan& p) {
  std::vector<RankBlock> from = blocks_of(p.train_shares, p.train.world(), p.refit.from_block),
                         to = blocks_of(p.rollout_shares, p.rollout.world(), p.refit.to_block);
  const std::string flows = ribbons(p, from, to);
  std::string svg = fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="who holds and who sends what">)", kWidth,
                                kTop + kHeight + 12);
  svg += fmt::format(R"(<text x="{}" y="20" class="head">trainer {}</text><text x="{}" y="20" class="head">rollout {}</text>)",
                     kLeft, p.train.to_string(), kRight, rollout_text(p.rollout));
  svg += fmt::format(R"(<text x="{}" y="35">fp32 masters, {} ranks</text><text x="{}" y="35">{}, {} ranks</text>)", kLeft,
                     p.train.world(), kRight, dtype_name(p.options.rollout_dtype), p.rollout.world());
  svg += flows;
  for (const RankBlock& b : from) svg += block_svg(b, kLeft, true, 0, "refit sends");
  for (const RankBlock& b : to) svg += block_svg(b, kRight, false, p.rollout_rank(0), "refit receives");
  svg += "</svg>";
  std::string legend = R"(<div class="legend">)";
  for (size_t c = 0; c < weight_categories().size(); ++c)
    legend += fmt::format(R"(<span><i class="k{}"></i>{}</span>)", c, weight_categories()[c]);
  return fmt::format(R"(<figure class="card">{}{}</div></figure>)", svg, legend);
}

// A rank's memory as one bar, and the line of what it has.
std::string memory_bar(const std::string& role, const MemoryPlan& m, double scale_bytes, double memory) {
  int64_t rank = 0;
  for (size_t r = 0; r < m.kinds[0].bytes.size(); ++r)
    if (m.total(static_cast<int64_t>(r)) > m.total(rank)) rank = static_cast<int64_t>(r);
  std::string bar, legend = R"(<div class="legend">)";
  double at = 0;
  for (size_t k = 0; k < m.kinds.size(); ++k) {
    const int64_t bytes = m.kinds[k].bytes[static_cast<size_t>(rank)];
    if (bytes == 0) continue;
    const double width = 1140 * static_cast<double>(bytes) / scale_bytes;
    bar += fmt::format(R"(<rect x="{:.1f}" y="4" width="{:.2f}" height="26" class="f{}{}"><title>{}: {}</title></rect>)", at,
                       width, k % 8, k < 8 ? "" : " pale", m.kinds[k].name, size_text(bytes));
    legend += fmt::format(R"(<span title="{}"><i class="k{}{}"></i>{} <b>{}</b></span>)", escape_html(m.kinds[k].what), k % 8,
                          k < 8 ? "" : " pale", m.kinds[k].name, size_text(bytes));
    at += width;
  }
  if (memory > 0)
    bar += fmt::format(R"(<line x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="34" class="limit"/>)", 1140 * memory * 1e9 / scale_bytes);
  return fmt::format(
      R"(<figure class="card"><figcaption><b>{}</b><span>{} on the fullest rank</span></figcaption><svg viewBox="0 0 1140 34">{}</svg>{}</div></figure>)",
      role, size_text(m.total(rank)), bar, legend);
}

std::string table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows, size_t text_columns) {
  std::string out = R"(<div class="card scroll"><table><tr>)";
  for (size_t i = 0; i < head.size(); ++i) out += fmt::format("<th{}>{}</th>", i < text_columns ? "" : " class=n", head[i]);
  out += "</tr>";
  for (const auto& row : rows) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i)
      out += fmt::format("<td{}>{}</td>", i < text_columns ? "" : " class=n", escape_html(row[i]));
    out += "</tr>";
  }
  return out + "</table></div>";
}

std::string tile(const std::string& name, const std::string& value, const char* mood = "") {
  return fmt::format(R"(<div class="card tile"><span>{}</span><b class="{}">{}</b></div>)", name, mood, value);
}

constexpr const char* kPlanStyle = R"css(
.pale{opacity:.4}.flow{fill-opacity:.28}.flow:hover{fill-opacity:.85}svg text.head{font-size:15px;font-weight:600;fill:var(--ink)}svg text.name{fill:var(--ink);font-size:12px}
.limit{stroke:var(--bad);stroke-width:2}.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:4px 10px 4px 0;border-bottom:1px solid var(--grid);white-space:nowrap}th{color:var(--soft);font-weight:500}.n{text-align:right}
figure.card{margin-bottom:12px}.legend b{font-weight:500;color:var(--ink)}li{margin:2px 0}
)css";

}  // namespace

std::string plan_html(const Plan& p) {
  const RefitSummary& s = p.refit;
  const ModelConfig& c = p.table.config;
  const bool fits = p.misfits.empty();
  std::string out = fmt::format(
      R"(<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>weft plan: {}</title><style>{}{}</style><main><header><h1>{}: {} parameters</h1><p>trainer {} ({} ranks) to rollout {} ({} ranks){}</p></header>)",
      escape_html(c.family), kReportStyle, kPlanStyle, escape_html(c.family), count_text(p.table.num_parameters()),
      p.train.to_string(), p.train.world(), rollout_text(p.rollout), p.rollout.world(),
      p.options.apart ? ", on ranks of its own" : fmt::format(", {} ranks in all", p.job_ranks()));
  out += R"(<div class="tiles">)";
  out += tile("trainer, fullest rank", size_text(p.train_memory.peak()));
  out += tile("rollout, fullest rank", size_text(p.rollout_memory.peak()));
  out += tile("refit receives, most", size_text(s.max_received));
  out += tile("refit sends, most", size_text(s.max_sent));
  out += tile(fmt::format("refit, lower bound at {:g} GB/s", p.options.bandwidth("refit") / 1e9), time_text(s.bound_seconds));
  out += tile("collectives of an update", time_text(p.traffic_seconds()));
  if (p.options.memory_gb > 0)
    out += tile(fmt::format("{:g} GB a rank", p.options.memory_gb), fits ? "fits" : "does not fit", fits ? "good" : "bad");
  out += "</div>";
  std::vector<std::string> words = p.misfits;
  words.insert(words.end(), p.table.notes.begin(), p.table.notes.end());
  if (!words.empty()) {
    out += "<ul>";
    for (const std::string& w : words) out += "<li>" + escape_html(w) + "</li>";
    out += "</ul>";
  }
  out +=
      "<h2>Who holds and who sends what <small>bars: weights that a block of ranks keeps, by kind; ribbons: bytes of one refit, "
      "in the sender's colour</small></h2>";
  out += picture(p);
  out += "<h2>Memory of a rank</h2>";
  const double scale = std::max(
      {static_cast<double>(p.train_memory.peak()), static_cast<double>(p.rollout_memory.peak()), p.options.memory_gb * 1e9, 1.0});
  out += memory_bar("trainer", p.train_memory, scale, p.options.memory_gb);
  out += memory_bar("rollout", p.rollout_memory, scale, p.options.memory_gb);
  out += "<h2>Parameters <small>every layer's of one name and shape; the most elements that a rank keeps</small></h2>";
  std::vector<std::vector<std::string>> rows;
  for (const WeightRow& w : p.weights)
    rows.push_back({w.name, shape_text(w.shape), w.train, w.rollout, fmt::format("{}", w.count), count_text(w.train_elements),
                    count_text(w.rollout_elements)});
  out += table({"name", "shape", "trainer cuts", "rollout cuts", "tensors", "trainer keeps", "rollout keeps"}, rows, 4);
  if (!p.traffic.rows.empty()) {
    out += fmt::format("<h2>Collectives of one update <small>{} micro-batch{} of {} tokens; the busiest rank</small></h2>",
                       p.options.micro_batches, p.options.micro_batches == 1 ? "" : "es", p.options.tokens());
    rows.clear();
    for (const TrafficRow& r : p.traffic.rows) {
      const int64_t sent = *std::max_element(r.sent.begin(), r.sent.end()),
                    received = *std::max_element(r.received.begin(), r.received.end());
      rows.push_back({r.axis, r.purpose, fmt::format("{}", *std::max_element(r.operations.begin(), r.operations.end())),
                      size_text(sent), size_text(received), time_text(p.seconds(r))});
    }
    out += table({"axis", "purpose", "operations", "sent", "received", "time"}, rows, 2);
  }
  if (!p.uneven.empty()) {
    out += "<h2>What does not divide</h2>";
    rows.clear();
    for (const UnevenTensor& u : p.uneven)
      rows.push_back({u.role, u.name, u.why, fmt::format("{:.2f}", u.most_over_mean), size_text(u.bytes)});
    out += table({"role", "parameter", "", "fullest / mean", "costs it"}, rows, 3);
  }
  return out + "</main></html>\n";
}

}  // namespace weft
