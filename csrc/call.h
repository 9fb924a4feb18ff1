// Arguments of a call through torch's stable ABI.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>

#include "pairs/operands.h"

namespace crossret {

// The arguments, taken in the order of the operation's schema.
class Arguments {
 public:
  Arguments(StableIValue* stack, uint64_t count) : next_(stack), end_(stack + count) {}

  template <class T>
  T take() {
    STD_TORCH_CHECK(next_ != end_, "the schema has too few arguments");
    return torch::stable::detail::to<T>(*next_++);
  }

  void finish() const { STD_TORCH_CHECK(next_ == end_, "the schema has too many arguments"); }

 private:
  StableIValue* next_;
  StableIValue* const end_;
};

// An option by its code, its place in Python's list of options.
template <class Option, size_t n>
Option chosen(const char* name, const Option (&options)[n], int64_t code) {
  STD_TORCH_CHECK(code >= 0 && code < static_cast<int64_t>(n), "unknown ", name, " ", code);
  return options[code];
}

constexpr bool kWordsAttend[] = {true, false};  // by direction

inline Pooling pooling_of(int64_t code, bool has_topk = false) {
  constexpr Pooling options[] = {Pooling::lse, Pooling::avg,     Pooling::sum,
                                 Pooling::max, Pooling::softmax, Pooling::topk};
  const Pooling pooling = chosen("pooling", options, code);
  STD_TORCH_CHECK(has_topk || pooling != Pooling::topk, "unknown pooling ", code);
  return pooling;
}

}  // namespace crossret
