// Entries of a block as whole numbers of a unit, of which bytes are made. Included by what is compiled for machines that
// multiply bytes, which have AVX-512.
#pragma once

#include <cstdint>

#include "cpu/simd/register_tile.h"
#include "cpu/simd/units.h"

namespace kcalib {
namespace {

// The first `left` numbers of a pack, and zeros.
KCALIB_FN DoublePack load_before(const double* x, int64_t left) {
  const int lanes = left >= LANES<DoublePack> ? 0xff : left > 0 ? (1 << left) - 1 : 0;
  return DoublePack(_mm512_maskz_loadu_pd(__mmask8(lanes), x));
}

// The size of the largest entry; not finite, if one is not. Sizes are in the order of their bits.
inline double largest_size(const double* h, int64_t stride, int64_t rows, int64_t columns) {
  constexpr int L = LANES<DoublePack>, AT_ONCE = 4;
  LongPack most[AT_ONCE] = {};
  const auto look_at = [&](DoublePack x, int k) KCALIB_INLINE {
    const LongPack size = to_bits(x) & 0x7fffffffffffffff;
    most[k] = LongPack(_mm512_maskz_max_epi64(0xff, __m512i(size), __m512i(most[k])));
  };
  for (int64_t i = 0; i < rows; ++i, h += stride) {
    int64_t j = 0;
    for (; j + AT_ONCE * L <= columns; j += AT_ONCE * L)
#pragma GCC unroll 4
      for (int k = 0; k < AT_ONCE; ++k) look_at(load<DoublePack>(h + j + k * L), k);
    for (; j < columns; j += L) look_at(load_before(h + j, columns - j), 0);
  }
  for (int k = 1; k < AT_ONCE; ++k) look_at(from_bits<DoublePack>(most[k]), 0);
  return largest_lane(from_bits<DoublePack>(most[0]));
}

class InUnits {
 public:
  InUnits(const double* h, int64_t stride, int64_t columns, double unit)
      : h_(h), stride_(stride), columns_(columns), reciprocal_(splat<DoublePack>(1 / unit)), lanes_(unit == unit ? 0xff : 0) {}

  // The entries of 16 columns from j on, to the nearest; zeros beyond the last, and if the unit is no number.
  KCALIB_FN IntPack at(int64_t i, int64_t j) const {
    const bool whole = j + 2 * LANES<DoublePack> <= columns_;
    const auto half = [&](int64_t k) KCALIB_INLINE {
      const double* from = h_ + i * stride_ + k;
      const DoublePack x = (whole ? load<DoublePack>(from) : load_before(from, columns_ - k)) * reciprocal_;
      return _mm512_castsi256_si512(_mm512_maskz_cvtpd_epi32(lanes_, __m512d(x)));
    };
    return IntPack(_mm512_maskz_shuffle_i64x2(0xff, half(j), half(j + LANES<DoublePack>), 0x44));
  }

 private:
  const double* const h_;
  const int64_t stride_, columns_;
  const DoublePack reciprocal_;
  const __mmask8 lanes_;
};

}  // namespace
}  // namespace kcalib
