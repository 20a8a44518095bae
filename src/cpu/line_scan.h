// K @ V for sorted points on a line: the loops over a strip of points, columns of V in the lanes of packs.
// Included by line_kernels.cpp, once per instruction set, as pack.h is.
#pragma once

#include "line_kernels.h"
#include "pack.h"

namespace kcalib {
namespace {

using P = DoublePack;
constexpr long WIDTH = LANES<P>;
constexpr long AHEAD = 64;  // rows between asking memory for one and using it

void decays(const double* gaps, double rate, long n, double* out) {
  long i = 0;
  for (; i + WIDTH <= n; i += WIDTH) store(out + i, exp_minus(rate * load<P>(gaps + i)));
  if (i == n) return;
  double rest[WIDTH] = {};
  for (long k = i; k < n; ++k) rest[k - i] = gaps[k];
  store(rest, exp_minus(rate * load<P>(rest)));
  for (long k = i; k < n; ++k) out[k] = rest[k - i];
}

// Asks memory for a row of `count` doubles, into the second cache: the first has no room for so many.
template <bool WRITE> KCALIB_FN void ask_for(const double* row, long count) {
  constexpr long LINE = 64 / sizeof(double), SECOND_CACHE = 2;
  for (long c = 0; c < count; c += LINE) __builtin_prefetch(row + c, WRITE, SECOND_CACHE);
  __builtin_prefetch(row + count - 1, WRITE, SECOND_CACHE);
}

// The columns of V at the points of a strip, side by side and padded to whole packs with 0.
void gather(const Strip& strip, const VectorRows& in, long n_columns, double* out) {
  const long width = (n_columns + WIDTH - 1) / WIDTH * WIDTH, whole = n_columns / WIDTH * WIDTH;
  for (long i = 0; i < strip.length; ++i, out += width) {
    if (in.values && i + AHEAD < strip.left) {
      const long row = strip.positions[i + AHEAD] - in.first;
      if (row >= 0) ask_for<false>(in.values + row * in.stride, n_columns);
    }
    const long row = strip.positions[i] - in.first;
    const double* values = in.values && row >= 0 ? in.values + row * in.stride : nullptr;
    if (values) {
      for (long c = 0; c < whole; c += WIDTH) store(out + c, load<P>(values + c));
      if (whole < width) store(out + whole, P{});
      for (long c = whole; c < n_columns; ++c) out[c] = values[c];
    } else {
      for (long c = 0; c < width; c += WIDTH) store(out + c, P{} + (in.values ? 0.0 : 1.0));
    }
  }
}

// Rows of the results to where the user's samples have theirs.
void scatter(const Strip& strip, const double* results, long n_columns, const ProductRows& out) {
  const long width = (n_columns + WIDTH - 1) / WIDTH * WIDTH, whole = n_columns / WIDTH * WIDTH;
  for (long i = 0; i < strip.length; ++i, results += width) {
    const long row = strip.positions[i];
    if (i + AHEAD < strip.left && strip.positions[i + AHEAD] < out.n)
      ask_for<true>(out.values + strip.positions[i + AHEAD] * out.stride, n_columns);
    if (row >= out.n) continue;
    double* to = out.values + row * out.stride;
    for (long c = 0; c < whole; c += WIDTH) store(to + c, load<P>(results + c));
    for (long c = whole; c < n_columns; ++c) to[c] = results[c];
  }
}

// The point that a strip's sums are seen from, and the points [begin, end) of the strip that it sees.
struct Viewpoint {
  double place;
  long begin, end;
};

// distances[i] = D and weights[i] = exp(-rate D), 0 of points that are not seen.
KCALIB_FN void view(const Strip& strip, const Viewpoint& from, double rate, double* distances, double* weights) {
  const auto seen = [&](long i) { return i >= from.begin && i < from.end; };
  for (long i = 0; i < strip.length; ++i) distances[i] = seen(i) ? __builtin_fabs(from.place - strip.places[i]) : 0;
  decays(distances, rate, strip.length, weights);
  for (long i = 0; i < strip.length; ++i) weights[i] = seen(i) ? weights[i] : 0;
}

// out = sum_i weights[i] factors[i * rank] v_i, of PACKS packs of columns.
template <int PACKS>
KCALIB_FN void add_up(const double* weights, const double* factors, int rank, const double* v, long width, long count,
                      double* out) {
  P sum[PACKS] = {};
  for (long i = 0; i < count; ++i) {
    const double weight = weights[i] * factors[i * rank];
    for (int k = 0; k < PACKS; ++k) sum[k] += weight * load<P>(v + i * width + k * WIDTH);
  }
  for (int k = 0; k < PACKS; ++k) store(out + k * WIDTH, sum[k]);
}

// sums[t][r][p][width] = sum_i right_r[i] D_i^p exp(-rate D_i) v_i.
void sums_from(const Viewpoint& from, const Strip& strip, const ProductTerm* terms, int n_terms, const double* v,
               long width, double* sums) {
  double distances[Strip::LENGTH], weights[Strip::LENGTH];
  for (int t = 0; t < n_terms; ++t) {
    const int powers = terms[t].kernel.degree + 1, rank = terms[t].rank;
    view(strip, from, terms[t].kernel.rate, distances, weights);
    for (int p = 0; p < powers; ++p) {
      for (long i = 0; p > 0 && i < strip.length; ++i) weights[i] *= distances[i];
      for (int r = 0; r < rank; ++r) {
        const double* factors = terms[t].right + strip.begin * rank + r;
        double* out = sums + (r * powers + p) * width;
        long c = 0;
        for (; c + 2 * WIDTH <= width; c += 2 * WIDTH)
          add_up<2>(weights, factors, rank, v + c, width, strip.length, out + c);
        if (c < width) add_up<1>(weights, factors, rank, v + c, width, strip.length, out + c);
      }
    }
    sums += rank * powers * width;
  }
}

void strip_sums(const Strip& strip, const ProductTerm* terms, int n_terms, const double* v, long width, double* to_next,
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

// One way along a strip, for one term, rank and PACKS packs of columns.
template <int DEGREE, int PACKS, bool TO_RIGHT> struct Way {
  const double *gap, *decay, *left, *right;
  const double* coefficients;
  int degree, rank;
  long length, width;
  double own;  // share of a point in its own sum

  KCALIB_FN void go(const double* v, P* sums, double* out) const {
    const int highest = DEGREE < 0 ? degree : DEGREE;
    for (long step = 0; step < length; ++step) {
      const long i = TO_RIGHT ? step : length - 1 - step, edge = TO_RIGHT ? i + 1 : i;  // the next gap's
      const double in = right[i * rank], to = left[i * rank];
      for (int k = 0; k < PACKS; ++k) {
        const P u = in * load<P>(v + i * width + k * WIDTH);
        P seen = coefficients[0] * sums[k];
        for (int p = 1; p <= highest; ++p) seen += coefficients[p] * sums[p * PACKS + k];
        if constexpr (TO_RIGHT) seen += own * u;
        double* at = out + i * width + k * WIDTH;
        store(at, load<P>(at) + to * seen);
        // With degree 0 the next sum waits for one fused operation only.
        if constexpr (DEGREE == 0) sums[k] = decay[edge] * sums[k] + decay[edge] * u;
        else sums[k] += u;
      }
      if constexpr (DEGREE != 0) move_packs<PACKS>(sums, highest, gap[edge], decay[edge]);
    }
  }
};

struct ScanPart {
  const ProductTerm& term;
  int r;
  const double *gap, *decay;
  double own;
  const double *from_left, *from_right;  // sums[p][width]
};

template <int DEGREE, int PACKS>
KCALIB_FN void scan_packs(const Strip& strip, const ScanPart& part, const double* v, long width, long c, double* scratch,
                          double* out) {
  const ProductTerm& term = part.term;
  const int degree = DEGREE < 0 ? term.kernel.degree : DEGREE;
  const double *left = term.left + strip.begin * term.rank + part.r, *right = term.right + strip.begin * term.rank + part.r;
  const auto go = [&](auto way, const double* from) {
    P local[DEGREE < 0 ? 1 : (DEGREE + 1) * PACKS];
    P* sums = DEGREE < 0 ? reinterpret_cast<P*>(scratch) : local;
    for (int p = 0; p <= degree; ++p)
      for (int k = 0; k < PACKS; ++k) sums[p * PACKS + k] = load<P>(from + p * width + c + k * WIDTH);
    way.go(v + c, sums, out + c);
  };
  const double* coefficients = term.kernel.coefficients;
  go(Way<DEGREE, PACKS, true>{part.gap, part.decay, left, right, coefficients, degree, term.rank, strip.length, width,
                              part.own * coefficients[0]}, part.from_left);
  go(Way<DEGREE, PACKS, false>{part.gap, part.decay, left, right, coefficients, degree, term.rank, strip.length, width, 0},
     part.from_right);
}

template <int DEGREE>
void scan(const Strip& strip, const ScanPart& part, const double* v, long width, double* scratch, double* out) {
  long c = 0;
  for (; c + 2 * WIDTH <= width; c += 2 * WIDTH) scan_packs<DEGREE, 2>(strip, part, v, width, c, scratch, out);
  if (c < width) scan_packs<DEGREE, 1>(strip, part, v, width, c, scratch, out);
}

// gap[i], decay[i]: from point i - 1 to point i; at the ends and where a block starts nothing is carried.
KCALIB_FN void steps_of(const Strip& strip, double rate, double* gap, double* decay) {
  gap[0] = gap[strip.length] = 0;
  for (long i = 1; i < strip.length; ++i) gap[i] = strip.places[i] - strip.places[i - 1];
  const long first = (strip.begin + strip.block - 1) / strip.block * strip.block - strip.begin;
  for (long i = first; i < strip.length; i += strip.block) gap[i] = 0;
  decays(gap, rate, strip.length + 1, decay);
  for (long i = first; i < strip.length; i += strip.block) decay[i] = 0;
}

void strip_products(const Strip& strip, const ProductTerm* terms, int n_terms, double own, const double* v, long width,
                    const double* from_left, const double* from_right, double* scratch, double* out) {
  double gap[Strip::LENGTH + 1], decay[Strip::LENGTH + 1];
  for (long i = 0; i < strip.length * width; ++i) out[i] = 0;
  for (int t = 0; t < n_terms; ++t) {
    const ProductTerm& term = terms[t];
    steps_of(strip, term.kernel.rate, gap, decay);
    const auto run = term.kernel.degree == 0   ? scan<0>
                     : term.kernel.degree == 1 ? scan<1>
                     : term.kernel.degree == 2 ? scan<2>
                                               : scan<-1>;
    for (int r = 0; r < term.rank; ++r) {
      run(strip, {term, r, gap, decay, own, from_left, from_right}, v, width, scratch, out);
      from_left += (term.kernel.degree + 1) * width;
      from_right += (term.kernel.degree + 1) * width;
    }
  }
}

void carry(const ProductTerm* terms, int n_terms, double distance, long width, double* scratch, double* carried,
           double* sums) {
  P* moved = reinterpret_cast<P*>(scratch);
  for (int t = 0; t < n_terms; ++t) {
    const LineKernel& kernel = terms[t].kernel;
    const double decay = distance < 0 ? 0 : exp_minus(kernel.rate * distance), gap = distance < 0 ? 0 : distance;
    const long size = (kernel.degree + 1) * width;
    for (int r = 0; r < terms[t].rank; ++r, carried += size, sums += size)
      for (long c = 0; c < width; c += WIDTH) {
        for (int p = 0; p <= kernel.degree; ++p) moved[p] = load<P>(carried + p * width + c);
        move_packs<1>(moved, kernel.degree, gap, decay);
        for (int p = 0; p <= kernel.degree; ++p) {
          const long at = p * width + c;
          const P added = load<P>(sums + at);
          store(sums + at, load<P>(carried + at));
          store(carried + at, moved[p] + added);
        }
      }
  }
}

}  // namespace
}  // namespace kcalib
