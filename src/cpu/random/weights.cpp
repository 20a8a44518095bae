// Resampling weights by packs. Compiled once per instruction set, as tile.cpp is and
// with the same rule (no std:: code), but without contraction: see kcalib/resampling.h.
//
// Lanes are consecutive replicates, which are neighbours in memory; for draws, whose
// order does not matter, consecutive pairs of words.
#include "cpu/random/weights.h"

#include "cpu/simd/bits.h"
#include "kcalib/philox.h"
#include "cpu/simd/pack.h"

namespace kcalib {
namespace {

constexpr int L = LANES<DoublePack>;

template <class T> struct NarrowOf { using type = DoublePack; };
template <> struct NarrowOf<float> { using type = HalfFloatPack; };

#if defined(__AVX512F__)
template <> KCALIB_FN WordPack half_product(WordPack a, WordPack b) {
  return WordPack(_mm512_maskz_mul_epu32(0xff, __m512i(a), __m512i(b)));
}
// Not by a shift, of which the processor does one at a time, as of products.
template <> KCALIB_FN WordPack upper_half(WordPack x) {
  return WordPack(_mm512_maskz_shuffle_epi32(0xffff, __m512i(x), _MM_PERM_DDBB));
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
  for (int i = 0; i < L; ++i) x[i] = Word(i);
  return x + first;
}

// Stores the first `count` lanes; fewer than L only at the end of a row.
template <class T> KCALIB_FN void store_some(T* out, DoublePack x, int64_t count) {
  using Narrow = typename NarrowOf<T>::type;
  const Narrow y = __builtin_convertvector(x, Narrow);
  if (count >= L)
    __builtin_memcpy(out, &y, sizeof y);
  else
    for (int64_t i = 0; i < count; ++i) out[i] = y[i];
}

// Words 2 * pair and 2 * pair + 1 of L replicates from `first` on.
KCALIB_FN void words_of_replicates(Word seed, WeightKind kind, Word first, Word pair, WordPack* words) {
  random_words<WordPack>(seed, kind, count_from(first), splat_word<WordPack>(pair), words);
}

// Signs of L rows: words[w] of replicates 64 * (first + w) and the next 63, w < count.
KCALIB_FN void sign_words(Word seed, Word first, int count, WordPack rows, WordPack* words) {
  for (Word pair = first / 2; 2 * pair < first + Word(count); ++pair) {
    WordPack both[2];
    random_words<WordPack>(seed, WeightKind::RADEMACHER, splat_word<WordPack>(pair), rows, both);
    for (int half = 0; half < 2; ++half)
      if (2 * pair + half >= first && 2 * pair + half < first + Word(count)) words[2 * pair + half - first] = both[half];
  }
}

template <class T> void rademacher_weights(const Rectangle& at, T* out, int64_t stride) {
  constexpr int MOST_WORDS = Rectangle::MOST_REPLICATES / 64 + 1;
  WordPack signs[MOST_WORDS];
  Word words[L][MOST_WORDS + 1] = {};  // of rows
  const Word first = at.first / 64, shift = at.first % 64;
  const int count = int((shift + Word(at.n) + 63) / 64);
  for (int64_t row = at.row_begin; row < at.row_end; row += L) {
    sign_words(at.seed, first, count, count_from(Word(row)), signs);
    for (int w = 0; w < count; ++w)
      for (int i = 0; i < L; ++i) words[i][w] = signs[w][i];
    for (int i = 0; i < L && row + i < at.row_end; ++i, out += stride)
      for (int64_t b = 0; b < at.n; b += L) {
        const Word bit = (shift + Word(b)) % 64, *word = words[i] + (shift + Word(b)) / 64;
        const Word some = bit ? word[0] >> bit | word[1] << (64 - bit) : word[0];
        store_some(out + b, rademacher<DoublePack>(splat_word<WordPack>(some) >> count_from(0), 0), at.n - b);
      }
  }
}

template <class T> void gaussian_weights(const Rectangle& at, T* out, int64_t stride) {
  constexpr int PACKS = 4;  // rows at a time: enough for the processor to overlap their long chains
  for (int64_t row = at.row_begin; row < at.row_end; row += PACKS, out += PACKS * stride)
    for (int64_t b = 0; b < at.n; b += L) {
      WordPack words[PACKS];
      DoublePack deviates[PACKS];
      LongPack far{};
      for (int i = 0; i < PACKS; i += 2)
        words_of_replicates(at.seed, WeightKind::GAUSSIAN, at.first + Word(b), Word(row + i) / 2, words + i);
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

// SETS times 2 L draws of a replicate from k on, which is even: rows[2 s] and rows[2 s + 1] have those of the s-th set.
template <int SETS> KCALIB_FN void rows_of_draws(Word seed, Word replicate, int64_t k, Word n, Word (*rows)[L]) {
  WordPack words[2 * SETS];
#pragma GCC unroll 2
  for (int s = 0; s < SETS; ++s)
    random_words<WordPack>(seed, WeightKind::MULTINOMIAL, splat_word<WordPack>(replicate), count_from(Word(k) / 2 + Word(s * L)), words + 2 * s);
#pragma GCC unroll 4
  for (int s = 0; s < 2 * SETS; ++s) {
    words[s] = drawn_row(words[s], n);
    __builtin_memcpy(rows[s], &words[s], sizeof(WordPack));
  }
  // By way of memory: lanes that are taken out of registers keep the units busy that the next words need.
  __asm__ volatile("" : : "r"(rows) : "memory");
}

void draw(Word seed, Word replicate, int64_t begin, int64_t end, int64_t n, unsigned char* counts) {
  constexpr int SETS = 2;  // whose long chains overlap
  Word rows[2 * SETS][L];
  int64_t k = begin;
  for (; k + 2 * SETS * L <= end; k += 2 * SETS * L) {
    rows_of_draws<SETS>(seed, replicate, k, Word(n), rows);
#pragma GCC unroll 4
    for (int s = 0; s < 2 * SETS; ++s)
#pragma GCC unroll 8
      for (int i = 0; i < L; ++i) ++counts[rows[s][i]];
  }
  for (; k < end; k += 2 * L) {
    rows_of_draws<1>(seed, replicate, k, Word(n), rows);
    for (int i = 0; i < 2 * L && k + i < end; ++i) ++counts[rows[i % 2][i / 2]];
  }
}

void sign_lines(Word seed, Word first, int n_words, const std::int64_t* rows, int64_t n, Word (*out)[8]) {
  WordPack of_rows = {}, words[8] = {};
  for (int64_t i = 0; i < n; i += L) {
    if (i + L <= n) __builtin_memcpy(&of_rows, rows + i, sizeof of_rows);
    else
      for (int l = 0; i + l < n; ++l) of_rows[l] = Word(rows[i + l]);
    sign_words(seed, first / 64, n_words, of_rows, words);
    for (int part = 0; part < 8; part += L) {
      DoublePack across[L];
      for (int l = 0; l < L; ++l) across[l] = from_bits<DoublePack>(LongPack(words[part + l]));
      transpose(across);
      const int count = i + L <= n ? L : int(n - i);
      for (int l = 0; l < count; ++l) __builtin_memcpy(&out[i + l][part], &across[l], sizeof(WordPack));
    }
  }
}

constexpr int64_t LABEL_ROWS = 512;  // whose labels in all draws stay in the first-level cache
constexpr Word NEVER = Word(1) << 53;

#if defined(__AVX512F__)
// By products of halves: eight blocks of numbers take less time than one after the other.
template <> struct WideProduct<WordPack> {
  KCALIB_FN WideProduct(WordPack a, Word b) {
    const WordPack b_low = splat_word<WordPack>(b), b_high = splat_word<WordPack>(b >> 32), a_high = a >> 32;
    const WordPack lowest = half_product(a, b_low), middle = half_product(a_high, b_low) + (lowest >> 32);
    const WordPack other = half_product(a, b_high) + (middle & 0xffffffff);
    high = half_product(a_high, b_high) + (middle >> 32) + (other >> 32);
    low = WordPack(_mm512_mask_shuffle_epi32(__m512i(lowest), 0xaaaa, __m512i(other), _MM_PERM_CCAA));
  }
  WordPack low, high;
};

#endif

// What LABEL_ROWS rows' numbers have to reach. Of the numbers that are made at a time, which begin with a block, the
// first `before` and some of the last may belong to other rows.
class Thresholds {
 public:
  Thresholds(const LabelDraws& labels, int64_t begin, int64_t end) {
    for (int64_t i = -3; i < LABEL_ROWS + 3; ++i)
      rows_[i + 3] = i >= 0 && begin + i < end ? labels.thresholds[begin + i] : NEVER;
#if defined(__AVX512F__)
    for (int64_t before = 0; before < 4; ++before)
      for (int64_t i = 0; i < LABEL_ROWS; ++i) of_packs_[before][i / 32][i % 4][i % 32 / 4] = rows_[i + 3 - before];
#endif
  }

  // Whether numbers `at`, .., at + 63 reach them, `at` a multiple of 64.
  KCALIB_FN Word reached(const LabelDraws& labels, Word block, Word before, int64_t at) const {
    Word found = 0;
#if defined(__AVX512F__)
    WordPack words[2][4];
    for (int half = 0; half < 2; ++half)
      numpy_words(labels.key0, labels.key1, count_from(block + Word(8 * half)), words[half]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      Word mask = 0;
      for (int half = 0; half < 2; ++half) {
        const __m512i least = _mm512_loadu_si512(of_packs_[before][at / 32 + half][i]);
        mask |= Word(_mm512_cmpge_epu64_mask(__m512i(words[half][i] >> 11), least)) << 32 * half;
      }
      // A block has every fourth bit.
      mask = (mask | mask << 12) & 0x000f000f000f000f;
      mask = (mask | mask << 6) & 0x0303030303030303;
      found |= ((mask | mask << 3) & 0x1111111111111111) << i;
    }
#else
    for (int i = 0; i < 64; i += 4) found |= four_reached(labels, block++, before, at + i) << i;
#endif
    return found;
  }
  KCALIB_FN Word four_reached(const LabelDraws& labels, Word block, Word before, int64_t at) const {
    Word words[4], found = 0;
    numpy_words(labels.key0, labels.key1, block, words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) found |= Word((words[i] >> 11) >= rows_[at + i + 3 - int64_t(before)]) << i;
    return found;
  }

 private:
  Word rows_[LABEL_ROWS + 6];
#if defined(__AVX512F__)
  Word of_packs_[4][LABEL_ROWS / 32][4][8];
#endif
};

// The labels of LABEL_ROWS rows in one draw, by numbers from `first` on: bit i of bits[w] is that of row 64 w + i.
void label_bits(const LabelDraws& labels, Word first, const Thresholds& thresholds, Word* bits) {
  constexpr int64_t WORDS = LABEL_ROWS / 64;
  const Word before = first % 4;  // numbers come by fours
  Word block = first / 4, last = 0;
  for (int64_t w = 0; w < WORDS; ++w, block += 16) {
    const Word word = thresholds.reached(labels, block, before, 64 * w);
    if (w > 0) bits[w - 1] = last >> before | (word << 1) << (63 - before);
    last = word;
  }
  bits[WORDS - 1] = last >> before;
  if (before) bits[WORDS - 1] |= thresholds.four_reached(labels, block, before, LABEL_ROWS) << (64 - before);
}

void label_lines(const LabelDraws& labels, Word first, int n_draws, int64_t begin, int64_t end, Word (*out)[8]) {
  constexpr int64_t WORDS = LABEL_ROWS / 64, MOST = Rectangle::MOST_REPLICATES;
  Word bits[WORDS][MOST] = {};
  for (int64_t row = begin; row < end; row += LABEL_ROWS, out += LABEL_ROWS) {
    const Thresholds thresholds(labels, row, end);
    for (int d = 0; d < n_draws; ++d) {
      Word of_draw[WORDS];
      label_bits(labels, (first + Word(d)) * Word(labels.n) + Word(row), thresholds, of_draw);
      for (int64_t w = 0; w < WORDS; ++w) bits[w][d % 64 * 8 + d / 64] = of_draw[w];
    }
    for (int64_t w = 0; w < WORDS && row + 64 * w < end; ++w)
      for (int part = 0; part < 8; part += L) {
        WordPack words[64];
        for (int b = 0; b < 64; ++b) __builtin_memcpy(&words[b], &bits[w][8 * b + part], sizeof(WordPack));
        transpose_bits(words);
        for (int i = 0; i < 64; ++i) __builtin_memcpy(&out[64 * w + i][part], &words[i], sizeof(WordPack));
      }
  }
}

template <class T> constexpr WeightFunctions<T> functions_of() {
  return {rademacher_weights<T>, gaussian_weights<T>};
}

}  // namespace

extern const WeightTable KCALIB_WEIGHTS;
const WeightTable KCALIB_WEIGHTS = {functions_of<double>(), functions_of<float>(), draw, sign_lines, label_lines};

}  // namespace kcalib
