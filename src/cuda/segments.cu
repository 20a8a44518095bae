// Sums over segments of rows on a GPU, with the same bits from run to run.
//
// kcalib/_backend/segments.py compiles this text. A block of THREADS threads has a segment and `span` columns (a power of two):
// THREADS / span threads share the rows of each column, and their sums are added up as a tree.

namespace kcalib {
namespace {
constexpr int THREADS = KCALIB_THREADS;
}  // namespace
}  // namespace kcalib

using namespace kcalib;

// out[s * width + c] = sum over k in [begins[s], begins[s + 1]) of scales[r] * values[r * width + c], r = order[k].
extern "C" __global__ void kcalib_segment_sums(const double* values, const double* scales, const long long* order,
                                               const long long* begins, long long width, long long span, double* out) {
  __shared__ double parts[THREADS];
  const long long segment = blockIdx.x, column = blockIdx.y * span + threadIdx.x % span;
  const long long lane = threadIdx.x / span, lanes = THREADS / span, end = begins[segment + 1];
  double sum = 0;
  for (long long k = begins[segment] + lane; k < end; k += lanes) {
    const long long row = order[k];
    if (column < width) sum += scales[row] * values[row * width + column];
  }
  parts[threadIdx.x] = sum;
  for (long long half = lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) parts[threadIdx.x] += parts[threadIdx.x + half * span];
  }
  if (lane == 0 && column < width) out[segment * width + column] = parts[threadIdx.x];
}
