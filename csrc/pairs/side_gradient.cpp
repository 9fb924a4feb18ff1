#include "pairs/side_gradient.h"

#include "pairs/parallel.h"

namespace crossret {

SideGradient::SideGradient(const RaggedView& side, void* out, FinishGradient finish)
    : side_(side), out_(out), finish_(finish) {}

int64_t SideGradient::floats() const { return buffered() ? side_.rows * side_.dim : 0; }

std::vector<Range> SideGradient::ranges(int64_t floats) const {
  const Range all{0, side_.count};
  return buffered() ? split(side_, all, floats / side_.dim) : std::vector<Range>{all};
}

void SideGradient::begin(Range items) {
  items_ = items;
  if (!buffered()) return;
  offsets_.assign(1, 0);
  for (int64_t item = items.begin; item < items.end; ++item) {
    offsets_.push_back(offsets_.back() + side_.length(item));
  }
  buffer_.reset(new float[offsets_.back() * side_.dim]());
}

float* SideGradient::rows(int64_t item) const {
  return buffered() ? buffer_.get() + offsets_[item - items_.begin] * side_.dim
                    : static_cast<float*>(out_) + side_.items[item].gradient * side_.dim;
}

void SideGradient::finish() {
  // Without normalisation a float32 sum is the result.
  if (buffered() || (wanted() && side_.norms != nullptr)) {
    const int64_t row_bytes = side_.dim * side_.element_bytes();
    Memory none;
    parallel(items_.end - items_.begin, pass_work(side_), 0, none, [&](int64_t index, Workspace&) {
      const int64_t item = items_.begin + index;
      for (int64_t r = 0; r < side_.length(item); ++r) {
        char* const out = static_cast<char*>(out_) + side_.gradient_row(item, r) * row_bytes;
        finish_(side_, item, r, rows(item) + r * side_.dim, out);
      }
    });
  }
  items_ = {0, 0};
  buffer_.reset();
}

}  // namespace crossret
