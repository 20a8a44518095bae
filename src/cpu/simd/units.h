// Entries as multiples of a power of two that the largest of them decides. Included by what is compiled once per
// instruction set, as pack.h is.
#pragma once

#include <cstdint>

#include "cpu/simd/pack.h"

namespace kcalib {
namespace {

KCALIB_FN DoublePack size_of(DoublePack x) { return x < DoublePack{} ? -x : x; }

// The unit of which entries of up to `most` in size have at most 2^bits; of entries that have none, since they are not
// finite, not a number.
KCALIB_FN double unit_of(double most, int bits) {
  if (!(most < __builtin_inf())) return __builtin_nan("");
  if (most < 0x1p-900) return 1;
  const int64_t exponent = int64_t(to_bits(most) >> 52);
  return from_bits<double>(Bits<double>(exponent + 1 - bits) << 52);
}
// The larger of both; not a number if one of them is not.
template <class V> KCALIB_FN V larger(V x, V y) { return (x <= y) | (y != y) ? y : x; }
KCALIB_FN double largest_lane(DoublePack x) {
  double most = 0;
  for (int l = 0; l < LANES<DoublePack>; ++l) most = larger<double>(x[l], most);
  return most;
}

// The nearest multiple of the unit, in units.
KCALIB_FN DoublePack in_units_of(DoublePack x, double reciprocal) {
  constexpr double round = 0x1.8p52;
  const DoublePack shifted = x * reciprocal + round;
  return shifted - round;
}

// Numbers of the columns from `first` on and before `end`, of a pack that begins with column j; others are 0.
KCALIB_FN DoublePack before(DoublePack x, int64_t first, int64_t end, int64_t j) {
  if (j >= first && j + LANES<DoublePack> <= end) return x;
  for (int l = 0; l < LANES<DoublePack>; ++l)
    if (j + l < first || j + l >= end) x[l] = 0;
  return x;
}

}  // namespace
}  // namespace kcalib
