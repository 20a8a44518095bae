// What launches of the pair engine need besides: partial sums added up in order, and norms of rows of KCALIB_REAL.

namespace kcalib {
namespace {
using T = KCALIB_REAL;
constexpr int THREADS = KCALIB_THREADS;
}  // namespace
}  // namespace kcalib

using namespace kcalib;

// out[first + k] += sum of parts[p * length + k] over p < count, one after the other.
extern "C" __global__ void kcalib_merge(const double* parts, long long count, long long length, double* out, long long first) {
  const long long k = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (k >= length) return;
  double sum = out[first + k];
#pragma unroll 8
  for (long long p = 0; p < count; ++p) sum += parts[p * length + k];
  out[first + k] = sum;
}

// norms[2 i] = |x_i|^2, norms[2 i + 1] = |e_i|^2.
extern "C" __global__ void kcalib_norms(const T* points, long long n_coordinates, const T* features, long long n_features, long long n,
                                        T* norms) {
  const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (i >= n) return;
  T sum = 0;
  for (long long k = 0; k < n_coordinates; ++k) sum += points[i * n_coordinates + k] * points[i * n_coordinates + k];
  norms[2 * i] = sum;
  sum = 0;
  for (long long k = 0; k < n_features; ++k) sum += features[i * n_features + k] * features[i * n_features + k];
  norms[2 * i + 1] = sum;
}
