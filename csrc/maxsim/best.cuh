// The best that a thread has found of a group: maxima of cells, and where they were found.
#pragma once
#include "maxsim/problem.cuh"

namespace crossret {
namespace gpu {
namespace maxsim {

// Floats in an order in which NaN, of any kind, is greatest and zeros are equal.
CROSSRET_DEVICE int ordered(float x) {
  if (x != x) return 0x7FFFFFFF;
  const int bits = bits_of(x + 0.0f);
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

// The better of two that were found, in the first: the greater, of equals what stands first.
CROSSRET_DEVICE void take_better(float& best, int& place, float other, int other_place) {
  const int mine = ordered(best), theirs = ordered(other);
  if (theirs > mine || (theirs == mine && other_place < place)) best = other, place = other_place;
}

// A thread's share: of rows g and g + 8 of every 16, of kept columns 2t and 2t + 1 of every 8.
template <class Shape, bool index>
struct Best {
  using Tile = typename Shape::Tile;
  float at[Tile::row_tiles][2][Shape::kept_tiles][2];
  int turns[index ? Tile::row_tiles : 1][2][Shape::kept_tiles][2];  // which has it of those that passed the column

  // Calls take(i, h) for all rows; take(i, h, k, e) for these of an n8 of columns, or of all.
  template <class Take>
  CROSSRET_DEVICE static void each_row(const Take& take) {
#pragma unroll
    for (int i = 0; i < Tile::row_tiles; ++i) take(i, 0), take(i, 1);
  }
  template <class Take>
  CROSSRET_DEVICE static void each_of(int k, const Take& take) {
    each_row([&](int i, int h) { take(i, h, k, 0), take(i, h, k, 1); });
  }
  template <class Take>
  CROSSRET_DEVICE static void each(const Take& take) {
#pragma unroll
    for (int k = 0; k < Shape::kept_tiles; ++k) each_of(k, take);
  }

  CROSSRET_DEVICE void clear() {
    each([&](int i, int h, int k, int e) {
      at[i][h][k][e] = -INFINITY;
      if constexpr (index) turns[i][h][k][e] = 0;
    });
  }

  // Of cells, or where `normalize` of cells times the scales of their rows and columns.
  template <bool normalize>
  CROSSRET_DEVICE void take(const Accumulators<Tile>& sums, int step) {
    const Shared<float> of_rows = shared_at<float>(Shape::query_scales) + Accumulators<Tile>::own_row();
    const Shared<float> of_columns = shared_at<float>(Shape::context_scales) + Accumulators<Tile>::own_column();
#pragma unroll
    for (int turn = 0; turn < Shape::depth; ++turn) {
      each([&](int i, int h, int k, int e) {
        const int j = turn * Shape::kept_tiles + k;
        float s = sums.at[i][j][2 * h + e];
        if constexpr (normalize) s = s * of_columns[8 * j + e] * of_rows[16 * i + 8 * h];
        float& best = at[i][h][k][e];
        if constexpr (index) {
          if (best == best && !(s <= best)) {
            best = s;
            turns[i][h][k][e] = step * Shape::depth + turn;
          }
        } else {
          best = max_or_nan(best, s);
        }
      });
    }
  }

  // Makes places in their items of turns.
  CROSSRET_DEVICE void place(int bits) {
    if constexpr (index) {
      const int warp = thread_index() / kWarp;
      const int first = warp / Tile::row_warps * Shape::warp_kept + 2 * (thread_index() % 4);
      each([&](int i, int h, int k, int e) {
        turns[i][h][k][e] = turns[i][h][k][e] * (Shape::kept >> bits) + ((first + 8 * k + e) >> bits);
      });
    }
  }

  CROSSRET_DEVICE int place_at(int i, int h, int k, int e) const {
    if constexpr (index) return turns[i][h][k][e];
    return 0;
  }

  // Brings columns of one item together, in all lanes and, of n8 columns, in the first; a warp's alone.
  CROSSRET_DEVICE void join(int bits) {
#pragma unroll
    for (int near = Shape::kept_tiles / 2; near > 0; near /= 2) {
      if ((1 << bits) > 8 * near) continue;
#pragma unroll
      for (int k = 0; k < near; ++k) {
        each_of(k, [&](int i, int h, int k, int e) {
          merge(i, h, k, e, at[i][h][k + near][e], place_at(i, h, k + near, e));
        });
      }
    }
#pragma unroll
    for (int near = 4; near >= 2; near /= 2) {
      if ((1 << bits) > near) continue;
      each_of(0, [&](int i, int h, int k, int e) {
        const float other = shuffle_xor(at[i][h][k][e], near / 2);
        merge(i, h, k, e, other, index ? shuffle_xor(place_at(i, h, k, e), near / 2) : 0);
      });
    }
    if (bits > 0) return;
    each_of(0, [&](int i, int h, int k, int e) {
      if (e == 0) merge(i, h, k, 0, at[i][h][k][1], place_at(i, h, k, 1));
    });
  }

 private:
  CROSSRET_DEVICE void merge(int i, int h, int k, int e, float other, int other_place) {
    if constexpr (index) {
      take_better(at[i][h][k][e], turns[i][h][k][e], other, other_place);
    } else {
      at[i][h][k][e] = max_or_nan(at[i][h][k][e], other);
    }
  }
};

}  // namespace maxsim
}  // namespace gpu
}  // namespace crossret
