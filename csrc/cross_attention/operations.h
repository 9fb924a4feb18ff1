// The operations of stacked cross attention on a GPU, as torch calls them.
#pragma once
#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <string>

namespace crossret {

// A line each: the name of a constant and its values.
std::string attention_told();

void attention_job_rows(StableIValue* stack, uint64_t n_arguments, uint64_t);
void attend(StableIValue* stack, uint64_t n_arguments, uint64_t);
void pack_rows(StableIValue* stack, uint64_t n_arguments, uint64_t);
void attention_gradients(StableIValue* stack, uint64_t n_arguments, uint64_t);
void finish_gradients(StableIValue* stack, uint64_t n_arguments, uint64_t);

}  // namespace crossret
