// Sums over pairs of points on a line, in O(n): what the sorted_scan operator is made of.
// Called by _native.pyx; the loops that depend on the instruction set are in line_kernels.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "cpu/line/line_kernels.h"
#include "cpu/pairs/sweep.h"
#include "cpu/random/weights.h"

namespace kcalib {

// Each that takes a `Run` returns false if `poll` stopped it.

// The largest distance of the n points (p, q) from the line p + q = 1, as |p + q - 1|.
bool line_gap(const double* points, int64_t n, const Run& run, double* largest);

// Sizes of the residuals of the n points (1 - c, c) as `Residuals` has them, but not sorted. A point that rounding puts off the line has the residual r of the nearest on it, and
// <e, e'> = 2 r r' + 2 d d'. off_line = sum |d|, square_norms = sum <e, e>. n_coordinates: 2, or 1 where points are c alone.
bool line_residuals(const double* points, int64_t n_coordinates, const int64_t* labels, int64_t n, const Run& run, double* sizes,
                    int64_t* n_zeros, double* off_line, double* square_norms);

// Sums over the pairs i < j of k(x_i, x_j) r_i r_j, and of its size (`squared`: r_i^2 r_j^2, twice).
bool line_total(const Residuals& residuals, const LineKernel& kernel, bool squared, const Run& run, double total[2]);

// Samples in the user's order: row-major points, whose last coordinate is the place on the line, in blocks.
struct Samples {
  const double* points;
  int64_t n_coordinates, n, block;
  double place(int64_t i) const { return points[i * n_coordinates + n_coordinates - 1]; }
};

// Keys that sort as the places do within blocks of consecutive samples: number of the block, place
// (rounded down) and number of the sample in the block, from the highest bits to the lowest.
bool line_keys(const Samples& samples, const Run& run, Word* keys);

// Signed residuals of sorted samples, as `line_residuals` has them; of n points (1 - c, c).
struct SortedResiduals {
  const int64_t* labels;  // null: not wanted
  double* values;  // sqrt(2) r
  double off_line, square_norms;
  double worst;  // largest |d| / r
};

// From the sorted keys, the samples sorted by place, equal ones by number; their places and residuals.
bool line_order(const Word* keys, const Samples& samples, const Run& run, int64_t* positions, double* places,
                SortedResiduals* sorted);

// Points ascending within blocks (the last may be shorter); points of different blocks do not see each other.
struct Line {
  const double* places;
  int64_t n, block;
  LineKernel kernel;
};

// out = H @ vectors for the sum H of the terms, between samples of the same block; `diagonal`: whether
// H_ii is in it. positions: of the sorted samples in the user's order. line.kernel is not used.
bool line_product(const Line& line, const int64_t* positions, const ProductTerm* terms, int n_terms, bool diagonal,
                  const VectorRows& vectors, int64_t n_vectors, const Run& run, const ProductRows& out);

// A kernel between columns of factors: sum_r f_r[i] k(x_i, x_j) f_r[j].
struct FormTerm {
  LineKernel kernel;
  // Of sorted points, shape: (rank, n). Samples with bits have factors[bit] in place of a factor times a weight; null: the
  // negatives of the others.
  const double* factors[2];
  int rank;
};

// Weights of samples in the user's order: the first of these that is there. All but the first are bits.
struct FormWeights {
  const double* values = nullptr;  // n x n_replicates
  const int* labels = nullptr;  // 0 and 1, n x n_replicates
  const LabelDraws* draws = nullptr;  // from draw 0 on
  Word seed = 0;  // of Rademacher weights, whose bit is 1 where they are -1
};

// out[b] = w_b^T H w_b for the sum H of the terms; line.kernel is not used. With `diagonal` its diagonal is included,
// for bits where both factors of a sample have the same size.
bool line_forms(const Line& line, const int64_t* positions, const FormTerm* terms, int n_terms, bool diagonal,
                const FormWeights& weights, int64_t n_replicates, const Run& run, double* out);

// counts[k] = how many distances of pairs of n points, ascending, are below thresholds[k] > 0. places[n] is infinite.
bool line_counts(const double* places, int64_t n, const double* thresholds, int64_t n_thresholds, const Run& run,
                 int64_t* counts);

// Writes the distances in [low, high), at most `room`, in no order, and returns how many it wrote.
int64_t line_between(const double* places, int64_t n, double low, double high, double* out, int64_t room);

// Chunks of a line, from n alone: they decide the order of summation.
struct Chunks {
  explicit Chunks(int64_t n) : n(n), count(std::clamp<int64_t>((n + 8191) / 8192, 1, 64)), length((n + count - 1) / count) {}
  int64_t begin(int64_t chunk) const { return std::min(n, chunk * length); }
  int64_t end(int64_t chunk) const { return std::min(n, (chunk + 1) * length); }
  int64_t n, count, length;
};

}  // namespace kcalib
