// Quadratic forms of whole-number weights by AVX512_VNNI, which adds up four products of bytes in each 32-bit lane: an entry
// takes three of them, and all three less time than one product in float32. Compiled for x86-64-v4 with VNNI and VBMI, with
// the rule of tile.cpp (no std:: code).
#include "byte_forms.h"

#include "byte_units.h"

namespace kcalib {
namespace {

constexpr long LINE = 64, REPLICATES = ByteForms::WEIGHTS_AT_ONCE;
constexpr int PIECES = 3;
constexpr long ROWS_AT_ONCE = 4, COLUMNS_AT_ONCE = 16;
constexpr long STRIP = 16;  // rows that have a unit
constexpr int ZERO = 1 << (8 * PIECES - 1);  // is added to entries, whose pieces then have no sign
// Units of the largest entry, of which halves to 128ths, thirds and fifths are whole, as of entries of tied samples.
constexpr int MOST = 128 * 3 * 5 * 17 * 257;
static_assert(MOST < ZERO);
constexpr int SHARE_BITS = 7;  // of a unit, in which entries are rounded to the nearest at first
constexpr int SMALL = 31;  // sizes of weights, of which sums of a piece over a strip are below 2^31
static_assert(STRIP * 192 * SMALL * SMALL * 255L < 1L << 31);

using Bytes = __m512i;
using Words = unsigned __attribute__((vector_size(LINE)));  // whose products may overflow, as those do that are not needed

// Of 16 entries: a word for each piece of four columns.
struct Order {
  alignas(LINE) unsigned char at[LINE];
  constexpr Order() : at() {
    for (int k = 0; k < LINE; ++k) {
      const int quad = k / 12 % 4, piece = k / 4 % PIECES, column = 4 * quad + k % 4;
      at[k] = static_cast<unsigned char>(4 * column + piece);
    }
  }
};
constexpr Order PIECE_BY_PIECE;

// What is added to entries before they are rounded down: shares of a unit that no two neighbours have in common. Were each
// rounded to the nearest, equal entries of a block would all be off to the same side.
struct Shares {
  alignas(LINE) int at[192];
  constexpr Shares() : at() {
    for (int j = 0; j < 192; ++j) at[j] = 47 * j % (1 << SHARE_BITS);
  }
};
constexpr Shares SHARES;
constexpr int NEXT_ROW = 75;  // of which 47 is no multiple that comes soon

KCALIB_FN Bytes line_at(const void* p) { return _mm512_loadu_si512(p); }

long row_size(long columns) { return (columns + COLUMNS_AT_ONCE - 1) / COLUMNS_AT_ONCE * COLUMNS_AT_ONCE * PIECES; }

// The entries of a strip in units, which are returned: whole numbers from ZERO on, whose bytes lie row by row; that is also
// what rows and columns beyond the last ones have.
double in_bytes(const double* h, long stride, long row, long rows, long columns, unsigned char* bytes) {
  const double largest = largest_size(h, stride, rows, columns);
  const double unit = largest < 0x1p-900 ? 1 : largest < __builtin_inf() ? largest / MOST : __builtin_nan("");
  const InUnits entries(h, stride, columns, unit / (1 << SHARE_BITS));
  const long size = row_size(columns);
  const Bytes order = line_at(PIECE_BY_PIECE.at);
  for (long i = 0; i < rows || i % ROWS_AT_ONCE; ++i, bytes += size)
    for (long j = 0; j < columns; j += COLUMNS_AT_ONCE) {
      const Bytes share = _mm512_set1_epi32((1 << SHARE_BITS) - 1) & (line_at(SHARES.at + j) + _mm512_set1_epi32(NEXT_ROW * int(row + i)));
      const IntPack whole = ((i < rows ? entries.at(i, j) + IntPack(share) : IntPack{}) >> SHARE_BITS) + ZERO;
      _mm512_mask_storeu_epi32(bytes + j * PIECES, 0x0fff, _mm512_maskz_permutexvar_epi8(~__mmask64(0), order, Bytes(whole)));
    }
  return unit;
}

KCALIB_FN IntPack add_products(IntPack sum, Bytes entries, Bytes weights) {
  return IntPack(_mm512_dpbusd_epi32(Bytes(sum), entries, weights));
}

KCALIB_FN DoublePack half_of(IntPack x, int half) {
  const __m256i own = half ? _mm512_maskz_extracti64x4_epi64(0xf, Bytes(x), 1) : _mm512_castsi512_si256(Bytes(x));
  return DoublePack(_mm512_maskz_cvtepi32_pd(0xff, own));
}

// Adds the forms of some panels of weights at a time, unless sums over rows are to be IN_32_BITS and weights are too large
// for that. Weights that are next are asked for.
template <int PANELS, bool IN_32_BITS>
bool add_forms(const unsigned char* bytes, const double* units, long row_begin, long rows, long column_begin, long columns,
               const signed char* const* panels, const signed char* const* next, double* out) {
  const long size = row_size(columns), steps = (columns + 3) / 4;
  const signed char *of_rows[PANELS], *of_columns[PANELS];
  IntPack excess[PANELS] = {}, sums[PANELS][PIECES] = {};  // excess: what ZERO adds to sums of the last piece
  DoublePack totals[PANELS][2] = {};
  Bytes bits = _mm512_setzero_si512();  // that weights have
  for (int p = 0; p < PANELS; ++p) {
    of_rows[p] = panels[p] + row_begin * REPLICATES;
    of_columns[p] = panels[p] + column_begin * REPLICATES;
    for (long k = 0; k < steps; ++k) {
      const Bytes weights = line_at(of_columns[p] + k * LINE);
      bits |= _mm512_abs_epi8(weights);
      excess[p] = add_products(excess[p], _mm512_set1_epi8(char(ZERO >> 16)), weights);
    }
  }
  const auto total = [&](const IntPack* pieces, int half) KCALIB_INLINE {
    return half_of(pieces[2], half) * 0x1p16 + (half_of(pieces[1], half) * 0x1p8 + half_of(pieces[0], half));
  };
  for (long i = 0; i < rows; i += ROWS_AT_ONCE, bytes += ROWS_AT_ONCE * size) {
    IntPack own[ROWS_AT_ONCE][PANELS][PIECES] = {};
#pragma GCC unroll 4
    for (int r = 0; r < ROWS_AT_ONCE; ++r)
#pragma GCC unroll 2
      for (int p = 0; p < PANELS; ++p) own[r][p][2] = -excess[p];
    for (int p = 0; p < PANELS; ++p) {
      __builtin_prefetch(next[p] + (column_begin + i) * REPLICATES);
      __builtin_prefetch(next[p] + (row_begin + i) * REPLICATES);
    }
    const unsigned char* at = bytes;
#pragma GCC unroll 1
    for (long k = 0; k < steps; ++k, at += 4 * PIECES) {
      Bytes weights[PANELS];
#pragma GCC unroll 2
      for (int p = 0; p < PANELS; ++p) weights[p] = line_at(of_columns[p] + k * LINE);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS_AT_ONCE; ++r)
#pragma GCC unroll 3
        for (int piece = 0; piece < PIECES; ++piece) {
          int word;
          __builtin_memcpy(&word, at + r * size + 4 * piece, sizeof word);
          const Bytes entries = _mm512_set1_epi32(word);
#pragma GCC unroll 2
          for (int p = 0; p < PANELS; ++p) own[r][p][piece] = add_products(own[r][p][piece], entries, weights[p]);
        }
    }
#pragma GCC unroll 2
    for (int p = 0; p < PANELS; ++p) {
      const Bytes weights = line_at(of_rows[p] + i * REPLICATES);
      bits |= _mm512_abs_epi8(weights);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS_AT_ONCE; ++r) {
        const IntPack weight = (IntPack(weights) << (24 - 8 * r)) >> 24;
        if constexpr (IN_32_BITS)
          for (int piece = 0; piece < PIECES; ++piece) sums[p][piece] = IntPack(Words(sums[p][piece]) + Words(own[r][p][piece]) * Words(weight));
        else
          for (int half = 0; half < 2; ++half)
            totals[p][half] += units[i / STRIP] * half_of(weight, half) * total(own[r][p], half);
      }
    }
    if (IN_32_BITS && ((i + ROWS_AT_ONCE) % STRIP == 0 || i + ROWS_AT_ONCE >= rows))
#pragma GCC unroll 2
      for (int p = 0; p < PANELS; ++p) {
        for (int half = 0; half < 2; ++half) totals[p][half] += units[i / STRIP] * total(sums[p], half);
        sums[p][0] = sums[p][1] = sums[p][2] = IntPack{};
      }
  }
  if (IN_32_BITS && _mm512_test_epi8_mask(bits, _mm512_set1_epi8(char(~SMALL)))) return false;
  for (int p = 0; p < PANELS; ++p)
    for (int half = 0; half < 2; ++half, out += LANES<DoublePack>)
      store<DoublePack>(out, load<DoublePack>(out) + totals[p][half]);
  return true;
}

void quadratic(const double* h, long stride, long row_begin, long rows, long column_begin, long columns,
               const signed char* const* panels, long n_panels, unsigned char* bytes, double* out) {
  double units[192 / STRIP];
  for (long i = 0; i < rows; i += STRIP)
    units[i / STRIP] = in_bytes(h + i * stride, stride, i, rows - i < STRIP ? rows - i : STRIP, columns, bytes + i * row_size(columns));
  const auto add = [&](auto form, long p) KCALIB_INLINE {
    const signed char* next[] = {panels[p + 2 < n_panels ? p + 2 : 0], panels[p + 3 < n_panels ? p + 3 : 0]};
    return form(bytes, units, row_begin, rows, column_begin, columns, panels + p, next, out + p * REPLICATES);
  };
  for (long p = 0; p < n_panels; ++p) {
    if (p + 1 < n_panels && add(add_forms<2, true>, p)) ++p;
    else if (!add(add_forms<1, true>, p)) add(add_forms<1, false>, p);
  }
}

}  // namespace

extern const ByteForms byte_dots;
const ByteForms byte_dots = {quadratic};

}  // namespace kcalib
