// Target factors of single normals on a line, where nearly all of the time goes into exponentials: powers of two, whose
// exponents take up what is left of a kernel's. Included by mixture_kernels.cpp, once per instruction set.
//
// Columns are u, c, y and `Normal`'s w, v, m, h, i (kcalib/families/normal.h).
#pragma once

#include "cpu/simd/register_tile.h"

namespace kcalib {
namespace {

// The exponent of a kernel exp(-scale d), of squared distances d^2, as an integer, whose power of two `powers` takes, and what
// is left, between -1/2 and 1/2. That is added to the exponents of a target factor's four parts, in the multiplication that
// makes them: a kernel costs no exponential. Whole exponents added would be rounded apart, and what the parts lose where they
// cancel would grow with the kernel's; so it does not, and neither vanishes before the other.
template <class V> class JoinedDecay {
 public:
  KCALIB_FN JoinedDecay(const V* squares, Real<V> scale, V* powers) : squares_(squares), powers_(powers), decay_(scale) {}
  KCALIB_FN V rest(int i, V& power) const { return decay_.split(divider_root(squares_[i]), power); }
  KCALIB_FN void keep(int i, V power) const { powers_[i] = power; }

 private:
  const V* squares_;
  V* powers_;
  const Decay<V> decay_;
};
template <class V> struct NoDecay {
  KCALIB_FN V rest(int, V&) const { return V{}; }
  KCALIB_FN void keep(int, V) const {}
};

// Whether u = c = w = 1 for all rows and columns, by their bits, which is quick.
template <class V> KCALIB_FN bool are_all_ones(const Real<V>* const* rows, const Real<V>* columns) {
  using R = Real<V>;
  constexpr int W = WIDTH<R>;
  constexpr auto one = Constants<R>::one;
  constexpr int weights[] = {0, 1, 3};
  Bits<V> others = {};
  auto other_rows = one ^ one;
#pragma GCC unroll 3
  for (int k : weights) {
    for (int r = 0; r < ROWS; ++r) other_rows |= to_bits(rows[r][k * W]) ^ one;
    for (int v = 0; v < VECTORS; ++v) others |= to_bits(load<V>(columns + k * W + v * LANES<V>)) ^ one;
  }
  return !other_rows && !any(others);
}

// u u' (c c' l(y, y') - c' w f(P, y') - c w' f(y, P') + w w' f(P, P')) times 2^decay. ONES: all of u, c and w are 1; both
// ways give the same bits then.
template <bool ONES, class V, class Decay>
KCALIB_FN void normals_on_a_line(const Real<V>* const* rows, const Real<V>* columns, Decay decay, V* out) {
  using R = Real<V>;
  constexpr int W = WIDTH<R>;
  constexpr R unit = -Constants<R>::inverse_ln2;  // exponents of two, which are negative, of positive ones of e
  V c[VECTORS], w[VECTORS], minus_v[VECTORS], i[VECTORS];
  for (int v = 0; v < VECTORS; ++v) {
    const R* at = columns + v * LANES<V>;
    const V u = load<V>(at);
    c[v] = load<V>(at + W) * u;
    w[v] = load<V>(at + 3 * W) * u;
    minus_v[v] = -(load<V>(at + 4 * W) * u);
    i[v] = load<V>(at + 7 * W) * unit;
  }
#pragma GCC unroll 1
  for (int r = 0; r < ROWS; ++r) {
    const auto row = [at = rows[r]](int k) KCALIB_INLINE { return at[k * W]; };
    const R own_c = row(0) * row(1), own_w = row(0) * row(3), own_minus_v = -(row(0) * row(4)), own_i = row(7) * unit;
    const R y = row(2), m = row(5), h = at_least(row(6), Bounds<R>::tiny);
    V sums[VECTORS], powers[VECTORS] = {};  // stored after all else: the compiler cannot know that they are elsewhere
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      const V rest = decay.rest(r * VECTORS + v, powers[v]);
      const V other_y = load<V>(columns + 2 * W + v * LANES<V>), other_m = load<V>(columns + 5 * W + v * LANES<V>);
      const V root = reciprocal_root(h + load<V>(columns + 6 * W + v * LANES<V>));
      const auto power = [=](V gap, V rate) KCALIB_INLINE { return exp2_clamped(fused(gap * gap, rate, rest)); };
      const V points = power(y - other_y, splat<V>(unit)), other = power(y - other_m, i[v]);
      const V own = power(m - other_y, splat<V>(own_i)), both = power((m - other_m) * root, splat<V>(unit));
      V& sum = sums[v];
      if constexpr (ONES) {
        sum = fused(root, both, fused(splat<V>(own_minus_v), own, fused(minus_v[v], other, points)));
      } else {
        sum = own_c * fused(minus_v[v], other, c[v] * points);
        sum = fused(own_w * w[v] * root, both, fused(splat<V>(own_minus_v), c[v] * own, sum));
      }
    }
    for (int v = 0; v < VECTORS; ++v) {
      out[r * VECTORS + v] = sums[v];
      decay.keep(r * VECTORS + v, powers[v]);
    }
  }
}

}  // namespace
}  // namespace kcalib
