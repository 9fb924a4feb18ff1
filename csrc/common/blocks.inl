// Walks a rectangle of pairs: images prepared in groups, captions packed in blocks, the product of each pair of them.
namespace crossret {
namespace CROSSRET_ISA {

// Images as the left-hand side of products.
struct ImageGroup {
  int64_t first, count;  // of the rectangle's images
  CopiedRows rows;       // all regions of the group
  float* norms;          // of each region
  float* grams;          // of each image, one behind the other; null when not wanted
};

// Whole captions packed tight, as the right-hand side of products.
struct CaptionBlock {
  int64_t first, count;  // of the rectangle's captions
  int64_t columns;       // their words
  CopiedRows rows;       // all words of the block
  float* norms;          // of each word
  float* panels;         // the same words as columns
  float* grams;          // of each caption, one behind the other; null when not wanted
};

struct BlockBuffers {
  ImageGroup group;
  CaptionBlock block;
  float* product;  // limits.product_rows regions × words of a block, stride limits.columns
};

static BlockBuffers take_buffers(const Side& images, const Side& captions, const Limits& limits, bool image_grams,
                                 bool caption_grams, Workspace& memory) {
  BlockBuffers buffers{};
  buffers.group.rows = take_rows(images, limits.group_rows, memory);
  buffers.group.norms = memory.floats(limits.group_rows + V::width);
  buffers.group.grams = image_grams ? memory.floats(limits.group_rows * gram_row(limits.rows)) : nullptr;
  buffers.block.rows = take_rows(captions, limits.columns, memory);
  buffers.block.norms = memory.floats(limits.columns + V::width);
  buffers.block.panels = memory.floats(limits.columns * buffers.block.rows.depth);
  // The captions of a block have limits.columns words together: no Gram matrix is wider, nor are all of them larger.
  buffers.block.grams = caption_grams ? memory.floats(limits.columns * limits.columns) : nullptr;
  buffers.product = memory.floats(limits.product_rows * limits.columns);
  return buffers;
}

static void prepare_group(const Side& images, const Rectangle& pairs, const Limits& limits, int64_t first,
                          ImageGroup& group) {
  group.first = first;
  group.count = 0;
  int64_t rows = 0, gram = 0;
  for (int64_t i = first; i < pairs.n_images; ++i, ++group.count) {
    const int64_t image = pairs.images[i], n = images.lengths[image];
    if (group.count > 0 && rows + n > limits.group_rows) break;
    copy_item(images, image, group.rows.from(rows), group.norms + rows);
    if (group.grams) gram_matrix(group.rows.from(rows), n, group.grams + gram);
    rows += n;
    gram += n * gram_row(n);
  }
}

static void prepare_block(const Side& captions, const Rectangle& pairs, const Limits& limits, int64_t first,
                          CaptionBlock& block) {
  block.first = first;
  block.count = 0;
  block.columns = 0;
  int64_t gram = 0;
  for (int64_t c = first; c < pairs.n_captions; ++c, ++block.count) {
    const int64_t caption = pairs.captions[c], n = captions.lengths[caption];
    if (block.columns + n > limits.columns) break;
    const CopiedRows rows = block.rows.from(block.columns);
    copy_item(captions, caption, rows, block.norms + block.columns);
    if (block.grams) gram_matrix(rows, n, block.grams + gram);
    block.columns += n;
    gram += n * gram_row(n);
  }
  transpose_to_panels(block.rows.data, block.rows.ld, block.columns, block.rows.depth, block.panels);
}

// The similarities of `rows` regions with all words of a block.
static void similarity_product(const CopiedRows& regions, int64_t rows, const CaptionBlock& block, float* product,
                               int64_t ld) {
  with_elements(regions.pairs, [&](auto element) {
    packed_product<decltype(element)>(rows, block.columns, regions.depth, {regions.data, regions.ld, 1}, block.panels,
                                      product, ld);
  });
  if (regions.scales == nullptr) return;
  for (int64_t r = 0; r < rows; ++r) {
    const F scale = V::set(regions.scales[r]);
    for (int64_t j = 0; j < block.columns; j += V::width) {
      float* at = product + r * ld + j;
      V::store(at, V::mul(V::load(at), V::mul(scale, V::load(block.rows.scales + j))));
    }
  }
}

// One image against one caption block.
struct ImageBlock {
  int64_t image;              // of the rectangle
  CopiedRows rows;            // its regions
  const float* norms;         // of the regions
  const float* gram;          // of the regions, or null
  const float* similarities;  // regions × words of the block, stride limits.columns
  int64_t n_regions;
};

// Calls visit(ImageBlock, CaptionBlock) for every image and caption block of the rectangle. Images of few regions share
// a product, so that its tiles are full.
template <class Visit>
static void for_each_block(const Side& images, const Side& captions, const Limits& limits, const Rectangle& pairs,
                           BlockBuffers& buffers, const Visit& visit) {
  ImageGroup& group = buffers.group;
  CaptionBlock& block = buffers.block;
  for (int64_t i = 0; i < pairs.n_images; i += group.count) {
    prepare_group(images, pairs, limits, i, group);
    for (int64_t c = 0; c < pairs.n_captions; c += block.count) {
      prepare_block(captions, pairs, limits, c, block);
      int64_t row = 0, gram = 0;
      for (int64_t k = 0; k < group.count;) {
        int64_t end = k, shared = 0;  // images [k, end) have `shared` regions
        for (; end < group.count; ++end) {
          const int64_t n = images.lengths[pairs.images[i + end]];
          if (shared > 0 && shared + n > limits.product_rows) break;
          shared += n;
        }
        similarity_product(group.rows.from(row), shared, block, buffers.product, limits.columns);
        const float* similarities = buffers.product;
        for (; k < end; ++k) {
          const int64_t n = images.lengths[pairs.images[i + k]];
          visit(ImageBlock{i + k, group.rows.from(row), group.norms + row, group.grams ? group.grams + gram : nullptr,
                           similarities, n},
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
