#include "dense/cpu.h"

#include <algorithm>

#include "pairs/parallel.h"

namespace crossret {

CROSSRET_BY_SET(DenseKernels, dense_kernels)

namespace {

// Size of a part, whole units, where `all` is cut into the fewest parts of nearly one size, at most `most`.
int64_t even_part(int64_t all, int64_t most, int64_t unit) {
  const int64_t parts = std::max<int64_t>((all + most - 1) / most, 1);
  return round_up((all + parts - 1) / parts, unit);
}

}  // namespace

void multiply_dense(const Kernels& kernels, const DenseCall& call) {
  if (call.rows == 0 || call.columns == 0) return;
  if (call.depth == 0) {
    std::fill_n(call.out, call.rows * call.columns, 0.0f);
    return;
  }
  const DenseKernels& run = dense_kernels_of(kernels);
  const int64_t parts = (call.columns + kPad - 1) / kPad, rows = even_part(call.rows, kDenseRows, 12);
  const int64_t depth = even_part(call.depth, kDenseDepth, kPad);
  Memory of_panels, scratch;
  const auto panels = static_cast<float*>(of_panels.bytes(parts * kPad * run.depth(call, depth) * 4));
  for (int64_t first = 0; first < call.depth; first += depth) {
    const DenseSlice slice{first, std::min(depth, call.depth - first)};
    const double columns = static_cast<double>(call.columns) * static_cast<double>(slice.depth);
    Workspace packing, multiplying;
    run.pack_scratch(call, slice, packing);
    run.multiply_scratch(call, slice, multiplying);
    parallel(parts, 8 * columns, packing.bytes(), scratch,
             [&](int64_t part, Workspace& workspace) { run.pack(call, slice, part, panels, workspace); });
    parallel((call.rows + rows - 1) / rows, columns * static_cast<double>(call.rows), multiplying.bytes(), scratch,
             [&](int64_t block, Workspace& workspace) {
               const int64_t row = block * rows;
               run.multiply(call, slice, row, std::min(rows, call.rows - row), panels, workspace);
             });
  }
}

void sum_dense_rows(const Kernels& kernels, const DenseFactor& from, int64_t rows, int64_t columns, float* out) {
  constexpr int64_t part = 256;
  if (rows == 0) std::fill_n(out, columns, 0.0f);
  Memory memory;
  parallel((columns + part - 1) / part, 4 * static_cast<double>(rows) * static_cast<double>(columns), 0, memory,
           [&](int64_t index, Workspace&) {
             const int64_t first = index * part;
             const DenseFactor own{from.data + first, from.row, from.k};
             dense_kernels_of(kernels).sum_rows(own, rows, std::min(part, columns - first), out + first);
           });
}

}  // namespace crossret
