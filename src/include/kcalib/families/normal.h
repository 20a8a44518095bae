// Normal distributions with independent entries, P = N(m, diag(h - 1/2) / 2), for the kernel l = exp(-|y - y'|^2).
//
// Columns: w, v, m[d], h[d], i[d], with i = 1 / (h + 1/2) and v = w prod i^(1/2), which f(P, y) takes. f(P, P') is
// |A|^(-1/2) exp(-sum_k (m_k - m'_k)^2 / A_k) with A = h + h'.
#pragma once

#include "kcalib/families/common.h"

namespace kcalib {
namespace {

struct Normal : AnyFamily {
  KCALIB_FN static constexpr long long columns(long long d) { return 2 + 3 * d; }
  static constexpr bool LINE = true;
  static constexpr Single SINGLE = Single::APART;

  // l(y, y').
  template <int N, class V, class Row, class Column> KCALIB_FN static void points(Row a, Column b, int d, V* f) {
    gaussian_points<N>(a, b, d, f);
  }

  // w f(P, y') of a component and a point, and w' f(y, P').
  template <int N, class V, class Row, class Column> KCALIB_FN static void component_point(Row a, Column b, int d, V* f) {
    V q[N] = {};
    for (int k = 0; k < d; ++k)
      for (int v = 0; v < N; ++v) {
        const V c = a(2 + k) - b(k, v);
        q[v] = c * c * a(2 + 2 * d + k) + q[v];
      }
    for (int v = 0; v < N; ++v) f[v] = a(1) * exp_minus(q[v]);
  }
  template <int N, class V, class Row, class Column> KCALIB_FN static void point_component(Row a, Column b, int d, V* f) {
    V q[N] = {};
    for (int k = 0; k < d; ++k)
      for (int v = 0; v < N; ++v) {
        const V c = a(k) - b(2 + k, v);
        q[v] = c * c * b(2 + 2 * d + k, v) + q[v];
      }
    for (int v = 0; v < N; ++v) f[v] = b(1, v) * exp_minus(q[v]);
  }

  // w w' f(P, P'): sum_k c_k^2 / A_k is one fraction, N / P, of several dimensions at a time.
  template <int N, class V, class Row, class Column> KCALIB_FN static void components(Row a, Column b, int d, V* f) {
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

  // Squared MMD distances of single components, of which a row is w, r, m[d], h[d], g[d] with
  // r^2 = w^2 f(P, P) and g = 1 / (2 h):
  //   (r - r')^2 + 2 r r' (1 - exp(-Q)),   Q = sum_k c_k^2 / A_k + log(1 + X) / 4,   1 + X = prod_k A_k^2 / (4 h_k h'_k),
  // which loses no digits where two are nearly the same: 1 + X = prod_k (1 + (h_k - h'_k)^2 g_k g'_k).
  template <int N, class V, class Row, class Column> KCALIB_FN static void apart(Row a, Column b, int d, V* out) {
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
};

}  // namespace
}  // namespace kcalib
