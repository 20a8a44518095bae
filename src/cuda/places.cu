// Numbers in order on a GPU: sums whose bits do not depend on the device, and the distances of all pairs of places on a
// line, counted and listed without having been stored.
//
// kcalib/_pairs/backends/sorted_scan_cuda.py compiles this text by NVRTC and launches the functions below.

namespace kcalib {
namespace {

constexpr int THREADS = KCALIB_THREADS, PIECE = KCALIB_PIECE, THRESHOLDS = KCALIB_THRESHOLDS;

KCALIB_FN long long lower(long long a, long long b) { return a < b ? a : b; }

// The first point from `from` on whose distance from point i is not below t; points before it are nearer.
__device__ long long first_beyond(const double* places, long long n, long long i, long long from, double t) {
  const auto near = [&](long long j) { return places[j] - places[i] < t; };
  long long low = from, step = 1;
  while (low + step <= n && near(low + step - 1)) {
    low += step;
    step *= 2;
  }
  long long high = lower(n, low + step - 1);
  while (low < high) {
    const long long middle = low + (high - low) / 2;
    if (near(middle)) low = middle + 1;
    else high = middle;
  }
  return low;
}

}  // namespace
}  // namespace kcalib

using namespace kcalib;

// out[group][piece][column] = sum over PIECE of the `size` rows of values[group][row][column], in order.
extern "C" __global__ void kcalib_group_sums(const double* values, long long groups, long long size, long long count,
                                             double* out) {
  const long long pieces = (size + PIECE - 1) / PIECE, thread = blockIdx.x * (long long)THREADS + threadIdx.x;
  const long long column = thread % count, piece = thread / count % pieces, group = thread / count / pieces;
  if (group >= groups) return;
  const double* row = values + (group * size + piece * PIECE) * count + column;
  const long long rows = lower(PIECE, size - piece * PIECE);
  double sum = 0;
  for (long long k = 0; k < rows; ++k) sum += row[k * count];
  out[thread] = sum;
}

// counts[k] += pairs i < j of ascending places with places[j] - places[i] < thresholds[k], for PIECE points i of a thread.
// Integers: the order does not matter.
extern "C" __global__ void kcalib_line_counts(const double* places, long long n, const double* thresholds,
                                              unsigned long long* counts) {
  const long long begin = (blockIdx.x * (long long)THREADS + threadIdx.x) * PIECE, end = lower(n, begin + PIECE);
  if (begin >= n) return;
  for (int k = 0; k < THRESHOLDS; ++k) {
    unsigned long long count = 0;
    long long j = begin + 1;
    for (long long i = begin; i < end; ++i) {
      j = first_beyond(places, n, i, j > i ? j : i + 1, thresholds[k]);
      count += (unsigned long long)(j - i - 1);
    }
    atomicAdd(counts + k, count);
  }
}

// Distances of pairs i < j in [low, high), of which there are no more than `room`, in no order.
extern "C" __global__ void kcalib_line_distances(const double* places, long long n, double low, double high,
                                                 long long room, unsigned long long* found, double* out) {
  const long long begin = (blockIdx.x * (long long)THREADS + threadIdx.x) * PIECE, end = lower(n, begin + PIECE);
  if (begin >= n) return;
  unsigned long long at = 0, count = 0;
  for (int pass = 0; pass < 2; ++pass) {
    long long from = begin + 1, to = begin + 1;
    for (long long i = begin; i < end; ++i) {
      from = first_beyond(places, n, i, from > i ? from : i + 1, low);
      to = first_beyond(places, n, i, to > from ? to : from, high);
      if (pass == 0) count += (unsigned long long)(to - from);
      for (long long j = from; pass == 1 && j < to && at < (unsigned long long)room; ++j) out[at++] = places[j] - places[i];
    }
    if (pass == 0 && count > 0) at = atomicAdd(found, count);
    if (count == 0) return;
  }
}
