// Products with a kernel matrix of points on a line, in one pass over the sorted points.
#pragma once

#include "sweep.h"

namespace kcalib {

// k(x, x') = exp(-s |x - x'|) sum_p coefficients[p] |x - x'|^p for x sorted ascending.
struct Line {
  const double* gap;    // x[i] - x[i - 1]; shape: (n,), gap[0] unused
  const double* decay;  // exp(-s gap[i]); 0 starts a segment that sees nothing before it
  long n;
  const double* coefficients;  // shape: (degree + 1,)
  int degree;
};

// out[i] = sum over j != i of the same segment of k(x_i, x_j) vectors[j], both (n x n_vectors).
// False if `poll` stopped it.
bool line_product(const Line& line, const Run& run, const double* vectors, long n_vectors, double* out);

}  // namespace kcalib
