// Inner products of embedded mixtures: target factors of predictions that are distributions, and their MMD distances.
//
// A row of columns (kcalib/_pairs/problem.py, `Mixtures`, says which) is a signed measure, "observed minus predicted". The
// functions give one product f of two of its parts, for one row and N packs of columns: a(k) is column k of the row's
// part, a number, b(k, v) that of the columns' in pack v. All are sums of positive terms: nothing cancels but between
// the parts. cpu/mixture_kernels.cpp and cuda/mixtures.cuh add the parts up.
//
// `reciprocal_root`, `reciprocal`, `magnitude`, `lower` and `higher` are the including file's, as the packs are: cpu/pack.h,
// and for single numbers cuda/scalars.cuh.
//
// Columns of zeros alone, which fill up panels, give finite numbers. Numbers that enter squares and products are within
// Bounds, others finite: kcalib/_pairs/operators/mixture_rows.py sees to it.
#pragma once

#include "kcalib/profiles.h"

namespace kcalib {

enum Family : int { NORMAL = 0, NORMAL_FULL = 1, LAPLACE = 2, ATOMS = 3 };

struct Mixtures {
  int family;
  int n_dims, n_components, n_terms;
  KernelProgram kernel;  // of atoms
};

constexpr int MAX_FULL_DIMS = 16;  // of normals with full covariances

KCALIB_FN constexpr long component_columns(const Mixtures& m) {
  const long d = m.n_dims;
  switch (m.family) {
    case NORMAL: return 2 + 3 * d;
    case NORMAL_FULL: return 2 + d + d * (d + 1);
    case LAPLACE: return 3;
    default: return 1 + d;
  }
}

// Whose MMD distances `normals_apart` has.
KCALIB_FN constexpr bool single_normals(const Mixtures& m) { return m.family == NORMAL && m.n_components == 1; }

namespace {

// What `tiny` keeps away from 0 has an inverse; columns are at most about 1 / tiny, and `root` is the root of that.
template <class T> struct Bounds;
template <> struct Bounds<double> {
  static constexpr double tiny = 0x1p-120, root = 0x1p60, far = 0x1p400;
  static constexpr int factors = 8;  // as many columns may be multiplied
  static constexpr double taylor = 1.0 / 16;  // `second_difference` is a series below
};
template <> struct Bounds<float> {
  static constexpr float tiny = 0x1p-60f, root = 0x1p30f, far = 0x1p60f;
  static constexpr int factors = 2;
  static constexpr float taylor = 0.5f;
};

// l(y, y') = exp(-|y - y'|^2).
template <int N, class V, class Row, class Column> KCALIB_FN void gaussian_points(Row a, Column b, int d, V* f) {
  V q[N] = {};
  for (int k = 0; k < d; ++k)
    for (int v = 0; v < N; ++v) {
      const V c = a(k) - b(k, v);
      q[v] = c * c + q[v];
    }
  for (int v = 0; v < N; ++v) f[v] = exp_minus(q[v]);
}

// w f(P, y') of a component and a point, and w' f(y, P').
template <int N, class V, class Row, class Column> KCALIB_FN void normal_point(Row a, Column b, int d, V* f) {
  V q[N] = {};
  for (int k = 0; k < d; ++k)
    for (int v = 0; v < N; ++v) {
      const V c = a(2 + k) - b(k, v);
      q[v] = c * c * a(2 + 2 * d + k) + q[v];
    }
  for (int v = 0; v < N; ++v) f[v] = a(1) * exp_minus(q[v]);
}
template <int N, class V, class Row, class Column> KCALIB_FN void point_normal(Row a, Column b, int d, V* f) {
  V q[N] = {};
  for (int k = 0; k < d; ++k)
    for (int v = 0; v < N; ++v) {
      const V c = a(k) - b(2 + k, v);
      q[v] = c * c * b(2 + 2 * d + k, v) + q[v];
    }
  for (int v = 0; v < N; ++v) f[v] = b(1, v) * exp_minus(q[v]);
}

// w w' f(P, P'): sum_k c_k^2 / A_k is one fraction, N / P, of several dimensions at a time.
template <int N, class V, class Row, class Column> KCALIB_FN void normal_normal(Row a, Column b, int d, V* f) {
  using B = Bounds<Real<V>>;
  V q[N] = {};
  for (int v = 0; v < N; ++v) f[v] = a(0) * b(0, v);
  for (int first = 0; first < d; first += B::factors) {
    const int end = first + B::factors < d ? first + B::factors : d;
    V numerator[N], product[N];
    for (int v = 0; v < N; ++v) {
      const V c = a(2 + first) - b(2 + first, v);
      numerator[v] = c * c;
      product[v] = a(2 + d + first) + b(2 + d + first, v);
    }
    for (int k = first + 1; k < end; ++k)
      for (int v = 0; v < N; ++v) {
        const V c = a(2 + k) - b(2 + k, v), sum = a(2 + d + k) + b(2 + d + k, v);
        numerator[v] = numerator[v] * sum + c * c * product[v];
        product[v] = product[v] * sum;
      }
    for (int v = 0; v < N; ++v) {
      const V root = reciprocal_root(at_least(product[v], B::tiny));
      q[v] += numerator[v] * root * root;
      f[v] *= root;
    }
  }
  for (int v = 0; v < N; ++v) f[v] *= exp_minus(q[v]);
}

// A lower triangle, row by row: element (i, j), j <= i.
KCALIB_FN constexpr int triangle(int i, int j) { return i * (i + 1) / 2 + j; }

// The same with full covariances; W is the lower triangle of an inverse, so that |W (m - y)|^2 is a sum of squares.
template <int N, class V, class Difference, class Triangle>
KCALIB_FN void sum_of_squares(Difference c, Triangle w, int d, V* q) {
  for (int v = 0; v < N; ++v) q[v] = V{};
  for (int i = 0; i < d; ++i) {
    V z[N] = {};
    for (int j = 0; j <= i; ++j)
      for (int v = 0; v < N; ++v) z[v] = w(triangle(i, j), v) * c(j, v) + z[v];
    for (int v = 0; v < N; ++v) q[v] = z[v] * z[v] + q[v];
  }
}
template <int N, class V, class Row, class Column> KCALIB_FN void full_normal_point(Row a, Column b, int d, V* f) {
  const int first = 2 + d + triangle(d, 0);
  V q[N];
  sum_of_squares<N>([&](int k, int v) -> V { return a(2 + k) - b(k, v); },
                    [&](int k, int) { return a(first + k); }, d, q);
  for (int v = 0; v < N; ++v) f[v] = a(1) * exp_minus(q[v]);
}
template <int N, class V, class Row, class Column> KCALIB_FN void point_full_normal(Row a, Column b, int d, V* f) {
  const int first = 2 + d + triangle(d, 0);
  V q[N];
  sum_of_squares<N>([&](int k, int v) -> V { return a(k) - b(2 + k, v); },
                    [&](int k, int v) { return b(first + k, v); }, d, q);
  for (int v = 0; v < N; ++v) f[v] = b(1, v) * exp_minus(q[v]);
}

// A = H + H' = L L^T row by row, and the solution z of L z = m - m' with it: f = prod_i L_ii^(-1) exp(-|z|^2).
// No eigenvalue of A is below 1, so no pivot is, and no element of L exceeds the root of A's; where rounding breaks
// this, covariances are so far apart in size that f is nearly 0.
template <int N, class V, class Row, class Column> KCALIB_FN void full_normals(Row a, Column b, int d, V* root_product, V* exponent) {
  using B = Bounds<Real<V>>;
  for (int v = 0; v < N; ++v) {
    V lower_part[MAX_FULL_DIMS * (MAX_FULL_DIMS + 1) / 2], root[MAX_FULL_DIMS], z[MAX_FULL_DIMS];
    V q{}, product = a(0) * b(0, v);
    for (int i = 0; i < d; ++i) {
      V* row = lower_part + triangle(i, 0);
      V rest = a(2 + i) - b(2 + i, v), pivot = a(2 + d + triangle(i, i)) + b(2 + d + triangle(i, i), v);
      for (int j = 0; j < i; ++j) {
        const V* other = lower_part + triangle(j, 0);
        V element = a(2 + d + triangle(i, j)) + b(2 + d + triangle(i, j), v);
        for (int k = 0; k < j; ++k) element -= row[k] * other[k];
        element = at_most(at_least(element * root[j], -B::root), B::root);
        row[j] = element;
        pivot -= element * element;
        rest -= element * z[j];
      }
      root[i] = reciprocal_root(at_least(pivot, Real<V>(1)));
      z[i] = at_most(at_least(rest * root[i], -B::far), B::far);
      q = z[i] * z[i] + q;
      product *= root[i];
    }
    root_product[v] = product;
    exponent[v] = q;
  }
}
template <int N, class V, class Row, class Column> KCALIB_FN void full_normal_full_normal(Row a, Column b, int d, V* f) {
  V q[N];
  full_normals<N>(a, b, d, f, q);
  for (int v = 0; v < N; ++v) f[v] *= exp_minus(q[v]);
}


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

// w f(P, y'), w' f(y, P') and w w' f(P, P').
template <class V> KCALIB_FN V laplace_scale(V b) { return at_least(b, Bounds<Real<V>>::tiny); }
template <int N, class V, class Row, class Column> KCALIB_FN void laplace_point(Row a, Column b, V* f) {
  const V scale = laplace_scale(splat<V>(a(2))), inverse = reciprocal(scale);
  for (int v = 0; v < N; ++v) f[v] = a(0) * laplace_at<V>(magnitude(a(1) - b(0, v)), scale, inverse);
}
template <int N, class V, class Row, class Column> KCALIB_FN void point_laplace(Row a, Column b, V* f) {
  for (int v = 0; v < N; ++v) {
    const V scale = laplace_scale(b(2, v));
    f[v] = b(0, v) * laplace_at<V>(magnitude(a(0) - b(1, v)), scale, reciprocal(scale));
  }
}
template <int N, class V, class Row, class Column> KCALIB_FN void laplace_laplace(Row a, Column b, V* f) {
  const V scale = laplace_scale(splat<V>(a(2))), inverse = reciprocal(scale);
  for (int v = 0; v < N; ++v) {
    const V other = laplace_scale(b(2, v));
    f[v] = a(0) * b(0, v) * laplace_between<V>(magnitude(a(1) - b(1, v)), scale, inverse, other, reciprocal(other));
  }
}

// Squared MMD distances of normals with diagonal covariances, of which a row is w, r, m[d], h[d], g[d] with
// r^2 = w^2 f(P, P) and g = 1 / (2 h):
//   (r - r')^2 + 2 r r' (1 - exp(-Q)),   Q = sum_k c_k^2 / A_k + log(1 + X) / 4,   1 + X = prod_k A_k^2 / (4 h_k h'_k),
// which loses no digits where two are nearly the same: 1 + X = prod_k (1 + (h_k - h'_k)^2 g_k g'_k).
template <int N, class V, class Row, class Column> KCALIB_FN void normals_apart(Row a, Column b, int d, V* out) {
  using R = Real<V>;
  using B = Bounds<R>;
  V q[N] = {};
  for (int first = 0; first < d; first += B::factors) {
    const int end = first + B::factors < d ? first + B::factors : d;
    V numerator[N] = {}, product[N], excess[N] = {};
    for (int v = 0; v < N; ++v) product[v] = splat<V>(R(1));
    for (int k = first; k < end; ++k)
      for (int v = 0; v < N; ++v) {
        const V c = a(2 + k) - b(2 + k, v), sum = a(2 + d + k) + b(2 + d + k, v), gap = a(2 + d + k) - b(2 + d + k, v);
        numerator[v] = numerator[v] * sum + c * c * product[v];
        product[v] = product[v] * sum;
        const V x = gap * gap * a(2 + 2 * d + k) * b(2 + 2 * d + k, v);
        excess[v] = excess[v] + (excess[v] * x + x);
      }
    for (int v = 0; v < N; ++v)
      q[v] += numerator[v] * reciprocal(at_least(product[v], B::tiny)) + R(0.25) * log1p(excess[v]);
  }
  for (int v = 0; v < N; ++v) {
    const V gap = a(1) - b(1, v);
    out[v] = gap * gap + R(2) * a(1) * b(1, v) * one_minus_exp(q[v]);
  }
}

}  // namespace
}  // namespace kcalib
