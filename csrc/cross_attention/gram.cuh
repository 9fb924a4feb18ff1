// Gram matrices of items of contexts, pᵀGp of which is ‖a‖² (kernels.md §1), as fragments of the tensor cores.
//
// A fragment is some rows and 8 columns of G, a chunk a lane. Every number is split into a head and a rest, its
// rounding error, so that three products keep 16 bits of bfloat16 features and of float32 ones in TF32, or 22 of
// float16 ones. Lane g * 4 + t has rows t and 4 + t of 8, and column g / 2 + g % 2 * 4 of 8: the order in which
// `attention.cuh` reads weights. Fragments of one column group follow one another.
#pragma once
#include "cross_attention/pack.cuh"

namespace crossret {
namespace gpu {

using GramTile = TileShape<2, 2, 2, 4, 64, 3, 4>;

constexpr int kBroken = 1, kMayCancel = 2;  // flags of an item of contexts: not finite, weighted sums may cancel
// The pitch avoids bank conflicts of pairs of cells of four rows, and of four cells of eight.
constexpr int kGramBlock = GramTile::rows, kGramPitch = kGramBlock + 8;
constexpr int kGramBytes = kGramBlock * kGramPitch * 4;
constexpr int kGramMemory = kGramBytes > GramTile::ring_bytes ? kGramBytes : GramTile::ring_bytes;
// pᵀGp below this part of Σ p² ‖c‖², its value for orthogonal contexts, is a small difference of large terms, and the
// attended vector is computed instead. G is off by about u √D ‖c‖², ‖a‖² by that over this part.
constexpr float kCancelled = 0.125f;

CROSSRET_DEVICE float low_of(uint32_t pair) { return float_of(static_cast<int>(pair << 16)); }
CROSSRET_DEVICE float high_of(uint32_t pair) { return float_of(static_cast<int>(pair & 0xFFFF0000u)); }

// Split operands of the Gram products, by the arithmetic of the features' product.
template <class Arithmetic>
struct Fine {
  using Factor = BFloat16;
  static constexpr int rows = 16, of_lane = 4;  // rows of a fragment, and those of a lane

  CROSSRET_DEVICE static void split(float low, float high, uint32_t& head, uint32_t& rest) {
    head = pack_bfloat16(low, high);
    rest = pack_bfloat16(low - low_of(head), high - high_of(head));
  }
  // value(k) for row t + 4k.
  template <class Value>
  CROSSRET_DEVICE static Chunk fragment(const Value& value) {
    Chunk made;
    split(value(0), value(1), made.words[0], made.words[2]);
    split(value(2), value(3), made.words[1], made.words[3]);
    return made;
  }
  // weight(half, k) of row g or g + 8 for column t + 4k.
  template <class Weight>
  CROSSRET_DEVICE static void weights(const Weight& weight, uint32_t (&heads)[4], uint32_t (&rests)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      split(weight(i % 2, i / 2 * 2), weight(i % 2, i / 2 * 2 + 1), heads[i], rests[i]);
    }
  }
};
// Float16 has more digits than two bfloat16 keep.
template <>
struct Fine<Float16> {
  using Factor = TFloat32;
  static constexpr int rows = 8, of_lane = 2;

  CROSSRET_DEVICE static void split(float x, uint32_t& head, uint32_t& rest) {
    head = tfloat32_of(x);
    rest = tfloat32_of(x - float_of(static_cast<int>(head)));
  }
  template <class Value>
  CROSSRET_DEVICE static Chunk fragment(const Value& value) {
    Chunk made;
    split(value(0), made.words[0], made.words[2]);
    split(value(1), made.words[1], made.words[3]);
    return made;
  }
  template <class Weight>
  CROSSRET_DEVICE static void weights(const Weight& weight, uint32_t (&heads)[4], uint32_t (&rests)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) split(weight(i % 2, i / 2), heads[i], rests[i]);
  }
};

// Groups of rows and of columns of an item of `count` contexts.
template <class Arithmetic>
CROSSRET_DEVICE int fragment_rows(int count) {
  return (count + Fine<Arithmetic>::rows - 1) / Fine<Arithmetic>::rows;
}
CROSSRET_DEVICE int fragment_columns(int count) { return (count + 7) / 8; }

struct Grams {
  Global<Chunk> fragments;
  int64_t apart;      // fragments from item to item
  Global<int> flags;  // (items)
};

// A block of 64 × 64 of an item's matrix. An item of several blocks always has kMayCancel.
template <class Arithmetic>
CROSSRET_KERNEL(GramTile::threads, GramTile::blocks)
gram_matrices(CROSSRET_PARAMETER PackedRows side, CROSSRET_PARAMETER Grams grams, int dim, int blocks, bool normalize) {
  const int number = block_x(), thread = thread_index(), lane = thread % kWarp, warp = thread / kWarp;
  const int first_row = block_y() / blocks * kGramBlock, first_column = block_y() % blocks * kGramBlock;
  const PackedItem item = load(side.items, number);
  const bool first_block = first_row == 0 && first_column == 0;
  const bool needed = first_row < item.count && first_column < item.count;
  if (!first_block && !needed) return;
  constexpr int element = static_cast<int>(sizeof(typename Features<Arithmetic>::Element));
  const int64_t row_chunks = int64_t{dim} * element / kChunkBytes;
  const auto rows_from = [&](int first) {
    return [=](int row) { return first + row < item.count ? (item.first + first + row) * row_chunks : int64_t{0}; };
  };
  // Product of the block; of an empty item nothing is read.
  Accumulators<GramTile> sums;
  const int row_bytes = item.count > 0 ? dim * element : 0;
  multiply_tiles<GramTile, Arithmetic>(sums, operand(side.rows, rows_from(first_row)),
                                       operand(side.rows, rows_from(first_column)), row_bytes, shared_at<Chunk>(0));
  sync_block();
  const auto norm_of = [&](int row) { return row < item.count ? load(side.norms, item.first + row) : 0.0f; };
  const auto scale_of = [&](int row) {
    const float norm = norm_of(row);
    return normalize ? (norm > 0.0f ? 1.0f / norm : 0.0f) : norm > 0.0f ? 1.0f : 0.0f;
  };
  // Scaled to unit rows, in shared memory.
  Shared<float> block = shared_at<float>(0);
  sums.each_pair(kGramBlock, [&](int row, int column, float left, float right) {
    const float scale = scale_of(first_row + row);
    Shared<Two<float>>(block + (row * kGramPitch + column))[0] = Two<float>{
        {left * scale * scale_of(first_column + column), right * scale * scale_of(first_column + column + 1)}};
  });
  sync_block();
  constexpr int fragment = Fine<Arithmetic>::rows;
  const int steps = fragment_rows<Arithmetic>(item.count), columns = fragment_columns(item.count);
  const Global<Chunk> to = grams.fragments + number * grams.apart * kWarp;
  // Fragments, whose columns are the block's rows: the matrix is symmetric.
  constexpr int block_steps = kGramBlock / fragment, block_columns = kGramBlock / 8;
  for (int f = warp; f < block_steps * block_columns; f += GramTile::warps) {
    const int step = first_column / fragment + f % block_steps, group = first_row / 8 + f / block_steps;
    if (step >= steps || group >= columns) continue;
    const int column = 8 * group + lane / 8 + lane / 4 % 2 * 4;
    const Chunk made = Fine<Arithmetic>::fragment([&](int k) {
      const int row = fragment * step + lane % 4 + 4 * k;
      return block[(column - first_row) * kGramPitch + row - first_column];
    });
    store(to, (int64_t{group} * steps + step) * kWarp + lane, made);
  }
  // Flags of the item.
  if (!first_block) return;
  bool broken = false, may_cancel = item.count > kGramBlock;
  for (int row = thread; row < item.count; row += GramTile::threads) {
    const float norm = norm_of(row);
    broken = broken || norm != norm;
  }
  if (!may_cancel && thread < item.count) {
    // Gershgorin's circles: pᵀGp is at least 1 − opposed of Σ p² ‖c‖², as no p is negative.
    float opposed = 0.0f;
    for (int other = 0; other < item.count; ++other) {
      const float length = normalize ? 1.0f : norm_of(thread) * norm_of(other);
      const float product = block[other * kGramPitch + thread];
      if (other != thread && product < 0.0f) opposed -= product / length;
    }
    may_cancel = opposed > 0.99f - kCancelled;
  }
  broken = any_in_block(broken);
  may_cancel = any_in_block(may_cancel);
  if (thread == 0) store(grams.flags, number, (broken ? kBroken : 0) + (may_cancel ? kMayCancel : 0));
}

}  // namespace gpu
}  // namespace crossret
