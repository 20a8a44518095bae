// Resampling weights by packs. Compiled once per instruction set, as tile.cpp is and
// with the same rule (no std:: code), but without contraction: see kcalib/resampling.h.
//
// Lanes are consecutive replicates, which are neighbours in memory; for draws, whose
// order does not matter, consecutive pairs of words.
#include "weights.h"

#include "pack.h"

namespace kcalib {
namespace {

using WordPack = Word __attribute__((vector_size(PACK_BYTES)));
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
  constexpr int PACKS = 4;  // rows at a time: enough for the processor to overlap their long chains
  for (long row = at.row_begin; row < at.row_end; row += PACKS, out += PACKS * stride)
    for (long b = 0; b < at.n; b += L) {
      WordPack words[PACKS];
      DoublePack deviates[PACKS];
      LongPack far{};
      for (int i = 0; i < PACKS; i += 2)
        random_words<WordPack>(at.seed, WeightKind::GAUSSIAN, count_from(at.first + Word(b)), splat_word<WordPack>(Word(row + i) / 2), words + i);
      for (int i = 0; i < PACKS; ++i) {
        deviates[i] = near_deviate<DoublePack>(words[i]);
        far |= LongPack(is_far(words[i]));
      }
      if (__builtin_expect(any(far), 0))
        for (int i = 0; i < PACKS; ++i)
          deviates[i] = is_far(words[i]) ? far_deviate<DoublePack>(words[i]) : deviates[i];
      for (int i = 0; i < PACKS; ++i)
        if (row + i < at.row_end) store_some(out + i * stride + b, deviates[i], at.n - b);
    }
}

void draw(Word seed, Word replicate, long begin, long end, long n, unsigned char* counts) {
  for (long k = begin; k < end; k += 2 * L) {
    WordPack words[2];
    random_words<WordPack>(seed, WeightKind::MULTINOMIAL, splat_word<WordPack>(replicate), count_from(Word(k) / 2), words);
    Word rows[2][L];
    for (int half = 0; half < 2; ++half) {
      words[half] = drawn_row(words[half], Word(n));
      __builtin_memcpy(rows[half], &words[half], sizeof(WordPack));
    }
    const int pairs = end - k < 2 * L ? int(end - k) / 2 : L;
    for (int i = 0; i < pairs; ++i) {
      ++counts[rows[0][i]];
      ++counts[rows[1][i]];
    }
    if (end - k < 2 * L && (end - k) % 2) ++counts[rows[0][pairs]];
  }
}

template <class T> constexpr WeightFunctions<T> functions_of() {
  return {rademacher_weights<T>, gaussian_weights<T>};
}

}  // namespace

extern const WeightTable KCALIB_WEIGHTS;
const WeightTable KCALIB_WEIGHTS = {functions_of<double>(), functions_of<float>(), draw};

}  // namespace kcalib
