// Arguments of pairwise operations, from tensors to views of their memory; what would lead out of it is refused.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "call.h"
#include "dispatch.h"
#include "pairs/backward.h"
#include "pairs/plan.h"
#include "pairs/operands.h"
#include "tensor.h"

namespace crossret {

// The integers of a 1-D int64 tensor.
const int64_t* integers(const torch::stable::Tensor& tensor, const char* name);

// One side of a call: items of any number of rows in the layout that they come in, as Python's `Ragged` has them.
//   padded (n, L, D), with `lengths` (n), a `mask` (n, L), or neither where all L rows are valid
//   packed (rows, D), item k in rows offsets[k] … offsets[k + 1] − 1
//   listed, several tensors (rows of an item, D), where the schema has a list in place of the values
//
// Two steps: arguments are taken, then read, so that what a check refuses is released. Python has checked what callers
// pass, but for values while torch.compile traces: only what would lead out of memory is checked again.
class Ragged {
 public:
  Ragged(Arguments& arguments, bool listed, const char* name);
  Ragged(const Ragged&) = delete;
  Ragged& operator=(const Ragged&) = delete;

  void read(bool allows_empty);
  // Computes the norms of all rows, by which kernels divide them.
  void normalize(const Kernels& kernels);

  const RaggedView& view() const { return view_; }
  bool has_empty() const { return has_empty_; }
  // Places of an item's rows in results: L of padded features, else rows of the longest item.
  int64_t width() const { return width_; }

  // Zeros of the values' shape and dtype; (0,) where no gradient is wanted.
  torch::stable::Tensor new_gradient(bool wanted) const;

 private:
  void read_list();
  void read_offsets();
  void read_mask();
  void read_lengths();
  // An item of `length` rows from `rows` on; `first` is the row of its gradient.
  void add(const char* rows, int64_t row_bytes, int64_t length, int64_t first);

  const char* const name_;
  std::vector<torch::stable::Tensor> values_;
  const std::optional<torch::stable::Tensor> offsets_, lengths_, mask_;
  std::vector<Item> items_;
  std::vector<int32_t> places_;
  std::vector<float> norms_;
  RaggedView view_{};
  bool allows_empty_ = false, has_empty_ = false;
  int64_t width_ = 0;
};

// Arguments of every pairwise operation besides its own options, in the order of the schemas, seen as contexts and
// queries; and the kernels of its dtype.
class Batch {
 public:
  explicit Batch(Arguments& arguments, bool listed = false);

  // Reads both sides and the pairs. All arguments of the call have been taken.
  void read(const Arguments& arguments);

  const Kernels& kernels() const { return *kernels_; }  // one choice for the whole call
  const PairList* pairs() const { return pairs_ ? &*pairs_ : nullptr; }

  // Completes a call's operands.
  void lay_out(Operands& operands) const;

  // Results of every pair, (images, captions) or (P,), filled where an item is empty: float32 scores, and int64 rows of
  // `width` indices, by default as many as the longest item has queries.
  torch::stable::Tensor new_scores() const;
  torch::stable::Tensor new_indices(std::optional<int64_t> width) const;
  // Strides of the scores of all pairs.
  int64_t context_stride() const { return words_attend_ ? words_.view().count : 1; }
  int64_t query_stride() const { return words_attend_ ? 1 : words_.view().count; }

  // ∂L/∂scores, of the scores' shape and any strides.
  ScoreGradients gradients(const torch::stable::Tensor& grad_scores) const;

  const Ragged& regions() const { return regions_; }
  const Ragged& words() const { return words_; }
  const Ragged& contexts() const { return words_attend_ ? regions_ : words_; }
  const Ragged& queries() const { return words_attend_ ? words_ : regions_; }
  bool words_attend() const { return words_attend_; }
  bool has_empty() const { return regions_.has_empty() || words_.has_empty(); }

 private:
  int64_t count() const { return pairs_ ? pairs_->count : regions_.view().count * words_.view().count; }

  Ragged regions_, words_;
  std::optional<torch::stable::Tensor> listed_;  // (P, 2) int64: image, caption
  const std::optional<double> empty_score_;
  const bool split_float32_;
  const bool words_attend_;  // t2i: regions are the contexts; else i2t
  const bool normalize_;
  const Kernels* kernels_ = nullptr;
  std::optional<PairList> pairs_;
};

}  // namespace crossret
