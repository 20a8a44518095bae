// Sums of entries over pairs with equal labels by looking them up: of a row's entries in four columns the sums over all 16
// subsets stand in a table, and the bits of labels say which of these columns differ. Compiled for x86-64-v4 with
// AVX512_VBMI and AVX512_VNNI, with the rule of tile.cpp (no std:: code).
#include "cpu/bytes/byte_labels.h"

#include "cpu/simd/register_tile.h"
#include "cpu/pairs/tile.h"

namespace kcalib {
namespace {

constexpr int64_t SAMPLES = ByteLabels::SAMPLES, LINE = 64;
constexpr int PIECES = 3;         // bytes of a sum of four entries, the last with its sign
constexpr int64_t ROWS_AT_ONCE = 8;  // of which the tables stay in L1
constexpr int QUADS = 4;          // of columns in a group
static_assert(ByteLabels::TABLES_SIZE >= ROWS_AT_ONCE * 192 / SAMPLES * PIECES * LINE);

using Bytes = __m512i;
using HalfIntPack = int __attribute__((vector_size(LINE / 2)));

// Byte b of lanes l of x (b = first and, in the upper half, b = second), and of y.
struct Order {
  alignas(LINE) unsigned char at[LINE];
  constexpr Order(int first, int second) : at() {
    for (int k = 0; k < LINE; ++k)
      at[k] = static_cast<unsigned char>(4 * (k % 16) + (k / 16 % 2 ? 64 : 0) + (k < 32 ? first : second));
  }
};
constexpr Order LOW_BYTES(0, 1), HIGH_BYTES(2, 3);

KCALIB_FN Bytes line_at(const void* p) { return _mm512_loadu_si512(p); }

// The tables of a row's entries in a group's columns: byte 16 q + s of a piece is that of the sum over the columns 4 q..
// whose bit is not set in s.
KCALIB_FN void write_tables(const int* units, int64_t columns, unsigned char* tables) {
  constexpr __mmask16 WITHOUT[4] = {0x5555, 0x3333, 0x0f0f, 0x00ff};
  Bytes sums[QUADS];
#pragma GCC unroll 4
  for (int q = 0; q < QUADS; ++q) {
    sums[q] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
      if (4 * q + k < columns) sums[q] = _mm512_mask_add_epi32(sums[q], WITHOUT[k], sums[q], _mm512_set1_epi32(units[4 * q + k]));
  }
  const Bytes low = line_at(LOW_BYTES.at), high = line_at(HIGH_BYTES.at);
  const Bytes first = _mm512_permutex2var_epi8(sums[0], low, sums[1]), second = _mm512_permutex2var_epi8(sums[2], low, sums[3]);
  const Bytes third = _mm512_permutex2var_epi8(sums[0], high, sums[1]), fourth = _mm512_permutex2var_epi8(sums[2], high, sums[3]);
  _mm512_storeu_si512(tables, _mm512_maskz_shuffle_i64x2(0xff, first, second, 0x44));
  _mm512_storeu_si512(tables + LINE, _mm512_maskz_shuffle_i64x2(0xff, first, second, 0xee));
  _mm512_storeu_si512(tables + 2 * LINE, _mm512_maskz_shuffle_i64x2(0xff, third, fourth, 0x44));
}

// The bits of 16 labels, each in the low halves of all bytes of its word.
template <int PLANES> KCALIB_FN void bits_of_row(const unsigned char* labels, Bytes* bits) {
  alignas(LINE) static constexpr unsigned char SPREAD[LINE] = {
      0, 0, 0, 0, 1, 1, 1, 1, 2,  2,  2,  2,  3,  3,  3,  3,  4,  4,  4,  4,  5,  5,  5,  5,  6,  6,  6,  6,  7,  7,  7,  7,
      8, 8, 8, 8, 9, 9, 9, 9, 10, 10, 10, 10, 11, 11, 11, 11, 12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 15, 15, 15, 15};
  __m128i own;
  __builtin_memcpy(&own, labels, sizeof own);
  const Bytes all = _mm512_maskz_permutexvar_epi8(~__mmask64(0), line_at(SPREAD), _mm512_castsi128_si512(own));
#pragma GCC unroll 8
  for (int b = 0; b < PLANES; ++b)
    bits[b] = _mm512_maskz_set1_epi8(_mm512_test_epi8_mask(all, _mm512_set1_epi8(char(1 << b))), 0x0f);
}

// Adds the pieces of the sums of two rows over columns with equal labels.
template <int PLANES>
KCALIB_FN void add_rows(const unsigned char* tables, int64_t row_size, const unsigned char* group, int64_t group_size, int64_t groups,
                        const Bytes (&first)[PLANES], const Bytes (&second)[PLANES], Bytes (&sums)[PIECES]) {
  const Bytes ones = _mm512_set1_epi8(1);
  for (int64_t g = 0; g < groups; ++g, group += group_size, tables += PIECES * LINE) {
    Bytes at[2];
    at[0] = line_at(group) ^ first[0];
    at[1] = line_at(group) ^ second[0];
#pragma GCC unroll 8
    for (int b = 1; b < PLANES; ++b) {
      const Bytes plane = line_at(group + b * LINE);
      at[0] = _mm512_ternarylogic_epi64(at[0], plane, first[b], 0xf6);  // x | (y ^ z)
      at[1] = _mm512_ternarylogic_epi64(at[1], plane, second[b], 0xf6);
    }
#pragma GCC unroll 2
    for (int r = 0; r < 2; ++r) {
      const auto piece = [&](int p) KCALIB_INLINE {
        return _mm512_maskz_permutexvar_epi8(~__mmask64(0), at[r], line_at(tables + r * row_size + p * LINE));
      };
      sums[0] = _mm512_dpbusd_epi32(sums[0], piece(0), ones);
      sums[1] = _mm512_dpbusd_epi32(sums[1], piece(1), ones);
      sums[2] = _mm512_dpbusd_epi32(sums[2], ones, piece(2));
    }
  }
}

template <int PLANES>
void matches_of(const int* units, int64_t stride, const MatchBlock& block, const unsigned char* const* panels, int64_t n_panels,
                double unit, unsigned char* tables, double* out) {
  constexpr int64_t GROUP = ByteLabels::group_size(PLANES), WIDTH = ByteLabels::LABELS_AT_ONCE;
  const int64_t groups = (block.columns + SAMPLES - 1) / SAMPLES, row_size = groups * PIECES * LINE;
  for (int64_t k = 0; k < n_panels * WIDTH; ++k) out[k] = 0;
  for (int64_t i = 0; i < block.rows; i += ROWS_AT_ONCE) {
    const int64_t rows = block.rows - i < ROWS_AT_ONCE ? block.rows - i : ROWS_AT_ONCE;
    const int64_t skipped = block.on_diagonal ? i / SAMPLES : 0;
    for (int64_t r = 0; r < rows + rows % 2; ++r)
      for (int64_t g = skipped; g < groups; ++g)
        write_tables(units + (i + r) * stride + g * SAMPLES, block.columns - g * SAMPLES, tables + r * row_size + g * PIECES * LINE);
    const unsigned char* first_table = tables + skipped * PIECES * LINE;
    for (int64_t p = 0; p < n_panels; ++p) {
      const unsigned char* of_columns = panels[p] + (block.column_begin / SAMPLES + skipped) * GROUP;
      const int64_t row = block.row_begin + i;
      const unsigned char* of_rows = panels[p] + row / SAMPLES * GROUP + (4 * PLANES + row % SAMPLES) * WIDTH;
      const Prefetch next(panels[p + 1 < n_panels ? p + 1 : 0] + (block.column_begin / SAMPLES + skipped) * GROUP,
                          (groups - skipped) * GROUP, (rows + 1) / 2);
      Bytes sums[PIECES] = {};
      for (int64_t r = 0; r < rows; r += 2) {
        Bytes first[PLANES], second[PLANES];
        bits_of_row<PLANES>(of_rows + r * WIDTH, first);
        bits_of_row<PLANES>(of_rows + (r + 1) * WIDTH, second);
        next.step(r / 2);
        add_rows<PLANES>(first_table + r * row_size, row_size, of_columns, GROUP, groups - skipped, first, second, sums);
      }
      // Of 8 rows and 192 columns: the last piece times 2^16 has no room in 32 bits.
      const auto wide = [](IntPack x, int half) KCALIB_INLINE {
        HalfIntPack halves[2];
        __builtin_memcpy(halves, &x, sizeof x);
        return __builtin_convertvector(halves[half], DoublePack);
      };
      const IntPack low = IntPack(sums[0]) + (IntPack(sums[1]) << 8);
      for (int half = 0; half < 2; ++half) {
        double* at = out + p * WIDTH + half * LANES<DoublePack>;
        store<DoublePack>(at, load<DoublePack>(at) + (wide(IntPack(sums[2]), half) * 0x1p16 + wide(low, half)));
      }
    }
  }
  for (int64_t k = 0; k < n_panels * WIDTH; ++k) out[k] *= unit;
}

void matches(const int* units, int64_t stride, const MatchBlock& block, const unsigned char* const* panels, int64_t n_panels,
             int64_t planes, double unit, unsigned char* tables, double* out) {
  switch (planes) {
    case 1: return matches_of<1>(units, stride, block, panels, n_panels, unit, tables, out);
    case 2: return matches_of<2>(units, stride, block, panels, n_panels, unit, tables, out);
    case 3: return matches_of<3>(units, stride, block, panels, n_panels, unit, tables, out);
    case 4: return matches_of<4>(units, stride, block, panels, n_panels, unit, tables, out);
    case 5: return matches_of<5>(units, stride, block, panels, n_panels, unit, tables, out);
    case 6: return matches_of<6>(units, stride, block, panels, n_panels, unit, tables, out);
    case 7: return matches_of<7>(units, stride, block, panels, n_panels, unit, tables, out);
    default: return matches_of<8>(units, stride, block, panels, n_panels, unit, tables, out);
  }
}

void pack(const int* labels, int64_t n, int64_t stride, int64_t count, int64_t planes, unsigned char* panel) {
  const __mmask16 there = __mmask16((1u << count) - 1);
  const Bytes one = _mm512_set1_epi32(1);
  for (int64_t i = 0; i < n; i += SAMPLES, panel += ByteLabels::group_size(planes)) {
    Bytes words[ByteLabels::MOST_PLANES];
    for (int64_t b = 0; b < planes; ++b) words[b] = b ? _mm512_setzero_si512() : _mm512_set1_epi32(0x30201000);  // the table's quads
    for (int64_t s = 0; s < SAMPLES; ++s) {
      const Bytes own = i + s < n ? _mm512_maskz_loadu_epi32(there, labels + (i + s) * stride) : _mm512_setzero_si512();
      const __m128i narrow = _mm512_maskz_cvtepi32_epi8(0xffff, own);
      __builtin_memcpy(panel + planes * LINE + s * ByteLabels::LABELS_AT_ONCE, &narrow, sizeof narrow);
      const __m128i shift = _mm_cvtsi32_si128(int(8 * (s / 4) + s % 4));
      for (int64_t b = 0; b < planes; ++b)
        words[b] |= _mm512_maskz_sll_epi32(0xffff, _mm512_maskz_srl_epi32(0xffff, own, _mm_cvtsi32_si128(int(b))) & one, shift);
    }
    for (int64_t b = 0; b < planes; ++b) _mm512_storeu_si512(panel + b * LINE, words[b]);
  }
}

}  // namespace

extern const ByteLabels byte_labels;
const ByteLabels byte_labels = {pack, matches};

}  // namespace kcalib
