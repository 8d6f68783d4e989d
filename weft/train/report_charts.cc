#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "weft/base/progress.h"
#include "weft/train/report_html.h"

namespace weft {
namespace {

constexpr double kWidth = 480, kHeight = 230, kLeft = 50, kRight = 12, kTop = 10, kBottom = 26;
constexpr size_t kMaxPoints = 400;
constexpr int kColours = 8;

// Round steps of 1, 2, 5 x 10^k: about `count` of them.
std::vector<double> ticks(double low, double high, int count) {
  const double raw = (high - low) / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double unit = raw / power;
  const double step = power * (unit < 1.5 ? 1 : unit < 3.5 ? 2 : unit < 7.5 ? 5 : 10);
  std::vector<double> out;
  for (double t = std::ceil(low / step - 1e-9) * step; t <= high + step * 1e-9 && out.size() < 20; t += step)
    out.push_back(std::fabs(t) < step * 1e-6 ? 0 : t);
  return out;
}

struct Frame {
  double x0, x1, y0, y1;
  double x(double step) const { return kLeft + (x1 > x0 ? (step - x0) / (x1 - x0) : 0.5) * (kWidth - kLeft - kRight); }
  double y(double value) const { return kHeight - kBottom - (value - y0) / (y1 - y0) * (kHeight - kTop - kBottom); }
};

// Values of all series at common steps; NaN where a series has none. Long ranges are averaged in buckets.
struct Grid {
  std::vector<double> steps;
  std::vector<std::vector<double>> values;  // [series][step]
};

Grid make_grid(const std::vector<ChartSeries>& series) {
  std::set<int64_t> all;
  for (const auto& s : series)
    for (const auto& p : s.points) all.insert(p.step);
  const std::vector<int64_t> steps(all.begin(), all.end());
  const size_t bucket = (steps.size() + kMaxPoints - 1) / kMaxPoints;
  Grid grid;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < steps.size(); i += bucket)
    grid.steps.push_back(static_cast<double>(steps[std::min(i + bucket, steps.size()) - 1]));
  for (const auto& s : series) {
    std::vector<double> sums(grid.steps.size(), 0), counts(grid.steps.size(), 0);
    for (const auto& p : s.points) {
      if (!std::isfinite(p.value)) continue;
      const auto at = static_cast<size_t>(std::lower_bound(steps.begin(), steps.end(), p.step) - steps.begin()) / bucket;
      sums[at] += p.value;
      counts[at] += 1;
    }
    std::vector<double> row(sums.size(), nan);
    for (size_t i = 0; i < row.size(); ++i)
      if (counts[i] > 0) row[i] = sums[i] / counts[i];
    grid.values.push_back(std::move(row));
  }
  return grid;
}

std::string figure_open(const std::string& title, const std::string& note) {
  return fmt::format("<figure class=\"card\"><figcaption><b>{}</b>{}</figcaption>", escape_html(title),
                     note.empty() ? "" : "<span>" + escape_html(note) + "</span>");
}

// Data for the hover script: steps, and per series name and values.
std::string hover_data(const Grid& grid, const Frame& frame, const std::vector<ChartSeries>& series) {
  nlohmann::ordered_json data;
  data["x"] = grid.steps;
  for (const double step : grid.steps) data["px"].push_back(std::round(frame.x(step) * 10) / 10);
  for (size_t i = 0; i < series.size(); ++i) {
    nlohmann::ordered_json values = nlohmann::ordered_json::array();
    for (const double v : grid.values[i])
      values.push_back(std::isfinite(v) ? nlohmann::ordered_json(format_quantity(v)) : nullptr);
    data["s"].push_back({{"n", series[i].name}, {"y", values}});
  }
  return escape_html(data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string axes(const Frame& frame) {
  std::string out;
  for (const double t : ticks(frame.y0, frame.y1, 4)) {
    const double y = frame.y(t);
    out += fmt::format("<line class=\"grid\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>", kLeft, kWidth - kRight,
                       y, y);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", kLeft - 6, y + 3.5, format_quantity(t));
  }
  std::vector<double> xs = frame.x1 > frame.x0 ? ticks(frame.x0, frame.x1, 6) : std::vector<double>{frame.x0};
  for (const double t : xs) {
    if (t != std::floor(t)) continue;
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>", frame.x(t), kHeight - 8,
                       t < 10000 ? fmt::format("{:.0f}", t) : format_quantity(t));
  }
  return out;
}

std::string legend(const std::vector<ChartSeries>& series) {
  if (series.size() < 2) return "";
  std::string out = "<div class=\"legend\">";
  for (size_t i = 0; i < series.size(); ++i)
    out += fmt::format("<span><i class=\"k{}\"></i>{}</span>", i % kColours, escape_html(series[i].name));
  return out + "</div>";
}

std::string svg_open(const Grid& grid, const Frame& frame, const std::vector<ChartSeries>& series, const std::string& title) {
  return fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\" data-c=\"{}\">", kWidth, kHeight,
                     escape_html(title), hover_data(grid, frame, series)) +
         axes(frame);
}

std::string svg_close() { return fmt::format("<line class=\"cursor\" y1=\"{}\" y2=\"{}\"/></svg>", kTop, kHeight - kBottom); }

void pad(Frame* frame) {
  if (!(frame->y1 > frame->y0)) {
    const double around = std::fabs(frame->y0) > 0 ? std::fabs(frame->y0) * 0.5 : 1;
    frame->y1 = frame->y0 + around;
    // A constant zero lies on the axis; another constant in the middle.
    if (frame->y0 != 0) frame->y0 -= around;
    return;
  }
  const double margin = (frame->y1 - frame->y0) * 0.06;
  frame->y1 += margin;
  // Zero is a floor worth keeping for what is never negative.
  if (frame->y0 < 0) {
    frame->y0 -= margin;
  } else {
    frame->y0 = frame->y0 < 0.5 * frame->y1 ? 0 : frame->y0 - margin;
  }
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      case '\0': out += "\xef\xbf\xbd"; break;
      default: out += c;
    }
  }
  return out;
}

std::string line_chart(const std::string& title, const std::string& note, const std::vector<ChartSeries>& series) {
  const Grid grid = make_grid(series);
  if (grid.steps.empty()) return "";
  Frame frame{grid.steps.front(), grid.steps.back(), std::numeric_limits<double>::infinity(),
              -std::numeric_limits<double>::infinity()};
  for (const auto& row : grid.values)
    for (const double v : row)
      if (std::isfinite(v)) {
        frame.y0 = std::min(frame.y0, v);
        frame.y1 = std::max(frame.y1, v);
      }
  if (!std::isfinite(frame.y0)) frame.y0 = frame.y1 = 0;
  pad(&frame);
  std::string out = figure_open(title, note) + svg_open(grid, frame, series, title);
  for (size_t i = 0; i < series.size(); ++i) {
    std::string path;
    bool pen_down = false;
    int64_t count = 0;
    for (size_t k = 0; k < grid.steps.size(); ++k) {
      const double v = grid.values[i][k];
      if (!std::isfinite(v)) {
        // A series with fewer steps than others (validation) is joined; a value that is not finite is a gap.
        const auto& points = series[i].points;
        const bool present = std::any_of(points.begin(), points.end(),
                                         [&](const auto& p) { return static_cast<double>(p.step) == grid.steps[k]; });
        pen_down = pen_down && !present;
        continue;
      }
      path += fmt::format("{}{:.1f} {:.1f}", pen_down ? "L" : "M", frame.x(grid.steps[k]), frame.y(v));
      pen_down = true;
      ++count;
    }
    out += fmt::format("<path class=\"line c{}\" d=\"{}\"/>", i % kColours, path);
    if (count > 0 && count <= 40)
      for (size_t k = 0; k < grid.steps.size(); ++k)
        if (const double v = grid.values[i][k]; std::isfinite(v))
          out += fmt::format("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.4\"/>", i % kColours,
                             frame.x(grid.steps[k]), frame.y(v));
  }
  return out + svg_close() + legend(series) + "</figure>";
}

std::string stacked_chart(const std::string& title, const std::string& note, const std::vector<ChartSeries>& series) {
  const Grid grid = make_grid(series);
  if (grid.steps.empty()) return "";
  std::vector<double> tops(grid.steps.size(), 0);
  std::vector<std::vector<double>> lines = {tops};
  for (const auto& row : grid.values) {
    for (size_t k = 0; k < tops.size(); ++k)
      if (std::isfinite(row[k])) tops[k] += std::max(0.0, row[k]);
    lines.push_back(tops);
  }
  Frame frame{grid.steps.front(), grid.steps.back(), 0, *std::max_element(tops.begin(), tops.end())};
  pad(&frame);
  std::string out = figure_open(title, note) + svg_open(grid, frame, series, title);
  const bool one = grid.steps.size() == 1;
  for (size_t i = 0; i < series.size(); ++i) {
    std::string path;
    const auto add = [&](double x, double y) { path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y); };
    for (size_t k = 0; k < grid.steps.size(); ++k) {
      if (one) add(frame.x(grid.steps[k]) - 20, frame.y(lines[i + 1][k]));
      add(frame.x(grid.steps[k]) + (one ? 20 : 0), frame.y(lines[i + 1][k]));
    }
    for (size_t k = grid.steps.size(); k-- > 0;) {
      add(frame.x(grid.steps[k]) + (one ? 20 : 0), frame.y(lines[i][k]));
      if (one) add(frame.x(grid.steps[k]) - 20, frame.y(lines[i][k]));
    }
    out += fmt::format("<path class=\"area f{}\" d=\"{}Z\"/>", i % kColours, path);
  }
  return out + svg_close() + legend(series) + "</figure>";
}

std::string heat_map(const std::string& title, const std::string& note, const std::vector<HeatMapRow>& rows) {
  size_t columns = 0;
  for (const auto& row : rows) columns = std::max(columns, row.values.size());
  if (columns == 0) return "";
  const double cell_width = (kWidth - kLeft - kRight) / static_cast<double>(columns);
  const double cell_height = std::clamp(160.0 / static_cast<double>(rows.size()), 6.0, 30.0);
  const double height = cell_height * static_cast<double>(rows.size()) + kTop + kBottom;
  std::string out = figure_open(title, note) + fmt::format("<svg viewBox=\"0 0 {} {:.0f}\" role=\"img\" aria-label=\"{}\">",
                                                           kWidth, height, escape_html(title));
  const size_t every_row = std::max<size_t>(1, rows.size() / 12), every_column = std::max<size_t>(1, columns / 16);
  for (size_t r = 0; r < rows.size(); ++r) {
    const double y = kTop + cell_height * static_cast<double>(r);
    if (r % every_row == 0)
      out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", kLeft - 6, y + cell_height / 2 + 3.5,
                         escape_html(rows[r].name));
    for (size_t c = 0; c < rows[r].values.size(); ++c) {
      const double v = rows[r].values[c];
      if (!std::isfinite(v)) continue;
      // Even load is faint; twice the share and more is full.
      const double over = std::clamp(v - 1, -1.0, 1.0);
      out += fmt::format(
          "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\" fill-opacity=\"{:.2f}\">"
          "<title>layer {}, expert {}: {:.2f}x the even share</title></rect>",
          over >= 0 ? "hot" : "cold", kLeft + cell_width * static_cast<double>(c), y, std::max(0.5, cell_width - 1.5),
          std::max(0.5, cell_height - 1.5), 0.07 + 0.9 * std::fabs(over), escape_html(rows[r].name), c, v);
    }
  }
  for (size_t c = 0; c < columns; c += every_column)
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
                       kLeft + cell_width * (static_cast<double>(c) + 0.5), height - 9, c);
  return out +
         "</svg><div class=\"legend\"><span><i class=\"hotkey\"></i>above the even share</span><span><i "
         "class=\"coldkey\"></i>below"
         "</span></div></figure>";
}

}  // namespace weft
