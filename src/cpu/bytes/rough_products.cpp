// Compiled for x86-64-v4 with AVX512_VNNI and AVX512_VBMI, as all that has bytes, with the rule of tile.cpp (no std:: code).
#include "cpu/bytes/rough_products.h"

#include "cpu/pairs/block_products.h"
#include "cpu/pairs/tile.h"
#include "cpu/simd/transpose_words.h"

namespace kcalib {
namespace {

constexpr int L = LANES<FloatPack>, D = LANES<DoublePack>, QUAD = 4;  // QUAD: samples of a word, over which products are added up
constexpr int64_t SAMPLES = RoughProducts::SAMPLES, LANE_TILES = SAMPLES / L, LINE = 64;
static_assert(WIDTH<float> == SAMPLES);

// Of x + 2^15 with 0 <= x < 256, rounded to 8 bits behind the point, the second byte is x without these.
constexpr int POINT = 0x47000000, SECOND = 8;

// Shares of a unit, each of its 256ths equally often, in random order: what is added before digits are cut off.
struct Shares {
  static constexpr int64_t COUNT = 2048;
  float of[COUNT + SAMPLES];  // the first ones are again behind the last one

  constexpr explicit Shares(int zero) : of() {
    unsigned state = 1;
    for (int64_t k = 0; k < COUNT; ++k) of[k] = 32768.0f + float(zero) + float(k % 256) / 256;
    for (int64_t k = COUNT - 1; k > 0; --k) {
      state = state * 1664525u + 1013904223u;
      const int64_t other = int64_t((unsigned long long)(state) * (unsigned long long)(k + 1) >> 32);
      const float x = of[k];
      of[k] = of[other];
      of[other] = x;
    }
    for (int64_t k = 0; k < SAMPLES; ++k) of[COUNT + k] = of[k];
  }
};
constexpr Shares UNSIGNED{0}, SIGNED{RoughProducts::ZERO};

// Where shares begin for what is rounded one after the other.
class Places {
 public:
  KCALIB_FN explicit Places(unsigned seed) {
    unsigned x = seed + 1;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    state_ = x ^ (x >> 16);
  }
  KCALIB_FN int64_t next() {
    state_ = state_ * 1664525u + 1013904223u;
    return int64_t(state_ >> 21);
  }

 private:
  unsigned state_;
};

void look_at(const double* vectors, int64_t rows, int64_t n_vectors, double* most, double* squares) {
  for (int64_t v = 0; v < n_vectors; v += D) {
    const __mmask8 lanes = __mmask8(n_vectors - v >= D ? 0xff : (1 << (n_vectors - v)) - 1);
    DoublePack largest{}, sum{};
    for (int64_t k = 0; k < rows; ++k) {
      const DoublePack x = DoublePack(_mm512_maskz_loadu_pd(lanes, vectors + k * n_vectors + v));
      const DoublePack size = x < DoublePack{} ? -x : x;
      largest = size > largest ? size : largest;
      sum += x * x;
    }
    _mm512_mask_storeu_pd(most + v, lanes, __m512d(largest));
    _mm512_mask_storeu_pd(squares + v, lanes, __m512d(sum));
  }
}

// Up to 16 numbers of a row, in units.
KCALIB_FN FloatPack in_units(const double* x, const double* factors, int64_t left) {
  const auto half = [&](int64_t k) KCALIB_INLINE {
    const __mmask8 lanes = __mmask8(left - k >= D ? 0xff : left > k ? (1 << (left - k)) - 1 : 0);
    const __m512d product = _mm512_mul_pd(_mm512_maskz_loadu_pd(lanes, x + k), _mm512_maskz_loadu_pd(lanes, factors + k));
    return _mm512_zextps256_ps512(_mm512_maskz_cvtpd_ps(0xff, product));
  };
  return FloatPack(_mm512_maskz_shuffle_f32x4(0xffff, half(0), half(D), 0x44));
}

void round(const double* vectors, const int64_t* order, int64_t rows, int64_t n_vectors, const double* factors, int64_t length, unsigned seed,
           unsigned char* out, int* sums) {
  Places places(seed);
  for (int64_t v = 0; v < n_vectors; v += L) {
    const int64_t left = n_vectors - v < L ? n_vectors - v : L;
    IntPack sum{};
    for (int64_t k = 0; k < length; k += L) {
      __m512i words[L], columns[L];
      for (int r = 0; r < L; ++r) {
        words[r] = _mm512_setzero_si512();
        if (k + r >= rows) continue;
        const FloatPack x = in_units(vectors + (order ? order[k + r] : k + r) * n_vectors + v, factors + v, left);
        const IntPack bits = IntPack(x + load<FloatPack>(SIGNED.of + places.next()));
        const IntPack whole = ((bits >> SECOND) & 0xff) - RoughProducts::ZERO;
        sum += whole;
        words[r] = __m512i(whole);
      }
      transpose_words(words, columns);
      for (int64_t c = 0; c < left; ++c) {
        const __m128i narrow = _mm512_maskz_cvtepi32_epi8(0xffff, columns[c]);
        __builtin_memcpy(out + (v + c) * length + k, &narrow, sizeof narrow);
      }
    }
    for (int64_t c = 0; c < left; ++c) sums[v + c] = sum[c];
  }
}

// The second bytes of four packs, those of a lane in a word.
KCALIB_FN __m512i second_bytes(const __m512i* x) {
  // Of a lane the second byte of the first pack, and of the second one, which is 64 bytes further.
  constexpr IntPack LANES_BEGIN = {0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60};
  const __m512i places = __m512i(LANES_BEGIN * 0x01010101 + 0x41014101);
  const __m512i first = _mm512_permutex2var_epi8(x[0], places, x[1]), last = _mm512_permutex2var_epi8(x[2], places, x[3]);
  return _mm512_mask_mov_epi16(first, 0xaaaaaaaa, last);
}

bool round_entries(const float* h, int64_t stride, int64_t rows, int64_t columns, float factor, bool with_signs, int64_t length, unsigned seed,
                   unsigned char* out) {
  const float* shares = with_signs ? SIGNED.of : UNSIGNED.of;
  const FloatPack times = splat<FloatPack>(factor);
  const IntPack point = IntPack{} + POINT;
  Places places(seed);
  IntPack beyond{};
  const int64_t filled = RoughProducts::padded(rows);
  for (int64_t j = 0; j < columns; j += SAMPLES, h += stride * SAMPLES, out += RoughProducts::columns_size(length))
    for (int64_t i = 0; i < filled; i += QUAD) {
      IntPack words[LANE_TILES][QUAD];
#pragma GCC unroll 4
      for (int q = 0; q < QUAD; ++q) {
        if (i + q >= rows) {
          for (int t = 0; t < LANE_TILES; ++t) words[t][q] = point;
          continue;
        }
        const float *entries = h + (i + q) * SAMPLES, *share = shares + places.next();
#pragma GCC unroll 4
        for (int t = 0; t < LANE_TILES; ++t) {
          words[t][q] = IntPack(load<FloatPack>(entries + t * L) * times + load<FloatPack>(share + t * L));
          beyond |= words[t][q] ^ point;
        }
      }
#pragma GCC unroll 4
      for (int t = 0; t < LANE_TILES; ++t) {
        __m512i packs[QUAD];
        for (int q = 0; q < QUAD; ++q) packs[q] = __m512i(words[t][q]);
        const __m512i bytes = second_bytes(packs);
        __builtin_memcpy(out + (t * (length / QUAD) + i / QUAD) * LINE, &bytes, LINE);
      }
    }
  unsigned any_beyond = 0;
  for (int l = 0; l < L; ++l) any_beyond |= unsigned(beyond[l]);
  return any_beyond < 0x10000;
}

void turn(const unsigned char* entries, int64_t row, int64_t columns, int64_t length, unsigned char* out) {
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0));
  for (int64_t column = 0; column < columns; column += L)
    for (int64_t t = 0; t < LANE_TILES; ++t) {
      // Four rows of each word, whose 128 bits are four columns; four columns of each that is written, whose 128 bits are rows.
      const unsigned char* from = entries + column * length + (row + t * L) / QUAD * LINE;
      unsigned char* to = out + (t * (length / QUAD) + column / QUAD) * LINE;
      __m512i x[QUAD];
#pragma GCC unroll 4
      for (int q = 0; q < QUAD; ++q) {
        __builtin_memcpy(&x[q], from + q * LINE, LINE);
        x[q] = _mm512_maskz_shuffle_epi8(~0ull, x[q], bytes);
      }
      const __m512i a = _mm512_maskz_shuffle_i64x2(0xff, x[0], x[1], 0x44), b = _mm512_maskz_shuffle_i64x2(0xff, x[0], x[1], 0xee);
      const __m512i c = _mm512_maskz_shuffle_i64x2(0xff, x[2], x[3], 0x44), d = _mm512_maskz_shuffle_i64x2(0xff, x[2], x[3], 0xee);
      const __m512i found[QUAD] = {
          _mm512_maskz_shuffle_i64x2(0xff, a, c, 0x88), _mm512_maskz_shuffle_i64x2(0xff, a, c, 0xdd),
          _mm512_maskz_shuffle_i64x2(0xff, b, d, 0x88), _mm512_maskz_shuffle_i64x2(0xff, b, d, 0xdd)};
      __builtin_memcpy(to, found, sizeof found);
    }
}

// sum += the products of four bytes and four signed ones in each lane. Of the intrinsic GCC 12 makes a copy of each sum, and has
// no registers left for these.
KCALIB_FN void add_quads(__m512i& sum, __m512i bytes, __m512i signs) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(bytes), "v"(signs));
}

// Adds the products of COUNT vectors with a strip.
template <int COUNT>
KCALIB_FN void add_products(const unsigned char* strip, int64_t samples, const unsigned char* vectors, int64_t length, int* sums) {
  __m512i sum[LANE_TILES][COUNT];
  for (int t = 0; t < LANE_TILES; ++t)
    for (int c = 0; c < COUNT; ++c) sum[t][c] = _mm512_loadu_si512(sums + c * SAMPLES + t * L);
#pragma GCC unroll 1
  for (int64_t k = 0; k < samples; k += QUAD) {
    __m512i lanes[LANE_TILES];
#pragma GCC unroll 4
    for (int t = 0; t < LANE_TILES; ++t) __builtin_memcpy(&lanes[t], strip + (t * length + k) * L, LINE);
#pragma GCC unroll 6
    for (int c = 0; c < COUNT; ++c) {
      int four;
      __builtin_memcpy(&four, vectors + c * length + k, sizeof four);
      const __m512i all = _mm512_set1_epi32(four);
#pragma GCC unroll 4
      for (int t = 0; t < LANE_TILES; ++t) add_quads(sum[t][c], lanes[t], all);
    }
  }
  for (int t = 0; t < LANE_TILES; ++t)
    for (int c = 0; c < COUNT; ++c) _mm512_storeu_si512(sums + c * SAMPLES + t * L, sum[t][c]);
}

void multiply(const unsigned char* strip, int64_t samples, const unsigned char* vectors, int64_t n_vectors, int64_t length, int* sums) {
  constexpr int AT_ONCE = 6;
  in_parts<AT_ONCE>(n_vectors, [&](int64_t v, auto count) KCALIB_INLINE {
    add_products<count.value>(strip, samples, vectors + v * length, length, sums + v * SAMPLES);
  });
}

void write(const int* sums, const int64_t* order, int64_t rows, int64_t n_vectors, const double* factors, const double* more, double* out) {
  for (int64_t v = 0; v < n_vectors; v += L) {
    const int64_t left = n_vectors - v < L ? n_vectors - v : L;
    for (int64_t k = 0; k < rows; k += L) {
      __m512i words[L], columns[L];
      for (int64_t c = 0; c < L; ++c) words[c] = c < left ? _mm512_loadu_si512(sums + (v + c) * SAMPLES + k) : _mm512_setzero_si512();
      transpose_words(words, columns);
      for (int64_t r = 0; r < L && k + r < rows; ++r) {
        double* at = out + (order ? order[k + r] : k + r) * n_vectors + v;
        for (int64_t half = 0; half < left; half += D) {
          const __mmask8 lanes = __mmask8(left - half >= D ? 0xff : (1 << (left - half)) - 1);
          const __m256i whole = half ? _mm512_maskz_extracti64x4_epi64(0xff, columns[r], 1) : _mm512_castsi512_si256(columns[r]);
          const __m512d before = _mm512_maskz_loadu_pd(lanes, more ? more + v + half : at + half);
          const __m512d factor = _mm512_maskz_loadu_pd(lanes, factors + v + half);
          _mm512_mask_storeu_pd(at + half, lanes, _mm512_fmadd_pd(_mm512_maskz_cvtepi32_pd(0xff, whole), factor, before));
        }
      }
    }
  }
}

}  // namespace

extern const RoughProducts rough_products;
const RoughProducts rough_products = {look_at, round, round_entries, turn, multiply, write};

}  // namespace kcalib
