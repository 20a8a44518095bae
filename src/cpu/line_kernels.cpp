// The hot loops of the operator for points on a line, for one instruction set.
#include "line_kernels.h"

#include "bits.h"
#include "line_passes.h"
#include "line_scan.h"
#include "pack.h"

namespace kcalib {
namespace {

// sums[p] of D^p exp(-rate D), seen from `gap` further on: by the binomial theorem, from the highest
// power down. VECTORS sums of each power beside each other.
template <int VECTORS> KCALIB_FN void move(double* sums, int degree, double gap, double decay) {
  for (int p = degree; p > 0; --p) {
    double weight = 1;  // binomial(p, l) gap^(p - l), from l = p down
    for (int l = p - 1; l >= 0; --l) {
      weight *= gap * (l + 1) / (p - l);
      for (int v = 0; v < VECTORS; ++v) sums[p * VECTORS + v] += weight * sums[l * VECTORS + v];
    }
  }
  for (int k = 0; k < (degree + 1) * VECTORS; ++k) sums[k] *= decay;
}

void join(const LineKernel& kernel, Piece* left, const Piece& right) {
  const int degree = kernel.degree;
  const double gap = right.first - left->last, length = right.last - right.first;
  move<2>(left->to_last, degree, gap, exp_minus(kernel.rate * gap));
  for (int v = 0; v < 2; ++v) {
    double across = 0;
    for (int p = 0; p <= degree; ++p) {
      double binomial = 1, power = 0;
      for (int l = 0; l <= p; ++l) {
        power += binomial * left->to_last[l * 2 + v] * right.to_first[(p - l) * 2 + v];
        binomial = binomial * (p - l) / (l + 1);
      }
      across += kernel.coefficients[p] * power;
    }
    left->total[v] += right.total[v] + across;
  }
  move<2>(left->to_last, degree, length, exp_minus(kernel.rate * length));
  for (int k = 0; k < 2 * (degree + 1); ++k) left->to_last[k] += right.to_last[k];
  // The right piece's sums, which are not needed any more, from left's first point.
  const double reach = right.first - left->first;
  move<2>(right.to_first, degree, reach, exp_minus(kernel.rate * reach));
  for (int k = 0; k < 2 * (degree + 1); ++k) left->to_first[k] += right.to_first[k];
  left->last = right.last;
}

constexpr long BLOCK = 512;

// Points of a block, padded to whole packs by points of no weight.
struct Block {
  long length;
  alignas(PACK_BYTES) double place[BLOCK], gap[BLOCK], decay[BLOCK], residual[BLOCK];
};

// Both labels' samples in the order of their places; at the same place label 0 first.
class Merge {
 public:
  Merge(const Residuals& r, long begin)
      : zeros_(r.sizes), last_one_(r.sizes + r.n + 1), n_zeros_(r.n_zeros), n_ones_(r.n - r.n_zeros) {
    const long low = begin > n_ones_ ? begin - n_ones_ : 0, high = begin < n_zeros_ ? begin : n_zeros_;
    next_ = begin;
    next_zero_ = zeros_before(begin, low, high);
  }

  // The next block.length samples, as PARTS merges at once that do not wait for each other.
  KCALIB_FN void fill(Block& block) {
    constexpr int PARTS = 4;
    constexpr long LENGTH = BLOCK / PARTS;
    const double *zero[PARTS], *one[PARTS];
    for (int part = 0; part < PARTS; ++part) {
      zero[part] = zeros_ + next_zero_;
      one[part] = last_one_ - (next_ - next_zero_);
      const long left = block.length - part * LENGTH, step = left < LENGTH ? (left > 0 ? left : 0) : LENGTH;
      next_ += step;
      const long low = next_ > n_ones_ ? next_ - n_ones_ : 0, high = next_zero_ + step;
      next_zero_ = zeros_before(next_, low > next_zero_ ? low : next_zero_, high < n_zeros_ ? high : n_zeros_);
    }
    for (long i = 0; i < LENGTH; ++i)
#pragma GCC unroll 4
      for (int part = 0; part < PARTS; ++part) {
        const long at = part * LENGTH + i;
        if (at >= block.length) break;
        // Without a branch: labels are what nobody can predict. A label that has no more has infinity here.
        const double size = *one[part], place = 1 - size, other = *zero[part];
        const long long takes_zero = other <= place, mask = -takes_zero;
        block.place[at] = other < place ? other : place;
        block.residual[at] = from_bits<double>((to_bits(-other) & mask) | (to_bits(size) & ~mask));
        zero[part] += takes_zero;
        one[part] -= 1 - takes_zero;
      }
  }

 private:
  // How many of the first `count` samples have label 0; from `low` to `high`.
  long zeros_before(long count, long low, long high) const {
    while (low < high) {
      const long middle = low + (high - low) / 2;
      if (zeros_[middle] <= 1 - last_one_[middle + 1 - count]) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  const double *zeros_, *last_one_;  // places ascending; 1 - place, read downwards
  long n_zeros_, n_ones_, next_, next_zero_;
};

template <int DEGREE> void block_piece(Block& block, const LineKernel& kernel, bool squared, Piece* out) {
  const int degree = DEGREE < 0 ? kernel.degree : DEGREE;
  const long whole = (block.length + WIDTH - 1) / WIDTH * WIDTH;
  out->first = block.place[0];
  out->last = block.place[block.length - 1];
  for (long i = block.length; i < whole; ++i) block.place[i] = out->last, block.residual[i] = 0;
  if (squared)
    for (long i = 0; i < whole; ++i) block.residual[i] *= block.residual[i];
  block.gap[0] = 0;
  for (long i = 1; i < whole; ++i) block.gap[i] = block.place[i] - block.place[i - 1];
  decays(block.gap, kernel.rate, whole, block.decay);

  double* sums = out->to_last;
  for (int k = 0; k < 2 * (degree + 1); ++k) sums[k] = out->to_first[k] = 0;
  double total[2] = {};
  for (long i = 0; i < block.length; ++i) {
    if constexpr (DEGREE == 0) {  // as below; the next sum waits for one fused operation only
      const double u = block.residual[i], size = __builtin_fabs(u), decay = block.decay[i];
      total[0] += u * decay * sums[0];
      total[1] += size * decay * sums[1];
      sums[0] = sums[0] * decay + u;
      sums[1] = sums[1] * decay + size;
      continue;
    }
    move<2>(sums, degree, block.gap[i], block.decay[i]);
    double seen[2] = {};
    for (int p = 0; p <= degree; ++p)
      for (int v = 0; v < 2; ++v) seen[v] += kernel.coefficients[p] * sums[p * 2 + v];
    const double u[2] = {block.residual[i], __builtin_fabs(block.residual[i])};
    for (int v = 0; v < 2; ++v) {
      total[v] += u[v] * seen[v];
      sums[v] += u[v];
    }
  }
  for (int v = 0; v < 2; ++v) out->total[v] = DEGREE == 0 ? kernel.coefficients[0] * total[v] : total[v];

  for (int p = 0; p <= degree; ++p) {
    P signed_sum{}, size_sum{};
    for (long i = 0; i < whole; i += WIDTH) {
      const P distance = load<P>(block.place + i) - out->first;
      P weight = exp_minus(kernel.rate * distance);
      for (int k = 0; k < p; ++k) weight *= distance;
      const P u = load<P>(block.residual + i);
      signed_sum += weight * u;
      size_sum += weight * magnitude(u);
    }
    out->to_first[p * 2] = sum_lanes(signed_sum);
    out->to_first[p * 2 + 1] = sum_lanes(size_sum);
  }
}

template <int DEGREE>
void piece_of(const Residuals& residuals, const LineKernel& kernel, bool squared, long begin, long end,
              double* scratch, Piece* out) {
  Merge merge(residuals, begin);
  Block block;
  Piece next{};
  next.to_last = scratch;
  next.to_first = scratch + 2 * (kernel.degree + 1);
  for (long i = begin; i < end; i += BLOCK) {
    block.length = end - i < BLOCK ? end - i : BLOCK;
    merge.fill(block);
    block_piece<DEGREE>(block, kernel, squared, i == begin ? out : &next);
    if (i > begin) join(kernel, out, next);
  }
}

void piece(const Residuals& residuals, const LineKernel& kernel, bool squared, long begin, long end,
           double* scratch, Piece* out) {
  switch (kernel.degree) {
    case 0: return piece_of<0>(residuals, kernel, squared, begin, end, scratch, out);
    case 1: return piece_of<1>(residuals, kernel, squared, begin, end, scratch, out);
    case 2: return piece_of<2>(residuals, kernel, squared, begin, end, scratch, out);
    default: return piece_of<-1>(residuals, kernel, squared, begin, end, scratch, out);
  }
}

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
KCALIB_FN P weighted(double factor, const SampleWeights& weights, long sample, int at) {
  const double* values = weights.values + sample * weights.stride + at;
  if (at + WIDTH <= weights.n_replicates) return factor * load<P>(values);
  return factor * load_some(values, weights.n_replicates - at);
}

template <int DEGREE, bool BITS>
void forms_of(const WeightedLine& line, const LineKernel& kernel, double own, const SampleWeights& weights, long length,
              double* sums, double* totals) {
  const int degree = DEGREE < 0 ? kernel.degree : DEGREE;
  constexpr int MOST = SampleWeights::MOST;
  const int run = weights.run(), last = weights.n_replicates < run ? weights.n_replicates : run;
  const int size = BITS ? 8 * last : weights.n_replicates;
  for (long i = 0; i < length; ++i) {
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
void forms_with(const WeightedLine& line, const LineKernel& kernel, double own, const SampleWeights& weights, long length,
                double* sums, double* totals) {
  switch (kernel.degree) {
    case 0: return forms_of<0, BITS>(line, kernel, own, weights, length, sums, totals);
    case 1: return forms_of<1, BITS>(line, kernel, own, weights, length, sums, totals);
    case 2: return forms_of<2, BITS>(line, kernel, own, weights, length, sums, totals);
    default: return forms_of<-1, BITS>(line, kernel, own, weights, length, sums, totals);
  }
}

void forms(const WeightedLine& line, const LineKernel& kernel, double own, const SampleWeights& weights, long length,
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

void bit_forms(const WeightedLine& line, const SampleWeights& weights, long length, double* sums, double* totals) {
  constexpr int ROWS = 64, FOURS = ROWS / 4, TOGETHER = 4;
  const int run = weights.run(), last = weights.n_replicates < run ? weights.n_replicates : run;
  FourPoints fours[FOURS];
  WordPack words[ROWS];
  for (long row = 0; row < length; row += ROWS) {
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
