// What is done with a block's entries as the register tiles pass by: they are added up, or written. tile.cpp calls the
// visitors (`for_each_tile` says in which order) and includes this once per instruction set.
#pragma once

#include <cstdint>

#include "cpu/pairs/tile.h"
#include "cpu/simd/register_tile.h"

namespace kcalib {
namespace {

constexpr int64_t MAX_BLOCK_ROWS = 192;

// Where a visitor writes entries: in panels of Out, whose width may be another than that of T. Whole tiles are written, with zeros
// for rows and columns beyond the last.
template <class T, class Out> struct InPanels {
  using V = Pack<T>;
  static constexpr int PIECE = LANES<DoublePack>;  // lanes that are in one panel, whatever its width
  Out* out;
  int64_t stride;
  int64_t column = -WIDTH<T>;

  KCALIB_FN Out* at(int64_t row, int64_t column) const {
    return out + (column / WIDTH<Out> * stride + row) * WIDTH<Out> + column % WIDTH<Out>;
  }
  KCALIB_FN void start_panel() { column += WIDTH<T>; }
  KCALIB_FN void put(int64_t row, int v, V h) const {
    if constexpr (WIDTH<Out> >= WIDTH<T>) {
      store_as(at(row, column) + v * LANES<V>, h);
    } else {
      DoublePack wide[WIDE<V>];
      widen(h, wide);
      for (int w = 0; w < WIDE<V>; ++w) store_as(at(row, column + v * LANES<V> + w * PIECE), wide[w]);
    }
  }
  // Zeros for the rest of the last panel, if there is one.
  KCALIB_FN void fill_up(int64_t rows) const {
    const int64_t written = column + WIDTH<T>;
    if (written % WIDTH<Out> == 0) return;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t l = 0; l < WIDTH<Out> - WIDTH<T>; ++l) at(i, written)[l] = Out(0);
  }
};

// Sums of the entries; the order of those that make the total does not depend on what else is asked.
template <class T, bool WITH_ROWS, bool SECOND> struct SumVisitor {
  using V = Pack<T>;
  static constexpr bool OF_FACTORS = true, EXPECTING = false, HAS_ROWS = WITH_ROWS, HAS_SECOND = SECOND;

  DoublePack total[WIDE<V>] = {};
  V tile_columns[VECTORS];
  DoublePack row_sum[WITH_ROWS ? MAX_BLOCK_ROWS + ROWS : 1] = {};
  DoublePack column_sum[VECTORS * WIDE<V>];
  DoublePack square_sum{};
  double* column_sums;
  int64_t columns;

  KCALIB_FN void start_panel() {
    for (auto& sum : column_sum) sum = DoublePack{};
  }
  KCALIB_FN void row(int r, int64_t i, const V* kernel, const V* factor) {
    for (int v = 0; v < VECTORS; ++v)
      tile_columns[v] = r == 0 ? rounded(kernel[v] * factor[v]) : fused(kernel[v], factor[v], tile_columns[v]);
    if constexpr (WITH_ROWS) {
      V sum = rounded(kernel[0] * factor[0]);
      for (int v = 1; v < VECTORS; ++v) sum = fused(kernel[v], factor[v], sum);
      DoublePack wide[WIDE<V>];
      widen(sum, wide);
      for (int w = 0; w < WIDE<V>; ++w) row_sum[i + r] += wide[w];
    }
    if constexpr (SECOND)
      for (int v = 0; v < VECTORS; ++v) {
        const V h = rounded(kernel[v] * factor[v]);
        DoublePack wide[WIDE<V>];
        widen(h, wide);
        for (int w = 0; w < WIDE<V>; ++w) square_sum += wide[w] * wide[w];
      }
  }
  KCALIB_FN void end_tile(int64_t) {
    V sum = tile_columns[0] + tile_columns[1];
    if constexpr (VECTORS == 4)
      sum += tile_columns[2] + tile_columns[3];
    else
      for (int v = 2; v < VECTORS; ++v) sum += tile_columns[v];
    add_wide(sum, total);
    if constexpr (WITH_ROWS)
      for (int v = 0; v < VECTORS; ++v) add_wide(tile_columns[v], column_sum + v * WIDE<V>);
  }
  KCALIB_FN void end_panel(int64_t column) {
    if (!WITH_ROWS || !column_sums) return;
    for (int64_t j = 0; j < WIDTH<T> && column + j < columns; ++j)
      column_sums[column + j] += column_sum[j / LANES<DoublePack>][j % LANES<DoublePack>];
  }
};

// The same sums, and that of kernel^2 tr(V V') for V = diag(x) - x x^T, the covariances of labels whose probabilities the
// points are: what entries' squares are under calibration. With y = x / 2 - x^2 it is tr(V V') = <x, y'> + <y, x'> + <x, x'>^2.
template <class T> struct ExpectedSumVisitor : SumVisitor<T, true, true> {
  using V = Pack<T>;
  static constexpr bool EXPECTING = true;
  DoublePack expected[WIDE<V>] = {}, magnitude[WIDE<V>] = {};

  // `products`: <x, y'> + <y, x'>; `dots`: <x, x'>.
  KCALIB_FN void squares(const V* kernel, const V* products, const V* dots) {
    V traces{}, terms{};
    for (int v = 0; v < VECTORS; ++v) {
      const V square = rounded(kernel[v] * kernel[v]);
      traces = fused(square, dots[v] * dots[v] + products[v], traces);
      terms = fused(square, dots[v], terms);
    }
    add_wide(traces, expected);
    add_wide(terms, magnitude);
  }
};

// Writes the entries.
template <class T, class Out> struct EntryVisitor {
  using V = Pack<T>;
  static constexpr bool OF_FACTORS = false, EXPECTING = false;
  Out* out;
  int64_t stride, rows, columns;

  KCALIB_FN void start_panel() {}
  KCALIB_FN void row(int r, int64_t i, int64_t column, const V* h) {
    if (i + r >= rows) return;
    Out* begin = out + (i + r) * stride + column;
    if (columns - column >= WIDTH<T>) {
      for (int v = 0; v < VECTORS; ++v) store_as(begin + v * LANES<V>, h[v]);
      return;
    }
    T lanes[WIDTH<T>];
    for (int v = 0; v < VECTORS; ++v) store<V>(lanes + v * LANES<V>, h[v]);
    for (int64_t j = 0; j < columns - column; ++j) begin[j] = Out(lanes[j]);
  }
  KCALIB_FN void end_tile(int64_t) {}
  KCALIB_FN void end_panel(int64_t) {}
};

// Writes the entries as panels of Out.
template <class T, class Out> struct EntryPanels {
  using V = Pack<T>;
  static constexpr bool OF_FACTORS = true, EXPECTING = false;
  InPanels<T, Out> written;

  KCALIB_FN void start_panel() { written.start_panel(); }
  KCALIB_FN void row(int r, int64_t i, const V* kernel, const V* factor) {
    V h[VECTORS];
    for (int v = 0; v < VECTORS; ++v) h[v] = rounded(kernel[v] * factor[v]);
    for (int v = 0; v < VECTORS; ++v) written.put(i + r, v, h[v]);
  }
  KCALIB_FN void end_tile(int64_t) {}
  KCALIB_FN void end_panel(int64_t) {}
};

// Writes the chosen lanes one after the other, and returns how many; up to a pack's lanes behind them are overwritten.
#if defined(__AVX512F__)
KCALIB_FN int write_chosen(DoublePack x, Bits<DoublePack> chosen, double* out) {
  const __mmask8 lanes = _mm512_movepi64_mask(__m512i(chosen));
  _mm512_storeu_pd(out, _mm512_maskz_compress_pd(lanes, __m512d(x)));
  return __builtin_popcount(lanes);
}
KCALIB_FN int write_chosen(FloatPack x, Bits<FloatPack> chosen, double* out) {
  const __mmask16 lanes = _mm512_movepi32_mask(__m512i(chosen));
  DoublePack wide[WIDE<FloatPack>];
  widen(FloatPack(_mm512_maskz_compress_ps(lanes, __m512(x))), wide);
  for (int w = 0; w < WIDE<FloatPack>; ++w) store<DoublePack>(out + w * LANES<DoublePack>, wide[w]);
  return __builtin_popcount(lanes);
}
#else
template <class V> KCALIB_FN int write_chosen(V x, Bits<V> chosen, double* out) {
  int count = 0;
  if (__builtin_expect(any(chosen), 0))
    for (int l = 0; l < LANES<V>; ++l)
      if (chosen[l]) out[count++] = x[l];
  return count;
}
#endif

// Shows take(V h) the entries of pairs of samples (on the diagonal: i < j), all others as infinity.
template <class T, class Take> struct PairVisitor {
  using V = Pack<T>;
  static constexpr bool OF_FACTORS = false, EXPECTING = false;
  const BlockOfPairs<T>& block;
  Take take;

  KCALIB_FN void start_panel() {}
  KCALIB_FN void row(int r, int64_t i, int64_t column, const V* h) {
    const int64_t rows = block.row_end - block.row_begin, columns = block.column_end - block.column_begin;
    if (i + r >= rows) return;
    const int64_t first = block.on_diagonal ? i + r + 1 : 0;
    for (int v = 0; v < VECTORS; ++v) {
      const int64_t j = column + v * LANES<V>;
      V shown = h[v];
      if (j < first || j + LANES<V> > columns)
        for (int l = 0; l < LANES<V>; ++l)
          if (j + l < first || j + l >= columns) shown[l] = Real<V>(__builtin_inf());
      take(shown);
    }
  }
  KCALIB_FN void end_tile(int64_t) {}
  KCALIB_FN void end_panel(int64_t) {}
};

}  // namespace
}  // namespace kcalib
