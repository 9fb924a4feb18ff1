// Plain arithmetic of a vector type: single operations, rounding, tails, rows, doubles, exp.
#pragma once
#include "vector_lanes.h"

namespace {

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

}  // namespace
