// The gradient of one side's features: summed in float32, rounded once to the features' dtype, in bounded memory.
#pragma once
#include <memory>
#include <vector>

#include "pairs/plan.h"
#include "pairs/operands.h"

namespace crossret {

// Turns the summed gradient of one row into the returned one, in place for float32.
using FinishGradient = void (*)(const RaggedView&, int64_t item, int64_t row, const float* sum, void* out);

// float32 gradients are summed in the returned tensor. Those of narrower features, and of masked items, whose rows lie
// apart, are summed in a buffer of some items at a time: begin(items), add to rows(item), finish().
class SideGradient {
 public:
  // `out`, zeros of the side's shape and dtype, is null where no gradient is wanted.
  SideGradient(const RaggedView& side, void* out, FinishGradient finish);

  bool wanted() const { return out_ != nullptr; }
  bool begun() const { return wanted() && items_.begin < items_.end; }
  // Floats of a buffer for all items.
  int64_t floats() const;
  // All items in ranges whose buffers hold at most `floats`, or a single item.
  std::vector<Range> ranges(int64_t floats) const;

  void begin(Range items);
  // The sum of the gradient of an item's rows, an item of the begun range.
  float* rows(int64_t item) const;
  void finish();

 private:
  bool buffered() const { return wanted() && (side_.dtype != Dtype::float32 || side_.masked); }

  const RaggedView& side_;
  void* const out_;
  const FinishGradient finish_;
  Range items_{0, 0};
  std::unique_ptr<float[]> buffer_;
  std::vector<int64_t> offsets_;  // rows of the buffer ahead of each item's
};

}  // namespace crossret
