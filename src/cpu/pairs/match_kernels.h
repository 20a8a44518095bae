// A block of entries as multiples of a power of two, and their sums over pairs with equal labels: whole numbers, whose
// sums have no rounding. Included by tile.cpp, once per instruction set.
#pragma once

#include <cstdint>

#include "cpu/simd/register_tile.h"
#include "cpu/pairs/tile.h"
#include "cpu/simd/units.h"

namespace kcalib {
namespace {

constexpr int64_t MOST_COLUMNS = 192;  // of a block
// An entry is at most 2^UNIT_BITS units, a row of a block below 2^31.
constexpr int UNIT_BITS = 20;
static_assert(MOST_COLUMNS << UNIT_BITS < int64_t(1) << 31);

double in_units(double* h, int64_t stride, int64_t rows, int64_t columns, bool on_diagonal, int* units) {
  using V = DoublePack;
  using Narrow = int __attribute__((vector_size(sizeof(int) * LANES<V>)));
  V most{};
  for (int64_t i = 0; i < rows; ++i) {
    if (on_diagonal) h[i * stride + i] = 0;
    for (int64_t j = 0; j < columns; j += LANES<V>)
      most = larger(size_of(before(load<V>(h + i * stride + j), 0, columns, j)), most);
  }
  const double unit = unit_of(largest_lane(most), UNIT_BITS), reciprocal = 1 / unit;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; j += LANES<V>) {
      V x = before(load<V>(h + i * stride + j), on_diagonal ? i + 1 : 0, columns, j);
      x = unit == unit ? in_units_of(x, reciprocal) : V{};
      const Narrow whole = __builtin_convertvector(x, Narrow);
      __builtin_memcpy(units + i * stride + j, &whole, sizeof whole);
    }
  for (int64_t i = rows; i % MAX_MATCH_ROWS; ++i)
    for (int64_t j = 0; j < columns; ++j) units[i * stride + j] = 0;
  return unit;
}

void round_panels(double* h, int64_t stride, int64_t rows, int64_t columns, bool on_diagonal) {
  using V = DoublePack;
  V most{};
  const auto at = [=](int64_t i, int64_t j) KCALIB_INLINE { return h + (j / WIDTH<double> * stride + i) * WIDTH<double> + j % WIDTH<double>; };
  for (int64_t i = 0; i < rows; ++i) {
    if (on_diagonal) *at(i, i) = 0;
    for (int64_t j = 0; j < columns; j += LANES<V>)
      most = larger(size_of(before(load<V>(at(i, j)), 0, columns, j)), most);
  }
  const double unit = unit_of(largest_lane(most), UNIT_BITS), reciprocal = 1 / unit;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; j += LANES<V>) store<V>(at(i, j), unit * in_units_of(load<V>(at(i, j)), reciprocal));
}

// Rows of labels that are compared at a time with two packs of columns' labels.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int MATCH_ROWS = 4;
#else
constexpr int MATCH_ROWS = 2;
#endif
constexpr int MATCH_PACKS = 2, LABELS = MATCH_PACKS * LANES<FloatPack>;

KCALIB_FN IntPack load_labels(const int* p) {
  IntPack v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
KCALIB_FN IntPack add_where_equal(IntPack sum, IntPack a, IntPack b, int units) {
#if defined(__AVX512F__)
  return IntPack(_mm512_mask_add_epi32(__m512i(sum), _mm512_cmpeq_epi32_mask(__m512i(a), __m512i(b)), __m512i(sum), _mm512_set1_epi32(units)));
#else
  return sum + ((a == b) & (units - IntPack{}));
#endif
}

void matches(const int* units, int64_t stride, const MatchBlock& block, const int* const* panels, int64_t n_panels, double unit, double* out) {
  using Narrow = int __attribute__((vector_size(sizeof(int) * LANES<DoublePack>)));
  const int64_t rows = block.rows, columns = block.columns;
  for (int64_t p = 0; p < n_panels; ++p, out += LABELS) {
    const int* of_rows = panels[p] + block.row_begin * LABELS;
    const int* of_columns = panels[p] + block.column_begin * LABELS;
    DoublePack total[2 * MATCH_PACKS] = {};
    for (int64_t i = 0; i < rows; i += MATCH_ROWS) {
      IntPack mine[MATCH_ROWS][MATCH_PACKS], sum[MATCH_ROWS][MATCH_PACKS] = {};
      for (int r = 0; r < MATCH_ROWS; ++r)
        for (int v = 0; v < MATCH_PACKS; ++v)  // of rows beyond the last, which have no units, the last one's
          mine[r][v] = load_labels(of_rows + (i + r < rows ? i + r : rows - 1) * LABELS + v * LANES<FloatPack>);
#pragma GCC unroll 1
      for (int64_t j = block.on_diagonal ? i : 0; j < columns; ++j) {
        IntPack theirs[MATCH_PACKS];
        for (int v = 0; v < MATCH_PACKS; ++v) theirs[v] = load_labels(of_columns + j * LABELS + v * LANES<FloatPack>);
#pragma GCC unroll 4
        for (int r = 0; r < MATCH_ROWS; ++r)
#pragma GCC unroll 2
          for (int v = 0; v < MATCH_PACKS; ++v)
            sum[r][v] = add_where_equal(sum[r][v], mine[r][v], theirs[v], units[(i + r) * stride + j]);
      }
      for (int r = 0; r < MATCH_ROWS; ++r)
        for (int v = 0; v < MATCH_PACKS; ++v) {
          Narrow halves[2];
          __builtin_memcpy(halves, &sum[r][v], sizeof halves);
          for (int k = 0; k < 2; ++k) total[2 * v + k] += __builtin_convertvector(halves[k], DoublePack);
        }
    }
    for (int k = 0; k < 2 * MATCH_PACKS; ++k)
      for (int l = 0; l < LANES<DoublePack>; ++l) out[k * LANES<DoublePack> + l] += unit * total[k][l];
  }
}

}  // namespace
}  // namespace kcalib
