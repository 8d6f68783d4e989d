#pragma once
// The rows of one or more JSONL files as one list, in file order, and the seeded order in which an epoch visits them.
// The order is a pure function of (seed, epoch, size): the same on every platform. Errors: FileError for an empty dataset, a
// malformed row or one that is not an object; all rows are checked at opening, not hours into a run.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "weft/io/jsonl.h"

namespace weft {

// Row indices 0..size-1 in the order of `epoch` (Fisher-Yates over counter-based random numbers).
std::vector<int64_t> shuffled_rows(int64_t size, uint64_t seed, int64_t epoch);

// Where a run stands: `position` rows of `epoch` were handed out.
struct DatasetCursor {
  int64_t epoch = 0;
  int64_t position = 0;
  bool operator==(const DatasetCursor&) const = default;
};

class Dataset {
 public:
  explicit Dataset(const std::vector<std::string>& paths, JsonlLimits limits = {});

  int64_t size() const { return offsets_.back(); }
  std::string_view text(int64_t row) const;  // JSON object, valid as long as the dataset
  nlohmann::json json(int64_t row) const;
  std::string location(int64_t row) const;  // "file: line 12"
  // Hash of all files' bytes: a resume compares it, since a cursor means nothing in other data.
  uint64_t fingerprint() const;

 private:
  std::pair<const JsonlFile*, int64_t> place(int64_t row) const;

  std::vector<JsonlFile> files_;
  std::vector<int64_t> offsets_;  // first row of each file, then the total
};

// Hands out row indices epoch after epoch.
class DatasetSampler {
 public:
  DatasetSampler(int64_t size, uint64_t seed, bool shuffle, DatasetCursor cursor = {});

  int64_t next();
  std::vector<int64_t> next_batch(int64_t count);  // may cross epochs
  // After the last row of an epoch the cursor stands at its end, so a caller can count whole epochs.
  const DatasetCursor& cursor() const { return cursor_; }
  // ValueError: not a place in this dataset.
  void seek(DatasetCursor cursor);

 private:
  int64_t size_;
  uint64_t seed_;
  bool shuffle_;
  DatasetCursor cursor_;
  int64_t order_epoch_ = -1;
  std::vector<int64_t> order_;  // of order_epoch_, when shuffling
};

}  // namespace weft
