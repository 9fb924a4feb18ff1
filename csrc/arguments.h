// The tensors of a pairwise operation as the kernels take them: every argument that they rely on is checked here.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "dispatch.h"
#include "pairs/backward.h"
#include "pairs/plan.h"
#include "pairs/side.h"
#include "tensor.h"

namespace crossret {

// The integers of a 1-D int64 tensor.
const int64_t* integers(const torch::stable::Tensor& tensor, const char* name);

// One side of the batch as operations take it: one tensor padded (n, L, D) with `lengths` (n), a `mask` (n, L), or
// neither where all L rows are valid; or one packed (rows, D), item k in rows offsets[k] … offsets[k + 1] − 1; or,
// without any of these, several tensors (rows of an item, D).
struct SideTensors {
  std::vector<torch::stable::Tensor> values;
  std::optional<torch::stable::Tensor> offsets, lengths, mask;
};

// One side of the batch, its bounds checked, the norms of its rows computed where it is to be normalised.
class CheckedSide {
 public:
  CheckedSide(SideTensors tensors, bool allows_empty, const char* name);
  CheckedSide(const CheckedSide&) = delete;
  CheckedSide& operator=(const CheckedSide&) = delete;

  void normalize(const Kernels& kernels);

  const Side& side() const { return side_; }
  bool has_empty() const { return has_empty_; }
  // Queries of each item that an index has a place for: rows of padded features, else of the longest item.
  int64_t width() const { return width_; }

  // A zero gradient of all rows; empty where it is not wanted.
  torch::stable::Tensor new_gradient(bool wanted) const;

 private:
  void read_list();
  void read_offsets();
  void read_mask();
  void read_lengths();
  // An item of the rows at `rows`; `first` is that of its gradient.
  void add(const char* rows, int64_t row_bytes, int64_t length, int64_t first);

  const char* const name_;
  const bool allows_empty_;
  SideTensors tensors_;
  std::vector<Item> items_;
  std::vector<int32_t> places_;
  std::vector<float> norms_;
  Side side_{};
  bool has_empty_ = false;
  int64_t width_ = 0;
};

// What every pairwise operation is given besides its own options.
struct BatchArguments {
  SideTensors regions, words;
  std::optional<torch::stable::Tensor> pairs;
  std::optional<double> empty_score;
  bool split_float32;
  int64_t direction;  // 0, t2i: regions are the contexts and words attend; 1, i2t: the other way round
  bool normalize;
};

// A batch whose kernels are chosen, seen as contexts and queries.
class CheckedBatch {
 public:
  explicit CheckedBatch(BatchArguments arguments);

  const Kernels& kernels() const { return *kernels_; }  // one choice for the whole call
  const PairList* pairs() const { return pairs_ ? &*pairs_ : nullptr; }

  // Completes a call's operands.
  void lay_out(Operands& operands) const;

  // A tensor of one value, or of a row of so many, for every pair, filled where an item is empty; and from pair to pair
  // of one.
  torch::stable::Tensor new_scores() const;
  torch::stable::Tensor new_indices(std::optional<int64_t> width) const;
  int64_t context_stride() const { return words_attend_ ? words_.side().count : 1; }
  int64_t query_stride() const { return words_attend_ ? 1 : words_.side().count; }

  // The scores' gradients, checked.
  ScoreGradients gradients(const torch::stable::Tensor& grad_scores) const;

  const CheckedSide& regions() const { return regions_; }
  const CheckedSide& words() const { return words_; }
  bool words_attend() const { return words_attend_; }

 private:
  const CheckedSide& queries() const { return words_attend_ ? words_ : regions_; }
  int64_t count() const { return pairs_ ? pairs_->count : regions_.side().count * words_.side().count; }

  const bool words_attend_, split_float32_;
  const std::optional<double> empty_score_;
  CheckedSide regions_, words_;
  const Kernels* kernels_;
  std::optional<torch::stable::Tensor> rows_;
  std::optional<PairList> pairs_;
};

}  // namespace crossret
