#include "weft/io/dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "weft/base/error.h"
#include "weft/base/random.h"

namespace weft {

std::vector<int64_t> shuffled_rows(int64_t size, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> rows(static_cast<size_t>(size));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  const CounterRng rng(hash_combine(seed, static_cast<uint64_t>(epoch)));
  for (uint64_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[rng.below(i, i)]);
  return rows;
}

Dataset::Dataset(const std::vector<std::string>& paths, JsonlLimits limits) {
  if (paths.empty()) throw UsageError("no data files are given; set data.train_files or data.val_files");
  offsets_.push_back(0);
  for (const std::string& path : paths) {
    const JsonlFile& file = files_.emplace_back(path, limits);
    if (file.size() == 0) throw FileError(path, "", "no rows: the dataset is empty");
    for (int64_t row = 0; row < file.size(); ++row) {
      if (!file.json(row).is_object()) throw FileError(path, file.location(row), "the row is not a JSON object");
    }
    offsets_.push_back(offsets_.back() + file.size());
  }
}

std::pair<const JsonlFile*, int64_t> Dataset::place(int64_t row) const {
  WEFT_CHECK(0 <= row && row < size(), "row {} of {}", row, size());
  const auto it = std::upper_bound(offsets_.begin(), offsets_.end(), row) - 1;
  return {&files_[static_cast<size_t>(it - offsets_.begin())], row - *it};
}

std::string_view Dataset::text(int64_t row) const {
  const auto [file, local] = place(row);
  return file->text(local);
}

nlohmann::json Dataset::json(int64_t row) const {
  const auto [file, local] = place(row);
  return file->json(local);
}

std::string Dataset::location(int64_t row) const {
  const auto [file, local] = place(row);
  return file->path() + ": " + file->location(local);
}

uint64_t Dataset::fingerprint() const {
  uint64_t hash = 0;
  for (const JsonlFile& file : files_) {
    hash = hash_combine(hash, XXH3_64bits(file.bytes().data(), file.bytes().size()), file.bytes().size());
  }
  return hash;
}

DatasetSampler::DatasetSampler(int64_t size, uint64_t seed, bool shuffle, DatasetCursor cursor)
    : size_(size), seed_(seed), shuffle_(shuffle) {
  WEFT_CHECK(size > 0, "a sampler over {} rows", size);
  seek(cursor);
}

void DatasetSampler::seek(DatasetCursor cursor) {
  if (cursor.epoch < 0 || cursor.position < 0 || cursor.position > size_) {
    throw ValueError(fmt::format("data cursor (epoch {}, position {}) does not fit a dataset of {} rows; was the data changed?",
                                 cursor.epoch, cursor.position, size_));
  }
  cursor_ = cursor;
}

int64_t DatasetSampler::next() {
  if (cursor_.position == size_) cursor_ = {cursor_.epoch + 1, 0};
  const int64_t position = cursor_.position++;
  if (!shuffle_) return position;
  if (order_epoch_ != cursor_.epoch) {
    order_ = shuffled_rows(size_, seed_, cursor_.epoch);
    order_epoch_ = cursor_.epoch;
  }
  return order_[static_cast<size_t>(position)];
}

std::vector<int64_t> DatasetSampler::next_batch(int64_t count) {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(next());
  return rows;
}

}  // namespace weft
