// Base profiles: the one-argument functions that prediction kernels are made of.
//
// A kernel in normal form is a sum of terms, a term a coefficient times a product
// of factors, a factor a profile of one quantity of the pair (its metric):
//
//   k(x, x') = sum_t c_t prod_f profile_f(quantity_f(x, x'); scale_f, shape_f)
//
// To add a profile: a function here, a case in cpu/tile.cpp, a row in
// kcalib/kernels.py, and a literal formula in tests/oracle.py.
#pragma once

#include "kcalib/math.h"

namespace kcalib {

enum Metric : int { EUCLIDEAN = 0, CITYBLOCK = 1, DOT = 2, MMD = 3, TABLE = 4 };

enum Profile : int {
  EXPONENTIAL = 0,
  GAUSSIAN = 1,
  GAMMA_EXPONENTIAL = 2,
  MATERN_3_2 = 3,
  MATERN_5_2 = 4,
  RATIONAL_QUADRATIC = 5,
  IDENTITY = 6,  // the quantity itself: the linear kernel, or the distance for the median heuristic
};

struct Factor {
  int profile;
  int metric;
  double scale;  // what the distance or squared distance is multiplied by
  double shape;  // exponent of GAMMA_EXPONENTIAL, alpha of RATIONAL_QUADRATIC
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

// d: distance, d2: squared distance, a: scale.
template <class V> KCALIB_FN V exponential(V d, Real<V> a) { return exp_minus(d * a); }
template <class V> KCALIB_FN V gaussian(V d2, Real<V> a) { return exp_minus(d2 * a); }
template <class V> KCALIB_FN V gamma_exponential(V d, Real<V> a, Real<V> shape) {
  return exp_minus(power(d * a, shape));
}
template <class V> KCALIB_FN V matern_3_2(V d, Real<V> a) {
  const V r = d * a;
  return (r + Real<V>(1)) * exp_minus(r);
}
template <class V> KCALIB_FN V matern_5_2(V d, Real<V> a) {
  const V r = d * a;
  return (r * (r * Real<V>(1.0 / 3.0) + Real<V>(1)) + Real<V>(1)) * exp_minus(r);
}
template <class V> KCALIB_FN V rational_quadratic(V d2, Real<V> a, Real<V> shape) {
  return exp_minus(shape * log1p(d2 * a));
}

}  // namespace
}  // namespace kcalib
