// Quadratic forms of whole-number weights on the tile registers of AMX, which multiply bytes and add up in 32 bits: an
// entry takes four products, and all of them a few times less time than one in float32. Compiled for x86-64-v4 with AMX,
// with the rule of tile.cpp (no std:: code).
#include "cpu/bytes/byte_forms.h"

#include "cpu/bytes/byte_units.h"
#include "cpu/simd/register_tile.h"
#include "cpu/simd/tiles_on.h"

namespace kcalib {
namespace {

constexpr int64_t ROWS_OF_TILE = ByteForms::ROWS, COLUMNS_OF_TILE = ByteForms::COLUMNS, PIECES = ByteForms::PIECES;
constexpr int64_t TILE_BYTES = ROWS_OF_TILE * COLUMNS_OF_TILE, LINE = 64;
constexpr int ENTRY_BITS = 30;  // an entry is at most 2^ENTRY_BITS units
// Two pieces of a row, the second times 2^8, have sums below 2^31 for 192 columns with weights of at most 127.
static_assert(192 * 127 * 255 * 257L < 1L << 31);

// The entries in units, which are returned: whole numbers, whose bytes lie in tiles, piece after piece, columns by columns,
// rows by rows; zeros beyond the last ones.
double in_bytes(const double* h, int64_t stride, int64_t rows, int64_t columns, unsigned char* tiles) {
  const double unit = unit_of(largest_size(h, stride, rows, columns), ENTRY_BITS);
  const InUnits entries(h, stride, columns, unit);
  if (rows % ROWS_OF_TILE || columns % COLUMNS_OF_TILE) __builtin_memset(tiles, 0, ByteForms::tiles_size(rows, columns));
  const int64_t across = (columns + COLUMNS_OF_TILE - 1) / COLUMNS_OF_TILE * PIECES * TILE_BYTES;
  for (int64_t i = 0; i < rows; ++i) {
    unsigned char* row = tiles + i / ROWS_OF_TILE * across + i % ROWS_OF_TILE * LINE;
    for (int64_t j = 0; j < columns; j += 16) {
      const IntPack whole = entries.at(i, j);
      unsigned char* at = row + j / COLUMNS_OF_TILE * PIECES * TILE_BYTES + j % COLUMNS_OF_TILE;
#pragma GCC unroll 4
      for (int piece = 0; piece < PIECES; ++piece)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + piece * TILE_BYTES), _mm512_maskz_cvtepi32_epi8(0xffff, __m512i(whole >> 8 * piece)));
    }
  }
  return unit;
}

using Sums = int[PIECES][ROWS_OF_TILE][ByteForms::WEIGHTS_AT_ONCE];

// The pieces of 16 rows times the weights of their columns, in the first four tile registers. The last piece has the sign.
KCALIB_FN void multiply(const unsigned char* tiles, const signed char* weights, int64_t steps) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < steps; ++k, tiles += PIECES * TILE_BYTES, weights += TILE_BYTES) {
    _tile_loadd(4, weights, LINE);
    _tile_loadd(5, tiles, LINE);
    _tile_dpbusd(0, 5, 4);
    _tile_loadd(6, tiles + TILE_BYTES, LINE);
    _tile_dpbusd(1, 6, 4);
    _tile_loadd(7, tiles + 2 * TILE_BYTES, LINE);
    _tile_dpbusd(2, 7, 4);
    _tile_loadd(5, tiles + 3 * TILE_BYTES, LINE);
    _tile_dpbssd(3, 5, 4);
  }
}

KCALIB_FN void write(Sums& sums) {
  _tile_stored(0, sums[0], LINE);
  _tile_stored(1, sums[1], LINE);
  _tile_stored(2, sums[2], LINE);
  _tile_stored(3, sums[3], LINE);
}

// Products of the 32-bit numbers in even lanes, or odd ones.
KCALIB_FN LongPack products(IntPack x, IntPack y, int odd) {
  const auto lanes = [&](IntPack z) KCALIB_INLINE { return __m512i(LongPack(z) >> 32 * odd); };
  return LongPack(_mm512_maskz_mul_epi32(0xff, lanes(x), lanes(y)));
}

KCALIB_FN IntPack load_whole(const void* at) {
  IntPack x;
  __builtin_memcpy(&x, at, sizeof x);
  return x;
}

// Adds the sums of 16 rows, times the weights of these and the unit, to out. Without rounding up to the last sum.
KCALIB_FN void add_weighted(const Sums& sums, const signed char* weights, double unit, double* out) {
  LongPack low[2] = {}, high[2] = {};  // of columns with even and with odd numbers
#pragma GCC unroll 1
  for (int i = 0; i < ROWS_OF_TILE; i += 4) {
    const IntPack of_rows = load_whole(weights + i / 4 * LINE);
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const IntPack weight = (of_rows << (24 - 8 * r)) >> 24;
      const auto pair = [&](int piece) KCALIB_INLINE { return load_whole(sums[piece][i + r]) + (load_whole(sums[piece + 1][i + r]) << 8); };
      const IntPack first = pair(0), second = pair(2);
      for (int odd = 0; odd < 2; ++odd) {
        low[odd] += products(first, weight, odd);
        high[odd] += products(second, weight, odd);
      }
    }
  }
  const auto total = [&](int odd) KCALIB_INLINE {
    return __builtin_convertvector(high[odd], DoublePack) * (unit * 0x1p16) + __builtin_convertvector(low[odd], DoublePack) * unit;
  };
  DoublePack both[2] = {total(0), total(1)}, ordered[2];
  constexpr LongPack ORDER[] = {{0, 8, 1, 9, 2, 10, 3, 11}, {4, 12, 5, 13, 6, 14, 7, 15}};
  for (int half = 0; half < 2; ++half) {
    ordered[half] = DoublePack(_mm512_maskz_permutex2var_pd(0xff, __m512d(both[0]), __m512i(ORDER[half]), __m512d(both[1])));
    double* at = out + half * LANES<DoublePack>;
    store<DoublePack>(at, load<DoublePack>(at) + ordered[half]);
  }
}

void quadratic(const double* h, int64_t stride, int64_t row_begin, int64_t rows, int64_t column_begin, int64_t columns, bool,
               const signed char* const* panels, int64_t n_panels, unsigned char* tiles, double* out) {
  constexpr int64_t WIDTH = ByteForms::WEIGHTS_AT_ONCE;  // bytes of a panel's row
  const double unit = in_bytes(h, stride, rows, columns, tiles);
  const TilesOn on;
  const int64_t steps = (columns + COLUMNS_OF_TILE - 1) / COLUMNS_OF_TILE;
  alignas(LINE) Sums sums;
  for (int64_t i = 0; i < rows; i += ROWS_OF_TILE, tiles += steps * PIECES * TILE_BYTES) {
    const auto add = [&](int64_t p) KCALIB_INLINE { add_weighted(sums, panels[p] + (row_begin + i) * WIDTH, unit, out + p * WIDTH); };
    for (int64_t p = 0; p < n_panels; ++p) {
      const Prefetch of_columns(panels[p + 1 < n_panels ? p + 1 : 0] + column_begin * WIDTH, steps * TILE_BYTES, 1);
      const Prefetch of_rows(panels[p] + (row_begin + i) * WIDTH, ROWS_OF_TILE * WIDTH, 1);
      multiply(tiles, panels[p] + column_begin * WIDTH, steps);
      of_columns.step(0);
      of_rows.step(0);
      if (p > 0) add(p - 1);  // while the products are on their way
      write(sums);
    }
    add(n_panels - 1);
  }
}

}  // namespace

extern const ByteForms byte_forms;
const ByteForms byte_forms = {quadratic};

}  // namespace kcalib
