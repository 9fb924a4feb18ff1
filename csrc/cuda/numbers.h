// Numbers that host code in Python hands to a launch, by name.
//
// They are listed once, CROSSRET_…_NUMBERS(X) with an X of every name. Of that list CROSSRET_NUMBERS makes a struct,
// and says the names in the order in which the numbers travel: as one tensor, for lists are taken apart one by one.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <cstring>

namespace crossret {

#define CROSSRET_NUMBER(name) int64_t name;
#define CROSSRET_NUMBER_NAME(name) " " #name
#define CROSSRET_NUMBERS(Struct, LIST)                               \
  struct Struct {                                                    \
    static constexpr const char* names = LIST(CROSSRET_NUMBER_NAME); \
    LIST(CROSSRET_NUMBER)                                            \
  }

template <class Numbers>
Numbers numbers_of(const torch::stable::Tensor& tensor) {
  constexpr int64_t count = sizeof(Numbers) / sizeof(int64_t);
  STD_TORCH_CHECK(
      tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == torch::headeronly::ScalarType::Long,
      "numbers must be int64 on the CPU");
  STD_TORCH_CHECK(tensor.numel() == count, "there must be ", count, " numbers, not ", tensor.numel());
  Numbers numbers;
  std::memcpy(&numbers, tensor.const_data_ptr(), sizeof(Numbers));
  return numbers;
}

}  // namespace crossret
