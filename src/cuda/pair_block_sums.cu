// Sums of H over small diagonal blocks; pasted behind pairs.cu.

// out[b] = sum of H over the pairs i != j of samples [b * size, (b + 1) * size), for block b = first + blockIdx.x.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
kcalib_block_sums(Problem problem, long long size, long long first, double* out) {
  __shared__ Panels panels;
  __shared__ double parts[THREADS];
  const long long block = first + blockIdx.x, begin = block * size, end = begin + size;
  problem.left.n = problem.right.n = end;
  double sum = 0;
  for (long long row = begin; row < end; row += TILE)
    for (long long column = row; column < end; column += TILE) {
      T h[SPAN][SPAN], tile_sum = 0;
      entries(problem, panels, row, column, true, h);
#pragma unroll
      for (int r = 0; r < SPAN; ++r)
#pragma unroll
        for (int c = 0; c < SPAN; ++c) tile_sum += h[r][c];
      sum += (column > row ? 2 : 1) * double(tile_sum);
    }
  const double total = block_sum(sum, parts);
  if (threadIdx.x == 0) out[block] = total;
}
