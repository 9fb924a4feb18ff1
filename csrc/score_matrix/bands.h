// How a matrix of scores is cut up between threads.
#pragma once
#include <algorithm>

#include "pairs/workspace.h"
#include "score_matrix/matrix.h"

namespace crossret {

// Bands of rows, each with statistics of its own of every column, so many numbers each: not of threads, so that these
// do not show in sums, and few enough that all statistics stay within 24 MiB.
struct Bands {
  Bands(int64_t n_rows, int64_t numbers)
      : rows(round_up(std::max<int64_t>((n_rows + most(n_rows, numbers) - 1) / most(n_rows, numbers), 1), kTileRows)),
        count((n_rows + rows - 1) / rows) {}

  static int64_t most(int64_t n_rows, int64_t numbers) {
    return std::clamp<int64_t>((int64_t{6} << 20) / std::max<int64_t>(numbers * n_rows, 1), 1, 64);
  }

  int64_t rows, count;
};

// Of the scores of a tile, widened.
inline int64_t tile_bytes() {
  Workspace counted;
  counted.floats(kTileFloats);
  return counted.bytes();
}

// Calls run(tile) for every tile of a band, all columns of a tile with positives or none.
template <class Run>
void each_tile(const ScoreMatrix& matrix, int64_t first, int64_t last, const Run& run) {
  const int64_t ends[] = {matrix.offset, matrix.offset + matrix.n_rows, matrix.n_columns};
  for (int64_t row = first; row < last; row += kTileRows) {
    int64_t column = 0;
    for (int part = 0; part < 3; ++part) {
      for (; column < ends[part]; column += std::min(kTileColumns, ends[part] - column)) {
        run(Tile{row, std::min(kTileRows, last - row), column, std::min(kTileColumns, ends[part] - column), part == 1});
      }
    }
  }
}

}  // namespace crossret
