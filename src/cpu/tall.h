// Products of a tall matrix, of which columns are given one after the other, with few vectors: what lies between the sweeps
// of conjugate gradients. `_backend.linalg` calls them.
#pragma once

#include "sweep.h"

namespace kcalib {

// The columns, each of n numbers.
struct Tall {
  const double* columns;
  long count, n;
};

// out (count x n_vectors) = the inner products of columns with the vectors (n x n_vectors, row by row). False if stopped.
bool tall_inner_products(const Tall& tall, const double* vectors, long n_vectors, const Run& run, double* out);

// out = the columns' sums with the weights (count x n_vectors): n_vectors columns. False if stopped.
bool tall_combined(const Tall& tall, const double* weights, long n_vectors, const Run& run, double* out);

}  // namespace kcalib
