// A matrix of scores as losses over it read it: tiles of it, and which of its pairs are positives.
#pragma once
#include "pairs/side.h"

namespace crossret {

enum class Reduction : int { sum, mean, none };

// Image i and caption i + offset match. A row and a column are negatives of each other where their labels of either
// kind differ.
struct ScoreMatrix {
  const char* scores;
  int64_t row_bytes;
  Dtype dtype;
  int64_t n_rows, n_columns, offset;
  const float* labels[2];  // (n_columns)

  int64_t element_bytes() const { return dtype == Dtype::float32 ? 4 : 2; }
  double elements() const { return static_cast<double>(n_rows) * static_cast<double>(n_columns); }
};

struct Tile {
  int64_t row, rows, column, columns;  // at most kTileRows and kTileColumns of them
  bool matched;                        // whether the columns have positives here: all, or none
};

constexpr int64_t kTileRows = 32, kTileColumns = 1024;  // with what is kept of the columns in the first-level cache
constexpr int64_t kTileFloats = kTileRows * kTileColumns;

}  // namespace crossret
