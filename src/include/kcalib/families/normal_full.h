// Normal distributions with full covariances, P = N(m, (H - I/2) / 2), for the kernel l = exp(-|y - y'|^2).
//
// Columns: w, v, m[d], H[tri], W[tri], lower triangles row by row, with W the inverse of the Cholesky factor of H + I/2 and
// v = w prod diag(W), which f(P, y) takes. f(P, P') is |A|^(-1/2) exp(-(m - m')^T A^(-1) (m - m')) with A = H + H'.
#pragma once

#include "kcalib/families/common.h"

namespace kcalib {
namespace {

// A lower triangle, row by row: element (i, j), j <= i.
KCALIB_FN constexpr int triangle(int i, int j) { return i * (i + 1) / 2 + j; }

// |W c|^2 for a lower triangle W.
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

struct NormalFull : AnyFamily {
  KCALIB_FN static constexpr long long columns(long long d) { return 2 + d + d * (d + 1); }
  static constexpr int MAX_DIMS = 16;
  static constexpr double COST = 2.5;  // a factorisation
  static constexpr bool MATRICES = true;
  static constexpr Single SINGLE = Single::SPLIT;

  // l(y, y').
  template <int N, class V, class Row, class Column> KCALIB_FN static void points(Row a, Column b, int d, V* f) {
    gaussian_points<N>(a, b, d, f);
  }

  // w f(P, y') of a component and a point, and w' f(y, P').
  template <int N, class V, class Row, class Column> KCALIB_FN static void component_point(Row a, Column b, int d, V* f) {
    const int first = 2 + d + triangle(d, 0);
    V q[N];
    sum_of_squares<N>([&](int k, int v) -> V { return a(2 + k) - b(k, v); },
                      [&](int k, int) { return a(first + k); }, d, q);
    for (int v = 0; v < N; ++v) f[v] = a(1) * exp_minus(q[v]);
  }
  template <int N, class V, class Row, class Column> KCALIB_FN static void point_component(Row a, Column b, int d, V* f) {
    const int first = 2 + d + triangle(d, 0);
    V q[N];
    sum_of_squares<N>([&](int k, int v) -> V { return a(k) - b(2 + k, v); },
                      [&](int k, int v) { return b(first + k, v); }, d, q);
    for (int v = 0; v < N; ++v) f[v] = b(1, v) * exp_minus(q[v]);
  }

  // A = H + H' = L L^T row by row, and the solution z of L z = m - m' with it: f = prod_i L_ii^(-1) exp(-|z|^2).
  // No eigenvalue of A is below 1, so no pivot is, and no element of L exceeds the root of A's; where rounding breaks
  // this, covariances are so far apart in size that f is nearly 0.
  template <int N, class V, class Row, class Column>
  KCALIB_FN static void split(Row a, Column b, int d, V* root_product, V* exponent) {
    using B = Bounds<Real<V>>;
    for (int v = 0; v < N; ++v) {
      V lower_part[MAX_DIMS * (MAX_DIMS + 1) / 2], root[MAX_DIMS], z[MAX_DIMS];
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
  template <int N, class V, class Row, class Column> KCALIB_FN static void components(Row a, Column b, int d, V* f) {
    V q[N];
    split<N>(a, b, d, f, q);
    for (int v = 0; v < N; ++v) f[v] *= exp_minus(q[v]);
  }
};

}  // namespace
}  // namespace kcalib
