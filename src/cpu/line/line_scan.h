// K @ V for sorted points on a line: the loops over a strip of points, columns of V in the lanes of packs.
// Included by line_kernels.cpp, once per instruction set, as pack.h is.
#pragma once

#include <cstdint>

#include "cpu/line/line_kernels.h"
#include "cpu/simd/pack.h"

namespace kcalib {
namespace {

using P = DoublePack;
constexpr int64_t WIDTH = LANES<P>;
constexpr int64_t AHEAD = 64;  // rows between asking memory for one and using it

void decays(const double* gaps, double rate, int64_t n, double* out) {
  int64_t i = 0;
  for (; i + WIDTH <= n; i += WIDTH) store(out + i, exp_minus(rate * load<P>(gaps + i)));
  if (i == n) return;
  double rest[WIDTH] = {};
  for (int64_t k = i; k < n; ++k) rest[k - i] = gaps[k];
  store(rest, exp_minus(rate * load<P>(rest)));
  for (int64_t k = i; k < n; ++k) out[k] = rest[k - i];
}

// The first `count` lanes; the others are 0 (are not written).
KCALIB_FN P load_some(const double* p, int64_t count) {
#if defined(__AVX512F__)
  return P(_mm512_maskz_loadu_pd(__mmask8((1 << count) - 1), p));
#else
  double some[WIDTH] = {};
  for (int64_t i = 0; i < count; ++i) some[i] = p[i];
  return load<P>(some);
#endif
}
KCALIB_FN void store_some(double* p, P x, int64_t count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_pd(p, __mmask8((1 << count) - 1), __m512d(x));
#else
  for (int64_t i = 0; i < count; ++i) p[i] = x[i];
#endif
}

// Asks memory for a row of `count` doubles, into the second cache: the first has no room for so many.
template <bool WRITE> KCALIB_FN void ask_for(const double* row, int64_t count) {
  constexpr int64_t LINE = 64 / sizeof(double), SECOND_CACHE = 2;
  for (int64_t c = 0; c < count; c += LINE) __builtin_prefetch(row + c, WRITE, SECOND_CACHE);
  if (count > 1) __builtin_prefetch(row + count - 1, WRITE, SECOND_CACHE);
}

// The columns of V at the points of a strip, side by side and padded to whole packs with 0.
void gather(const Strip& strip, const VectorRows& in, int64_t n_columns, double* out) {
  const int64_t whole = n_columns / WIDTH * WIDTH, rest = n_columns - whole, width = rest ? whole + WIDTH : whole;
  const int64_t length = strip.length, left = strip.left, first = in.first, stride = in.stride;
  const int64_t* positions = strip.positions;
  const double* values = in.values;
  for (int64_t i = 0; i < (values ? 0 : length * width); i += WIDTH) store(out + i, P{} + 1.0);
  for (int64_t i = 0; i < (values ? length : 0); ++i, out += width) {
    if (i + AHEAD < left && positions[i + AHEAD] >= first)
      ask_for<false>(values + (positions[i + AHEAD] - first) * stride, n_columns);
    if (positions[i] < first) {
      for (int64_t c = 0; c < width; c += WIDTH) store(out + c, P{});
      continue;
    }
    const double* row = values + (positions[i] - first) * stride;
    for (int64_t c = 0; c < whole; c += WIDTH) store(out + c, load<P>(row + c));
    if (rest) store(out + whole, load_some(row + whole, rest));
  }
}

// Rows of the results to where the user's samples have theirs.
void scatter(const Strip& strip, const double* results, int64_t n_columns, const ProductRows& out) {
  const int64_t whole = n_columns / WIDTH * WIDTH, rest = n_columns - whole, width = rest ? whole + WIDTH : whole;
  const int64_t length = strip.length, left = strip.left, n = out.n, stride = out.stride;
  const int64_t* positions = strip.positions;
  double* values = out.values;
  for (int64_t i = 0; i < length; ++i, results += width) {
    if (i + AHEAD < left && positions[i + AHEAD] < n)
      ask_for<true>(values + positions[i + AHEAD] * stride, n_columns);
    if (positions[i] >= n) continue;
    double* row = values + positions[i] * stride;
    for (int64_t c = 0; c < whole; c += WIDTH) store(row + c, load<P>(results + c));
    if (rest) store_some(row + whole, load<P>(results + whole), rest);
  }
}

// The point that a strip's sums are seen from, and the points [begin, end) of the strip that it sees.
struct Viewpoint {
  double place;
  int64_t begin, end;
};

// distances[i] = D and weights[i] = exp(-rate D), 0 of points that are not seen.
KCALIB_FN void view(const Strip& strip, const Viewpoint& from, double rate, double* distances, double* weights) {
  const auto seen = [&](int64_t i) { return i >= from.begin && i < from.end; };
  for (int64_t i = 0; i < strip.length; ++i) distances[i] = seen(i) ? __builtin_fabs(from.place - strip.places[i]) : 0;
  decays(distances, rate, strip.length, weights);
  for (int64_t i = 0; i < strip.length; ++i) weights[i] = seen(i) ? weights[i] : 0;
}

// out = sum_i weights[i] factors[i * rank] v_i, of PACKS packs of columns.
template <int PACKS>
KCALIB_FN void add_up(const double* weights, const double* factors, int rank, const double* v, int64_t width, int64_t count,
                      double* out) {
  constexpr int CHAINS = 4 / PACKS;  // sums that do not wait for each other
  P sum[CHAINS][PACKS] = {};
  const auto add = [&](int64_t i, int chain) {
    const double weight = weights[i] * factors[i * rank];
    for (int k = 0; k < PACKS; ++k) sum[chain][k] += weight * load<P>(v + i * width + k * WIDTH);
  };
  int64_t i = 0;
  for (; i + CHAINS <= count; i += CHAINS)
    for (int chain = 0; chain < CHAINS; ++chain) add(i + chain, chain);
  for (; i < count; ++i) add(i, 0);
  for (int chain = 1; chain < CHAINS; ++chain)
    for (int k = 0; k < PACKS; ++k) sum[0][k] += sum[chain][k];
  for (int k = 0; k < PACKS; ++k) store(out + k * WIDTH, sum[0][k]);
}

// sums[t][r][p][width] = sum_i right_r[i] D_i^p exp(-rate D_i) v_i.
void sums_from(const Viewpoint& from, const Strip& strip, const ProductTerm* terms, int n_terms, const double* v,
               int64_t width, double* sums) {
  double distances[Strip::LENGTH], weights[Strip::LENGTH];
  for (int t = 0; t < n_terms; ++t) {
    const int powers = terms[t].kernel.degree + 1, rank = terms[t].rank;
    view(strip, from, terms[t].kernel.rate, distances, weights);
    for (int p = 0; p < powers; ++p) {
      for (int64_t i = 0; p > 0 && i < strip.length; ++i) weights[i] *= distances[i];
      for (int r = 0; r < rank; ++r) {
        const double* factors = terms[t].right + strip.begin * rank + r;
        double* out = sums + (r * powers + p) * width;
        int64_t c = 0;
        for (; c + 2 * WIDTH <= width; c += 2 * WIDTH)
          add_up<2>(weights, factors, rank, v + c, width, strip.length, out + c);
        if (c < width) add_up<1>(weights, factors, rank, v + c, width, strip.length, out + c);
      }
    }
    sums += rank * powers * width;
  }
}

void strip_sums(const Strip& strip, const ProductTerm* terms, int n_terms, const double* v, int64_t width, double* to_next,
                double* to_previous) {
  sums_from({strip.next, strip.next_begin, strip.length}, strip, terms, n_terms, v, width, to_next);
  sums_from({strip.previous, 0, strip.previous_end}, strip, terms, n_terms, v, width, to_previous);
}

// Sums over D^p exp(-rate D), p = 0..degree, of points left behind, seen from `gap` further on; of PACKS packs.
template <int PACKS> KCALIB_FN void move_packs(P* sums, int degree, double gap, double decay) {
  for (int p = degree; p > 0; --p) {
    double weight = 1;  // binomial(p, l) gap^(p - l), from l = p down
    for (int l = p - 1; l >= 0; --l) {
      weight *= gap * (l + 1) / (p - l);
      for (int k = 0; k < PACKS; ++k) sums[p * PACKS + k] += weight * sums[l * PACKS + k];
    }
  }
  for (int k = 0; k < (degree + 1) * PACKS; ++k) sums[k] *= decay;
}

// One rank of one term: what the scans along a strip have in common.
struct Rank {
  const LineKernel& kernel;
  const double *left, *right;  // factors of point i: at i * stride
  int64_t stride;
  const double *gap, *decay;
  const double *from_left, *from_right;  // sums[p][width]
};

// out_i += left_i (own k(0) u_i + sum_j k(x_i, x_j) u_j) over the points j passed before i, u = right v; for
// PACKS packs of columns, from the left to the right or back. `sums`: at the first point, sums[p * PACKS + pack].
template <int DEGREE, int PACKS, bool TO_RIGHT>
KCALIB_FN void scan_one_way(const Rank& of_rank, double own, int64_t length, const double* v, int64_t width, P* sums,
                            double* out) {
  const Rank rank = of_rank;  // which no store can change
  const int degree = DEGREE < 0 ? rank.kernel.degree : DEGREE;
  const double *coefficients = rank.kernel.coefficients, constant = coefficients[0], own_share = own * constant;
  for (int64_t step = 0; step < length; ++step) {
    const int64_t i = TO_RIGHT ? step : length - 1 - step, next = TO_RIGHT ? i + 1 : i;  // the next gap
    const double right = rank.right[i * rank.stride], left = rank.left[i * rank.stride];
    const double gap = rank.gap[next], decay = rank.decay[next];
    for (int k = 0; k < PACKS; ++k) {
      const P u = right * load<P>(v + i * width + k * WIDTH);
      P seen = constant * sums[k];
      for (int p = 1; p <= degree; ++p) seen += coefficients[p] * sums[p * PACKS + k];
      if constexpr (TO_RIGHT) seen += own_share * u;
      double* at = out + i * width + k * WIDTH;
      store(at, load<P>(at) + left * seen);
      // With degree 0 the next sum waits for one fused operation only.
      if constexpr (DEGREE == 0) sums[k] = decay * sums[k] + decay * u;
      else sums[k] += u;
    }
    if constexpr (DEGREE != 0) move_packs<PACKS>(sums, degree, gap, decay);
  }
}

template <int DEGREE, int PACKS, bool TO_RIGHT>
KCALIB_FN void scan_packs(const Rank& rank, double own, int64_t length, const double* v, int64_t width, double* scratch,
                          const double* from, double* out) {
  const int degree = DEGREE < 0 ? rank.kernel.degree : DEGREE;
  P registers[DEGREE < 0 ? 1 : (DEGREE + 1) * PACKS];
  P* sums = DEGREE < 0 ? reinterpret_cast<P*>(scratch) : registers;
  for (int p = 0; p <= degree; ++p)
    for (int k = 0; k < PACKS; ++k) sums[p * PACKS + k] = load<P>(from + p * width + k * WIDTH);
  scan_one_way<DEGREE, PACKS, TO_RIGHT>(rank, own, length, v, width, sums, out);
}

template <int DEGREE>
void scan(const Rank& rank, double own, int64_t length, const double* v, int64_t width, double* scratch, double* out) {
  int64_t c = 0;
  for (; c + 2 * WIDTH <= width; c += 2 * WIDTH) {
    scan_packs<DEGREE, 2, true>(rank, own, length, v + c, width, scratch, rank.from_left + c, out + c);
    scan_packs<DEGREE, 2, false>(rank, own, length, v + c, width, scratch, rank.from_right + c, out + c);
  }
  if (c == width) return;
  scan_packs<DEGREE, 1, true>(rank, own, length, v + c, width, scratch, rank.from_left + c, out + c);
  scan_packs<DEGREE, 1, false>(rank, own, length, v + c, width, scratch, rank.from_right + c, out + c);
}

// gap[i], decay[i]: from point i - 1 to point i; at the ends and where a block starts nothing is carried.
KCALIB_FN void steps_of(const Strip& strip, double rate, double* gap, double* decay) {
  gap[0] = gap[strip.length] = 0;
  for (int64_t i = 1; i < strip.length; ++i) gap[i] = strip.places[i] - strip.places[i - 1];
  const int64_t first = (strip.begin + strip.block - 1) / strip.block * strip.block - strip.begin;
  for (int64_t i = first; i < strip.length; i += strip.block) gap[i] = 0;
  decays(gap, rate, strip.length + 1, decay);
  for (int64_t i = first; i < strip.length; i += strip.block) decay[i] = 0;
}

void strip_products(const Strip& strip, const ProductTerm* terms, int n_terms, double own, const double* v, int64_t width,
                    const double* from_left, const double* from_right, double* scratch, double* out) {
  double gap[Strip::LENGTH + 1], decay[Strip::LENGTH + 1];
  for (int64_t i = 0; i < strip.length * width; ++i) out[i] = 0;
  for (int t = 0; t < n_terms; ++t) {
    const LineKernel& kernel = terms[t].kernel;
    const auto scan_of = kernel.degree == 0   ? scan<0>
                         : kernel.degree == 1 ? scan<1>
                         : kernel.degree == 2 ? scan<2>
                                              : scan<-1>;
    steps_of(strip, kernel.rate, gap, decay);
    for (int r = 0; r < terms[t].rank; ++r) {
      const int64_t stride = terms[t].rank, at = strip.begin * stride + r;
      const Rank rank{kernel, terms[t].left + at, terms[t].right + at, stride, gap, decay, from_left, from_right};
      scan_of(rank, own, strip.length, v, width, scratch, out);
      from_left += (kernel.degree + 1) * width;
      from_right += (kernel.degree + 1) * width;
    }
  }
}

void carry(const ProductTerm* terms, int n_terms, double distance, int64_t width, double* scratch, double* carried,
           double* sums) {
  P* moved = reinterpret_cast<P*>(scratch);
  for (int t = 0; t < n_terms; ++t) {
    const LineKernel& kernel = terms[t].kernel;
    const double decay = distance < 0 ? 0 : exp_minus(kernel.rate * distance), gap = distance < 0 ? 0 : distance;
    const int64_t size = (kernel.degree + 1) * width;
    for (int r = 0; r < terms[t].rank; ++r, carried += size, sums += size)
      for (int64_t c = 0; c < width; c += WIDTH) {
        for (int p = 0; p <= kernel.degree; ++p) moved[p] = load<P>(carried + p * width + c);
        move_packs<1>(moved, kernel.degree, gap, decay);
        for (int p = 0; p <= kernel.degree; ++p) {
          const int64_t at = p * width + c;
          const P added = load<P>(sums + at);
          store(sums + at, load<P>(carried + at));
          store(carried + at, moved[p] + added);
        }
      }
  }
}

}  // namespace
}  // namespace kcalib
