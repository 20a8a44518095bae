// Resampling weights by packs. Compiled once per instruction set, as tile.cpp is and
// with the same rule (no std:: code), but without contraction: see kcalib/resampling.h.
//
// Lanes are consecutive replicates, which are neighbours in memory; for draws, whose
// order does not matter, consecutive pairs of words.
#include "weights.h"

#include "bits.h"
#include "kcalib/philox.h"
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

// Words 2 * pair and 2 * pair + 1 of L replicates from `first` on.
KCALIB_FN void words_of_replicates(Word seed, WeightKind kind, Word first, Word pair, WordPack* words) {
  random_words<WordPack>(seed, kind, count_from(first), splat_word<WordPack>(pair), words);
}

template <class T> void rademacher_weights(const Rectangle& at, T* out, long stride) {
  WordPack words[Rectangle::MOST_REPLICATES / L][2];
  const Word pair = Word(at.row_begin) / Rectangle::MOST_ROWS;
  for (long b = 0; b < at.n; b += L)
    words_of_replicates(at.seed, WeightKind::RADEMACHER, at.first + Word(b), pair, words[b / L]);
  for (long i = 0; i < at.row_end - at.row_begin; ++i, out += stride)
    for (long b = 0; b < at.n; b += L)
      store_some(out + b, rademacher<DoublePack>(words[b / L][i / 64], int(i % 64)), at.n - b);
}

template <class T> void gaussian_weights(const Rectangle& at, T* out, long stride) {
  constexpr int PACKS = 4;  // rows at a time: enough for the processor to overlap their long chains
  for (long row = at.row_begin; row < at.row_end; row += PACKS, out += PACKS * stride)
    for (long b = 0; b < at.n; b += L) {
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

void draw(Word seed, Word replicate, long begin, long end, long n, unsigned char* counts) {
  for (long k = begin; k < end; k += 2 * L) {
    const WordPack pairs = count_from(Word(k) / 2);
    WordPack words[2];
    random_words<WordPack>(seed, WeightKind::MULTINOMIAL, splat_word<WordPack>(replicate), pairs, words);
    Word rows[2][L];
    for (int half = 0; half < 2; ++half) {
      words[half] = drawn_row(words[half], Word(n));
      __builtin_memcpy(rows[half], &words[half], sizeof(WordPack));
    }
    const int whole = end - k < 2 * L ? int(end - k) / 2 : L;
    for (int i = 0; i < whole; ++i) {
      ++counts[rows[0][i]];
      ++counts[rows[1][i]];
    }
    if (end - k < 2 * L && (end - k) % 2) ++counts[rows[0][whole]];
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

constexpr long LABEL_ROWS = 512;  // whose labels in all draws stay in the first-level cache
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
  Thresholds(const LabelDraws& labels, long begin, long end) {
    for (long i = -3; i < LABEL_ROWS + 3; ++i)
      rows_[i + 3] = i >= 0 && begin + i < end ? labels.thresholds[begin + i] : NEVER;
#if defined(__AVX512F__)
    for (long before = 0; before < 4; ++before)
      for (long i = 0; i < LABEL_ROWS; ++i) of_packs_[before][i / 32][i % 4][i % 32 / 4] = rows_[i + 3 - before];
#endif
  }

  // Whether numbers `at`, .., at + 63 reach them, `at` a multiple of 64.
  KCALIB_FN Word reached(const LabelDraws& labels, Word block, Word before, long at) const {
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
  KCALIB_FN Word four_reached(const LabelDraws& labels, Word block, Word before, long at) const {
    Word words[4], found = 0;
    numpy_words(labels.key0, labels.key1, block, words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) found |= Word((words[i] >> 11) >= rows_[at + i + 3 - long(before)]) << i;
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
  constexpr long WORDS = LABEL_ROWS / 64;
  const Word before = first % 4;  // numbers come by fours
  Word block = first / 4, last = 0;
  for (long w = 0; w < WORDS; ++w, block += 16) {
    const Word word = thresholds.reached(labels, block, before, 64 * w);
    if (w > 0) bits[w - 1] = last >> before | (word << 1) << (63 - before);
    last = word;
  }
  bits[WORDS - 1] = last >> before;
  if (before) bits[WORDS - 1] |= thresholds.four_reached(labels, block, before, LABEL_ROWS) << (64 - before);
}

void label_lines(const LabelDraws& labels, Word first, int n_draws, long begin, long end, Word (*out)[8]) {
  constexpr long WORDS = LABEL_ROWS / 64, MOST = Rectangle::MOST_REPLICATES;
  Word bits[WORDS][MOST];
  for (long w = 0; w < WORDS; ++w)
    for (long d = n_draws; d < MOST; ++d) bits[w][d] = 0;
  for (long row = begin; row < end; row += LABEL_ROWS, out += LABEL_ROWS) {
    const Thresholds thresholds(labels, row, end);
    for (int d = 0; d < n_draws; ++d) {
      Word of_draw[WORDS];
      label_bits(labels, (first + Word(d)) * Word(labels.n) + Word(row), thresholds, of_draw);
      for (long w = 0; w < WORDS; ++w) bits[w][d] = of_draw[w];
    }
    for (long w = 0; w < WORDS && row + 64 * w < end; ++w)
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
