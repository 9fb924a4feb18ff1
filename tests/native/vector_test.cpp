// Checks every operation of a vector type, and of tiles, against plain arithmetic. Compiled once for each type:
//   -DCROSSRET_ISA=avx2 -DVECTOR='"simd/avx2.h"' [-DTILES='"simd/amx.h"'] [-DFUSED] [-DROUNDS_TO_ODD]
// FLUSHES: its dot products are emulated, and exact where the normal range ends. FUSED: its multiply-adds round once.
// ROUNDS_TO_ODD: its dot products of bfloat16 are those of aarch64, not of x86.
#include <sys/mman.h>
#include <unistd.h>

#include <cfloat>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>

#include VECTOR
#if defined(TILES)
#include TILES

#include "amx_permission.h"
#endif

#include "simd/math.inl"

using namespace crossret::CROSSRET_ISA;

namespace {

constexpr int W = V::width;
const float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::numeric_limits<float>::quiet_NaN();

int failures = 0;

__attribute__((format(printf, 2, 3))) void expect(bool right, const char* format, ...) {
  if (right || ++failures > 20) return;
  va_list values;
  va_start(values, format);
  std::vprintf(format, values);
  va_end(values);
  std::printf("\n");
}

template <class To, class From>
To cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "of one size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// The same bits, or both NaN.
bool same(float a, float b) { return cast<uint32_t>(a) == cast<uint32_t>(b) || (a != a && b != b); }
bool same(double a, double b) { return cast<uint64_t>(a) == cast<uint64_t>(b) || (a != a && b != b); }

uint32_t bits() {
  static std::mt19937 generator(0);
  return static_cast<uint32_t>(generator());
}

// Any bit pattern one time in two, else a number of middling size; every so often a special one.
float any_float() {
  static const float special[] = {0.0f,    -0.0f,    1.0f,      -1.0f,      kInfinity, -kInfinity, kNaN,
                                  FLT_MIN, -FLT_MIN, 0x1p-149f, -0x1p-149f, FLT_MAX,   -FLT_MAX,   0x1.fffffep-127f};
  const uint32_t kind = bits();
  if (kind % 8 == 0) return special[kind / 8 % (sizeof special / sizeof *special)];
  if (kind % 2 == 0) return cast<float>(bits());
  return std::ldexp(static_cast<float>(static_cast<int32_t>(bits())), -31);
}

float moderate() { return std::ldexp(static_cast<float>(static_cast<int32_t>(bits())), -29); }

struct Lanes {
  float x[W];
  Lanes() = default;
  explicit Lanes(F v) { V::store(x, v); }
  F vector() const { return V::load(x); }
};

bool at(V::Mask mask, int lane) { return Lanes(V::select(mask, V::set(1.0f), V::zero())).x[lane] != 0; }

template <class Make>
Lanes lanes_of(const Make& make) {
  Lanes lanes;
  for (float& x : lanes.x) x = make();
  return lanes;
}

// The last bytes before memory that may not be touched.
char* end_of_memory() {
  static char* const end = [] {
    const size_t page = sysconf(_SC_PAGESIZE);
    void* const pages = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(static_cast<char*>(pages) + page, page, PROT_NONE) != 0) std::abort();
    return static_cast<char*>(pages) + page;
  }();
  return end;
}

void check_arithmetic() {
  for (int round = 0; round < 4000; ++round) {
    const Lanes a = lanes_of(any_float), b = lanes_of(any_float), c = lanes_of(any_float);
    const F va = a.vector(), vb = b.vector(), vc = c.vector();
    const Lanes sum(V::add(va, vb)), difference(V::sub(va, vb)), product(V::mul(va, vb)), quotient(V::div(va, vb));
    const Lanes fused(V::fma(va, vb, vc)), root(V::sqrt(va)), most(V::max(va, vb)), least(V::min(va, vb));
    const V::Mask less = V::less(va, vb), nonzero = V::nonzero(va), nan = V::is_nan(va),
                  unordered = V::unordered(va, vb);
    const V::Mask both = V::either(less, nan);
    const Lanes selected(V::select(less, va, vb)), clipped(crossret::CROSSRET_ISA::clip(va, V::set(0.25f)));
    bool any_less = false;
    for (int i = 0; i < W; ++i) {
      const float x = a.x[i], y = b.x[i], z = c.x[i];
#if defined(FUSED)
      const float multiply_add = std::fma(x, y, z);
#else
      const float xy = x * y, multiply_add = xy + z;
#endif
      expect(same(sum.x[i], x + y), "%a + %a = %a", x, y, sum.x[i]);
      expect(same(difference.x[i], x - y), "%a - %a = %a", x, y, difference.x[i]);
      expect(same(product.x[i], x * y), "%a * %a = %a", x, y, product.x[i]);
      expect(same(quotient.x[i], x / y), "%a / %a = %a", x, y, quotient.x[i]);
      expect(same(fused.x[i], multiply_add), "fma(%a, %a, %a) = %a", x, y, z, fused.x[i]);
      expect(same(root.x[i], std::sqrt(x)), "sqrt(%a) = %a", x, root.x[i]);
      expect(same(most.x[i], x > y ? x : y), "max(%a, %a) = %a", x, y, most.x[i]);
      expect(same(least.x[i], x < y ? x : y), "min(%a, %a) = %a", x, y, least.x[i]);
      expect(same(selected.x[i], x < y ? x : y), "select(%a < %a) = %a", x, y, selected.x[i]);
      expect(same(clipped.x[i], x > 0 ? x : x * 0.25f), "clip(%a) = %a", x, clipped.x[i]);
      expect(at(less, i) == (x < y), "%a < %a", x, y);
      expect(at(nonzero, i) == !(x == 0), "nonzero(%a)", x);
      expect(at(nan, i) == (x != x), "is_nan(%a)", x);
      expect(at(unordered, i) == (x != x || y != y), "unordered(%a, %a)", x, y);
      expect(at(both, i) == (x < y || x != x), "either(%a, %a)", x, y);
      any_less = any_less || x < y;
    }
    expect(V::any(less) == any_less, "any");
  }
  for (int i = 0; i < W; ++i) {  // one lane alone
    Lanes one = lanes_of([] { return 0.0f; });
    expect(!V::any(V::nonzero(one.vector())), "any of none");
    one.x[i] = 1.0f;
    expect(V::any(V::nonzero(one.vector())), "any of lane %d alone", i);
  }
  for (const float x : {0.0f, -0.0f, 1.5f, kInfinity, kNaN}) {
    const Lanes all(V::set(x)), none(V::zero());
    for (int i = 0; i < W; ++i) expect(same(all.x[i], x) && same(none.x[i], 0.0f), "set(%a) = %a", x, all.x[i]);
  }
}

void check_rounding() {
  for (int round = 0; round < 4000; ++round) {
    Lanes a = lanes_of([] { return 64.0f * moderate(); });
    if (round % 2 == 0) {
      for (float& x : a.x) x = 0.5f * std::nearbyint(2.0f * x);  // ties
    }
    const Lanes whole(V::round(a.vector()));
    for (int i = 0; i < W; ++i) {
      expect(whole.x[i] == std::nearbyint(a.x[i]), "round(%a) = %a", a.x[i], whole.x[i]);
    }
    const Lanes mantissa =
        lanes_of([] { return std::ldexp(1.0f + std::ldexp(static_cast<float>(bits() >> 9), -23), -1); });
    const Lanes power = lanes_of([] { return static_cast<float>(static_cast<int>(bits() % 280) - 152); });
    const Lanes scaled(V::scale2(mantissa.vector(), power.vector()));
    for (int i = 0; i < W; ++i) {
      const float right =
          static_cast<float>(std::ldexp(static_cast<double>(mantissa.x[i]), static_cast<int>(power.x[i])));
      expect(same(scaled.x[i], right), "%a * 2^%g = %a", mantissa.x[i], power.x[i], scaled.x[i]);
    }
  }
  const Lanes nan(V::scale2(V::set(kNaN), V::set(kNaN)));
  for (const float x : nan.x) expect(x != x, "scale2(NaN) = %a", x);
}

void check_tails() {
  for (int n = 0; n <= W + 1; ++n) {
    const int there = n < W ? n : W;
    float* const last = reinterpret_cast<float*>(end_of_memory()) - there;
    uint16_t* const last_half = reinterpret_cast<uint16_t*>(end_of_memory()) - there;
    for (int i = 0; i < there; ++i) last[i] = static_cast<float>(i + 1);
    const Lanes loaded(V::load(last, n)), kept(V::keep_first(V::set(kNaN), n));
    const V::Mask mask = V::lanes(n);
    for (int i = 0; i < W; ++i) {
      expect(same(loaded.x[i], i < n ? static_cast<float>(i + 1) : 0.0f), "load of %d: lane %d is %a", n, i,
             loaded.x[i]);
      expect(at(mask, i) == (i < n), "lanes(%d): lane %d", n, i);
      expect(same(kept.x[i], i < n ? kNaN : 0.0f), "keep_first(%d): lane %d is %a", n, i, kept.x[i]);
    }
    V::store(last, V::set(7.0f), n);
    for (int i = 0; i < there; ++i) expect(last[i] == 7.0f, "store of %d: %d", n, i);
    float guarded[W + 2];
    for (float& x : guarded) x = -1.0f;
    V::store(guarded, V::set(3.0f), n);
    for (int i = 0; i < W + 2; ++i) expect(guarded[i] == (i < there ? 3.0f : -1.0f), "store of %d reaches %d", n, i);

    for (int i = 0; i < there; ++i) last_half[i] = static_cast<uint16_t>(0x3F80 + i);
    const Lanes from_bf16(V::load_bf16(last_half, n));
    for (int i = 0; i < W; ++i) {
      const float right = i < n ? cast<float>((0x3F80u + i) << 16) : 0.0f;
      expect(same(from_bf16.x[i], right), "load_bf16 of %d: lane %d is %a", n, i, from_bf16.x[i]);
    }
    for (int i = 0; i < there; ++i) last_half[i] = static_cast<uint16_t>(0x3C00 + i);
    const Lanes from_f16(V::load_f16(last_half, n));
    for (int i = 0; i < W; ++i) {
      const float right = i < n ? 1.0f + std::ldexp(static_cast<float>(i), -10) : 0.0f;
      expect(same(from_f16.x[i], right), "load_f16 of %d: lane %d is %a", n, i, from_f16.x[i]);
    }
    uint16_t halves[W + 2];
    for (const bool bf16 : {false, true}) {
      (bf16 ? V::store_bf16 : V::store_f16)(last_half, V::set(1.0f), n);
      for (uint16_t& x : halves) x = 0xABCD;
      (bf16 ? V::store_bf16 : V::store_f16)(halves, V::set(1.0f), n);
      const uint16_t one = bf16 ? 0x3F80 : 0x3C00;
      for (int i = 0; i < there; ++i) expect(last_half[i] == one, "store of %d halves: %d", n, i);
      for (int i = 0; i < W + 2; ++i)
        expect(halves[i] == (i < there ? one : 0xABCD), "store of %d halves reaches %d", n, i);
    }
  }
}

// The value of a float16, by its definition.
double value_of_f16(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const double sign = half & 0x8000 ? -1.0 : 1.0;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

// x rounded to `digits` binary digits, to nearest with ties to even, down to the last place 2^least and up to below
// 2^top.
double rounded(float x, int digits, int least, int top) {
  if (x != x || x == 0 || std::isinf(x)) return x;
  int exponent;
  std::frexp(x, &exponent);
  const int place = exponent - digits > least ? exponent - digits : least;
  const double near = std::ldexp(std::nearbyint(std::ldexp(static_cast<double>(x), -place)), place);
  return std::fabs(near) >= std::ldexp(1.0, top) ? std::copysign(std::numeric_limits<double>::infinity(), near) : near;
}

void check_half_precision() {
  for (uint32_t first = 0; first < 65536; first += W) {
    uint16_t halves[W], stored[W];
    for (int i = 0; i < W; ++i) halves[i] = static_cast<uint16_t>(first + i);
    const Lanes from_bf16(V::load_bf16(halves, W)), from_f16(V::load_f16(halves, W));
    for (int i = 0; i < W; ++i) {
      expect(same(from_bf16.x[i], cast<float>(static_cast<uint32_t>(halves[i]) << 16)), "load_bf16(%#x)", halves[i]);
      expect(same(from_f16.x[i], static_cast<float>(value_of_f16(halves[i]))), "load_f16(%#x) = %a", halves[i],
             from_f16.x[i]);
    }
    for (const uint32_t low :
         {0x0000u, 0x0001u, 0x0FFFu, 0x1000u, 0x1001u, 0x2FFFu, 0x3000u, 0x3001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      Lanes x;
      for (int i = 0; i < W; ++i) x.x[i] = cast<float>((first + i) << 16 | low);
      V::store_bf16(stored, x.vector(), W);
      for (int i = 0; i < W; ++i) {
        const double right = rounded(x.x[i], 8, -133, 128);
        expect(same(static_cast<double>(cast<float>(static_cast<uint32_t>(stored[i]) << 16)), right),
               "store_bf16(%a) = %#x", x.x[i], stored[i]);
      }
      V::store_f16(stored, x.vector(), W);
      for (int i = 0; i < W; ++i) {
        expect(same(value_of_f16(stored[i]), rounded(x.x[i], 11, -24, 16)), "store_f16(%a) = %#x", x.x[i], stored[i]);
      }
    }
  }
}

void check_rows() {
  for (int round = 0; round < 100; ++round) {
    Lanes rows[W];
    F r[W];
    const auto load_rows = [&] {
      for (int i = 0; i < W; ++i) r[i] = rows[i].vector();
    };
    for (Lanes& row : rows) row = lanes_of([] { return static_cast<float>(bits() % 1000); });
    load_rows();
    V::transpose(r);
    for (int i = 0; i < W; ++i) {
      const Lanes column(r[i]);
      for (int j = 0; j < W; ++j) expect(column.x[j] == rows[j].x[i], "transpose: %d, %d", i, j);
    }
    load_rows();
    const Lanes sums(sum_rows(r));
    load_rows();
    struct Max {
      F operator()(F a, F b) const { return V::max(a, b); }
    };
    const Lanes most(V::reduce_rows(r, Max{}));
    for (int i = 0; i < W; ++i) {
      float sum = 0, best = 0;
      for (const float x : rows[i].x) {
        sum += x;
        best = x > best ? x : best;
      }
      expect(sums.x[i] == sum && most.x[i] == best, "reduce_rows: row %d gives %g and %g", i, sums.x[i], most.x[i]);
      expect(V::reduce_add(rows[i].vector()) == sum, "reduce_add of row %d", i);
      expect(crossret::CROSSRET_ISA::max_of(rows[i].x, W) == best, "max_of row %d", i);
    }
  }
}

struct WideLanes {
  double x[W / 2];
  explicit WideLanes(V::Double v) { std::memcpy(x, &v, sizeof x); }
};

void check_doubles() {
  static_assert(sizeof(V::Double) == sizeof(F), "half as many lanes, each twice as wide");
  for (int round = 0; round < 1000; ++round) {
    const Lanes a = lanes_of(any_float), b = lanes_of(any_float), c = lanes_of(any_float);
    for (const bool high : {false, true}) {
      const auto half = [high](const Lanes& x) { return high ? V::high(x.vector()) : V::low(x.vector()); };
      const WideLanes wide(half(a)), fused(V::fma(half(a), half(b), half(c)));
      const WideLanes twice(V::fma(half(a), half(b), V::fma(half(b), half(c), V::zero_double())));
      for (int i = 0; i < W / 2; ++i) {
        const double x = a.x[high * W / 2 + i], y = b.x[high * W / 2 + i], z = c.x[high * W / 2 + i];
        expect(same(wide.x[i], x), "half %d: lane %d is %a", high, i, wide.x[i]);
        expect(same(fused.x[i], std::fma(x, y, z)), "fma(%a, %a, %a) = %a", x, y, z, fused.x[i]);
        expect(same(twice.x[i], std::fma(x, y, std::fma(y, z, 0.0))), "two products: %a", twice.x[i]);
      }
    }
    const Lanes n = lanes_of([] { return static_cast<float>(bits() % (1u << 24)); });
    double right = 0;
    for (const float x : n.x) right += static_cast<double>(x) * (1 << 24);
    const V::Double scale = V::low(V::set(1 << 24));
    const V::Double zero = V::zero_double();
    const double got = V::reduce_add(V::fma(V::low(n.vector()), scale, V::fma(V::high(n.vector()), scale, zero)));
    expect(got == right, "reduce_add of doubles: %a, not %a", got, right);
  }
}

void check_exp() {
  const auto check = [](const Lanes& x) {
    const Lanes y(crossret::CROSSRET_ISA::exp(x.vector()));
    for (int i = 0; i < W; ++i) {
      const double right = std::exp(static_cast<double>(x.x[i]));
      if (x.x[i] != x.x[i]) {
        expect(y.x[i] != y.x[i], "exp(NaN) = %a", y.x[i]);
      } else if (right >= FLT_MIN && x.x[i] <= 88.7228f) {
        const double place = std::ldexp(1.0, std::ilogb(right) - 23);
        expect(std::fabs(y.x[i] - right) <= 2 * place, "exp(%a) = %a, not %a", x.x[i], y.x[i], right);
      } else {
        expect(right > 1 ? y.x[i] > 3.4e38f : y.x[i] >= 0 && y.x[i] < FLT_MIN, "exp(%a) = %a", x.x[i], y.x[i]);
      }
    }
  };
  for (int round = 0; round < 4000; ++round) {
    check(lanes_of([] { return 24.0f * moderate(); }));
    check(lanes_of(moderate));
    check(lanes_of(any_float));
  }
}

// Functions within 4 ulp of one in double precision, wherever its result is a normal number.
template <class Ours, class Theirs>
void check_function(const char* name, const Ours& ours, const Theirs& theirs) {
  const auto check = [&](const Lanes& x) {
    const Lanes y(ours(x.vector()));
    for (int i = 0; i < W; ++i) {
      const double right = theirs(static_cast<double>(x.x[i]));
      const int exponent = right == 0 || std::ilogb(right) < -126 ? -126 : std::ilogb(right);
      const bool near = std::fabs(y.x[i] - right) <= 4 * std::ldexp(1.0, exponent - 23);
      expect(x.x[i] != x.x[i] ? y.x[i] != y.x[i] : near, "%s(%a) = %a, not %a", name, x.x[i], y.x[i], right);
    }
  };
  for (int round = 0; round < 4000; ++round) {
    check(lanes_of([] { return 4.0f * moderate(); }));
    check(lanes_of([] { return 0.25f * moderate(); }));
    check(lanes_of(any_float));
  }
}

// Pairs of bfloat16: two of them, anything in them.
[[maybe_unused]] float any_pair() {
  const auto half = [] { return cast<uint32_t>(any_float()) >> 16; };
  return cast<float>(half() << 16 | half());
}

[[maybe_unused]] float first_of(float pair) { return cast<float>(cast<uint32_t>(pair) << 16); }
[[maybe_unused]] float second_of(float pair) { return cast<float>(cast<uint32_t>(pair) & 0xFFFF0000u); }

// Below the normal range: zero, its sign kept.
[[maybe_unused]] float flushed(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }

// One step of the instructions of x86. That fma rounds results just below 2⁻¹²⁶ up to it where they should become zero
// is for check_flushing.
[[maybe_unused]] float step_of_x86(float a, float b, float sum) {
  return flushed(std::fma(flushed(a), flushed(b), flushed(sum)));
}

#if defined(ROUNDS_TO_ODD)
// a + b rounded to odd: cut off after float's digits, the last one set where that lost anything. Zero below the normal
// range, infinite beyond it.
float sum_to_odd(float a, float b) {
  a = flushed(a), b = flushed(b);
  const double sum = static_cast<double>(a) + b;
  if (sum != sum || std::isinf(sum) || sum == 0) return static_cast<float>(sum == 0 && !(a == 0 && b == 0) ? 0.0 : sum);
  const double of_b = sum - a, error = (a - (sum - of_b)) + (b - of_b);
  double magnitude = std::fabs(sum);
  if (sum > 0 ? error < 0 : error > 0) magnitude = std::nextafter(magnitude, 0.0);
  int exponent;
  std::frexp(magnitude, &exponent);
  const double place = std::ldexp(1.0, exponent - 24);
  double digits = std::floor(magnitude / place);
  if ((error != 0 || digits * place != magnitude) && std::fmod(digits, 2) == 0) digits += 1;
  if (digits * place >= std::ldexp(1.0, 128)) return std::copysign(kInfinity, static_cast<float>(sum > 0 ? 1 : -1));
  return flushed(static_cast<float>(std::copysign(digits * place, sum)));
}

float product_to_odd(float a, float b) {
  const double product = static_cast<double>(flushed(a)) * flushed(b);  // 16 digits
  if (std::fabs(product) >= std::ldexp(1.0, 128))
    return std::copysign(kInfinity, static_cast<float>(product > 0 ? 1 : -1));
  return std::fabs(product) < FLT_MIN ? static_cast<float>(std::copysign(0.0, product)) : static_cast<float>(product);
}

[[maybe_unused]] float right_dot(float a, float b, float sum) {
  const float first = product_to_odd(first_of(a), first_of(b)), second = product_to_odd(second_of(a), second_of(b));
  return sum_to_odd(sum, sum_to_odd(first, second));
}
#else
[[maybe_unused]] float right_dot(float a, float b, float sum) {
  return step_of_x86(first_of(a), first_of(b), step_of_x86(second_of(a), second_of(b), sum));
}
#endif

template <class Vec>
void check_dots() {
  static_assert(std::is_same<Vec, V>::value, "of the type that is tested");
  if constexpr (Vec::bf16_dots) {
    // Close exponents, where sums cancel and round; then anything.
    const auto close = [] {
      const auto half = [] { return (bits() & 0x80FFu) + 0x3F00u; };
      return cast<float>(half() << 16 | half());
    };
    for (int round = 0; round < 10000; ++round) {
      const bool ordinary = round % 2 == 0;
      const Lanes a = ordinary ? lanes_of(close) : lanes_of(any_pair),
                  b = ordinary ? lanes_of(close) : lanes_of(any_pair);
      const Lanes c = ordinary ? lanes_of(moderate) : lanes_of(any_float);
      const Lanes sums(Vec::dot_pairs(a.vector(), b.vector(), c.vector()));
      for (int i = 0; i < W; ++i) {
        const float right = right_dot(a.x[i], b.x[i], c.x[i]);
        expect(same(sums.x[i], right), "dot_pairs(%#x, %#x, %a) = %a, not %a", cast<uint32_t>(a.x[i]),
               cast<uint32_t>(b.x[i]), c.x[i], sums.x[i], right);
      }
    }
  }
}

#if defined(FLUSHES)
// Results are zero where they are below the normal range when rounded with an exponent that has no end, not only where
// the nearest float is.
void check_flushing() {
  const float one = cast<float>(0x00003F80u), small = cast<float>(0x00000080u);  // pairs (1, 0) and (2⁻¹²⁶, 0)
  struct {
    float scale, sum, right;
  } const cases[] = {
      {1.0f, 0.0f, 0x1p-126f},
      {0x1.fep-1f, 0.0f, 0.0f},
      {0x1.fep-1f, 0x1p-126f, 0x1.ffp-126f},
      {-0x1.fep-1f, 0.0f, -0.0f},
      {-0x1p-24f, 0x1p-126f, 0.0f},       // 2⁻¹²⁶ − 2⁻¹⁵⁰, a tie that a subnormal float would round up
      {-0x1p-25f, 0x1p-126f, 0x1p-126f},  // half a place nearer: a tie again, and even
      {-0x1.02p-25f, 0x1p-126f, 0.0f},
      {-0x1.fep-26f, 0x1p-126f, 0x1p-126f},
      {-0x1p-120f, 0x1p-126f, 0x1p-126f},
      {0x1p-1f, 0x1p-127f, 0.0f},  // the sum counts as zero
  };
  for (const auto& [scale, sum, right] : cases) {
    const float pair = cast<float>(cast<uint32_t>(scale) >> 16);
    const Lanes sums(V::dot_pairs(V::set(pair), V::set(small), V::set(sum)));
    const Lanes swapped(V::dot_pairs(V::set(small), V::set(pair), V::set(sum)));
    expect(same(sums.x[0], right), "%a * 2^-126 + %a = %a, not %a", scale, sum, sums.x[0], right);
    expect(same(swapped.x[W - 1], right), "2^-126 * %a + %a = %a", scale, sum, swapped.x[W - 1]);
  }
  const Lanes denormal(V::dot_pairs(V::set(cast<float>(0x0000007Fu)), V::set(one), V::zero()));
  expect(same(denormal.x[0], 0.0f), "an operand below the normal range gives %a", denormal.x[0]);
}
#endif

#if defined(TILES)
static_assert(Tiles::rows == 16 && Tiles::columns == 16 && Tiles::depth == 16, "whole tiles");

template <int T>
void check_one_tile() {
  float in[16][20], out[16][20];
  for (auto& row : in) {
    for (float& x : row) x = any_pair();
  }
  std::memset(out, 0xAB, sizeof out);
  Tiles::load<T>(in, sizeof in[0]);
  Tiles::store<T>(out[0], sizeof out[0]);
  for (int m = 0; m < 16; ++m) {
    expect(std::memcmp(in[m], out[m], 64) == 0, "tile %d: row %d", T, m);
    for (int n = 16; n < 20; ++n)
      expect(cast<uint32_t>(out[m][n]) == 0xABABABABu, "tile %d stores beyond its row %d", T, m);
  }
  Tiles::zero<T>();
  Tiles::store<T>(out[0], sizeof out[0]);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) expect(same(out[m][n], 0.0f), "tile %d zeroed: %d, %d", T, m, n);
  }
}

template <int C, int A, int B>
void check_product(bool ordinary) {
  const auto pair = [] {
    const auto half = [] { return (bits() & 0x81FFu) + 0x3E80u; };
    return cast<float>(half() << 16 | half());
  };
  float a[16][16], b[16][16], c[16][16], out[16][16];
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      // NaNs would soon be everywhere: few of anything that is not a small number.
      a[i][j] = ordinary || bits() % 64 != 0 ? pair() : any_pair();
      b[i][j] = ordinary || bits() % 64 != 0 ? pair() : any_pair();
      c[i][j] = ordinary ? moderate() : any_float();
    }
  }
  Tiles::load<A>(a, 64);
  Tiles::load<B>(b, 64);
  Tiles::load<C>(c, 64);
  Tiles::multiply<C, A, B>();
  Tiles::store<C>(out[0], 64);
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      float first = 0, second = 0;
      for (int k = 0; k < 16; ++k) {
        first = step_of_x86(first_of(a[m][k]), first_of(b[k][n]), first);
        second = step_of_x86(second_of(a[m][k]), second_of(b[k][n]), second);
      }
      const float right = flushed(flushed(c[m][n]) + flushed(first + second));
      expect(same(out[m][n], right), "tiles %d += %d * %d: %d, %d is %a, not %a", C, A, B, m, n, out[m][n], right);
    }
  }
}

void check_tiles() {
  const Tiles configured;
  float out[16][16];
  Tiles::store<3>(out[0], 64);
  for (const auto& row : out) {
    for (const float x : row) expect(same(x, 0.0f), "configured tiles hold %a", x);
  }
  check_one_tile<0>();
  check_one_tile<1>();
  check_one_tile<2>();
  check_one_tile<3>();
  check_one_tile<4>();
  check_one_tile<5>();
  check_one_tile<6>();
  check_one_tile<7>();
  for (int round = 0; round < 20; ++round) {
    check_product<0, 4, 6>(round % 2 == 0);
    check_product<1, 4, 7>(round % 2 == 0);
    check_product<2, 5, 6>(round % 2 == 0);
    check_product<3, 5, 7>(round % 2 == 0);
    check_product<7, 0, 1>(round % 2 == 0);
  }
}
#endif

}  // namespace

int main() {
  check_arithmetic();
  check_rounding();
  check_tails();
  check_half_precision();
  check_rows();
  check_doubles();
  check_exp();
  check_dots<V>();
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
