// Sum-Max over one rectangle of pairs: SCAN Eqs. 9 and 10, forward and backward.
namespace crossret {
namespace CROSSRET_ISA {

struct MaxSimBuffers {
  BlockBuffers blocks;
  float* best;   // of each query: the largest similarity …
  float* index;  // … and which context has it, as a float vector lane
  float* grads;
};

static MaxSimBuffers take_maxsim_buffers(const MaxSimCall& call, Workspace& memory) {
  const bool t2i = call.direction == Direction::t2i;
  const int64_t queries = call.limits.columns;
  MaxSimBuffers buffers{};
  buffers.blocks =
      take_buffers(t2i ? call.images : call.captions, t2i ? call.captions : call.images, call.limits, false, memory);
  buffers.best = memory.floats(queries);
  buffers.index = memory.floats(queries);
  buffers.grads = memory.floats(queries);
  return buffers;
}

// The best context of the queries in columns [j, j + width).
static void best_context(const float* s, int64_t ld, int64_t rows, int64_t j, MaxSimBuffers& buffers) {
  F best = V::load(s + j), index = V::zero();
  for (int64_t r = 1; r < rows; ++r) {
    const F x = V::load(s + r * ld + j);
    index = V::select(V::less(best, x), V::set(static_cast<float>(r)), index);
    best = max_or_nan(x, best);
  }
  V::store(buffers.best + j, best);
  V::store(buffers.index + j, index);
}

// Calls visit(slot, number of queries, their places in the buffers).
template <class Visit>
static void for_each_best(const MaxSimCall& call, const Rectangle& pairs, MaxSimBuffers& buffers, const Visit& visit) {
  const Roles roles(call.images, call.captions, pairs, call.direction);
  for_each_block(roles, call.limits, buffers.blocks, [&](const ContextItem& item, const QueryBlock& block) {
    for (int64_t j = 0; j < block.columns; j += V::width) {
      best_context(item.similarities, call.limits.columns, item.n, j, buffers);
    }
    int64_t c0 = 0;
    for (int64_t q = block.first; q < block.first + block.count; ++q) {
      const int64_t n = roles.query_rows(q);
      visit(roles.slot(item.index, q), n, c0);
      c0 += n;
    }
  });
}

static void maxsim_forward(const MaxSimCall& call, const Rectangle& pairs, Workspace& memory) {
  MaxSimBuffers buffers = take_maxsim_buffers(call, memory);
  for_each_best(call, pairs, buffers, [&](int64_t slot, int64_t queries, int64_t at) {
    call.scores[slot] = pool(buffers.best + at, queries, call.pooling, 1.0f);
  });
}

static void maxsim_backward(const MaxSimCall& call, const MaxSimGradients& out, const Rectangle& pairs,
                            Workspace& memory) {
  MaxSimBuffers buffers = take_maxsim_buffers(call, memory);
  for_each_best(call, pairs, buffers, [&](int64_t slot, int64_t queries, int64_t at) {
    const int64_t offset = out.offsets[slot];
    pool_gradient(buffers.best + at, queries, call.pooling, 1.0f, out.grad_scores[slot], buffers.grads);
    for (int64_t q = 0; q < queries; ++q) {
      out.best[offset + q] = static_cast<int32_t>(buffers.index[at + q]);
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
