// Profiles: the one-argument functions that prediction kernels are made of, a row each.
//
// A kernel in normal form is a sum of terms, a term a coefficient times a product
// of factors, a factor a profile of one quantity of the pair (its metric):
//
//   k(x, x') = sum_t c_t prod_f profile_f(scale_f quantity_f(x, x'); shapes_f)
//
// To add a profile: a row here, a class in kcalib/kernels.py, and a literal formula in tests/support/oracle.py.
#pragma once

#include "kcalib/math.h"

// The switch of the CPU (cpu/pairs/kernel_tile.h), the one of GPUs (cuda/pairs.cu) and the array form
// (kcalib/_pairs/profiles.py, through _native.profiles) are made from these rows. The columns:
//
//   name
//   r          what the formula takes: scale * DISTANCE, or scale * SQUARE, of the squared distance
//   at 0       its value there, and the largest of all if it is 1; 0: unbounded
//   slope      near 0 the profile changes with r as r^slope: 1 (or less: a smoother one), or the first shape
//   definite   where it is positive definite, with distances of a Hilbert space: EVERYWHERE, ON_A_LINE, NOWHERE
//   formula    in r and the shapes a and b, of functions in math.h that _pairs/profiles.py has for arrays
//
#define KCALIB_PROFILES(ROW)                                                                              \
  ROW(identity,                 DISTANCE, 0, 1, NOWHERE,    r)                                            \
  ROW(exponential,              DISTANCE, 1, 1, EVERYWHERE, exp_minus(r))                                 \
  ROW(gaussian,                 SQUARE,   1, 1, EVERYWHERE, exp_minus(r))                                 \
  ROW(gamma_exponential,        DISTANCE, 1, a, EVERYWHERE, exp_minus(power(r, a)))                       \
  ROW(matern_3_2,               DISTANCE, 1, 1, EVERYWHERE, (r + R(1)) * exp_minus(r))                    \
  ROW(matern_5_2,               DISTANCE, 1, 1, EVERYWHERE, quadratic(r, R(3)) * exp_minus(r))            \
  ROW(rational_quadratic,       SQUARE,   1, 1, EVERYWHERE, exp_minus(a * log1p(r)))                      \
  ROW(gamma_rational_quadratic, DISTANCE, 1, a, EVERYWHERE, exp_minus(b * log1p(power(r, a) / b)))        \
  ROW(cosine,                   DISTANCE, 1, 1, ON_A_LINE,  cos_pi(r))

namespace kcalib {

#define KCALIB_NAME(name, ...) name,
enum class Profile : int { KCALIB_PROFILES(KCALIB_NAME) };
#undef KCALIB_NAME

enum Metric : int { EUCLIDEAN = 0, CITYBLOCK = 1, DOT = 2, MMD = 3, TABLE = 4 };

// With the metric DOT the profile is `identity`, and the factor the inner product.
struct Factor {
  int profile;
  int metric;
  double scale;
  double a, b;  // shapes
};

struct Term {
  double coefficient;
  int first_factor;
  int n_factors;
};

struct KernelProgram {
  const Term* terms;
  int n_terms;
  const Factor* factors;
};

namespace {

enum class Argument { DISTANCE, SQUARE };

template <Profile PROFILE> struct Formula;
#define KCALIB_FORMULA(name, argument, at_0, slope, definite, formula)                                      \
  template <> struct Formula<Profile::name> {                                                                \
    static constexpr bool of_square = Argument::argument == Argument::SQUARE;                                \
    template <class V>                                                                                       \
    static KCALIB_FN V value(V r, [[maybe_unused]] Real<V> a, [[maybe_unused]] Real<V> b) {                  \
      using R [[maybe_unused]] = Real<V>;                                                                    \
      return formula;                                                                                        \
    }                                                                                                        \
  };
KCALIB_PROFILES(KCALIB_FORMULA)
#undef KCALIB_FORMULA

}  // namespace
}  // namespace kcalib
