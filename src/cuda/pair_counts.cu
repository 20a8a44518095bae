// Order statistics of the entries of H above the diagonal; pasted behind pairs.cu.

namespace kcalib {
namespace {
constexpr int THRESHOLDS = KCALIB_THRESHOLDS;  // at a time

// H of a tile for both functions. Not inlined: what is counted below a number and what is listed there have the same bits
// only if they come from the same instructions, and products may be fused with sums in one place and not in another.
__device__ __noinline__ void entries_above(const Problem& problem, Panels& panels, long long row, long long column,
                                           T (*h)[SPAN]) {
  entries(problem, panels, row, column, false, h);
}
}  // namespace
}  // namespace kcalib

// counts[t] += number of pairs i < j with H_ij < thresholds[t], t < THRESHOLDS. Integers: the order does not matter.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
kcalib_counts(const Problem problem, const double* thresholds, unsigned long long* counts) {
  __shared__ Panels panels;
  __shared__ unsigned long long parts[THREADS];
  const long long row = problem.left.begin + blockIdx.y * (long long)TILE;
  const long long column = problem.right.begin + blockIdx.x * (long long)TILE;
  if (column < row) return;
  T h[SPAN][SPAN];
  entries_above(problem, panels, row, column, h);
#pragma unroll 1
  for (int t = 0; t < THRESHOLDS; ++t) {
    unsigned long long count = 0;
#pragma unroll
    for (int r = 0; r < SPAN; ++r)
#pragma unroll
      for (int c = 0; c < SPAN; ++c) {
        const long long i = row + place(threadIdx.x / LANES, r), j = column + place(threadIdx.x % LANES, c);
        count += i < j && j < problem.right.n && h[r][c] < T(thresholds[t]);
      }
    count = block_sum(count, parts);
    if (threadIdx.x == 0 && count) atomicAdd(counts + t, count);
  }
}

// The entries H_ij in [low, high) of pairs i < j, in no order; found[0] is how many there are, of which `capacity` are
// written, and found[1] how many are below `low`.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
kcalib_between(const Problem problem, double low, double high, double* out, long long capacity,
               unsigned long long* found) {
  __shared__ Panels panels;
  __shared__ unsigned long long parts[THREADS];
  const long long row = problem.left.begin + blockIdx.y * (long long)TILE;
  const long long column = problem.right.begin + blockIdx.x * (long long)TILE;
  if (column < row) return;
  T h[SPAN][SPAN];
  entries_above(problem, panels, row, column, h);
  unsigned long long below = 0;
#pragma unroll
  for (int r = 0; r < SPAN; ++r)
#pragma unroll
    for (int c = 0; c < SPAN; ++c) {
      const long long i = row + place(threadIdx.x / LANES, r), j = column + place(threadIdx.x % LANES, c);
      if (!(i < j && j < problem.right.n)) continue;
      below += h[r][c] < T(low);
      if (!(h[r][c] >= T(low) && h[r][c] < T(high))) continue;
      const unsigned long long position = atomicAdd(found, 1ull);
      if ((long long)position < capacity) out[position] = h[r][c];
    }
  below = block_sum(below, parts);
  if (threadIdx.x == 0 && below) atomicAdd(found + 1, below);
}
