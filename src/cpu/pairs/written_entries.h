// What is done with a block of entries that has been written: copies in another type or order, and comparisons with numbers.
// Included by tile.cpp, once per instruction set.
#pragma once

#include "cpu/pairs/tile.h"
#include "cpu/simd/register_tile.h"

namespace kcalib {
namespace {

// The entries in W, rows as far apart.
template <class T, class W> void convert(const WrittenBlock<T>& block, W* out) {
  for (int64_t i = 0; i < block.rows; ++i)
    for (int64_t j = 0; j < block.columns; j += LANES<Pack<T>>)
      store_as(out + i * block.stride + j, load<Pack<T>>(block.h + i * block.stride + j));
}

// The entries in panels of W, out[(p * stride + row) * WIDTH<W> + lane], with zeros for columns beyond the last.
template <class T, class W> void write_panels(const WrittenBlock<T>& block, W* out, int64_t stride) {
  for (int64_t j = 0; j < block.columns; j += WIDTH<W>)
    for (int64_t i = 0; i < block.rows; ++i) {
      const T* h = block.h + i * block.stride + j;
      W* const at = out + (j / WIDTH<W> * stride + i) * WIDTH<W>;
      if (j + WIDTH<W> <= block.columns && WIDTH<W> % LANES<Pack<T>> == 0) {
        for (int k = 0; k < WIDTH<W>; k += LANES<Pack<T>>) store_as(at + k, load<Pack<T>>(h + k));
      } else {
        for (int k = 0; k < WIDTH<W>; ++k) at[k] = j + k < block.columns ? W(h[k]) : W(0);
      }
    }
}

// Shows take(V h) the entries of pairs of samples (on the diagonal: i < j), and infinity in place of others.
template <class T, class Take> KCALIB_FN void for_each_pair(const WrittenBlock<T>& block, Take&& take) {
  using V = Pack<T>;
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t first = block.on_diagonal ? i + 1 : 0;
    for (int64_t j = first / LANES<V> * LANES<V>; j < block.columns; j += LANES<V>) {
      V h = load<V>(block.h + i * block.stride + j);
      if (j < first || j + LANES<V> > block.columns)
        for (int l = 0; l < LANES<V>; ++l)
          if (j + l < first || j + l >= block.columns) h[l] = T(__builtin_inf());
      take(h);
    }
  }
}

template <class T> void counts(const WrittenBlock<T>& block, const double* thresholds, int64_t* counts) {
  using V = Pack<T>;
  V threshold[THRESHOLDS];
  Bits<V> count[THRESHOLDS] = {};
  for (int t = 0; t < THRESHOLDS; ++t) threshold[t] = splat<V>(T(thresholds[t]));
  for_each_pair(block, [&](V h) KCALIB_INLINE {
#pragma GCC unroll 8
    for (int t = 0; t < THRESHOLDS; ++t) count[t] -= h < threshold[t];
  });
  for (int t = 0; t < THRESHOLDS; ++t)
    for (int l = 0; l < LANES<V>; ++l) counts[t] += count[t][l];
}

// Writes the chosen lanes one after the other, and returns how many; up to a pack's lanes behind them are overwritten.
#if defined(__AVX512F__)
KCALIB_FN int write_chosen(DoublePack x, Bits<DoublePack> chosen, double* out) {
  const __mmask8 lanes = _mm512_movepi64_mask(__m512i(chosen));
  _mm512_storeu_pd(out, _mm512_maskz_compress_pd(lanes, __m512d(x)));
  return __builtin_popcount(lanes);
}
#endif
template <class V> KCALIB_FN int write_chosen(V x, Bits<V> chosen, double* out) {
  int count = 0;
  if (__builtin_expect(any(chosen), 0))
    for (int l = 0; l < LANES<V>; ++l)
      if (chosen[l]) out[count++] = x[l];
  return count;
}

template <class T> int64_t between(const WrittenBlock<T>& block, double low, double high, double* out, int64_t* below) {
  using V = Pack<T>;
  int64_t n_inside = 0;
  Bits<V> count = {};
  for_each_pair(block, [&](V h) KCALIB_INLINE {
    const Bits<V> lower = h < T(low), inside = ~lower & (h < T(high));
    count -= lower;
    n_inside += write_chosen(h, inside, out + n_inside);
  });
  for (int l = 0; l < LANES<V>; ++l) *below += count[l];
  return n_inside;
}

}  // namespace
}  // namespace kcalib
