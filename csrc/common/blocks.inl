// Walks a rectangle of pairs: contexts prepared in groups, queries packed in blocks, the product of each pair of them.
// Whatever the direction, contexts are the rows of products and queries their columns: what runs along the queries of
// an item runs along memory, and what is summed over contexts is summed down the columns, whole vectors at a time.
namespace crossret {
namespace CROSSRET_ISA {

// A rectangle of pairs by the parts that its sides play: words attend to regions (t2i) or regions to words (i2t).
struct Roles {
  const Side& contexts;  // the attended side
  const Side& queries;   // the attending side
  const Rectangle& pairs;
  bool t2i;

  Roles(const Side& images, const Side& captions, const Rectangle& rectangle, Direction direction)
      : contexts(direction == Direction::t2i ? images : captions),
        queries(direction == Direction::t2i ? captions : images),
        pairs(rectangle),
        t2i(direction == Direction::t2i) {}

  int64_t n_contexts() const { return t2i ? pairs.n_images : pairs.n_captions; }
  int64_t n_queries() const { return t2i ? pairs.n_captions : pairs.n_images; }
  int64_t context_item(int64_t k) const { return t2i ? pairs.images[k] : pairs.captions[k]; }
  int64_t query_item(int64_t k) const { return t2i ? pairs.captions[k] : pairs.images[k]; }
  int64_t context_rows(int64_t k) const { return contexts.lengths[context_item(k)]; }
  int64_t query_rows(int64_t k) const { return queries.lengths[query_item(k)]; }
  int64_t slot(int64_t context, int64_t query) const {
    return t2i ? pairs.slot(context, query) : pairs.slot(query, context);
  }
};

// Items as the left-hand side of products.
struct ContextGroup {
  int64_t first, count;  // of the rectangle's contexts
  CopiedRows rows;       // of all its items
  float* norms;          // of each row
  float* grams;          // of each item, one behind the other; null when not wanted
};

// Whole items packed tight, as the right-hand side of products.
struct QueryBlock {
  int64_t first, count;  // of the rectangle's queries
  int64_t columns;       // their rows
  CopiedRows rows;       // of all its items
  float* norms;          // of each row
  float* panels;         // the same rows as columns
};

struct BlockBuffers {
  ContextGroup group;
  QueryBlock block;
  float* product;  // limits.product_rows contexts × queries of a block, stride limits.columns
};

static BlockBuffers take_buffers(const Side& contexts, const Side& queries, const Limits& limits, bool grams,
                                 Workspace& memory) {
  BlockBuffers buffers{};
  buffers.group.rows = take_rows(contexts, limits.group_rows, memory);
  buffers.group.norms = memory.floats(limits.group_rows + V::width);
  buffers.group.grams = grams ? memory.floats(limits.group_rows * gram_row(limits.rows)) : nullptr;
  buffers.block.rows = take_rows(queries, limits.columns, memory);
  buffers.block.norms = memory.floats(limits.columns + V::width);
  buffers.block.panels = memory.floats(limits.columns * buffers.block.rows.depth);
  buffers.product = memory.floats(limits.product_rows * limits.columns);
  return buffers;
}

static void prepare_group(const Roles& roles, const Limits& limits, int64_t first, ContextGroup& group) {
  group.first = first;
  group.count = 0;
  int64_t rows = 0, gram = 0;
  for (int64_t k = first; k < roles.n_contexts(); ++k, ++group.count) {
    const int64_t n = roles.context_rows(k);
    if (group.count > 0 && rows + n > limits.group_rows) break;
    copy_item(roles.contexts, roles.context_item(k), group.rows.from(rows), group.norms + rows);
    if (group.grams) gram_matrix(group.rows.from(rows), n, group.grams + gram);
    rows += n;
    gram += n * gram_row(n);
  }
}

static void prepare_block(const Roles& roles, const Limits& limits, int64_t first, QueryBlock& block) {
  block.first = first;
  block.count = 0;
  block.columns = 0;
  for (int64_t k = first; k < roles.n_queries(); ++k, ++block.count) {
    const int64_t n = roles.query_rows(k);
    if (block.count > 0 && block.columns + n > limits.filled_columns) break;
    copy_item(roles.queries, roles.query_item(k), block.rows.from(block.columns), block.norms + block.columns);
    block.columns += n;
  }
  transpose_to_panels(block.rows.data, block.rows.ld, block.columns, block.rows.depth, block.panels);
}

// The similarities of `rows` contexts with all queries of a block.
static void similarity_product(const CopiedRows& contexts, int64_t rows, const QueryBlock& block, float* product,
                               int64_t ld) {
  with_elements(contexts.pairs, [&](auto element) {
    packed_product<decltype(element)>(rows, block.columns, contexts.depth, {contexts.data, contexts.ld, 1},
                                      block.panels, product, ld);
  });
  if (contexts.scales == nullptr) return;
  for (int64_t r = 0; r < rows; ++r) {
    const F scale = V::set(contexts.scales[r]);
    for (int64_t j = 0; j < block.columns; j += V::width) {
      float* at = product + r * ld + j;
      V::store(at, V::mul(V::load(at), V::mul(scale, V::load(block.rows.scales + j))));
    }
  }
}

// One context item against one block.
struct ContextItem {
  int64_t index;  // of the rectangle's contexts
  int64_t n;      // its rows
  CopiedRows rows;
  const float* norms;         // of the rows
  const float* gram;          // of the rows, or null
  const float* similarities;  // rows × queries of the block, stride limits.columns
};

// Calls visit(ContextItem, QueryBlock) for every context item and block of the rectangle. Short items share a product,
// so that its tiles are full.
template <class Visit>
static void for_each_block(const Roles& roles, const Limits& limits, BlockBuffers& buffers, const Visit& visit) {
  ContextGroup& group = buffers.group;
  QueryBlock& block = buffers.block;
  for (int64_t i = 0; i < roles.n_contexts(); i += group.count) {
    prepare_group(roles, limits, i, group);
    for (int64_t q = 0; q < roles.n_queries(); q += block.count) {
      prepare_block(roles, limits, q, block);
      int64_t row = 0, gram = 0;
      for (int64_t k = 0; k < group.count;) {
        int64_t end = k, shared = 0;  // items [k, end) have `shared` rows
        for (; end < group.count; ++end) {
          const int64_t n = roles.context_rows(i + end);
          if (shared > 0 && shared + n > limits.product_rows) break;
          shared += n;
        }
        similarity_product(group.rows.from(row), shared, block, buffers.product, limits.columns);
        const float* similarities = buffers.product;
        for (; k < end; ++k) {
          const int64_t n = roles.context_rows(i + k);
          visit(ContextItem{i + k, n, group.rows.from(row), group.norms + row,
                            group.grams ? group.grams + gram : nullptr, similarities},
                block);
          row += n;
          gram += n * gram_row(n);
          similarities += n * limits.columns;
        }
      }
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
