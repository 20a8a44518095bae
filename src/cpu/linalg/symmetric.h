// Eigenproblems of small symmetric matrices by one thread: LAPACK's would wake BLAS's. `_backend.linalg` calls them.
#pragma once

#include <cstdint>

namespace kcalib {

// A symmetric matrix (size x size, rows `stride` numbers apart; both triangles are read and written) to a tridiagonal
// one by Householder's reflections, I - 2 v v^T, with v in its rows beyond the diagonal: size - 2 of them, zeros for none.
// `diagonal` has size numbers, `beside` one less. Columns shorter than `negligible` are left out.
void to_tridiagonal(double* matrix, int64_t size, int64_t stride, double negligible, double* diagonal, double* beside);

// Rows (count x size) which are eigenvectors of the tridiagonal matrix to those of the matrix.
void reflect(const double* matrix, int64_t size, int64_t stride, double* rows, int64_t count);

}  // namespace kcalib
