// Checks every operation of a vector type, and of tiles, against plain arithmetic. Compiled once for each type:
//   -DCROSSRET_ISA=avx2 -DVECTOR='"simd/avx2.h"' [-DTILES='"simd/amx.h"'] [-DFUSED] [-DROUNDS_TO_ODD]
// FLUSHES: its dot products are emulated, and exact where the normal range ends. FUSED: its multiply-adds round once.
// ROUNDS_TO_ODD: its dot products of bfloat16 are those of aarch64, not of x86.
#include "vector_arithmetic.h"
#include "vector_halves.h"
#if defined(TILES)
#include "vector_tiles.h"
#endif

int main() {
  check_arithmetic();
  check_rounding();
  check_tails();
  check_half_precision();
  check_rows();
  check_doubles();
  check_exp();
#if defined(CROSSRET_BF16_DOTS)
  check_dots();
#endif
#if defined(FLUSHES)
  check_flushing();
#endif
#if defined(TILES)
  crossret::amx_permitted();  // of the system; emulated tiles need none
  check_tiles();
#endif
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
