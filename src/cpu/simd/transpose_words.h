// A 16 x 16 matrix of words the other way round, in registers. Included by what is compiled for machines that multiply bytes.
#pragma once

#include "cpu/pairs/tile.h"

namespace kcalib {
namespace {

KCALIB_FN void transpose_words(const __m512i* rows, __m512i* columns) {
  __m512i a[16], *b = columns;
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_maskz_unpacklo_epi32(0xffff, rows[i], rows[i + 1]);
    b[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4)
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k) {
      a[i + 2 * k] = _mm512_maskz_unpacklo_epi64(0xff, b[i + k], b[i + k + 2]);
      a[i + 2 * k + 1] = _mm512_maskz_unpackhi_epi64(0xff, b[i + k], b[i + k + 2]);
    }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {  // a[4 r + k]: rows 4 r.. of the columns k, k + 4, k + 8, k + 12
    const __m512i p = _mm512_maskz_shuffle_i64x2(0xff, a[k], a[4 + k], 0x44), q = _mm512_maskz_shuffle_i64x2(0xff, a[k], a[4 + k], 0xee);
    const __m512i r = _mm512_maskz_shuffle_i64x2(0xff, a[8 + k], a[12 + k], 0x44), s = _mm512_maskz_shuffle_i64x2(0xff, a[8 + k], a[12 + k], 0xee);
    b[k] = _mm512_maskz_shuffle_i64x2(0xff, p, r, 0x88);
    b[4 + k] = _mm512_maskz_shuffle_i64x2(0xff, p, r, 0xdd);
    b[8 + k] = _mm512_maskz_shuffle_i64x2(0xff, q, s, 0x88);
    b[12 + k] = _mm512_maskz_shuffle_i64x2(0xff, q, s, 0xdd);
  }
}

}  // namespace
}  // namespace kcalib
