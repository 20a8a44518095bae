// The hot loops of the operator for points on a line, for one instruction set.
#include "cpu/line/line_kernels.h"

#include "cpu/simd/bits.h"
#include "cpu/line/line_passes.h"
#include "cpu/line/line_scan.h"
#include "cpu/line/line_total.h"
#include "cpu/simd/pack.h"

namespace kcalib {
namespace {

// The bits of one point in `runs` [part, part + WIDTH) of replicates, one in a lane.
KCALIB_FN WordPack runs_of_bits(const Word (&line)[8], int run, int part) {
  WordPack words;
  if (run == 64) {
    __builtin_memcpy(&words, line + part, sizeof words);
    return words;
  }
  for (int i = 0; i < WIDTH; ++i) words[i] = line[(part + i) * run / 64] >> (part + i) * run % 64 & ((Word(1) << run) - 1);
  return words;
}

// u of one point in the replicates `at`, .., at + WIDTH - 1.
KCALIB_FN P weighted(double factor, const SampleWeights& weights, int64_t sample, int at) {
  const double* values = weights.values + sample * weights.stride + at;
  if (at + WIDTH <= weights.n_replicates) return factor * load<P>(values);
  return factor * load_some(values, weights.n_replicates - at);
}

template <int DEGREE, bool BITS>
void forms_of(const WeightedLine& line, const LineKernel& kernel, double own, const SampleWeights& weights, int64_t length,
              double* sums, double* totals) {
  const int degree = DEGREE < 0 ? kernel.degree : DEGREE;
  constexpr int MOST = SampleWeights::MOST;
  const int run = weights.run(), last = weights.n_replicates < run ? weights.n_replicates : run;
  const int size = BITS ? 8 * last : weights.n_replicates;
  for (int64_t i = 0; i < length; ++i) {
    const double gap = line.gap[i], decay = line.decay[i], *coefficients = kernel.coefficients;
    WordPack words[8 / WIDTH];
    if constexpr (BITS)
      for (int part = 0; part < 8; part += WIDTH) words[part / WIDTH] = runs_of_bits(weights.bits[i], run, part);
    for (int at = 0; at < size; at += WIDTH) {
      P u;
      if constexpr (BITS)
        u = (words[at % 8 / WIDTH] >> (at / 8) & 1) != 0 ? splat<P>(line.factors[1][i]) : splat<P>(line.factors[0][i]);
      else
        u = weighted(line.factors[0][i], weights, line.positions[i], at);
      P seen = own * coefficients[0] * u;
      for (int p = degree; p >= 0; --p) {
        P sum = load<P>(sums + p * MOST + at);
        double weight = 1;  // as in `move`
        for (int l = p - 1; l >= 0; --l) {
          weight *= gap * (l + 1) / (p - l);
          sum += weight * load<P>(sums + l * MOST + at);
        }
        sum *= decay;
        seen += coefficients[p] * sum;
        store(sums + p * MOST + at, p > 0 ? sum : sum + u);
      }
      store(totals + at, load<P>(totals + at) + u * seen);
    }
  }
}

template <bool BITS>
void forms_with(const WeightedLine& line, const LineKernel& kernel, double own, const SampleWeights& weights, int64_t length,
                double* sums, double* totals) {
  switch (kernel.degree) {
    case 0: return forms_of<0, BITS>(line, kernel, own, weights, length, sums, totals);
    case 1: return forms_of<1, BITS>(line, kernel, own, weights, length, sums, totals);
    case 2: return forms_of<2, BITS>(line, kernel, own, weights, length, sums, totals);
    default: return forms_of<-1, BITS>(line, kernel, own, weights, length, sums, totals);
  }
}

void forms(const WeightedLine& line, const LineKernel& kernel, double own, const SampleWeights& weights, int64_t length,
           double* sums, double* totals) {
  const auto add = weights.bits ? forms_with<true> : forms_with<false>;
  add(line, kernel, own, weights, length, sums, totals);
}

// x * y + z in one operation where there is one: GCC does not see it in the loop below.
KCALIB_FN P fused(P x, P y, P z) {
#if defined(__AVX512F__)
  return P(_mm512_fmadd_pd(__m512d(x), __m512d(y), __m512d(z)));
#elif defined(__AVX2__)
  return P(_mm256_fmadd_pd(__m256d(x), __m256d(y), __m256d(z)));
#else
  return x * y + z;
#endif
}

// table[index mod 16]
KCALIB_FN P entry(const double* table, WordPack index) {
#if defined(__AVX512F__)
  return P(_mm512_permutex2var_pd(__m512d(load<P>(table)), __m512i(index), __m512d(load<P>(table + 8))));
#else
  P x;
  for (int i = 0; i < WIDTH; ++i) x[i] = table[index[i] & 15];
  return x;
#endif
}

struct BitTable {
  alignas(PACK_BYTES) long long is_set[4][16];  // all bits of an entry, or none
  constexpr BitTable() : is_set() {
    for (int bit = 0; bit < 4; ++bit)
      for (int i = 0; i < 16; ++i) is_set[bit][i] = -(i >> bit & 1);
  }
};
constexpr BitTable bit_table;

// Four points at a time: what they add to the sums and totals of a replicate takes one of 16 values,
// one for each combination of bits, that all replicates share.
struct FourPoints {
  alignas(PACK_BYTES) double among[16];  // sum_{i<j} k_ij u_i u_j
  alignas(PACK_BYTES) double from_first[16];  // sum_i u_i exp(-rate (x_i - x_first))
  alignas(PACK_BYTES) double to_next[16];  // sum_i u_i exp(-rate (x_next - x_i)), x_next: after the four
  double decay;  // from the first point to x_next

  KCALIB_FN void set(const double* zeros, const double* ones, const double* decays) {
    for (int i = 0; i < 16; i += WIDTH) {
      P u[4];
      for (int j = 0; j < 4; ++j) {
        LongPack is_set;
        __builtin_memcpy(&is_set, bit_table.is_set[j] + i, sizeof is_set);
        u[j] = is_set != 0 ? splat<P>(ones[j]) : splat<P>(zeros[j]);
      }
      P carried = u[0] * decays[1], pairs = u[1] * carried;
      carried = (carried + u[1]) * decays[2];
      pairs += u[2] * carried;
      carried = (carried + u[2]) * decays[3];
      store(among + i, pairs + u[3] * carried);
      store(to_next + i, (carried + u[3]) * decays[4]);
      store(from_first + i, u[0] + decays[1] * (u[1] + decays[2] * (u[2] + decays[3] * u[3])));
    }
    decay = decays[1] * decays[2] * decays[3] * decays[4];
  }
};

void bit_forms(const WeightedLine& line, const SampleWeights& weights, int64_t length, double* sums, double* totals) {
  constexpr int ROWS = 64, FOURS = ROWS / 4, TOGETHER = 4;
  const int run = weights.run(), last = weights.n_replicates < run ? weights.n_replicates : run;
  FourPoints fours[FOURS];
  WordPack words[ROWS];
  for (int64_t row = 0; row < length; row += ROWS) {
    for (int f = 0; f < FOURS; ++f)
      fours[f].set(line.factors[0] + row + 4 * f, line.factors[1] + row + 4 * f, line.decay + row + 4 * f);
    for (int part = 0; part < 8; part += WIDTH) {
      for (int i = 0; i < ROWS; ++i)
        words[i] = row + i < length ? runs_of_bits(weights.bits[row + i], run, part) : WordPack{};
      transpose_bits(words);  // now of the replicates b of the runs in lanes; bits are points
      for (int b = 0; b < last; b += TOGETHER) {
        double* sum = sums + 8 * b + part;
        double* total = totals + 8 * b + part;
        P seen[TOGETHER], added[TOGETHER];
        WordPack index[TOGETHER];
        for (int k = 0; k < TOGETHER; ++k) {
          seen[k] = load<P>(sum + 8 * k);
          added[k] = load<P>(total + 8 * k);
          index[k] = words[b + k];
        }
        for (int f = 0; f < FOURS; ++f)
#pragma GCC unroll 4
          for (int k = 0; k < TOGETHER; ++k) {
            added[k] += fused(seen[k], entry(fours[f].from_first, index[k]), entry(fours[f].among, index[k]));
            seen[k] = fused(seen[k], splat<P>(fours[f].decay), entry(fours[f].to_next, index[k]));
            index[k] >>= 4;
          }
        for (int k = 0; k < TOGETHER; ++k) {
          store(sum + 8 * k, seen[k]);
          store(total + 8 * k, added[k]);
        }
      }
    }
  }
}

}  // namespace

extern const LineFunctions KCALIB_LINE;
const LineFunctions KCALIB_LINE = {gap, ones, residuals<2>, residuals<1>, decays, piece, join, forms, bit_forms,
                                   WIDTH, gather, scatter, strip_sums, carry, strip_products};

}  // namespace kcalib
