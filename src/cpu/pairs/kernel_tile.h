// The kernel of a register tile's pairs from their quantities, factor by factor: one switch over profiles for a tile.
// Included by tile.cpp and mixture_kernels.cpp, once per instruction set.
//
// `Quantities` has squared(metric) for metrics whose squares are at hand, distance(metric) for the others, and dot():
// arrays of TILE packs. It is bounded() where all squared distances that matter are between 2^-1000 (float: 2^-120) and about
// 2.
#pragma once

#include "kcalib/profiles.h"
#include "cpu/simd/register_tile.h"

namespace kcalib {
namespace {

KCALIB_FN bool is_squared(int metric) { return metric == EUCLIDEAN || metric == MMD; }

// Whether the formula is exp_minus(r), of which `Decay` is a shorter way.
constexpr bool same_text(const char* a, const char* b) {
  for (; *a && *a == *b; ++a, ++b) {}
  return *a == *b;
}
#define KCALIB_DECAY(name, argument, at_0, slope, definite, formula) \
  || (PROFILE == Profile::name && same_text(#formula, "exp_minus(r)"))
template <Profile PROFILE> constexpr bool IS_DECAY = false KCALIB_PROFILES(KCALIB_DECAY);
#undef KCALIB_DECAY

// Below this scale the decay of `positive_root` at 0 is 1.
constexpr double ROOTS_DECAY = 0x1p30;
// A row's roots are started before the powers of the row before: their latencies are longer than what waits in a processor's
// window of instructions. With 16 registers, of which floats' powers take more, they would be in memory meanwhile.
template <class V> constexpr bool ROOTS_AHEAD = VECTORS == 4 || sizeof(Real<V>) == 8;

// finish(r, {exp(-scale d) of row r}) of distances d, of which squares are given if ROOT is true. BOUNDED: they are neither
// tiny, nor is scale d beyond exp's range. A row's chains of instructions are interleaved: more than wait in the processor's
// window of one after the other. What is done with them comes after all of them, as the compiler cannot know that stores are
// elsewhere. One root of a row is the divider's, which has so much time beside all else.
template <bool ROOT, bool BOUNDED, class V, class Finish>
KCALIB_FN void decays(const V* d, Real<V> scale, Finish&& finish) {
  const Decay<V> decay(scale);
  const auto distances = [&](int r, V* out) KCALIB_INLINE {
    const V* given = d + r * VECTORS;
    if constexpr (!ROOT) {
      for (int v = 0; v < VECTORS; ++v) out[v] = given[v];
    } else {
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) out[v] = v == 3 ? divider_root(given[v]) : positive_root<!BOUNDED>(given[v]);
    }
  };
  V next[VECTORS];
  if constexpr (ROOTS_AHEAD<V>) distances(0, next);
#pragma GCC unroll 1
  for (int r = 0; r < ROWS; ++r) {
    V x[VECTORS];
    if constexpr (ROOTS_AHEAD<V>) {
      for (int v = 0; v < VECTORS; ++v) x[v] = next[v];
      if (r + 1 < ROWS) distances(r + 1, next);
    } else {
      distances(r, x);
    }
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) x[v] = decay.template of<!BOUNDED>(x[v]);
    finish(r, x);
  }
}

// The same for a factor that is a decay of squared distances.
template <bool ROOT, class V, class Quantities, class Finish>
KCALIB_FN void decays_of(const Factor& factor, Quantities& quantities, Finish&& finish) {
  using R = Real<V>;
  const V* d2 = quantities.squared(factor.metric);
  // Distances up to 2 and squares up to 2, of points whose sums are 1 but for much more than rounding.
  if (quantities.bounded() && R(2.25) * R(factor.scale) < -Constants<R>::exp_low)
    return decays<ROOT, true>(d2, R(factor.scale), finish);
  decays<ROOT, false>(d2, R(factor.scale), finish);
}

// Whether a kernel is exp(-scale d) and nothing else, whose values need not be stored.
#define KCALIB_ROOTS_DECAY(name, ...) (IS_DECAY<Profile::name> && !Formula<Profile::name>::of_square),
constexpr bool ROOTS_DECAYS[] = {KCALIB_PROFILES(KCALIB_ROOTS_DECAY)};
#undef KCALIB_ROOTS_DECAY
KCALIB_FN bool is_one_decay(const KernelProgram& kernel) {
  const Term& term = kernel.terms[0];
  const Factor& factor = kernel.factors[term.first_factor];
  return kernel.n_terms == 1 && term.coefficient == 1 && term.n_factors == 1 &&
         ROOTS_DECAYS[factor.profile] && is_squared(factor.metric) && factor.scale < ROOTS_DECAY;
}

// The profile of distances, or squared distances, in the factor's metric.
template <Profile PROFILE, class V, class Quantities>
KCALIB_FN void profile_values(const Factor& factor, Quantities& quantities, V* out) {
  using F = Formula<PROFILE>;
  using R = Real<V>;
  if constexpr (IS_DECAY<PROFILE>)
    if (is_squared(factor.metric) && factor.scale < ROOTS_DECAY)
      return decays_of<!F::of_square, V>(factor, quantities, storing(out));
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
