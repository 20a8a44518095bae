// Quadratic forms of whole-number weights by AVX512_VNNI, which adds up four products of bytes in each 32-bit lane: an entry
// takes three of them, or two beside additions of bytes, and all of that less time than one product in float32.
// Compiled for x86-64-v4 with VNNI and VBMI, with the rule of tile.cpp (no std:: code).
#include "cpu/bytes/byte_forms.h"

#include "cpu/bytes/byte_units.h"

namespace kcalib {
namespace {

constexpr int64_t LINE = 64, REPLICATES = ByteForms::WEIGHTS_AT_ONCE;
constexpr int PIECES = 3;
constexpr int64_t COLUMNS_AT_ONCE = 16, STEP = 8;  // columns of a line of entries, and of two lines of weights
constexpr int64_t STEP_BYTES = STEP * PIECES;
constexpr int64_t ROWS_OF_WORD = 4;                // whose weights are in a word
constexpr int64_t STRIP = 16;                      // rows that have a unit
constexpr int BASE = 240;                       // of an entry's pieces
constexpr int ZERO = BASE * BASE * (BASE / 2);  // is added to entries, whose pieces then have no sign
// Units of the largest entry, of which halves to 4096ths, thirds, ninths, fifths, 25ths and sevenths are whole, as of entries
// of tied samples.
constexpr int MOST = 4096 * 9 * 25 * 7;
static_assert(MOST < ZERO);
constexpr int SHARE_BITS = 7;  // of a unit, in which entries are rounded to the nearest at first
static_assert((ZERO + MOST + 1L) << SHARE_BITS < 1L << 31);
constexpr int LEAST = -1, LARGEST = 14;  // weights that pieces from 1 to BASE leave room for in a byte, with a sign or without
static_assert(LEAST + 1 >= 0 && BASE + LARGEST <= 255 && BASE - 128 + LARGEST <= 127 && LARGEST - LEAST == 15);
constexpr int SMALL = 31;  // sizes of weights, of which sums of a piece over a strip are below 2^31
static_assert(STRIP * 192 * SMALL * SMALL * int64_t(BASE) < 1L << 31);

using Bytes = __m512i;
using Words = unsigned __attribute__((vector_size(LINE)));  // whose products may overflow, as those do that are not needed

// How sums over columns are made. PAIRS: of two columns with the entries x, x' and the weights y, y' by
// (x + y') (x' + y) = x y + x' y' + x x' + y y' (Winograd): one product in place of two. What is too much depends on
// entries or on weights alone and is subtracted at the end. PLAIN: by a product of each entry. MIXED: by the latter for the
// first of some panels, which has no weight below 0, by PAIRS for the others: with three, half of all operations are products,
// and none of the processor's units has to wait for the others.
enum class Way { PLAIN, PAIRS, MIXED };

constexpr bool in_pairs(Way way, int panel) { return way == Way::PAIRS || (way == Way::MIXED && panel > 0); }

// Of 16 entries of two rows, of the first in bytes 0 to 63: for eight columns of a row the two words of each piece; then those
// of the other row, and then the other columns.
struct Order {
  alignas(LINE) unsigned char at[2 * LINE];
  constexpr Order() : at() {
    for (int k = 0; k < 4 * STEP_BYTES; ++k) {
      const int row = k / STEP_BYTES % 2, eight = k / STEP_BYTES / 2, piece = k % STEP_BYTES / 8, column = 8 * eight + k % 8;
      at[k] = static_cast<unsigned char>(LINE * row + 4 * column + piece);
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
KCALIB_FN IntPack add_products(IntPack sum, Bytes entries, Bytes weights) {
  return IntPack(_mm512_dpbusd_epi32(Bytes(sum), entries, weights));
}

KCALIB_FN Bytes plus(Bytes x, Bytes y) { return _mm512_maskz_add_epi8(~__mmask64(0), x, y); }

// x / by, rounded down, for 0 <= x < 2^21 with a quotient below 2^17: the half keeps it from whole numbers by far more than
// what float32 rounds off.
KCALIB_FN IntPack quotient(IntPack x, int by) {
  const FloatPack share = FloatPack{} + 1.0f / float(by);
  return __builtin_convertvector(fused(__builtin_convertvector(x, FloatPack), share, 0.5f * share), IntPack);
}

// The pieces of numbers below BASE^3, a byte each, the lowest first.
KCALIB_FN IntPack in_pieces(IntPack x) {
  static_assert(BASE % 16 == 0 && BASE * BASE * (BASE / 16) < 1 << 21);
  const IntPack upper = quotient(x >> 4, BASE / 16), highest = quotient(upper, BASE);
  // The sum of p_k 256^k for pieces p_k, of which x is the sum of p_k BASE^k.
  return x + (256 - BASE) * upper + 256 * (256 - BASE) * highest;
}

int64_t row_size(int64_t columns) { return (columns + COLUMNS_AT_ONCE - 1) / COLUMNS_AT_ONCE * COLUMNS_AT_ONCE * PIECES; }

// Which rows and columns of a problem a block has, and whether entries before the diagonal are 0.
struct Place {
  int64_t row_begin, rows, column_begin, columns;
  bool triangle;

  int64_t steps() const { return (columns + STEP - 1) / STEP; }
  // The first column that the strip of a row is multiplied from.
  int64_t first_column(int64_t row) const { return triangle ? row / STRIP * STRIP : 0; }
};
static_assert(STRIP % COLUMNS_AT_ONCE == 0 && COLUMNS_AT_ONCE % STEP == 0);

// The entries of a block, with the unit of each strip, and (PAIRS) the sums of products of entries with each other.
struct Block {
  unsigned char* bytes;
  double units[192 / STRIP];
  int products[192][4];  // of each row, for each piece
};

// The entries of a strip in units: whole numbers from ZERO on, whose pieces, 1 added to each, lie by two rows and eight columns;
// that is also what rows and columns beyond the last ones have. PAIRS, MIXED: of every other four columns with a sign, less 128.
template <Way WAY>
void in_bytes(const double* h, int64_t stride, int64_t row, int64_t rows, int64_t first_column, int64_t columns, Block& block) {
  const int64_t size = row_size(columns);
  const double largest = largest_size(h, stride, rows, columns);
  const double unit = largest < 0x1p-900 ? 1 : largest < __builtin_inf() ? largest / MOST : __builtin_nan("");
  block.units[row / STRIP] = unit;
  const InUnits entries(h, stride, columns, unit / (1 << SHARE_BITS));
  const Bytes order[] = {line_at(PIECE_BY_PIECE.at), line_at(PIECE_BY_PIECE.at + LINE)};
  const Bytes added = _mm512_set1_epi64(WAY == Way::PAIRS ? int64_t(0x8181818101010101) : 0x0101010101010101);
  const IntPack zero = IntPack{} + (ZERO << SHARE_BITS);
  const auto pieces = [&](int64_t i, int64_t j) KCALIB_INLINE {
    const IntPack share = (IntPack(line_at(SHARES.at + j)) + NEXT_ROW * int(row + i)) & ((1 << SHARE_BITS) - 1);
    return Bytes(in_pieces((i < rows ? entries.at(i, j) + (zero | share) : zero) >> SHARE_BITS));
  };
  for (int64_t i = 0; i < rows || i % ROWS_OF_WORD; i += 2) {
    unsigned char* bytes = block.bytes + (row + i) * size + first_column / STEP * 2 * STEP_BYTES;
    IntPack products[2] = {};
    for (int64_t j = first_column; j < columns; j += COLUMNS_AT_ONCE, bytes += 4 * STEP_BYTES) {
      const Bytes x = pieces(i, j), other = pieces(i + 1, j);
      const auto line = [&](int k) KCALIB_INLINE { return plus(_mm512_maskz_permutex2var_epi8(~__mmask64(0), x, order[k], other), added); };
      const Bytes lines[] = {line(0), line(1)};
      _mm512_storeu_si512(bytes, lines[0]);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + LINE), _mm512_castsi512_si256(lines[1]));
      // The last columns may be half as many.
      const __mmask16 used[] = {__mmask16(j + STEP < columns ? 0xffff : 0x0fff), __mmask16(j + STEP < columns ? 0x00ff : 0)};
      if (WAY == Way::PAIRS)
        for (int k = 0; k < 2; ++k)
          products[k] = add_products(products[k], lines[k], _mm512_maskz_shuffle_epi32(used[k], lines[k], _MM_PERM_CDAB));
    }
    for (int r = 0; r < 2; ++r) {
      const auto lanes = [&](const IntPack& which) KCALIB_INLINE {
        return IntPack(_mm512_maskz_permutex2var_epi32(0x7, Bytes(products[0]), Bytes(which), Bytes(products[1])));
      };
      const IntPack both = r == 0 ? lanes(IntPack{0, 2, 4}) + lanes(IntPack{12, 14, 16}) : lanes(IntPack{6, 8, 10}) + lanes(IntPack{18, 20, 22});
      __builtin_memcpy(&block.products[row + i + r], &both, sizeof block.products[0]);
    }
  }
}

template <Way WAY> void in_bytes(const double* h, int64_t stride, const Place& at, Block& block) {
  for (int64_t i = 0; i < at.rows; i += STRIP)
    in_bytes<WAY>(h + i * stride, stride, i, at.rows - i < STRIP ? at.rows - i : STRIP, at.first_column(i), at.columns, block);
}

KCALIB_FN DoublePack half_of(IntPack x, int half) {
  const __m256i own = half ? _mm512_maskz_extracti64x4_epi64(0xf, Bytes(x), 1) : _mm512_maskz_extracti64x4_epi64(0xf, Bytes(x), 0);
  return DoublePack(_mm512_maskz_cvtepi32_pd(0xff, own));
}

// Bits by which `are_small` tells whether weights are small enough for WAY with sums over rows in 32 bits.
template <Way WAY> KCALIB_FN Bytes bits_of(Bytes weights) {
  return WAY != Way::PLAIN ? plus(weights, _mm512_set1_epi8(-LEAST)) : _mm512_abs_epi8(weights);
}
template <Way WAY> KCALIB_FN bool are_small(Bytes bits) {
  constexpr int MOST_BITS = WAY != Way::PLAIN ? LARGEST - LEAST : SMALL;
  return !_mm512_test_epi8_mask(bits, _mm512_set1_epi8(char(~MOST_BITS)));
}


// The pieces of some rows times panels of weights of the columns, from `first` on, and less `products` (`in_pairs`): sums of
// each row, panel and piece, which add(panel, sums) gets for each panel. A function of its own, of which all registers are: with
// what its callers keep in some, sums would be in memory.
template <Way WAY, int PANELS, int ROWS_AT_ONCE, class Add>
__attribute__((noinline)) void multiply(const unsigned char* words, int64_t size, int64_t steps, const signed char* const* columns,
                                        const IntPack (*first)[2], const int (*products)[4], Add add) {
  const signed char* weights_of[PANELS];
#pragma GCC unroll 3
  for (int p = 0; p < PANELS; ++p) weights_of[p] = columns[p];
  IntPack own[ROWS_AT_ONCE][PANELS][PIECES];
#pragma GCC unroll 4
  for (int r = 0; r < ROWS_AT_ONCE; ++r)
#pragma GCC unroll 3
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 3
      for (int piece = 0; piece < PIECES; ++piece) {
        own[r][p][piece] = first[p][piece + 1 == PIECES];
        if (in_pairs(WAY, p)) own[r][p][piece] -= products[r][piece];
      }
#pragma GCC unroll 1
  for (int64_t k = 0; k < steps; ++k, words += 2 * STEP_BYTES) {
    Bytes weights[PANELS][2];
#pragma GCC unroll 3
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) weights[p][half] = line_at(weights_of[p] + (2 * k + half) * LINE);
#pragma GCC unroll 4
    for (int r = 0; r < ROWS_AT_ONCE; ++r)
#pragma GCC unroll 3
      for (int piece = 0; piece < PIECES; ++piece) {
        const auto entries = [&](int half) KCALIB_INLINE {
          int word;
          __builtin_memcpy(&word, words + r / 2 * 2 * size + r % 2 * STEP_BYTES + 8 * piece + 4 * half, sizeof word);
          return _mm512_set1_epi32(word);
        };
        const Bytes x = entries(0), other = entries(1);
#pragma GCC unroll 3
        for (int p = 0; p < PANELS; ++p) {
          IntPack& sum = own[r][p][piece];
          if (in_pairs(WAY, p))
            sum = add_products(sum, plus(x, weights[p][1]), plus(other, weights[p][0]));
          else if (WAY == Way::MIXED)
            sum = add_products(add_products(sum, x, weights[p][0]), weights[p][1], other);
          else
            sum = add_products(add_products(sum, x, weights[p][0]), other, weights[p][1]);
        }
        // Entries that are next wait for this sum: were they loaded before, sums would have too few registers.
        IntPack last = own[r][PANELS - 1][piece];
        __asm__("" : "+r"(words), "+v"(last));
        own[r][PANELS - 1][piece] = last;
      }
  }
#pragma GCC unroll 3
  for (int p = 0; p < PANELS; ++p) add(p, own);
}

// Adds the forms of some panels of weights at a time to out[panel], unless sums over rows are to be IN_32_BITS and weights are
// too large for that, or (MIXED) below 0. Weights that are next are asked for.
template <Way WAY, int PANELS, int ROWS_AT_ONCE, bool IN_32_BITS>
bool add_forms(const Block& block, const Place& at, const signed char* const* panels, const signed char* const* next,
               double* const* out) {
  const int64_t size = row_size(at.columns);
  // First: what sums of a row begin with, of the last piece and the others, since products add more than is wanted.
  IntPack first[PANELS][2], sums[PANELS][PIECES] = {};
  DoublePack totals[PANELS][2] = {};
  Bytes bits = _mm512_setzero_si512();
  const signed char* of_columns[PANELS];
  const auto look_at_columns = [&](int64_t begin, int64_t steps) {
    const Bytes one = _mm512_set1_epi8(1);
    for (int p = 0; p < PANELS; ++p) {
      of_columns[p] = panels[p] + (at.column_begin + begin) * REPLICATES;
      IntPack own{}, others{}, products{};
      for (int64_t k = 0; k < steps; ++k) {
        const Bytes weights = line_at(of_columns[p] + 2 * k * LINE), other_weights = line_at(of_columns[p] + (2 * k + 1) * LINE);
        bits |= bits_of<WAY>(weights) | bits_of<WAY>(other_weights);
        if (WAY == Way::MIXED && p == 0) bits |= weights | other_weights;
        own = add_products(own, one, weights);
        others = add_products(others, one, other_weights);
        if (in_pairs(WAY, p)) products = add_products(products, plus(weights, one), other_weights);
      }
      first[p][0] = in_pairs(WAY, p) ? 128 * others - own - products : WAY == Way::MIXED ? 127 * others - own : -(own + others);
      first[p][1] = first[p][0] - (ZERO / BASE / BASE) * (own + others);
    }
  };
  const auto total = [](const IntPack* pieces, int half) KCALIB_INLINE {
    return half_of(pieces[2], half) * double(BASE * BASE) + (half_of(pieces[1], half) * double(BASE) + half_of(pieces[0], half));
  };
  for (int64_t strip = 0; strip < at.rows; strip += STRIP) {
    const int64_t begin = at.first_column(strip), steps = at.steps() - begin / STEP;
    const double unit = block.units[strip / STRIP];
    if (strip == 0 || at.triangle) look_at_columns(begin, steps);
    if (WAY == Way::MIXED && strip == 0 && !are_small<WAY>(bits)) return false;
    const unsigned char* bytes = block.bytes + strip * size + begin / STEP * 2 * STEP_BYTES;
    for (int64_t i = strip; i < at.rows && i < strip + STRIP; i += ROWS_OF_WORD) {
      IntPack weights[PANELS];
#pragma GCC unroll 3
      for (int p = 0; p < PANELS; ++p) {
        __builtin_prefetch(next[p] + (at.column_begin + i) * REPLICATES);
        __builtin_prefetch(next[p] + (at.row_begin + i) * REPLICATES);
        weights[p] = IntPack(line_at(panels[p] + (at.row_begin + i) * REPLICATES));
        bits |= bits_of<WAY>(Bytes(weights[p]));
      }
      for (int row = 0; row < ROWS_OF_WORD; row += ROWS_AT_ONCE, bytes += ROWS_AT_ONCE * size) {
        const auto add = [=, of_rows = &weights[0], in_words = &sums[0], in_doubles = &totals[0]](
                             int p, const IntPack (&own)[ROWS_AT_ONCE][PANELS][PIECES]) KCALIB_INLINE {
          const auto weight = [=](int r) KCALIB_INLINE { return (of_rows[p] << (24 - 8 * (row + r))) >> 24; };
          if constexpr (IN_32_BITS) {
            IntPack of_panel[PIECES];
#pragma GCC unroll 3
            for (int piece = 0; piece < PIECES; ++piece) of_panel[piece] = in_words[p][piece];
#pragma GCC unroll 4
            for (int r = 0; r < ROWS_AT_ONCE; ++r)
#pragma GCC unroll 3
              for (int piece = 0; piece < PIECES; ++piece)
                of_panel[piece] = IntPack(Words(of_panel[piece]) + Words(own[r][p][piece]) * Words(weight(r)));
#pragma GCC unroll 3
            for (int piece = 0; piece < PIECES; ++piece) in_words[p][piece] = of_panel[piece];
          } else {
#pragma GCC unroll 4
            for (int r = 0; r < ROWS_AT_ONCE; ++r)
              for (int half = 0; half < 2; ++half) in_doubles[p][half] += unit * half_of(weight(r), half) * total(own[r][p], half);
          }
        };
        multiply<WAY, PANELS, ROWS_AT_ONCE>(bytes, size, steps, of_columns, first, block.products + i + row, add);
      }
    }
    if (IN_32_BITS)
#pragma GCC unroll 3
      for (int p = 0; p < PANELS; ++p) {
        for (int half = 0; half < 2; ++half) totals[p][half] += unit * total(sums[p], half);
        sums[p][0] = sums[p][1] = sums[p][2] = IntPack{};
      }
  }
  if (IN_32_BITS && !are_small<WAY>(bits)) return false;
  for (int p = 0; p < PANELS; ++p)
    for (int half = 0; half < 2; ++half) {
      double* sum = out[p] + half * LANES<DoublePack>;
      store<DoublePack>(sum, load<DoublePack>(sum) + totals[p][half]);
    }
  return true;
}

// Whether a panel's weights are small enough for PAIRS, as `add_forms` finds.
bool fit_pairs(const signed char* panel, const Place& at) {
  Bytes bits = _mm512_setzero_si512();
  for (int64_t k = 0; k < 2 * at.steps(); ++k) bits |= bits_of<Way::PAIRS>(line_at(panel + at.column_begin * REPLICATES + k * LINE));
  for (int64_t i = 0; i < at.rows; i += ROWS_OF_WORD) bits |= bits_of<Way::PAIRS>(line_at(panel + (at.row_begin + i) * REPLICATES));
  return are_small<Way::PAIRS>(bits);
}

template <Way WAY>
void quadratic(const double* h, int64_t stride, int64_t row_begin, int64_t rows, int64_t column_begin, int64_t columns, bool triangle,
               const signed char* const* panels, int64_t n_panels, unsigned char* bytes, double* out) {
  constexpr int AT_ONCE = 3, FEWER = 2;
  const Place at{row_begin, rows, column_begin, columns, triangle};
  const auto next = [&](int64_t p) { return panels[p < n_panels ? p : 0]; };
  const auto sums = [&](int64_t p) { return out + p * REPLICATES; };
  Block block;
  block.bytes = bytes;
  if constexpr (WAY == Way::PAIRS) {
    in_bytes<Way::PAIRS>(h, stride, at, block);
    bool all = true, mixed = true;
    const auto add_one = [&](int64_t p) {
      const signed char* then = next(p + 1);
      double* const own = sums(p);
      return add_forms<Way::PAIRS, 1, 4, true>(block, at, panels + p, &then, &own);
    };
    int64_t p = 0;
    for (; p + AT_ONCE <= n_panels; p += AT_ONCE) {
      const signed char* const then[] = {next(p + AT_ONCE), next(p + AT_ONCE + 1), next(p + AT_ONCE + 2)};
      double* const own[] = {sums(p), sums(p + 1), sums(p + 2)};
      mixed = mixed && add_forms<Way::MIXED, AT_ONCE, 2, true>(block, at, panels + p, then, own);
      if (!mixed && !add_forms<Way::PAIRS, AT_ONCE, 2, true>(block, at, panels + p, then, own))
        for (int k = 0; k < AT_ONCE; ++k) all &= add_one(p + k);
    }
    for (; p < n_panels; ++p) all &= add_one(p);
    if (all) return;
  }
  in_bytes<Way::PLAIN>(h, stride, at, block);
  const signed char* own[FEWER];
  double* own_sums[FEWER];
  int count = 0;
  for (int64_t p = 0; p <= n_panels; ++p) {
    const bool last = p == n_panels;
    if (!last) {
      if (WAY == Way::PAIRS && fit_pairs(panels[p], at)) continue;
      own[count] = panels[p];
      own_sums[count++] = sums(p);
    }
    const signed char* const then[] = {next(p + 1), next(p + 2)};
    if (count == FEWER && add_forms<Way::PLAIN, FEWER, 4, true>(block, at, own, then, own_sums)) count = 0;
    if (count < FEWER && !last) continue;
    for (int k = 0; k < count; ++k)
      if (!add_forms<Way::PLAIN, 1, 4, true>(block, at, own + k, then, own_sums + k))
        add_forms<Way::PLAIN, 1, 4, false>(block, at, own + k, then, own_sums + k);
    count = 0;
  }
}

}  // namespace

extern const ByteForms byte_dots, byte_pairs;
const ByteForms byte_dots = {quadratic<Way::PLAIN>}, byte_pairs = {quadratic<Way::PAIRS>};

}  // namespace kcalib
