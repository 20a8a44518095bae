// What is done with a block's entries as the register tiles pass by: they are added up, or written. tile.cpp calls the
// visitors (`for_each_tile` says in which order) and includes this once per instruction set.
#pragma once

#include <cstdint>

#include "cpu/pairs/tile.h"
#include "cpu/simd/register_tile.h"

namespace kcalib {
namespace {

constexpr int64_t MAX_BLOCK_ROWS = 192;

// Sums of the entries; the order of those that make the total does not depend on what else is asked.
template <class T, bool WITH_ROWS> struct SumVisitor {
  using V = Pack<T>;
  static constexpr bool EXPECTING = false, HAS_ROWS = WITH_ROWS;

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
      for (int v = 0; v < VECTORS; ++v) {
        widen(rounded(kernel[v] * factor[v]), wide);
        for (int w = 0; w < WIDE<V>; ++w) square_sum += wide[w] * wide[w];
      }
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
template <class T> struct ExpectedSumVisitor : SumVisitor<T, true> {
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

// Writes the entries, rows `stride` apart: whole register tiles, with zeros for rows and columns beyond the last.
template <class T> struct EntryVisitor {
  using V = Pack<T>;
  static constexpr bool EXPECTING = false;
  T* out;
  int64_t stride;
  int64_t column = -WIDTH<T>;  // of the panel that was started last

  KCALIB_FN void start_panel() { column += WIDTH<T>; }
  KCALIB_FN void row(int r, int64_t i, const V* kernel, const V* factor) {
    T* const at = out + (i + r) * stride + column;
    for (int v = 0; v < VECTORS; ++v) store<V>(at + v * LANES<V>, rounded(kernel[v] * factor[v]));
  }
  KCALIB_FN void end_tile(int64_t) {}
  KCALIB_FN void end_panel(int64_t) {}
};

}  // namespace
}  // namespace kcalib
