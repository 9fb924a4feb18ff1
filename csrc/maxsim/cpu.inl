// Sum-Max over one rectangle of pairs: SCAN Eqs. 9 and 10, forward and backward.
namespace crossret {
namespace CROSSRET_ISA {

struct MaxSimBuffers {
  BlockBuffers blocks;
  const float* similarities;  // of the image at hand
  float* best;                // of each query: the largest similarity …
  float* index;               // … and which context has it, as a float vector lane
  float* grads;
};

static MaxSimBuffers take_maxsim_buffers(const MaxSimCall& call, Workspace& memory) {
  const int64_t queries = pad_columns(call.direction == Direction::t2i ? call.limits.columns : call.limits.rows);
  MaxSimBuffers buffers{};
  buffers.blocks = take_buffers(call.images, call.captions, call.limits, false, false, memory);
  buffers.best = memory.floats(queries);
  buffers.index = memory.floats(queries);
  buffers.grads = memory.floats(queries);
  return buffers;
}

// The best region of the words in columns [j, j + width).
static void best_region(const float* s, int64_t ld, int64_t rows, int64_t j, MaxSimBuffers& buffers) {
  F best = V::load(s + j), index = V::zero();
  for (int64_t r = 1; r < rows; ++r) {
    const F x = V::load(s + r * ld + j);
    index = V::select(V::less(best, x), V::set(static_cast<float>(r)), index);
    best = max_or_nan(x, best);
  }
  V::store(buffers.best + j, best);
  V::store(buffers.index + j, index);
}

// Calls visit(image of the rectangle, caption of the rectangle, number of queries, their places in the buffers).
template <class Visit>
static void for_each_best(const MaxSimCall& call, const Rectangle& pairs, MaxSimBuffers& buffers, const Visit& visit) {
  const int64_t ld = call.limits.columns;
  const bool t2i = call.direction == Direction::t2i;
  for_each_block(call.images, call.captions, call.limits, pairs, buffers.blocks,
                 [&](const ImageBlock& image, const CaptionBlock& block) {
                   const int64_t rows = image.n_regions;
                   const float* s = buffers.similarities = image.similarities;
                   for (int64_t j = 0; t2i && j < block.columns; j += V::width) best_region(s, ld, rows, j, buffers);
                   int64_t c0 = 0;
                   for (int64_t c = 0; c < block.count; ++c) {
                     const int64_t n = call.captions.lengths[pairs.captions[block.first + c]];
                     for (int64_t r = 0; !t2i && r < rows; r += V::width) {
                       V::store(buffers.best + r, segment_maxima(s + r * ld + c0, ld, rows - r, n));
                     }
                     visit(image.image, block.first + c, t2i ? n : rows, t2i ? c0 : 0, c0);
                     c0 += n;
                   }
                 });
}

static void maxsim_forward(const MaxSimCall& call, const Rectangle& pairs, Workspace& memory) {
  MaxSimBuffers buffers = take_maxsim_buffers(call, memory);
  for_each_best(call, pairs, buffers, [&](int64_t i, int64_t c, int64_t queries, int64_t at, int64_t) {
    call.scores[pairs.slot(i, c)] = pool(buffers.best + at, queries, call.pooling, 1.0f);
  });
}

static void maxsim_backward(const MaxSimCall& call, const MaxSimGradients& out, const Rectangle& pairs,
                            Workspace& memory) {
  MaxSimBuffers buffers = take_maxsim_buffers(call, memory);
  const bool t2i = call.direction == Direction::t2i;
  for_each_best(call, pairs, buffers, [&](int64_t i, int64_t c, int64_t queries, int64_t at, int64_t c0) {
    const int64_t slot = pairs.slot(i, c), offset = out.offsets[slot];
    pool_gradient(buffers.best + at, queries, call.pooling, 1.0f, out.grad_scores[slot], buffers.grads);
    for (int64_t q = 0; q < queries; ++q) {
      int64_t best = 0;
      if (t2i) {
        best = static_cast<int64_t>(buffers.index[at + q]);
      } else {
        const float* s = buffers.similarities + q * call.limits.columns + c0;
        const int64_t n = call.captions.lengths[pairs.captions[c]];
        for (int64_t w = 1; w < n; ++w) best = s[w] > s[best] ? w : best;
      }
      out.best[offset + q] = static_cast<int32_t>(best);
      out.coefs[offset + q] = buffers.grads[q];
    }
  });
}

// Adds item `index` of `jobs`, columns [k0, k0 + kSlice): every query gets its best context's row, and that context the
// query's.
static void maxsim_feature_gradients(const MaxSimCall& call, const MaxSimGradients& from, bool of_images,
                                     const ItemPairs& jobs, int64_t index, int64_t k0, float* gradients,
                                     Workspace& memory) {
  const Side& own = of_images ? call.images : call.captions;
  const Side& other = of_images ? call.captions : call.images;
  const bool attends = of_images == (call.direction == Direction::i2t);
  const int64_t item = jobs.items[index], rows = own.lengths[item];
  const int64_t columns = own.dim - k0 < kSlice ? own.dim - k0 : kSlice;
  float* slice = memory.floats(own.longest * kSlice);
  for (int64_t i = 0; i < rows * kSlice; ++i) slice[i] = 0.0f;
  for (int64_t p = jobs.offsets[index]; p < jobs.offsets[index + 1]; ++p) {
    const int64_t partner = jobs.partners[p], offset = from.offsets[jobs.slots[p]];
    const int64_t queries = attends ? rows : other.lengths[partner];
    for (int64_t q = 0; q < queries; ++q) {
      const int64_t best = from.best[offset + q];
      const int64_t target = attends ? q : best, source = attends ? best : q;
      add_scaled_row(other, other.starts[partner] + source, k0, columns, from.coefs[offset + q],
                     slice + target * kSlice);
    }
  }
  add_slice(own, item, k0, columns, slice, gradients);
}

static int64_t maxsim_score_bytes(const MaxSimCall& call) {
  Workspace count;
  take_maxsim_buffers(call, count);
  return count.bytes();
}

static int64_t maxsim_feature_bytes(const MaxSimCall& call) {
  Workspace count;
  count.floats((call.images.longest > call.captions.longest ? call.images.longest : call.captions.longest) * kSlice);
  return count.bytes();
}

constexpr MaxSimKernels maxsim_kernels = {maxsim_forward, maxsim_backward, maxsim_feature_gradients, maxsim_score_bytes,
                                          maxsim_feature_bytes};

}  // namespace CROSSRET_ISA
}  // namespace crossret
