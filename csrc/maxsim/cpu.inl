// Sum-Max over one rectangle of pairs: SCAN Eqs. 9 and 10, forward and backward.
namespace crossret {
namespace CROSSRET_ISA {

static float maxsim_pool(const float* values, int64_t queries, Pooling pooling) {
  return pool(values, queries, pooling, 1.0f);
}

static void maxsim_forward(const MaxSimCall& call, const Rectangle& pairs, Workspace& memory) {
  BestBuffers buffers = take_best_buffers(call, false, memory);
  for_each_best<false>(call, pairs, buffers, [&](int64_t slot, int64_t queries, const float* best, const int32_t*) {
    call.scores[slot] = maxsim_pool(best, queries, call.pooling);
  });
}

static void maxsim_argmax(const MaxSimCall& call, const Rectangle& pairs, Workspace& memory) {
  BestBuffers buffers = take_best_buffers(call, true, memory);
  for_each_best<true>(call, pairs, buffers, [&](int64_t slot, int64_t queries, const float*, const int32_t* index) {
    int64_t* row = call.argmax + slot * call.argmax_row;
    for (int64_t q = 0; q < call.argmax_row; ++q) row[q] = q < queries ? index[q] : -1;
  });
}

static void maxsim_best(const MaxSimCall& call, const Rectangle& pairs, float* values, Workspace& memory) {
  BestBuffers buffers = take_best_buffers(call, false, memory);
  for_each_best<false>(call, pairs, buffers, [&](int64_t, int64_t queries, const float* best, const int32_t*) {
    __builtin_memcpy(values, best, queries * sizeof(float));
    values += queries;
  });
}

static void maxsim_backward(const MaxSimCall& call, const MaxSimGradients& out, const Rectangle& pairs,
                            Workspace& memory) {
  BestBuffers buffers = take_best_buffers(call, true, memory);
  for_each_best<true>(call, pairs, buffers,
                      [&](int64_t slot, int64_t queries, const float* best, const int32_t* index) {
                        const int64_t offset = out.offsets[slot];
                        pool_gradient(best, queries, call.pooling, 1.0f, out.grad_scores[slot], out.coefs + offset);
                        for (int64_t q = 0; q < queries; ++q) out.best[offset + q] = index[q];
                      });
}

// Adds the items of a group, columns [k0, k0 + kSlice): every query gets its best context's row, and that context the
// query's.
static void maxsim_feature_gradients(const MaxSimCall& call, const MaxSimGradients& from, bool of_images,
                                     const ItemPairs& jobs, const JobGroup& group, int64_t k0, Workspace& memory) {
  const Side& own = of_images ? call.images : call.captions;
  const Side& other = of_images ? call.captions : call.images;
  const bool attends = of_images == (call.direction == Direction::i2t);
  const int64_t columns = own.dim - k0 < kSlice ? own.dim - k0 : kSlice;
  float* slice = memory.floats(own.longest * kSlice);
  for (int64_t k = 0; k < group.count; ++k) {
    const int64_t job = group.first + k, item = jobs.items[job], rows = own.lengths[item];
    for (int64_t i = 0; i < rows * kSlice; ++i) slice[i] = 0.0f;
    for (int64_t p = jobs.offsets[job]; p < jobs.offsets[job + 1]; ++p) {
      const int64_t partner = jobs.partners[p], offset = from.offsets[jobs.slots[p]];
      const int64_t queries = attends ? rows : other.lengths[partner];
      for (int64_t q = 0; q < queries; ++q) {
        const int64_t best = from.best[offset + q];
        const int64_t target = attends ? q : best, source = attends ? best : q;
        add_scaled_row(other, other.starts[partner] + source, k0, columns, from.coefs[offset + q],
                       slice + target * kSlice);
      }
    }
    add_slice(own, item, k0, columns, slice, group.sums[k]);
  }
}

static int64_t maxsim_score_bytes(const MaxSimCall& call) {
  Workspace count;
  take_best_buffers(call, true, count);
  return count.bytes();
}

static int64_t maxsim_feature_bytes(const MaxSimCall& call) {
  Workspace count;
  count.floats((call.images.longest > call.captions.longest ? call.images.longest : call.captions.longest) * kSlice);
  return count.bytes();
}

constexpr MaxSimKernels maxsim_kernels = {maxsim_forward,     maxsim_argmax,       maxsim_best,
                                          maxsim_pool,        maxsim_backward,     maxsim_feature_gradients,
                                          maxsim_score_bytes, maxsim_feature_bytes};

}  // namespace CROSSRET_ISA
}  // namespace crossret
