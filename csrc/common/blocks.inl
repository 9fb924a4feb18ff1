// Walks a rectangle of pairs: images prepared in groups, captions packed in blocks, the product of each pair of them.
namespace crossret {
namespace CROSSRET_ISA {

// Images as the left-hand side of products.
struct ImageGroup {
  int64_t first, count;  // of the rectangle's images
  float* rows;           // all regions of the group, stride pad_row(dim)
  float* norms;          // of each region
  float* grams;          // of each image, one behind the other; null when not wanted
};

// Whole captions packed tight, as the right-hand side of products.
struct CaptionBlock {
  int64_t first, count;  // of the rectangle's captions
  int64_t columns;       // their words
  float* rows;           // all words of the block, stride pad_row(dim)
  float* norms;          // of each word
  float* panels;         // the same words as columns
  float* grams;          // of each caption, one behind the other; null when not wanted
};

struct BlockBuffers {
  ImageGroup group;
  CaptionBlock block;
  float* product;  // regions of the largest image × words of a block, stride limits.columns
};

static BlockBuffers take_buffers(const Side& images, const Limits& limits, bool image_grams, bool caption_grams,
                                 Workspace& memory) {
  const int64_t ld = pad_row(images.dim);
  BlockBuffers buffers{};
  buffers.group.rows = memory.floats(limits.group_rows * ld);
  buffers.group.norms = memory.floats(limits.group_rows + V::width);
  buffers.group.grams = image_grams ? memory.floats(limits.group_rows * gram_row(limits.rows)) : nullptr;
  buffers.block.rows = memory.floats(limits.columns * ld);
  buffers.block.norms = memory.floats(limits.columns + V::width);
  buffers.block.panels = memory.floats(limits.columns * images.dim);
  // The captions of a block have limits.columns words together: no Gram matrix is wider, nor are all of them larger.
  buffers.block.grams = caption_grams ? memory.floats(limits.columns * limits.columns) : nullptr;
  buffers.product = memory.floats(limits.rows * limits.columns);
  return buffers;
}

static void prepare_group(const Side& images, const Rectangle& pairs, const Limits& limits, int64_t first,
                          ImageGroup& group) {
  const int64_t ld = pad_row(images.dim);
  group.first = first;
  group.count = 0;
  int64_t rows = 0, gram = 0;
  for (int64_t i = first; i < pairs.n_images; ++i, ++group.count) {
    const int64_t image = pairs.images[i], n = images.lengths[image];
    if (group.count > 0 && rows + n > limits.group_rows) break;
    copy_item(images, image, group.rows + rows * ld, group.norms + rows);
    if (group.grams) gram_matrix(group.rows + rows * ld, ld, n, images.dim, group.grams + gram);
    rows += n;
    gram += n * gram_row(n);
  }
}

static void prepare_block(const Side& captions, const Rectangle& pairs, const Limits& limits, int64_t first,
                          CaptionBlock& block) {
  const int64_t ld = pad_row(captions.dim);
  block.first = first;
  block.count = 0;
  block.columns = 0;
  int64_t gram = 0;
  for (int64_t c = first; c < pairs.n_captions; ++c, ++block.count) {
    const int64_t caption = pairs.captions[c], n = captions.lengths[caption];
    if (block.columns + n > limits.columns) break;
    float* rows = block.rows + block.columns * ld;
    copy_item(captions, caption, rows, block.norms + block.columns);
    if (block.grams) gram_matrix(rows, ld, n, captions.dim, block.grams + gram);
    block.columns += n;
    gram += n * gram_row(n);
  }
  transpose_to_panels(block.rows, ld, block.columns, captions.dim, block.panels);
}

// One image against one caption block; its similarities are in `product`.
struct ImageBlock {
  int64_t image;       // of the rectangle
  const float* rows;   // regions, stride pad_row(dim)
  const float* norms;  // of the regions
  const float* gram;   // of the regions, or null
  int64_t n_regions;
};

// Calls visit(ImageBlock, CaptionBlock) for every image and caption block of the rectangle.
template <class Visit>
static void for_each_block(const Side& images, const Side& captions, const Limits& limits, const Rectangle& pairs,
                           BlockBuffers& buffers, const Visit& visit) {
  const int64_t ld = pad_row(images.dim);
  ImageGroup& group = buffers.group;
  CaptionBlock& block = buffers.block;
  for (int64_t i = 0; i < pairs.n_images; i += group.count) {
    prepare_group(images, pairs, limits, i, group);
    for (int64_t c = 0; c < pairs.n_captions; c += block.count) {
      prepare_block(captions, pairs, limits, c, block);
      int64_t row = 0, gram = 0;
      for (int64_t k = 0; k < group.count; ++k) {
        const int64_t n = images.lengths[pairs.images[i + k]];
        const float* rows = group.rows + row * ld;
        packed_product(n, block.columns, images.dim, {rows, ld, 1}, block.panels, buffers.product, limits.columns,
                       false);
        visit(ImageBlock{i + k, rows, group.norms + row, group.grams ? group.grams + gram : nullptr, n}, block);
        row += n;
        gram += n * gram_row(n);
      }
    }
  }
}

}  // namespace CROSSRET_ISA
}  // namespace crossret
