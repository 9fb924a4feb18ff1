// The sigmoid loss (SigLIP, Algorithm 1) of a tile of scores.
namespace crossret {
namespace CROSSRET_ISA {

// log (1 + eˣ), within a few ulp; NaN stays NaN. By log (1 + u) = 2 artanh (u / (2 + u)), which loses no digit of a
// small u.
static inline F softplus(F x) {
  const F u = exp(V::min(x, V::sub(V::zero(), x)));
  const F w = V::div(u, V::add(V::set(2.0f), u)), square = V::mul(w, w);
  constexpr float terms[] = {1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3};
  F y = V::set(1.0f / 13);
  for (const float term : terms) y = V::fma(y, square, V::set(term));
  return V::fma(V::add(w, w), V::fma(y, square, V::set(1.0f)), V::max(V::zero(), x));
}

// The logits whose softplus is the loss: of positives the sign is turned.
static inline F signed_logits(F z, V::Mask negative) { return V::select(negative, z, V::sub(V::zero(), z)); }

static void measure_sigmoid(const ContrastiveCall& call, const Tile& tile, float* losses, float* scratch) {
  each_vector(
      call, tile, widened(call, tile, scratch), [&](int64_t) { return V::zero(); },
      [&](F& row, int64_t, int64_t, int64_t left, F s, V::Mask negative) __attribute__((always_inline)) {
        const F z = logits_of(call, s, left), loss = softplus(signed_logits(z, negative));
        row = V::add(row, V::select(is_left_out(z), V::zero(), loss));
      },
      [&](const F& row, int64_t r) { losses[tile.row + r] += V::reduce_add(row); });
}

static void differentiate_sigmoid(const ContrastiveCall& call, const Tile& tile, const float* grads, char* out,
                                  int64_t out_row_bytes, float* scratch, ContrastiveSums& sums) {
  float made[kTileColumns];
  struct Row {
    float* to;
    F grad, of_scores, of_all;
  };
  each_vector(
      call, tile, widened(call, tile, scratch),
      [&](int64_t r) {
        const bool in_place = out != nullptr && call.dtype == Dtype::float32;
        return Row{in_place ? reinterpret_cast<float*>(out + r * out_row_bytes) : made, V::set(grads[tile.row + r]),
                   V::zero(), V::zero()};
      },
      [&](Row& row, int64_t, int64_t c, int64_t left, F s, V::Mask negative) __attribute__((always_inline)) {
        const F z = logits_of(call, s, left), slope = V::mul(row.grad, sigmoid(signed_logits(z, negative)));
        const V::Mask out_of_it = is_left_out(z);
        const F gradient = V::select(out_of_it, V::zero(), signed_logits(slope, negative));
        row.of_scores = V::fma(V::select(out_of_it, V::zero(), s), gradient, row.of_scores);
        row.of_all = V::add(row.of_all, gradient);
        V::store(row.to + c, V::mul(V::set(call.scale), gradient), left);
      },
      [&](const Row& row, int64_t r) {
        sums.scores += static_cast<double>(V::reduce_add(row.of_scores));
        sums.all += static_cast<double>(V::reduce_add(row.of_all));
        if (out != nullptr) narrow(call, made, tile.columns, out + r * out_row_bytes);
      });
}

extern const ContrastiveLossKernels contrastive_loss_kernels;
const ContrastiveLossKernels contrastive_loss_kernels = {measure_softmax, merge_softmax, differentiate_softmax,
                                                         measure_sigmoid, differentiate_sigmoid};

}  // namespace CROSSRET_ISA
}  // namespace crossret
