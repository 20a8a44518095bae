// What the families of distributions share. mixtures.h says what a family has, and lists them.
#pragma once

#include "kcalib/profiles.h"

namespace kcalib {
namespace {

// How the MMD distance of two points with one component each is had.
enum class Single {
  PRODUCTS,  // from products, as that of mixtures
  SPLIT,     // in what scales make, the difference of products for equal locations, and what locations add
  APART      // by a formula of its own, without products of points with themselves
};

// What a family has unless it says otherwise.
struct AnyFamily {
  static constexpr double BOUND = 0x1p119, BOUND_SINGLE = 0x1p59;  // of parameters in float64 and in float32
  static constexpr int MAX_DIMS = 0;                               // 0: any
  static constexpr double COST = 1;                                // of a product, that of `Normal` being 1
  static constexpr bool MATRICES = false;                          // whether a component has d^2 numbers
  static constexpr bool OF_KERNEL = false;                         // whether f is the target kernel at two places
  static constexpr bool DISTANCES_ALONE = false;                   // whether there is no kernel on targets, and SINGLE is APART
  static constexpr bool LINE = false;                              // whether one dimension is worth loops of its own
  static constexpr Single SINGLE = Single::PRODUCTS;
};

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

}  // namespace
}  // namespace kcalib
