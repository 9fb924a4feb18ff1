// What kernels tell host code in Python of themselves: a line each, a name and its values.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>

namespace crossret {
namespace gpu {

inline std::string told(const char* name, std::initializer_list<int64_t> values) {
  std::string line = name;
  for (const int64_t value : values) line += " " + std::to_string(value);
  return line + "\n";
}

}  // namespace gpu
}  // namespace crossret
