// Laplace distributions on a line, P = Laplace(m, b), for the kernel l = exp(-|y - y'|).
//
// Columns: w, m, b. f(P, P') is a divided difference.
#pragma once

#include "kcalib/families/common.h"

namespace kcalib {
namespace {

// E1(p) = (1 - exp(-p)) / p, which is 1 at 0: minus the divided difference of exp(-x) at 0 and p.
template <class V> KCALIB_FN V first_difference(V p) {
  p = at_least(p, Bounds<Real<V>>::tiny);
  return one_minus_exp(p) * reciprocal(p);
}

// E2(p, q), the divided difference of exp(-x) at 0, p and q >= p, of which E1(p) and, for s = q - p, exp(-p) E1(s) are
// at hand. For small q it is sum_k (-1)^k h_k(p, q) / (k + 2)!, with h_k the sum of the monomials of degree k.
template <class V> KCALIB_FN V second_difference(V p, V q, V at_p, V beyond_p) {
  using R = Real<V>;
  const R coefficients[] = {R(-1.0 / 6),     R(1.0 / 24),     R(-1.0 / 120),    R(1.0 / 720),
                            R(-1.0 / 5040),  R(1.0 / 40320),  R(-1.0 / 362880), R(1.0 / 3628800)};
  V series = splat<V>(R(0.5)), power = splat<V>(R(1)), h = splat<V>(R(1));
  const V small_p = at_most(p, R(1)), small_q = at_most(q, R(1));
  for (const R c : coefficients) {
    power *= small_p;
    h = h * small_q + power;
    series = c * h + series;
  }
  const V difference = (at_p - beyond_p) * reciprocal(at_least(q, Bounds<R>::tiny));
  return q < Bounds<R>::taylor ? series : difference;
}

// E exp(-|Z - Z'|) is twice the density at delta = |m - m'| of the sum of independent Laplace variables with scales 1, b
// and b'. Its partial fractions cancel for scales near each other; with divided differences all terms are positive.
// First for b' = 0, with 1 / b at hand.
template <class V> KCALIB_FN V laplace_at(V delta, V b, V inverse) {
  using R = Real<V>;
  const V x = at_most(delta * at_most(inverse, R(1)), -Constants<R>::exp_low);
  const V p = delta * magnitude(b - R(1)) * inverse;
  return exp_minus(x) * (x * first_difference(p) + R(1)) * reciprocal(b + R(1));
}

template <class V> KCALIB_FN V laplace_between(V delta, V b, V inverse_b, V c, V inverse_c) {
  using R = Real<V>;
  const V low = lower(b, c), high = higher(b, c);
  const V r = at_least(high, R(1)), s = higher(low, at_most(high, R(1))), t = at_most(low, R(1));  // 1, b, c in order
  const V inverse_low = higher(inverse_b, inverse_c), inverse_high = lower(inverse_b, inverse_c);
  const V inverse_r = at_most(inverse_high, R(1)), inverse_t = at_least(inverse_low, R(1));
  const V inverse_s = higher(inverse_high, at_most(inverse_low, R(1)));

  const V x = at_most(delta * inverse_r, -Constants<R>::exp_low), y = delta * inverse_s;
  const V p = at_least(delta * inverse_r * (r - s) * inverse_s, Bounds<R>::tiny);
  const V q = delta * inverse_r * (r - t) * inverse_t;
  const V below_one = one_minus_exp(p), at_p = below_one * reciprocal(p);
  const V beyond_p = (R(1) - below_one) * first_difference(y * (s - t) * inverse_t);
  const V at_r = exp_minus(x), second = second_difference(p, q, at_p, beyond_p);

  const V r_s = r + s, products = r * s + (s + r) * t;
  const V inverse = reciprocal(r_s * (s + t) * (r + t));
  return inverse * (products * (exp_minus(y) + y * at_r * at_p) + x * at_r * (y * second) * (t * r_s));
}

template <class V> KCALIB_FN V laplace_scale(V b) { return at_least(b, Bounds<Real<V>>::tiny); }

struct Laplace : AnyFamily {
  KCALIB_FN static constexpr long long columns(long long) { return 3; }
  static constexpr double BOUND_SINGLE = 0x1p39;
  static constexpr int MAX_DIMS = 1;
  static constexpr double COST = 4;  // branches of the formula

  // l(y, y').
  template <int N, class V, class Row, class Column> KCALIB_FN static void points(Row a, Column b, int, V* f) {
    for (int v = 0; v < N; ++v) f[v] = exp_minus(magnitude(a(0) - b(0, v)));
  }

  // w f(P, y'), w' f(y, P') and w w' f(P, P').
  template <int N, class V, class Row, class Column> KCALIB_FN static void component_point(Row a, Column b, int, V* f) {
    const V scale = laplace_scale(splat<V>(a(2))), inverse = reciprocal(scale);
    for (int v = 0; v < N; ++v) f[v] = a(0) * laplace_at<V>(magnitude(a(1) - b(0, v)), scale, inverse);
  }
  template <int N, class V, class Row, class Column> KCALIB_FN static void point_component(Row a, Column b, int, V* f) {
    for (int v = 0; v < N; ++v) {
      const V scale = laplace_scale(b(2, v));
      f[v] = b(0, v) * laplace_at<V>(magnitude(a(0) - b(1, v)), scale, reciprocal(scale));
    }
  }
  template <int N, class V, class Row, class Column> KCALIB_FN static void components(Row a, Column b, int, V* f) {
    const V scale = laplace_scale(splat<V>(a(2))), inverse = reciprocal(scale);
    for (int v = 0; v < N; ++v) {
      const V other = laplace_scale(b(2, v));
      f[v] = a(0) * b(0, v) * laplace_between<V>(magnitude(a(1) - b(1, v)), scale, inverse, other, reciprocal(other));
    }
  }
};

}  // namespace
}  // namespace kcalib
