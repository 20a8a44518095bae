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

// The profile of distances, or squared distances, in the factor's metric.
template <Profile PROFILE, class V, class Quantities>
KCALIB_FN void profile_values(const Factor& factor, Quantities& quantities, V* out) {
  using F = Formula<PROFILE>;
  using R = Real<V>;
  const R scale = R(factor.scale), a = R(factor.a), b = R(factor.b);
  if (!is_squared(factor.metric)) {
    const V* d = quantities.distance(factor.metric);
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) out[i] = F::value((F::of_square ? d[i] * d[i] : d[i]) * scale, a, b);
  } else {
    const V* d2 = quantities.squared(factor.metric);
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) out[i] = F::value((F::of_square ? d2[i] : square_root(d2[i])) * scale, a, b);
  }
}

template <class V, class Quantities> void factor_values(const Factor& factor, Quantities& quantities, V* out) {
  if (factor.metric == DOT) {
    const V* dot = quantities.dot();
    for (int i = 0; i < TILE; ++i) out[i] = dot[i];
    return;
  }
  switch (Profile(factor.profile)) {
#define KCALIB_CASE(name, ...) \
  case Profile::name: return profile_values<Profile::name>(factor, quantities, out);
    KCALIB_PROFILES(KCALIB_CASE)
#undef KCALIB_CASE
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
