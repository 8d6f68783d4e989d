#pragma once
// Pieces of report.html. Every function returns HTML whose text is escaped. Numbers only enter as numbers.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weft/train/metrics.h"

namespace weft {

std::string escape_html(std::string_view text);

struct ChartSeries {
  std::string name;
  std::vector<MetricsHistory::Point> points;
};

// Lines over steps. Gaps where a value is not finite; long series are averaged in buckets.
std::string line_chart(const std::string& title, const std::string& note, const std::vector<ChartSeries>& series);
// Areas on top of each other; for seconds per phase.
std::string stacked_chart(const std::string& title, const std::string& note, const std::vector<ChartSeries>& series);

// Rows of cells; 1.0 is the even share.
struct HeatMapRow {
  std::string name;
  std::vector<double> values;
};
std::string heat_map(const std::string& title, const std::string& note, const std::vector<HeatMapRow>& rows);

// Cards of the last rows of samples/*.jsonl, newest step first.
std::string sample_cards(const std::string& samples_dir, int64_t max_files, int64_t max_rows);

extern const char kReportStyle[];
extern const char kReportScript[];

}  // namespace weft
