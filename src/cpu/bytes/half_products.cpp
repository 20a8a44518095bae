// float32 products on the tile registers of AMX, which multiply bfloat16 numbers and add up in float32. A float32 is the sum
// of three bfloat16 numbers; of the nine products of pieces the six largest are taken. Compiled for x86-64-v4 with AMX, with
// the rule of tile.cpp (no std:: code).
#include "cpu/bytes/half_products.h"

#include "cpu/simd/register_tile.h"
#include "cpu/pairs/tile.h"
#include "cpu/simd/tiles_on.h"
#include "cpu/simd/transpose_words.h"

namespace kcalib {
namespace {

constexpr int64_t PIECES = HalfProducts::PIECES, SAMPLES = HalfProducts::SAMPLES, LANES_OF_TILE = HalfProducts::VECTORS;
constexpr int64_t TILE_NUMBERS = LANES_OF_TILE * SAMPLES, LINE = 64;
constexpr unsigned SMALLEST = (127u - 80) << 23, NOT_FINITE = 255u << 23;  // sizes of entries, as bits of float32

// The piece that is left of x, with 16 bits of zeros.
KCALIB_FN IntPack piece_of(FloatPack& x) {
  const IntPack high = IntPack(x) & int(0xffff0000);
  x -= FloatPack(high);
  return high;
}

// The pieces of two packs, whose numbers alternate: those of x in the lower halves of words.
KCALIB_FN void both_pieces(FloatPack x, FloatPack y, IntPack* words) {
  using Words = unsigned __attribute__((vector_size(LINE)));
#pragma GCC unroll 3
  for (int p = 0; p < PIECES; ++p) words[p] = IntPack(Words(piece_of(x)) >> 16) | piece_of(y);
}

bool split(const float* vectors, int64_t length, int64_t n_vectors, unsigned short* pieces) {
  const int64_t size = HalfProducts::vectors_size(length, n_vectors) / PIECES, count = length * n_vectors;
  IntPack most{};
  for (int64_t k = 0; k < size; k += LANES<FloatPack>) {
    FloatPack x = k < count ? load<FloatPack>(vectors + k) : FloatPack{};
    const IntPack bits = IntPack(x) & 0x7fffffff;
    most = most > bits ? most : bits;
    for (int p = 0; p < PIECES; ++p) {
      const __m256i narrow = _mm512_maskz_cvtepi32_epi16(0xffff, __m512i(piece_of(x) >> 16));
      __builtin_memcpy(pieces + p * size + k, &narrow, sizeof narrow);
    }
  }
  for (int l = 0; l < LANES<FloatPack>; ++l)
    if (unsigned(most[l]) >= NOT_FINITE) return false;
  return true;
}

// Words of a 16 x 16 matrix the other way round.
KCALIB_FN void transpose(const IntPack* rows, unsigned short* out) {
  alignas(LINE) int at[LANES_OF_TILE][LANES_OF_TILE];
  __m512i words[16], columns[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) words[i] = __m512i(rows[i]);
  transpose_words(words, columns);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) _mm512_store_si512(at[i], columns[i]);
  __builtin_memcpy(out, at, sizeof at);
}

// The pieces of a block's entries in tiles, whose words are two samples over which products are added up: pairs of columns,
// with a lane for a row, and pairs of rows, with a lane for a column. Tiles of lanes, of samples, of pieces: one after the
// other.
struct EntryTiles {
  unsigned short *by_columns, *by_rows;
  int64_t column_steps, row_steps;  // tiles of samples

  KCALIB_FN unsigned short* of_columns(int64_t lanes, int64_t samples) const { return by_columns + (lanes * column_steps + samples) * PIECES * TILE_NUMBERS; }
  KCALIB_FN unsigned short* of_rows(int64_t lanes, int64_t samples) const { return by_rows + (lanes * row_steps + samples) * PIECES * TILE_NUMBERS; }
};

// False if entries are not what three pieces are for.
bool write(const BlockProduct<float>& block, const EntryTiles& tiles) {
  constexpr int64_t W = WIDTH<float>;
  constexpr int L = LANES<FloatPack>;
  IntPack most{};
  for (int64_t i = 0; i < tiles.row_steps * SAMPLES; i += LANES_OF_TILE)
    for (int64_t j = 0; j < tiles.column_steps * SAMPLES; j += SAMPLES) {
      IntPack across[PIECES][LANES_OF_TILE];
      for (int64_t r = 0; r < LANES_OF_TILE; r += 2) {
        FloatPack x[2][2];
        for (int k = 0; k < 2; ++k)
          for (int v = 0; v < 2; ++v) {
            const int64_t row = i + r + k;
            x[k][v] = row < block.rows ? load<FloatPack>(block.h + (j / W * block.stride + row) * W + j % W + v * L) : FloatPack{};
            const IntPack bits = IntPack(x[k][v]) & 0x7fffffff;
            most = most > bits ? most : bits;
          }
        IntPack words[PIECES];
        for (int v = 0; v < 2; ++v) {
          both_pieces(x[0][v], x[1][v], words);
          unsigned short* out = tiles.of_rows(j / L + v, i / SAMPLES) + (i % SAMPLES + r) * L;
          for (int p = 0; p < PIECES; ++p) __builtin_memcpy(out + p * TILE_NUMBERS, &words[p], sizeof words[p]);
        }
        for (int k = 0; k < 2; ++k) {
          // Columns that follow each other beside each other.
          const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
          const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
          const __m512i a = __m512i(x[k][0]), b = __m512i(x[k][1]);
          both_pieces(FloatPack(_mm512_permutex2var_epi32(a, even, b)), FloatPack(_mm512_permutex2var_epi32(a, odd, b)), words);
          for (int p = 0; p < PIECES; ++p) across[p][r + k] = words[p];
        }
      }
      for (int p = 0; p < PIECES; ++p) transpose(across[p], tiles.of_columns(i / LANES_OF_TILE, j / SAMPLES) + p * TILE_NUMBERS);
    }
  unsigned largest = 0;
  for (int l = 0; l < L; ++l) largest = unsigned(most[l]) > largest ? unsigned(most[l]) : largest;
  return largest == 0 || (largest >= SMALLEST && largest < NOT_FINITE);
}

// Adds the products of 16 or 32 vectors with 32 lanes of entries, over `steps` tiles of samples.
template <int COUNT>
KCALIB_FN void add_products(const unsigned short* vectors, int64_t piece, int64_t length, const unsigned short* first,
                            const unsigned short* second, int64_t steps, double* out, int64_t n_vectors) {
  const int64_t stride = 2 * length;
  _tile_zero(0);
  _tile_zero(1);
  if (COUNT == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < steps; ++k, vectors += SAMPLES, first += PIECES * TILE_NUMBERS, second += PIECES * TILE_NUMBERS) {
#define KCALIB_VECTORS(p)                                                                              \
  _tile_loadd(4, vectors + (p) * piece, stride);                                                       \
  if (COUNT == 2) _tile_loadd(5, vectors + (p) * piece + LANES_OF_TILE * length, stride)
#define KCALIB_ENTRIES(p)                          \
  _tile_loadd(6, first + (p) * TILE_NUMBERS, LINE); \
  _tile_loadd(7, second + (p) * TILE_NUMBERS, LINE)
#define KCALIB_MULTIPLY()    \
  _tile_dpbf16ps(0, 4, 6);   \
  _tile_dpbf16ps(1, 4, 7);   \
  if (COUNT == 2) {          \
    _tile_dpbf16ps(2, 5, 6); \
    _tile_dpbf16ps(3, 5, 7); \
  }
    KCALIB_VECTORS(0);
    KCALIB_ENTRIES(2);
    KCALIB_MULTIPLY()
    KCALIB_ENTRIES(1);
    KCALIB_MULTIPLY()
    KCALIB_VECTORS(1);
    KCALIB_MULTIPLY()
    KCALIB_ENTRIES(0);
    KCALIB_MULTIPLY()
    KCALIB_VECTORS(2);
    KCALIB_MULTIPLY()
    KCALIB_VECTORS(0);
    KCALIB_MULTIPLY()
#undef KCALIB_VECTORS
#undef KCALIB_ENTRIES
#undef KCALIB_MULTIPLY
  }
  alignas(LINE) float sums[2 * COUNT][LANES_OF_TILE][LANES_OF_TILE];
  _tile_stored(0, sums[0], LINE);
  _tile_stored(1, sums[1], LINE);
  if (COUNT == 2) {
    _tile_stored(2, sums[2], LINE);
    _tile_stored(3, sums[3], LINE);
  }
  all_written(sums);
  for (int64_t v = 0; v < n_vectors; ++v)
    for (int half = 0; half < 2; ++half) {
      DoublePack wide[WIDE<FloatPack>];
      widen(load<FloatPack>(sums[v / LANES_OF_TILE * 2 + half][v % LANES_OF_TILE]), wide);
      for (int w = 0; w < WIDE<FloatPack>; ++w) {
        double* at = out + v * length + half * LANES_OF_TILE + w * LANES<DoublePack>;
        store<DoublePack>(at, load<DoublePack>(at) + wide[w]);
      }
    }
}

// Adds the products with all vectors of the entries in lanes.
void add_all(const BlockProduct<float>& block, const unsigned short* vectors, const unsigned short* tiles, int64_t lanes, int64_t steps,
             double* out) {
  const int64_t piece = HalfProducts::vectors_size(block.length, block.n_vectors) / PIECES, size = steps * PIECES * TILE_NUMBERS;
  for (int64_t v = 0; v < block.n_vectors; v += 2 * LANES_OF_TILE) {
    const int64_t left = block.n_vectors - v < 2 * LANES_OF_TILE ? block.n_vectors - v : 2 * LANES_OF_TILE;
    for (int64_t t = 0; t < lanes; t += 2) {
      const unsigned short* first = tiles + t * size;
      double* to = out + v * block.length + t * LANES_OF_TILE;
      if (left > LANES_OF_TILE)
        add_products<2>(vectors + v * block.length, piece, block.length, first, first + size, steps, to, left);
      else
        add_products<1>(vectors + v * block.length, piece, block.length, first, first + size, steps, to, left);
    }
  }
}

bool multiply(const BlockProduct<float>& block, const unsigned short* of_columns, const unsigned short* of_rows, unsigned short* entries) {
  const int64_t row_steps = (block.rows + SAMPLES - 1) / SAMPLES, column_steps = (block.columns + SAMPLES - 1) / SAMPLES;
  const EntryTiles tiles{entries, entries + PIECES * row_steps * column_steps * SAMPLES * SAMPLES, column_steps, row_steps};
  if (!write(block, tiles)) return false;
  all_written(entries);
  const TilesOn on;
  add_all(block, of_columns, tiles.by_columns, 2 * row_steps, column_steps, block.to_rows);
  if (of_rows) add_all(block, of_rows, tiles.by_rows, 2 * column_steps, row_steps, block.to_columns);
  return true;
}

}  // namespace

extern const HalfProducts half_products;
const HalfProducts half_products = {split, multiply};

}  // namespace kcalib
