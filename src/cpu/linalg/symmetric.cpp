#include "cpu/linalg/symmetric.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/simd/clones.h"

namespace kcalib {
namespace {

using Pack = double __attribute__((vector_size(64), may_alias));
constexpr int64_t LANES = 8;
constexpr int ROWS = 4;  // at once

using Numbers = double __attribute__((vector_size(64), aligned(8), may_alias));

// Numbers wherever they begin.
inline const Numbers& load(const double* at) { return *reinterpret_cast<const Numbers*>(at); }

inline double sum_of(const Pack& s) {
  return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

KCALIB_CLONES double dot(const double* x, const double* y, int64_t n) {
  Pack sum = {};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) sum += load(x + i) * load(y + i);
  double rest = sum_of(sum);
  for (; i < n; ++i) rest += x[i] * y[i];
  return rest;
}

// sums[r] = <rows r, v>, of ROWS rows.
KCALIB_CLONES void products(const double* const* rows, const double* v, int64_t n, double* sums) {
  Pack sum[ROWS] = {};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const Pack x = load(v + i);
    for (int r = 0; r < ROWS; ++r) sum[r] += load(rows[r] + i) * x;
  }
  for (int r = 0; r < ROWS; ++r) sums[r] = sum_of(sum[r]);
  for (; i < n; ++i)
    for (int r = 0; r < ROWS; ++r) sums[r] += rows[r][i] * v[i];
}

// row -= a x + b y.
KCALIB_CLONES void subtract(double* row, double a, const double* x, double b, const double* y, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const Pack next = load(row + i) - a * load(x + i) - b * load(y + i);
    std::memcpy(row + i, &next, sizeof next);
  }
  for (; i < n; ++i) row[i] -= a * x[i] + b * y[i];
}

// rows r -= factors[r] x.
KCALIB_CLONES void subtract_from_rows(double* const* rows, const double* factors, const double* x, int64_t n) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const Pack line = load(x + i);
    for (int r = 0; r < ROWS; ++r) {
      const Pack next = load(rows[r] + i) - factors[r] * line;
      std::memcpy(rows[r] + i, &next, sizeof next);
    }
  }
  for (; i < n; ++i)
    for (int r = 0; r < ROWS; ++r) rows[r][i] -= factors[r] * x[i];
}

// The product of the symmetric block of rows and columns from `begin` on with v.
void multiply(const double* matrix, int64_t begin, int64_t size, int64_t stride, const double* v, double* out) {
  for (int64_t i = begin; i < size; i += ROWS) {
    const double* rows[ROWS];
    double sums[ROWS];
    for (int64_t r = 0; r < ROWS; ++r) rows[r] = matrix + std::min(i + r, size - 1) * stride + begin;
    products(rows, v, size - begin, sums);
    std::copy_n(sums, std::min(int64_t(ROWS), size - i), out + i - begin);
  }
}

}  // namespace

void to_tridiagonal(double* matrix, int64_t size, int64_t stride, double negligible, double* diagonal, double* beside) {
  std::vector<double> image(size);
  for (int64_t k = 0; k < size; ++k) {
    diagonal[k] = matrix[k * stride + k];
    if (k + 1 == size) break;
    double* v = matrix + k * stride + k + 1;
    const int64_t n = size - k - 1;
    if (n == 1) {
      beside[k] = v[0];
      continue;  // nothing is left to be brought to zero
    }
    const double length = std::sqrt(dot(v, v, n));
    if (!(length >= negligible)) {
      beside[k] = 0;
      std::fill_n(v, n, 0.0);
      continue;
    }
    beside[k] = -std::copysign(length, v[0]);
    v[0] -= beside[k];
    const double scale = std::sqrt(dot(v, v, n));
    for (int64_t i = 0; i < n; ++i) v[i] /= scale;
    multiply(matrix, k + 1, size, stride, v, image.data());
    const double along = dot(image.data(), v, n);
    for (int64_t i = 0; i < n; ++i) image[i] -= along * v[i];
    for (int64_t i = 0; i < n; ++i) subtract(matrix + (k + 1 + i) * stride + k + 1, 2 * image[i], v, 2 * v[i], image.data(), n);
  }
}

void reflect(const double* matrix, int64_t size, int64_t stride, double* rows, int64_t count) {
  std::vector<double> spare(size);
  for (int64_t begin = 0; begin < count; begin += ROWS) {
    for (int64_t k = size - 3; k >= 0; --k) {
      const double* v = matrix + k * stride + k + 1;
      double* at[ROWS];
      double factors[ROWS];
      for (int64_t r = 0; r < ROWS; ++r) at[r] = begin + r < count ? rows + (begin + r) * size + k + 1 : spare.data();
      products(const_cast<const double* const*>(at), v, size - k - 1, factors);
      for (double& factor : factors) factor *= 2;
      subtract_from_rows(at, factors, v, size - k - 1);
    }
  }
}

}  // namespace kcalib
