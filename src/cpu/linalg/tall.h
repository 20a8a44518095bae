// Products of a tall matrix, of which columns are given one after the other, with few vectors, and roots of small matrices:
// what lies between the sweeps of conjugate gradients, and of the block Krylov method. `_backend.linalg` and
// kcalib/inference/eigenvalues.py call them.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/pairs/sweep.h"

namespace kcalib {

// The columns, each of n numbers.
struct Tall {
  const double* columns;
  int64_t count, n;
};

// out (count x n_vectors) = the inner products of columns with the vectors (n x n_vectors, row by row). False if stopped.
bool tall_inner_products(const Tall& tall, const double* vectors, int64_t n_vectors, const Run& run, double* out);

// out = the columns' sums with the weights (count x n_vectors): n_vectors columns. False if stopped.
bool tall_combined(const Tall& tall, const double* weights, int64_t n_vectors, const Run& run, double* out);

// A tall matrix, row by row.
struct TallRows {
  const double* numbers;
  int64_t columns;
};

// The same of matrices of n rows each, as `_first_block` and others of kcalib/inference/eigenvalues.py have them.
// out = the inner products of the columns of all `blocks` with those of the last one: as many rows as they have columns
// together. The last of these, the last block's own, are symmetric. False if stopped.
bool inner_products_of_rows(const std::vector<TallRows>& blocks, int64_t n, const Run& run, double* out);

// out (rows of n_vectors numbers, each `stride` after the other) = the sum of the blocks times their rows of the weights
// (as many as all columns, by n_vectors). False if stopped.
bool combined_rows(const std::vector<TallRows>& blocks, int64_t n, const double* weights, int64_t n_vectors, const Run& run, int64_t stride,
                   double* out);

// rows = (A, I) of a positive definite A (size x size), to (L^T, L^-1) with A = L L^T; `stride`, a multiple of 8, is at least
// 2 size + 16, and what a row has beyond the 2 size numbers is 0. Of A the upper triangle is read, below that of L^T lie
// remainders. The row at which A shows not to be positive definite, -1 if none. One thread.
int64_t inverse_root(double* rows, int64_t size, int64_t stride);

}  // namespace kcalib
