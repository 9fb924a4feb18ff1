// Fibers: stacks that one host thread changes between.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <new>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "fibers are changed by code for x86-64"
#endif

namespace simt {

extern "C" void simt_switch(void** save, void* to);

// Keeps the registers that a called function must keep.
asm(R"(
.text
.weak simt_switch
.type simt_switch,@function
simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch,.-simt_switch
)");

// What waits on a stack of its own.
struct Context {
  void* stack_pointer = nullptr;
  const void* bottom = nullptr;  // of its stack, and the stack's bytes: for AddressSanitizer alone
  size_t bytes = 0;
};

// Returns when someone changes back, if anyone does.
inline void change(Context& from, const Context& to, [[maybe_unused]] bool comes_back = true) {
#if defined(__SANITIZE_ADDRESS__)
  void* locals = nullptr;
  __sanitizer_start_switch_fiber(comes_back ? &locals : nullptr, to.bottom, to.bytes);
#endif
  simt_switch(&from.stack_pointer, to.stack_pointer);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(locals, nullptr, nullptr);
#endif
}

// The first thing on a new stack; the first of several comes from the host's stack, which it notes.
inline void arrive([[maybe_unused]] Context& host) {
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (host.bottom == nullptr) host.bottom = bottom, host.bytes = bytes;
#endif
}

class Stacks {
 public:
  void grow(int count) {
    while (static_cast<int>(stacks_.size()) < count) {
      void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED || mprotect(memory, kGuard, PROT_NONE) != 0) throw std::bad_alloc();
      stacks_.push_back(static_cast<char*>(memory));
    }
  }

  // Of a function that never returns.
  Context begin(int number, void (*function)()) {
    char* const bottom = stacks_[number];
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(bottom + kGuard, kBytes - kGuard);  // where functions were left for good
#endif
    // A function begins with its stack 8 bytes off a multiple of 16: what a call leaves.
    void** const top = reinterpret_cast<void**>(bottom + kBytes - 8 - number % 32 * kStagger);
    for (int i = 2; i <= 7; ++i) top[-i] = nullptr;
    top[-1] = reinterpret_cast<void*>(function);
    return {top - 7, bottom + kGuard, kBytes - kGuard};
  }

 private:
  static constexpr size_t kBytes = 84 << 10, kGuard = 4096;  // of a stack, and of the unmapped page below it
  // Bytes between where stacks begin in their pages, or they would meet in few lines of the processor's cache.
  static constexpr size_t kStagger = 9 * 64;

  std::vector<char*> stacks_;
};

}  // namespace simt
