#pragma once
// Metrics of a run: one row a step, in RUN/metrics.jsonl ({"step": 3, "wall_time": s since 1970, "reward/mean": 0.5, ...}; a
// value that is not finite is null) and in TensorBoard event files. Names are verl's except reward/*; docs/metrics.md
// lists them. With aliases the same value is written under verl's or TRL's name too, so that runs overlay in one tracker. A row
// is one write, so a reader sees whole rows only. Errors: FileError, SystemError. One thread writes.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

class AppendFile;
class TensorboardWriter;

// Names and values in the order they were set; setting a name again replaces its value.
class MetricsRow {
 public:
  void set(std::string name, double value);
  std::optional<double> find(std::string_view name) const;
  const std::vector<std::pair<std::string, double>>& entries() const { return entries_; }
  bool empty() const { return entries_.empty(); }

 private:
  std::vector<std::pair<std::string, double>> entries_;
};

struct MetricsLogOptions {
  std::string metric_aliases = "none";  // or "verl", "trl"
  // Step of the checkpoint that the run goes on from: later rows, and a row that a crash cut short, are removed. Absent: anew.
  std::optional<int64_t> resume_step;
  bool tensorboard = false;  // events in RUN/tensorboard; a resumed run starts another file there, as TensorBoard expects
};

class MetricsLog {
 public:
  MetricsLog(const std::string& run_dir, MetricsLogOptions options);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  // Steps never go down; two rows may share a step (validation before training is step 0, or follows the step's own row).
  void write(int64_t step, const MetricsRow& row, double wall_time);
  void write(int64_t step, const MetricsRow& row);  // now

 private:
  std::unique_ptr<AppendFile> file_;
  std::unique_ptr<TensorboardWriter> tensorboard_;
  std::string framework_;
  int64_t last_step_ = 0;
};

// The name in verl or TRL, nullopt where they have none or it is the same.
std::optional<std::string> metric_alias(std::string_view name, const std::string& framework);

// All rows of a metrics.jsonl, by name. The last row is left out when it lacks its newline (a run may be writing it).
struct MetricsHistory {
  struct Point {
    int64_t step;
    double value;  // not finite where the file has null
  };
  std::map<std::string, std::vector<Point>> series;
  int64_t last_step = 0;
  double first_time = 0, last_time = 0;  // wall time of the first and last row
};
MetricsHistory read_metrics(const std::string& path);

// One line for the console: the usual figures that the row has ("reward 0.512  len 85.3  kl 0.001  parity 0").
std::string format_metrics_line(const MetricsRow& row);

}  // namespace weft
