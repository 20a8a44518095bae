// The entries of H, in KCALIB_OUT (double or float); pasted behind pairs.cu.

// H_ij at out, row by row from sample (out_row, out_column) on, in one block of `width` columns or, for products that are
// summed block by block, in several of `out_rows` rows each, one behind the other: then `width` is a multiple of TILE, and
// the columns of the last block beyond the rectangle are 0.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
kcalib_entries(const Problem problem, KCALIB_OUT* out, long long out_row, long long out_rows, long long out_column,
               long long width) {
  __shared__ Panels panels;
  T h[SPAN][SPAN];
  const long long row = problem.left.begin + blockIdx.y * (long long)TILE;
  const long long column = problem.right.begin + blockIdx.x * (long long)TILE;
  entries(problem, panels, row, column, false, h);
  const long long block = (column - out_column) / width, first = column - out_column - block * width;
#pragma unroll
  for (int r = 0; r < SPAN; ++r)
#pragma unroll
    for (int c = 0; c < SPAN; ++c) {
      const long long i = row + place(threadIdx.x / LANES, r), j = first + place(threadIdx.x % LANES, c);
      if (i < problem.left.n && j < width) out[(block * out_rows + (i - out_row)) * width + j] = KCALIB_OUT(h[r][c]);
    }
}
