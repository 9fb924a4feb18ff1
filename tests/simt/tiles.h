// Boxes of a matrix in the device's memory, copied into shared memory by a unit of its own.
//
// Memory that a box overwrites is checked when the box is asked for, and belongs to nobody until its bytes are waited
// for at their barrier.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "arrivals.h"
#include "device.h"
#include "machine.h"
#include "shared.h"

namespace simt {

constexpr int kChunkBytes = 16, kBoxRowBytes = 128, kBoxAlignment = 1024;

// Byte of a box at which chunk `chunk` of row `row` lies.
constexpr int64_t swizzled(int64_t row, int chunk) {
  return kChunkBytes * (row * (kBoxRowBytes / kChunkBytes) + (chunk ^ static_cast<int>(row % 8)));
}

// The rows of a matrix, of which boxes are copied.
struct BoxedRows {
  int buffer;
  const char* begin;
  int64_t rows, row_bytes;
  int box_rows;

  int box_bytes() const { return box_rows * kBoxRowBytes; }
};

class BoxCopies : public Unit {
 public:
  BoxCopies() { machine.add(this); }

  void begin() override { copies_.clear(); }

  void issue(SharedMemory* memory, int64_t to, const BoxedRows& from, int column, int row, ArrivalBarrier& at) {
    if (memory == nullptr) machine.fail("no shared memory", "a pointer to nothing");
    memory->check_box(to, from.box_bytes(), kBoxAlignment);
    const Copy copy{memory, to, from, column, row, &at};
    const int64_t bytes = copy.bytes_of_row();
    for (int64_t r = std::max(row, 0); r < std::min<int64_t>(from.rows, int64_t{row} + from.box_rows) && bytes > 0;
         ++r) {
      Device::check(from.buffer, copy.source(r), bytes, false, kChunkBytes);
    }
    const Access access = at.issue(from.box_bytes());
    for (int64_t i = 0; i < from.box_bytes(); i += kChunkBytes) memory->write_by_copy(to + i, access);
    if (machine.schedule().late()) return copies_.push_back(copy);
    land(copy);
  }

  // The first that somebody waits for comes, or else the first.
  bool go_on() override {
    if (copies_.empty()) return false;
    auto first = std::find_if(copies_.begin(), copies_.end(), [](const Copy& copy) { return copy.at->awaited(); });
    if (first == copies_.end()) first = copies_.begin();
    const Copy copy = *first;
    copies_.erase(first);
    land(copy);
    return true;
  }

 private:
  struct Copy {
    SharedMemory* memory;
    int64_t to;
    BoxedRows from;
    int column, row;
    ArrivalBarrier* at;

    int64_t bytes_of_row() const {
      return std::clamp<int64_t>(from.row_bytes - int64_t{column} * kBoxRowBytes, 0, kBoxRowBytes);
    }
    const char* source(int64_t r) const { return from.begin + r * from.row_bytes + int64_t{column} * kBoxRowBytes; }
  };

  static void land(const Copy& copy) {
    for (int r = 0; r < copy.from.box_rows; ++r) {
      char row[kBoxRowBytes] = {};
      const int64_t of_matrix = int64_t{copy.row} + r;
      if (of_matrix >= 0 && of_matrix < copy.from.rows && copy.bytes_of_row() > 0) {
        std::memcpy(row, copy.source(of_matrix), static_cast<size_t>(copy.bytes_of_row()));
      }
      for (int chunk = 0; chunk < kBoxRowBytes / kChunkBytes; ++chunk) {
        std::memcpy(copy.memory->address(copy.to + swizzled(r, chunk)), row + chunk * kChunkBytes, kChunkBytes);
      }
    }
    copy.at->land(copy.from.box_bytes());
  }

  std::vector<Copy> copies_;  // on their way
};

inline BoxCopies box_copies;

}  // namespace simt
