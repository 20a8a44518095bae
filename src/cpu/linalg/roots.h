// The matrices L_i = diag(sqrt p_i) - p_i sqrt(p_i)^T of kcalib/inference/conditional_spectrum.py, L_i L_i^T = V_i the
// covariance of the residuals, sample after sample: their products with vectors, and lengths of the residuals. Nothing
// cancels where a probability is near 1.
//
// Numbers of a sample that sum to 0, as those of L_i x do, or that count but for what is added to all of them, as to L_i^T z,
// are as many less one: `narrow` ones are y_k = z_k + z_m / (sqrt m - 1), k < m, which have the same length.
#pragma once

#include <cstdint>

namespace kcalib {

struct Roots {
  const double *p, *deviations;  // (n x m), and their roots
  const std::int64_t* top;       // the most probable class of each sample
  int64_t n, m;
};

// out = L_i x for x (n x m x c), narrow, rows of (m - 1) x c numbers `stride` after the other.
void apply_roots(const Roots& roots, const double* x, int64_t c, int64_t stride, int threads, double* out);

// out (n x m x c) = L_i^T (z - own_i y) for narrow z and y (n x (m - 1) x c).
void apply_transposed_roots(const Roots& roots, const double* z, const double* own, const double* y, int64_t c, int threads, double* out);

// out = -p_a p_b for a < b, row by row of the matrix V_i: rows `stride` after the other.
void covariances(const Roots& roots, int64_t stride, int threads, double* out);

// A block Z of n m rows, with L_i^T and then c vectors x (n x m x c), times a matrix (m + c) x w: out (n x m x w).
void started_times(const Roots& roots, const double* x, int64_t c, const double* matrix, int64_t w, int threads, double* out);

// L_i^T times a block of rows (V_i, L_i x), of which sums over the samples are given, times such a matrix: of each sample the
// sums of `covariances` and of `apply_roots`, (n x (m (m - 1) / 2 + (m - 1) c)). out (n x m x w).
void products_times(const Roots& roots, const double* products, int64_t c, const double* matrix, int64_t w, int threads, double* out);

// squares[i] = E |e_i|^2 and fourths[i] = E |e_i|^4 of the residuals e_i under the probabilities p (n x m), m > 2.
void residual_lengths(const double* p, int64_t n, int64_t m, int threads, double* squares, double* fourths);

}  // namespace kcalib
