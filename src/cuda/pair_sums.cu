// Sums of H over rows, columns, and all; pasted behind pairs.cu.

namespace kcalib {
namespace {

// Numbers of THREADS threads, each for SPAN places of a tile: of the same places in threads with the same `at`, one for
// each `lane`. The sum for place threadIdx.x < TILE.
__device__ double sum_over_lanes(double (*parts)[TILE + 1], int lane, int at, const double* values) {
  __syncthreads();
#pragma unroll
  for (int s = 0; s < SPAN; ++s) parts[lane][place(at, s)] = values[s];
  __syncthreads();
  double sum = 0;
  if (threadIdx.x < TILE)
    for (int other = 0; other < LANES; ++other) sum += parts[other][threadIdx.x];
  return sum;
}

}  // namespace
}  // namespace kcalib

// Of the tiles of the rectangle's rows blockIdx.x and its columns in group blockIdx.y, of `per_group` tiles, the sums
//
//   rows[group * (rows of the rectangle) + row]
//   columns[row tile * (columns of the rectangle) + column]
//   totals[group * (row tiles) + row tile], and squares likewise
//
// where those are given. Symmetric problems have no pairs of a sample with itself and no tiles below the diagonal:
// their rows lack what these have, which is in `columns`, and tiles above the diagonal count twice in totals.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
kcalib_sums(const Problem problem, long long symmetric, long long per_group, double* rows, double* columns,
            double* totals, double* squares) {
  __shared__ Panels panels;
  __shared__ double parts[LANES][TILE + 1];
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  const long long tile = blockIdx.x, group = blockIdx.y, row = problem.left.begin + tile * TILE;
  const long long tiles = (problem.right.n - problem.right.begin + TILE - 1) / TILE;
  const long long end = (group + 1) * per_group < tiles ? (group + 1) * per_group : tiles;
  double row_sum[SPAN] = {}, total_sum = 0, square_sum = 0;
  for (long long other = group * per_group; other < end; ++other) {
    const long long column = problem.right.begin + other * TILE;
    const long long own_column = other * TILE + threadIdx.x;
    const bool has_column = columns && threadIdx.x < TILE && own_column < problem.right.n - problem.right.begin;
    double* const own = columns + (has_column ? tile * (problem.right.n - problem.right.begin) + own_column : 0);
    if (symmetric && column < row) {
      if (has_column) *own = 0;
      continue;
    }
    const bool twice = symmetric && column > row;
    T h[SPAN][SPAN];
    entries(problem, panels, row, column, symmetric, h);
    double tile_sum = 0, tile_squares = 0;
#pragma unroll
    for (int r = 0; r < SPAN; ++r) {
      T sum = 0;
#pragma unroll
      for (int c = 0; c < SPAN; ++c) sum += h[r][c];
      row_sum[r] += double(sum);
      tile_sum += double(sum);
    }
    if (squares)
#pragma unroll
      for (int r = 0; r < SPAN; ++r) {
        T square = 0;
#pragma unroll
        for (int c = 0; c < SPAN; ++c) square += h[r][c] * h[r][c];
        tile_squares += double(square);
      }
    total_sum += twice ? 2 * tile_sum : tile_sum;
    square_sum += twice ? 2 * tile_squares : tile_squares;
    if (!columns) continue;
    double column_sum[SPAN];
#pragma unroll
    for (int c = 0; c < SPAN; ++c) {
      T sum = 0;
#pragma unroll
      for (int r = 0; r < SPAN; ++r) sum += h[r][c];
      column_sum[c] = double(sum);
    }
    const double sum = sum_over_lanes(parts, ty, tx, column_sum);
    if (has_column) *own = symmetric && !twice ? 0 : sum;  // on the diagonal the rows have all
  }
  const double total = block_sum(total_sum, &parts[0][0]);
  if (threadIdx.x == 0) totals[group * gridDim.x + tile] = total;
  if (squares) {
    const double square = block_sum(square_sum, &parts[0][0]);
    if (threadIdx.x == 0) squares[group * gridDim.x + tile] = square;
  }
  if (!rows) return;
  const double sum = sum_over_lanes(parts, tx, ty, row_sum);
  const long long own = tile * TILE + threadIdx.x;
  const long long length = problem.left.n - problem.left.begin;
  if (threadIdx.x < TILE && own < length) rows[group * length + own] = sum;
}
