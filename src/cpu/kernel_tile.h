// The kernel of a register tile's pairs from their quantities, factor by factor: one switch over profiles for a tile.
// Included by tile.cpp and mixture_kernels.cpp, once per instruction set.
//
// `Quantities` has squared(metric) for metrics whose squares are at hand, distance(metric) for the others, and dot():
// arrays of TILE packs.
#pragma once

#include "kcalib/profiles.h"
#include "register_tile.h"

namespace kcalib {
namespace {

KCALIB_FN bool is_squared(int metric) { return metric == EUCLIDEAN || metric == MMD; }

// out = profile(distance), and out = profile(squared distance), in the factor's metric.
template <class V, class Quantities, class F>
KCALIB_FN void of_distance(int metric, Quantities& quantities, V* out, F&& profile) {
  if (!is_squared(metric)) {
    const V* d = quantities.distance(metric);
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) out[i] = profile(d[i]);
  } else {
    const V* d2 = quantities.squared(metric);
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) out[i] = profile(square_root(d2[i]));
  }
}
template <class V, class Quantities, class F>
KCALIB_FN void of_square(int metric, Quantities& quantities, V* out, F&& profile) {
  if (!is_squared(metric)) {
    const V* d = quantities.distance(metric);
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) out[i] = profile(d[i] * d[i]);
  } else {
    const V* d2 = quantities.squared(metric);
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) out[i] = profile(d2[i]);
  }
}

template <class V, class Quantities> void factor_values(const Factor& factor, Quantities& quantities, V* out) {
  using R = Real<V>;
  const R a = R(factor.scale), shape = R(factor.shape);
  const int metric = factor.metric;
  switch (factor.profile) {
    case EXPONENTIAL: return of_distance(metric, quantities, out, [=](V d) KCALIB_INLINE { return exponential(d, a); });
    case GAUSSIAN: return of_square(metric, quantities, out, [=](V d2) KCALIB_INLINE { return gaussian(d2, a); });
    case GAMMA_EXPONENTIAL:
      return of_distance(metric, quantities, out, [=](V d) KCALIB_INLINE { return gamma_exponential(d, a, shape); });
    case MATERN_3_2: return of_distance(metric, quantities, out, [=](V d) KCALIB_INLINE { return matern_3_2(d, a); });
    case MATERN_5_2: return of_distance(metric, quantities, out, [=](V d) KCALIB_INLINE { return matern_5_2(d, a); });
    case RATIONAL_QUADRATIC:
      return of_square(metric, quantities, out, [=](V d2) KCALIB_INLINE { return rational_quadratic(d2, a, shape); });
    default:  // IDENTITY
      if (metric != DOT) return of_distance(metric, quantities, out, [=](V d) KCALIB_INLINE { return d; });
      const V* dot = quantities.dot();
      for (int i = 0; i < TILE; ++i) out[i] = dot[i];
  }
}

// k(x_i, x'_j) of one register tile.
template <class V, class Quantities> void kernel_values(const KernelProgram& kernel, Quantities& quantities, V* out) {
  using R = Real<V>;
  V value[TILE], factor[TILE];
  for (int t = 0; t < kernel.n_terms; ++t) {
    const Term& term = kernel.terms[t];
    V* product = t == 0 ? out : value;
    factor_values(kernel.factors[term.first_factor], quantities, product);
    for (int f = 1; f < term.n_factors; ++f) {
      factor_values(kernel.factors[term.first_factor + f], quantities, factor);
      for (int i = 0; i < TILE; ++i) product[i] *= factor[i];
    }
    const R c = R(term.coefficient);
    if (t > 0)
      for (int i = 0; i < TILE; ++i) out[i] += c * value[i];
    else if (c != R(1))
      for (int i = 0; i < TILE; ++i) out[i] *= c;
  }
}

}  // namespace
}  // namespace kcalib
