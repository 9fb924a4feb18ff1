// What went wrong in a run, as text for Python.
#pragma once
#include <cstdint>
#include <cstdio>
#include <exception>

// 0, or 1 and what went wrong.
template <class Run>
int reported(char* message, int64_t size, const Run& run) {
  try {
    run();
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(message, static_cast<size_t>(size), "%s", error.what());
    return 1;
  }
}
