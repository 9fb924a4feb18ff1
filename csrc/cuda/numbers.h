// Numbers that Python passes to a launch, by name.
//
// A list macro CROSSRET_…_NUMBERS(X) holds X(name) for each. CROSSRET_NUMBERS makes a struct of int64 of it, and
// CROSSRET_REALS one of float64, with the names in the order of one tensor: torch would unpack a list one by one.
#pragma once
#include <torch/csrc/stable/tensor.h>

#include <cstring>
#include <type_traits>

namespace crossret {

#define CROSSRET_NUMBER(name) Number name;
#define CROSSRET_NUMBER_NAME(name) " " #name
#define CROSSRET_NUMBERS_OF(Struct, Type, LIST)                      \
  struct Struct {                                                    \
    using Number = Type;                                             \
    static constexpr const char* names = LIST(CROSSRET_NUMBER_NAME); \
    LIST(CROSSRET_NUMBER)                                            \
  }
#define CROSSRET_NUMBERS(Struct, LIST) CROSSRET_NUMBERS_OF(Struct, int64_t, LIST)
#define CROSSRET_REALS(Struct, LIST) CROSSRET_NUMBERS_OF(Struct, double, LIST)

template <class Numbers>
Numbers numbers_of(const torch::stable::Tensor& tensor) {
  using Type = torch::headeronly::ScalarType;
  constexpr bool whole = std::is_same_v<typename Numbers::Number, int64_t>;
  constexpr int64_t count = sizeof(Numbers) / sizeof(typename Numbers::Number);
  STD_TORCH_CHECK(
      tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == (whole ? Type::Long : Type::Double),
      "numbers must be ", whole ? "int64" : "float64", " on the CPU");
  STD_TORCH_CHECK(tensor.numel() == count, "there must be ", count, " numbers, not ", tensor.numel());
  Numbers numbers;
  std::memcpy(&numbers, tensor.const_data_ptr(), sizeof(Numbers));
  return numbers;
}

}  // namespace crossret
