// Resampling weights by packs. Compiled once per instruction set, as tile.cpp is and
// with the same rule (no std:: code), but without contraction: see kcalib/resampling.h.
//
// Lanes are consecutive replicates, which are neighbours in memory; for draws, whose
// order does not matter, consecutive pairs of words.
#include "weights.h"

#include "bits.h"
#include "pack.h"

namespace kcalib {
namespace {

constexpr int L = LANES<DoublePack>;

template <class T> struct NarrowOf { using type = DoublePack; };
template <> struct NarrowOf<float> { using type = HalfFloatPack; };

#if defined(__AVX512F__)
template <> KCALIB_FN WordPack half_product(WordPack a, WordPack b) {
  return WordPack(_mm512_maskz_mul_epu32(0xff, __m512i(a), __m512i(b)));
}
template <> KCALIB_FN DoublePack root(DoublePack x) { return DoublePack(_mm512_maskz_sqrt_pd(0xff, __m512d(x))); }
#elif defined(__AVX2__)
template <> KCALIB_FN WordPack half_product(WordPack a, WordPack b) {
  return WordPack(_mm256_mul_epu32(__m256i(a), __m256i(b)));
}
template <> KCALIB_FN DoublePack root(DoublePack x) { return DoublePack(_mm256_sqrt_pd(__m256d(x))); }
#elif defined(__x86_64__)
template <> KCALIB_FN WordPack half_product(WordPack a, WordPack b) {
  return WordPack(_mm_mul_epu32(__m128i(a), __m128i(b)));
}
template <> KCALIB_FN DoublePack root(DoublePack x) { return DoublePack(_mm_sqrt_pd(__m128d(x))); }
#else
template <> KCALIB_FN DoublePack root(DoublePack x) {
  for (int i = 0; i < L; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
}
#endif
template <> KCALIB_FN bool anywhere(LongPack mask) { return any(mask); }

KCALIB_FN WordPack count_from(Word first) {
  WordPack x;
  for (int i = 0; i < L; ++i) x[i] = first + Word(i);
  return x;
}

// Stores the first `count` lanes; fewer than L only at the end of a row.
template <class T> KCALIB_FN void store_some(T* out, DoublePack x, long count) {
  using Narrow = typename NarrowOf<T>::type;
  const Narrow y = __builtin_convertvector(x, Narrow);
  if (count >= L)
    __builtin_memcpy(out, &y, sizeof y);
  else
    for (long i = 0; i < count; ++i) out[i] = y[i];
}

template <class T> void rademacher_weights(const Rectangle& at, T* out, long stride) {
  constexpr long STRIP = 512;  // replicates whose words stay in L1
  WordPack words[2][STRIP / L];
  for (long begin = 0; begin < at.n; begin += STRIP) {
    const long end = at.n - begin < STRIP ? at.n : begin + STRIP;
    for (long row = at.row_begin; row < at.row_end; row += Rectangle::BLOCK) {
      for (long b = begin; b < end; b += L) {
        WordPack pair[2];
        random_words<WordPack>(at.seed, WeightKind::RADEMACHER, count_from(at.first + Word(b)), splat_word<WordPack>(Word(row) / 128), pair);
        for (int half = 0; half < 2; ++half) words[half][(b - begin) / L] = pair[half];
      }
      const long rows = at.row_end - row < Rectangle::BLOCK ? at.row_end - row : Rectangle::BLOCK;
      for (long i = 0; i < rows; ++i) {
        T* weights = out + (row - at.row_begin + i) * stride;
        for (long b = begin; b < end; b += L)
          store_some(weights + b, rademacher<DoublePack>(words[i / 64][(b - begin) / L], int(i % 64)), end - b);
      }
    }
  }
}

template <class T> void gaussian_weights(const Rectangle& at, T* out, long stride) {
  for (long row = at.row_begin; row < at.row_end; row += 2, out += 2 * stride)
    for (long b = 0; b < at.n; b += L) {
      WordPack words[2];
      random_words<WordPack>(at.seed, WeightKind::GAUSSIAN, count_from(at.first + Word(b)), splat_word<WordPack>(Word(row) / 2), words);
      store_some(out + b, normal_deviate<DoublePack>(words[0]), at.n - b);
      if (row + 1 < at.row_end) store_some(out + stride + b, normal_deviate<DoublePack>(words[1]), at.n - b);
    }
}

void draw(Word seed, Word replicate, long pair_begin, long pair_end, long n, unsigned char* counts) {
  for (long pair = pair_begin; pair < pair_end; pair += L) {
    WordPack words[2];
    random_words<WordPack>(seed, WeightKind::MULTINOMIAL, splat_word<WordPack>(replicate), count_from(Word(pair)), words);
    Word rows[2 * L];
    for (int half = 0; half < 2; ++half) {
      words[half] = drawn_row(words[half], Word(n));
      __builtin_memcpy(rows + half * L, &words[half], sizeof(WordPack));
    }
    if (pair + L <= pair_end && 2 * (pair + L) <= n)
      for (int i = 0; i < 2 * L; ++i) ++counts[rows[i]];
    else
      for (int i = 0; i < 2 * L; ++i) {
        const long at = pair + i % L;
        if (at < pair_end && 2 * at + i / L < n) ++counts[rows[i]];
      }
  }
}

void sign_lines(Word seed, Word first, int n_replicates, long pair, Word (*out)[8]) {
  for (int part = 0; part < 8; part += L) {
    WordPack words[2][64];  // of replicates in lanes; bits are rows
    for (int b = 0; b < 64; ++b) {
      WordPack both[2] = {};
      if (8 * b + part < n_replicates)
        random_words<WordPack>(seed, WeightKind::RADEMACHER, count_from(first + Word(8 * b + part)), splat_word<WordPack>(Word(pair)), both);
      for (int half = 0; half < 2; ++half) words[half][b] = both[half];
    }
    for (int half = 0; half < 2; ++half) {
      transpose_bits(words[half]);
      for (int row = 0; row < 64; ++row) __builtin_memcpy(&out[64 * half + row][part], &words[half][row], sizeof(WordPack));
    }
  }
}

template <class T> void transpose_counts(const unsigned char* counts, long n_rows, int n, T* out, long stride) {
  for (long i = 0; i < n_rows; ++i)
    for (int r = 0; r < n; ++r) out[i * stride + r] = counts[r * n_rows + i];
}

template <class T> constexpr WeightFunctions<T> functions_of() {
  return {rademacher_weights<T>, gaussian_weights<T>, transpose_counts<T>};
}

}  // namespace

extern const WeightTable KCALIB_WEIGHTS;
const WeightTable KCALIB_WEIGHTS = {functions_of<double>(), functions_of<float>(), draw, sign_lines};

}  // namespace kcalib
