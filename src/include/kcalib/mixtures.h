// Inner products of embedded mixtures: target factors of predictions that are distributions, and their MMD distances.
//
// A row of columns (kcalib/_problem.py, `Mixtures`, says which) is a signed measure, "observed minus predicted". The
// functions give one product f of two of its parts, for one row and N packs of columns: a(k) is column k of the row's
// part, a number, b(k, v) that of the columns' in pack v. All are sums of positive terms: nothing cancels but between
// the parts. cpu/mixture_kernels.cpp adds the parts up.
//
// `reciprocal_root` is the including file's, as the packs are: cpu/pack.h.
//
// Columns of zeros alone, which fill up panels, give finite numbers. Numbers that enter squares and products are within
// Bounds, others finite: kcalib/_operators/openmp.py sees to it.
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

namespace {

// What columns are bounded by, and how many of their sums may be multiplied.
template <class T> struct Bounds;
template <> struct Bounds<double> {
  static constexpr double tiny = 0x1p-120;
  static constexpr int factors = 8;
};
template <> struct Bounds<float> {
  static constexpr float tiny = 0x1p-60f;
  static constexpr int factors = 2;
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

}  // namespace
}  // namespace kcalib
