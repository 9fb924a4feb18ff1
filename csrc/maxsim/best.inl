// The best contexts of packed queries: queries become panels once a block, contexts are read where they lie.
namespace crossret {
namespace CROSSRET_ISA {

// Rows as the tile multiplies them: pairs of bfloat16 as they are, everything else, normalised pairs too, as float32.
struct Elements {
  bool pairs;
  int64_t depth;  // of a row
  int64_t ld;     // of copied rows

  explicit Elements(const Side& side)
      : pairs(keeps_pairs(side) && side.norms == nullptr),
        depth(pairs ? (side.dim + 1) / 2 : side.dim),
        ld(pad_row(depth)) {}

  void copy(const Side& side, int64_t row, float* out) const {
    if (pairs) {
      copy_pairs(side, row, out);
    } else {
      copy_row(side, row, out);
    }
  }

  // Whether the side's rows may be read from the caller's memory: aligned elements and nothing else, and not so far
  // apart that the rows of a tile fall into the same few sets of the first cache.
  bool lie_in(const Side& side) const {
    constexpr int64_t set_bytes = 4096;
    if (pairs) {
      return side.dim % 2 == 0 && side.row_stride % 2 == 0 && reinterpret_cast<uintptr_t>(side.values) % 4 == 0 &&
             side.row_stride * 2 % set_bytes != 0;
    }
    return side.dtype == Dtype::float32 && side.norms == nullptr && side.row_stride * 4 % set_bytes != 0;
  }
};

struct BestBuffers {
  float* panels;  // queries as columns
  float* strip;   // copied rows
  int64_t strip_rows;
  float* value;    // of each query of the block …
  int32_t* index;  // … its best context; null where it is not wanted
};

static BestBuffers take_best_buffers(const MaxSimCall& call, bool wants_index, Workspace& memory) {
  constexpr int64_t strip_floats = 24 * 1024;  // against many panels, rows that stay in the second cache meanwhile
  const Elements elements(call.images);
  const int64_t tiles = call.columns > kPanel ? strip_floats / (elements.ld * V::tile_rows) : 1;
  BestBuffers buffers{};
  buffers.strip_rows = V::tile_rows * (tiles > 1 ? tiles : 1);
  buffers.panels = memory.floats(call.columns * elements.depth);
  buffers.strip = memory.floats((buffers.strip_rows > V::width ? buffers.strip_rows : V::width) * elements.ld);
  buffers.value = memory.floats(call.held);
  buffers.index = wants_index ? reinterpret_cast<int32_t*>(memory.floats(call.held)) : nullptr;
  return buffers;
}

// Packs rows [first, first + n) of the items from the rectangle's q-th on as the columns of panels; columns up to the
// next whole vector become zero.
static void pack_queries(const Roles& roles, int64_t q, int64_t first, int64_t n, BestBuffers& buffers) {
  const Side& side = roles.queries;
  const Elements elements(side);
  for (int64_t column = 0; column < n; column += V::width) {
    const int64_t count = n - column < V::width ? n - column : V::width;
    for (int64_t i = 0; i < count; ++i, ++first) {
      for (; first >= roles.query_rows(q); ++q) first -= roles.query_rows(q);
      elements.copy(side, side.starts[roles.query_item(q)] + first, buffers.strip + i * elements.ld);
    }
    transpose_to_panels(buffers.strip, elements.ld, count, elements.depth,
                        panel_column(buffers.panels, column, elements.depth));
  }
}

// Takes `count` contexts, which come behind `before` others of the item, into the best of NV vectors of queries.
template <class Element, int NV, bool kIndex>
static void panel_best(int64_t count, int64_t depth, const ContextRows& contexts, const float* panel, int64_t before,
                       float* values, int32_t* indices) {
  Best<NV> best;
  for (int j = 0; j < NV; ++j) {
    best.value[j] = before == 0 ? V::set(-__builtin_inff()) : V::load(values + j * V::width);
    best.index[j] = V::set(before == 0 ? 0.0f : -1.0f);
  }
  rows_best<Element, NV, kIndex>(count, depth, contexts, panel, best);
  for (int j = 0; j < NV; ++j) {
    // Of −0 and 0 either may be the maximum, depending on the tiles: + 0 makes both 0.
    V::store(values + j * V::width, V::add(best.value[j], V::zero()));
    if constexpr (kIndex) {
      float lanes[V::width];
      V::store(lanes, best.index[j]);
      for (int i = 0; i < V::width; ++i) {
        if (lanes[i] >= 0.0f) indices[j * V::width + i] = static_cast<int32_t>(before + static_cast<int64_t>(lanes[i]));
      }
    }
  }
}

// The best of contexts [first, last) of an item for `columns` packed queries; indices count from `first`.
template <bool kIndex>
static void item_best(const Side& side, int64_t item, int64_t first, int64_t last, int64_t columns,
                      BestBuffers& buffers, float* values, int32_t* indices) {
  constexpr int64_t cached_bytes = 256 * 1024;  // stay in the second cache while every panel passes over them
  const Elements elements(side);
  const bool in_place = elements.lie_in(side);
  const int64_t element_bytes = side.dtype == Dtype::float32 ? 4 : 2, row_bytes = side.row_stride * element_bytes;
  const int64_t cached_tiles = cached_bytes / (side.dim * element_bytes * V::tile_rows);
  const int64_t step = in_place ? V::tile_rows * (cached_tiles > 1 ? cached_tiles : 1) : buffers.strip_rows;
  for (int64_t row = first; row < last; row += step) {
    const int64_t n = last - row < step ? last - row : step, start = side.starts[item] + row;
    const float* data = static_cast<const float*>(side.row(start));
    const char* next = static_cast<const char*>(side.row(start)) + (in_place ? V::tile_rows : n) * row_bytes;
    if (!in_place) {
      data = buffers.strip;
      for (int64_t r = 0; r < n; ++r) elements.copy(side, start + r, buffers.strip + r * elements.ld);
    }
    const ContextRows rows{data, in_place ? row_bytes / 4 : elements.ld, next, row_bytes};
    with_elements(elements.pairs, [&](auto element) {
      using Element = decltype(element);
      for (int64_t j = 0; j < columns; j += kPanel) {
        const float* panel = panel_column(buffers.panels, j, elements.depth);
        int32_t* index = kIndex ? indices + j : nullptr;
        if (columns - j > V::width) {
          panel_best<Element, 2, kIndex>(n, elements.depth, rows, panel, row - first, values + j, index);
        } else {
          panel_best<Element, 1, kIndex>(n, elements.depth, rows, panel, row - first, values + j, index);
        }
      }
    });
  }
}

// Calls visit(slot, number of queries, their values, their indices) for every pair.
template <bool kIndex, class Visit>
static void for_each_best(const MaxSimCall& call, const Rectangle& rectangle, BestBuffers& buffers,
                          const Visit& visit) {
  const Roles roles(call.images, call.captions, rectangle, call.direction);
  const int64_t full = call.limits.filled_columns < call.columns ? call.limits.filled_columns : call.columns;
  for (int64_t q = 0, count; q < roles.n_queries(); q += count) {
    // Whole items as far as they fit together; one that is longer by itself, in several blocks.
    int64_t held = roles.query_rows(q);
    for (count = 1; q + count < roles.n_queries() && held + roles.query_rows(q + count) <= full; ++count) {
      held += roles.query_rows(q + count);
    }
    const int64_t blocks = (held + call.columns - 1) / call.columns;
    const int64_t columns = pad_columns((held + blocks - 1) / blocks), ld = pad_columns(held);
    // Blocks are packed once for as many contexts as the values of all queries can be kept for.
    const int64_t group = blocks == 1 ? 1 : call.held / ld;
    if (blocks == 1) pack_queries(roles, q, 0, held, buffers);
    for (int64_t c = 0; c < roles.n_contexts(); c += group) {
      const int64_t end = c + group < roles.n_contexts() ? c + group : roles.n_contexts();
      for (int64_t first = 0; first < held; first += columns) {
        const int64_t n = held - first < columns ? held - first : columns;
        if (blocks > 1) pack_queries(roles, q, first, n, buffers);
        for (int64_t i = c; i < end; ++i) {
          const int64_t at = (i - c) * ld + first, rows = roles.context_rows(i);
          item_best<kIndex>(roles.contexts, roles.context_item(i), call.first_context,
                            rows < call.last_context ? rows : call.last_context, n, buffers, buffers.value + at,
                            kIndex ? buffers.index + at : nullptr);
        }
      }
      for (int64_t i = c; i < end; ++i) {
        int64_t at = (i - c) * ld;
        for (int64_t k = q; k < q + count; ++k) {
          visit(roles.slot(i, k), roles.query_rows(k), buffers.value + at, kIndex ? buffers.index + at : nullptr);
          at += roles.query_rows(k);
        }
      }
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
