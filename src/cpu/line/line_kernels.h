// What the operator for points on a line asks of the instruction set, as a table of functions:
// line_kernels.cpp is compiled once for each, as tile.cpp is. Called by line*.cpp.
#pragma once

#include <cstdint>

namespace kcalib {

// k(x, x') = exp(-rate |x - x'|) sum_p coefficients[p] |x - x'|^p.
struct LineKernel {
  double rate;
  const double* coefficients;  // shape: (degree + 1,)
  int degree;
};

// The residuals of a binary problem, sorted. A residual r = y - c and its label say where the
// sample is: at c = -r for y = 0, at 1 - r for y = 1. So sizes |r| are all that needs sorting.
struct Residuals {
  const double* sizes;  // of label 0 ascending, infinity, -infinity, of label 1 ascending
  int64_t n_zeros, n;
};

// A run of points of the line. Runs that touch make one, and a run's sums are those of its parts. X: double, or a pack of
// several runs' numbers.
template <class X> struct PieceOf {
  X first, last;  // places
  // Over the pairs i < j in it, k(x_i, x_j) u_i u_j; for u = r and u = |r| (or r^2 twice).
  X total[2];
  // sum_i u_i D^p exp(-rate D), D the distance to the last point (to the first): sums[p * 2 + which].
  X *to_last, *to_first;
};
using Piece = PieceOf<double>;

// Sorted points of a strip, each with u_i = factors[0][i] times the weight of its sample, or u_i = factors[bit][i] by its
// bit. Gaps, decays and factors are padded with 0 to whole 64s of points, and the former two by one more.
struct WeightedLine {
  const double *gap, *decay;  // from the point before, and exp(-rate gap)
  const double* factors[2];
  const int64_t* positions;  // of the samples in the user's order
};

// Weights: either values[sample * stride + replicate], or bits as WeightTable::sign_lines writes them, of the points of a
// strip. At most 512 replicates.
struct SampleWeights {
  const double* values;
  int64_t stride;
  const unsigned long long (*bits)[8];
  int n_replicates;
  static constexpr int MOST = 512;
  // Replicates of bits come as eight runs of so many, a power of two from 8 to 64, which are beside each other in packs:
  // replicate r is at `place(r)` of sums and totals.
  int run() const { return n_replicates > 256 ? 64 : n_replicates > 128 ? 32 : n_replicates > 64 ? 16 : 8; }
  int place(int replicate) const { return bits ? replicate % run() * 8 + replicate / run() : replicate; }
};

// Consecutive sorted points. Points of different blocks do not see each other.
struct Strip {
  static constexpr int64_t LENGTH = 128;
  int64_t begin, length;  // its number of points is at most LENGTH
  int64_t left;  // points from its first one to the last of the line
  int64_t block;
  const double* places;
  const int64_t* positions;  // of the samples in the user's order
  // The places of the points before and after it, and its points that are seen from there: [0, previous_end)
  // and [next_begin, length).
  double previous, next;
  int64_t previous_end, next_begin;
};

// sum_r left_r[i] k(x_i, x_j) right_r[j]; factors of sorted points, shape: (n, rank).
struct ProductTerm {
  LineKernel kernel;
  const double *left, *right;
  int rank;
};

// Vectors side by side. The sample at position i in the user's order has row i - first, or 0 if that is
// negative. values == nullptr: all are 1.
struct VectorRows {
  const double* values;
  int64_t stride, first;
};

// The sample at position i has row i, if i < n.
struct ProductRows {
  double* values;
  int64_t stride, n;
};

struct LineFunctions {
  // The largest |p + q - 1| of n points (p, q).
  double (*gap)(const double* points, int64_t n);
  int64_t (*ones)(const int64_t* labels, int64_t n);
  // Sizes of the residuals of n points by label, and what `line_residuals` sums of them.
  void (*residuals)(const double* points, const int64_t* labels, int64_t n, double* zero, double* one, double sums[2]);
  // The same of points of which the second coordinate alone is there, with which the first makes 1.
  void (*residuals_of_seconds)(const double* seconds, const int64_t* labels, int64_t n, double* zero, double* one,
                               double sums[2]);
  void (*decays)(const double* gaps, double rate, int64_t n, double* out);
  // Piece of the points [begin, end) of the line, at least one; `squared`: u = r^2. `scratch`, aligned to 64 bytes:
  // PIECE_SCRATCH * (degree + 1).
  static constexpr int64_t PIECE_SCRATCH = 72;
  void (*piece)(const Residuals& residuals, const LineKernel& kernel, bool squared, int64_t begin, int64_t end,
                double* scratch, Piece* out);
  // left and the piece right of it.
  void (*join)(const LineKernel& kernel, Piece* left, const Piece& right);
  // Adds u_i (own k(0) u_i + sum_{j<i} k(x_i, x_j) u_j) over the points of a strip to totals[MOST].
  // sums[degree + 1][MOST] are the sums over earlier points, seen from the one before.
  void (*forms)(const WeightedLine& line, const LineKernel& kernel, double own, const SampleWeights& weights, int64_t length,
                double* sums, double* totals);
  // The same for bits and a polynomial of degree 0, up to its coefficient, and own = 0. sums[MOST] are seen from the
  // point itself.
  void (*bit_forms)(const WeightedLine& line, const SampleWeights& weights, int64_t length, double* sums, double* totals);

  // Products with vectors, as line_product.cpp puts them together. Sums of a strip have, for each term and rank, a
  // row for each power of the distance; all rows have whole packs of `lanes` columns. `scratch`, aligned to
  // 64 bytes, has 2 lanes for each power.
  int64_t lanes;
  void (*gather)(const Strip& strip, const VectorRows& in, int64_t n_columns, double* out);
  void (*scatter)(const Strip& strip, const double* results, int64_t n_columns, const ProductRows& out);
  // What the strip's points give to the points after and before it.
  void (*strip_sums)(const Strip& strip, const ProductTerm* terms, int n_terms, const double* v, int64_t width,
                     double* to_next, double* to_previous);
  // `carried` is what reaches this strip. It goes on by `distance`, not at all if that is negative, and the strip's
  // `sums` join it; their place is taken by what came.
  void (*carry)(const ProductTerm* terms, int n_terms, double distance, int64_t width, double* scratch, double* carried,
                double* sums);
  // own: 1 if a point sees itself, 0 if not.
  void (*strip_products)(const Strip& strip, const ProductTerm* terms, int n_terms, double own, const double* v,
                         int64_t width, const double* from_left, const double* from_right, double* scratch, double* out);
};

}  // namespace kcalib
