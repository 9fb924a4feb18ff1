// From the similarities' gradients to those of the features: the last step of the backward pass of stacked cross
// attention (kernels.md §2), one item and one slice of columns at a time, so that no two workers write to one place.
namespace crossret {
namespace CROSSRET_ISA {

// Adds item `index` of `jobs`, columns [k0, k0 + kSlice): Σ over its pairs ds · partner, and what its own rows get from
// the Gram matrix (attended side) or the cosine's norm (attending side).
static void cross_attention_feature_gradients(const CrossAttentionCall& call, const CrossAttentionGradients& from,
                                              bool of_images, const ItemPairs& jobs, int64_t index, int64_t k0,
                                              float* gradients, Workspace& memory) {
  const Side& own = of_images ? call.images : call.captions;
  const Side& other = of_images ? call.captions : call.images;
  const bool attends = of_images == (call.options.direction == Direction::i2t);
  const int64_t item = jobs.items[index], rows = own.lengths[item];
  const int64_t columns = own.dim - k0 < kSlice ? own.dim - k0 : kSlice;
  float* slice = memory.floats(own.longest * kSlice);
  float* panels = memory.floats((other.longest > own.longest ? other.longest : own.longest) * kSlice);
  float* coefs = memory.floats(own.longest);
  for (int64_t i = 0; i < rows * kSlice; ++i) slice[i] = 0.0f;
  for (int64_t i = 0; i < rows; ++i) coefs[i] = 0.0f;
  for (int64_t p = jobs.offsets[index]; p < jobs.offsets[index + 1]; ++p) {
    const int64_t partner = jobs.partners[p], slot = jobs.slots[p], depth = other.lengths[partner];
    const float* ds = from.similarity_grads + from.similarity_offsets[slot];
    const int64_t ld = gram_row(attends ? rows : depth);
    const Strided left = attends ? Strided{ds, 1, ld} : Strided{ds, ld, 1};
    item_to_panels(other, partner, k0, columns, panels);
    block_product(rows, columns, depth, left, panels, depth * kPanel, kPanel, slice, kSlice, true);
    if (attends) {
      const float* added = from.query_coefs + from.query_offsets[slot];
      for (int64_t r = 0; r < rows; ++r) coefs[r] += added[r];
    }
  }
  if (attends) {
    for (int64_t r = 0; r < rows; ++r) {
      add_scaled_row(own, own.starts[item] + r, k0, columns, coefs[r], slice + r * kSlice);
    }
  } else {
    item_to_panels(own, item, k0, columns, panels);
    const Strided gram{from.gram_grads + from.gram_offsets[jobs.slots[jobs.offsets[index]]], gram_row(rows), 1};
    block_product(rows, columns, rows, gram, panels, rows * kPanel, kPanel, slice, kSlice, true);
  }
  add_slice(own, item, k0, columns, slice, gradients);
}

static int64_t cross_attention_feature_bytes(const CrossAttentionCall& call) {
  const int64_t longest = call.images.longest > call.captions.longest ? call.images.longest : call.captions.longest;
  Workspace count;
  count.floats(longest * kSlice);
  count.floats(longest * kSlice);
  count.floats(longest);
  return count.bytes();
}

constexpr CrossAttentionKernels cross_attention_kernels = {
    cross_attention_forward,       cross_attention_backward,       cross_attention_feature_gradients,
    cross_attention_forward_bytes, cross_attention_backward_bytes, cross_attention_feature_bytes};

}  // namespace CROSSRET_ISA
}  // namespace crossret
