// Compiled for x86-64-v4 with AVX512_VNNI and AVX512_VBMI, as all that has bytes, with the rule of tile.cpp (no std:: code).
#include "rough_products.h"

#include "block_products.h"
#include "tile.h"
#include "transpose_words.h"

namespace kcalib {
namespace {

constexpr int L = LANES<FloatPack>, QUAD = 4;  // samples of a word, over which products are added up
constexpr long SAMPLES = RoughProducts::SAMPLES, LANE_TILES = SAMPLES / L, LINE = 64;
constexpr unsigned SMALLEST = (127u - 80) << 23, LARGEST = (127u + 80) << 23;  // sizes of numbers, as bits of float32
constexpr float ENTRIES = 254, NUMBERS = 126;                                  // the largest whole numbers

using Words = unsigned __attribute__((vector_size(LINE)));

KCALIB_FN unsigned largest_of(Words x) {
  unsigned found = 0;
  for (int l = 0; l < L; ++l) found = x[l] > found ? x[l] : found;
  return found;
}
KCALIB_FN float number(unsigned bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// Rounds to one of the two whole numbers beside x.
class Dither {
 public:
  KCALIB_FN explicit Dither(unsigned seed) {
    for (int l = 0; l < L; ++l) {
      unsigned x = seed * unsigned(L) + unsigned(l) + 1;
      x = (x ^ (x >> 16)) * 0x7feb352du;
      x = (x ^ (x >> 15)) * 0x846ca68bu;
      state_[l] = x ^ (x >> 16);
    }
  }
  KCALIB_FN IntPack operator()(FloatPack x) {
    constexpr float BIAS = 1024;  // truncation is towards 0
    state_ = state_ * 1664525u + 1013904223u;
    const FloatPack share = FloatPack((state_ >> 9) | 0x3f800000u) + (BIAS - 1);  // from 1024 to 1025
    return IntPack(_mm512_maskz_cvttps_epi32(0xffff, __m512(x + share))) - int(BIAS);
  }

 private:
  Words state_;
};

bool round(const float* vectors, long length, long n_vectors, unsigned seed, unsigned char* out) {
  Dither rounded(seed);
  unsigned char* units = out + n_vectors * length;
  for (long v = 0; v < n_vectors; ++v, vectors += length, out += length) {
    Words most{};
    for (long k = 0; k < length; k += L) {
      const Words size = Words(load<FloatPack>(vectors + k)) & 0x7fffffffu;
      most = most > size ? most : size;
    }
    const unsigned largest = largest_of(most);
    if (largest >= LARGEST) return false;
    const float unit = number(largest < SMALLEST ? SMALLEST : largest) / NUMBERS;
    __builtin_memcpy(units + v * long(sizeof unit), &unit, sizeof unit);
    const float scale = 1 / unit;
    for (long k = 0; k < length; k += L) {
      const __m128i narrow = _mm512_maskz_cvtepi32_epi8(0xffff, __m512i(rounded(load<FloatPack>(vectors + k) * scale)));
      __builtin_memcpy(out + k, &narrow, sizeof narrow);
    }
  }
  return true;
}

// Words of a 16 x 16 matrix the other way round.
KCALIB_FN void transpose(const __m512i* rows, unsigned char* out) {
  __m512i columns[16];
  transpose_words(rows, columns);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) __builtin_memcpy(out + i * LINE, &columns[i], LINE);
}

// A block's entries as bytes in words of four samples over which products are added up: columns, with a lane for a row, and
// rows, with a lane for a column. 16 lanes after the other, with all their words.
struct EntryWords {
  unsigned char *by_columns, *by_rows;
  long rows, columns;  // filled up

  KCALIB_FN unsigned char* of_columns(long row, long column) const { return by_columns + (row / L * (columns / QUAD) + column / QUAD) * LINE; }
  KCALIB_FN unsigned char* of_rows(long row, long column) const { return by_rows + (column / L * (rows / QUAD) + row / QUAD) * LINE; }
};

KCALIB_FN const float* entries_at(const BlockProduct<float>& block, long row, long column) {
  constexpr long W = WIDTH<float>;
  return block.h + (column / W * block.stride + row) * W + column % W;
}

// The largest entry, as bits; a negative one is larger than all others.
unsigned largest_entry(const BlockProduct<float>& block, long columns) {
  Words most{};
  for (long j = 0; j < columns; j += SAMPLES)
    for (long i = 0; i < block.rows; ++i)
#pragma GCC unroll 4
      for (long k = 0; k < SAMPLES; k += L) {
        const Words bits = Words(load<FloatPack>(entries_at(block, i, j + k)));
        most = most > bits ? most : bits;
      }
  return largest_of(most);
}

void write(const BlockProduct<float>& block, const EntryWords& words, float scale, unsigned seed) {
  Dither rounded(seed);
  for (long i = 0; i < words.rows; i += L)
    for (long j = 0; j < words.columns; j += SAMPLES) {
      __m512i across[L];
      for (long r = 0; r < L; r += QUAD) {
        IntPack below[LANE_TILES] = {};
        for (int q = 0; q < QUAD; ++q) {
          const long row = i + r + q;
          __m512i line = _mm512_setzero_si512();
          if (row < block.rows) {
            const float* at = entries_at(block, row, j);
            __m128i part[LANE_TILES];
#pragma GCC unroll 4
            for (int t = 0; t < LANE_TILES; ++t) {
              const IntPack x = rounded(load<FloatPack>(at + t * L) * scale);
              below[t] |= x << (8 * q);
              part[t] = _mm512_maskz_cvtepi32_epi8(0xffff, __m512i(x));
            }
            line = _mm512_castsi128_si512(part[0]);
            line = _mm512_inserti32x4(line, part[1], 1);
            line = _mm512_inserti32x4(line, part[2], 2);
            line = _mm512_inserti32x4(line, part[3], 3);
          }
          across[r + q] = line;
        }
        for (int t = 0; t < LANE_TILES; ++t) __builtin_memcpy(words.of_rows(i + r, j + t * L), &below[t], LINE);
      }
      transpose(across, words.of_columns(i, j));
    }
}

// sum += the products of four bytes and four signed ones in each lane. Of the intrinsic GCC 12 makes a copy of each sum, and has
// no registers left for these.
KCALIB_FN void add_quads(__m512i& sum, __m512i bytes, __m512i signs) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signs));
}

// Adds the products of COUNT vectors with 64 lanes of entries, over so many samples.
template <int COUNT>
KCALIB_FN void add_products(const unsigned char* vectors, const unsigned char* units, long length, const unsigned char* entries,
                            long samples, double unit, double* out) {
  __m512i sum[LANE_TILES][COUNT];
  for (int t = 0; t < LANE_TILES; ++t)
    for (int c = 0; c < COUNT; ++c) sum[t][c] = _mm512_setzero_si512();
#pragma GCC unroll 1
  for (long k = 0; k < samples; k += QUAD) {
    __m512i lanes[LANE_TILES];
#pragma GCC unroll 4
    for (int t = 0; t < LANE_TILES; ++t) __builtin_memcpy(&lanes[t], entries + (t * samples + k) * L, LINE);
#pragma GCC unroll 6
    for (int c = 0; c < COUNT; ++c) {
      int four;
      __builtin_memcpy(&four, vectors + c * length + k, sizeof four);
      const __m512i all = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int t = 0; t < LANE_TILES; ++t) add_quads(sum[t][c], lanes[t], all);
    }
  }
#pragma GCC unroll 6
  for (int c = 0; c < COUNT; ++c) {
    float own;
    __builtin_memcpy(&own, units + c * long(sizeof own), sizeof own);
    const double factor = unit * double(own);
#pragma GCC unroll 4
    for (int t = 0; t < LANE_TILES; ++t) {
      DoublePack wide[WIDE<FloatPack>];
      widen(FloatPack(_mm512_maskz_cvtepi32_ps(0xffff, sum[t][c])), wide);  // whole numbers of less than 24 bits
      for (int w = 0; w < WIDE<FloatPack>; ++w) {
        double* at = out + c * length + t * L + w * LANES<DoublePack>;
        store<DoublePack>(at, load<DoublePack>(at) + wide[w] * factor);
      }
    }
  }
}

// Adds the products with all vectors of the entries in lanes.
void add_all(const BlockProduct<float>& block, const unsigned char* vectors, const unsigned char* words, long lanes, long samples,
             double unit, double* out) {
  constexpr int AT_ONCE = 6;
  const unsigned char* units = vectors + block.n_vectors * block.length;
  for (long lane = 0; lane < lanes; lane += SAMPLES)
    in_parts<AT_ONCE>(block.n_vectors, [&](long v, auto count) KCALIB_INLINE {
      add_products<count.value>(vectors + v * block.length, units + v * long(sizeof(float)), block.length, words + lane * samples, samples, unit,
                                out + v * block.length + lane);
    });
}

bool multiply(const BlockProduct<float>& block, const unsigned char* of_columns, const unsigned char* of_rows, unsigned seed,
              unsigned char* entries) {
  const long rows = (block.rows + SAMPLES - 1) / SAMPLES * SAMPLES, columns = (block.columns + SAMPLES - 1) / SAMPLES * SAMPLES;
  const unsigned largest = largest_entry(block, columns);
  if (largest == 0) return true;
  if (largest < SMALLEST || largest >= LARGEST) return false;
  const EntryWords words{entries, entries + rows * columns, rows, columns};
  const float unit = number(largest) / ENTRIES;
  write(block, words, ENTRIES / number(largest), seed);
  add_all(block, of_columns, words.by_columns, rows, columns, double(unit), block.to_rows);
  if (of_rows) add_all(block, of_rows, words.by_rows, columns, rows, double(unit), block.to_columns);
  return true;
}

}  // namespace

extern const RoughProducts rough_products;
const RoughProducts rough_products = {round, multiply};

}  // namespace kcalib
