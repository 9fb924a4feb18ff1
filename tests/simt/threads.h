// Threads as the machine sees them: what they wait for, and what works beside them.
#pragma once
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

#include "fibers.h"

namespace simt {

// What a kernel did wrong; its text names the kind, the kernel, the block and the thread.
struct Mistake : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class State { ready, in_warp, in_group, in_barrier, pausing, asleep, done };

struct Fiber {
  Context context;
  State state;
  int line;                                     // of what it waits at
  int barrier;                                  // its number
  bool vote;                                    // its own, then of all who meet there
  void* argument;                               // of the warp's operation
  const std::function<std::string()>* awaited;  // what it sleeps for
};

struct Barrier {
  int arrived, expected, line;
};

// An operation that all threads of a warp or of a warpgroup take part in.
struct Operation {
  int arrived;
  const char* kind;
  int line;
};

// A unit that works beside the threads of a cluster.
struct Unit {
  virtual void begin() {}  // with the cluster
  // Does what may still happen where no thread can go on, if anything.
  virtual bool go_on() { return false; }
  virtual void end_thread() {}  // of the running thread
  virtual void end() {}         // of the cluster
};

}  // namespace simt
