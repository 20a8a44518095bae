// The pair engine on a GPU: tiles of H, reduced as the primitives of the `cuda` operator want it.
//
// kcalib/_operators/cuda.py compiles this text by NVRTC, once for each combination of what it defines:
//
//   KCALIB_REAL          double or float: the type of points, marks and entries
//   KCALIB_EXPRESSION    the kernel as an expression of factor<PROFILE, METRIC>(f) and coefficient(t)
//   KCALIB_QUANTITIES    which quantities of a pair it needs: a sum of SQUARES, CITYBLOCKS, DOTS
//   KCALIB_DIFFERENCES   squared distances are sums of squared differences (few features), not expansions
//   KCALIB_RESIDUALS     marks are residuals onehot(label) - point: one product gives distance and target factor
//   KCALIB_TARGET        marks are rows of mixtures (kcalib/_problem.py) of this family, of KCALIB_TARGET_DIMS dimensions
//                        (0: any); the atoms' kernel is KCALIB_TARGET_EXPRESSION. mixtures.cuh is pasted before then
//   KCALIB_PREDICTED     the same for points, whose squared MMD distances are the squares of the kernel
//   KCALIB_TABLE         points are positions in a table, whose numbers are the cityblock distances of the kernel
//
// and launches the functions below. A block of THREADS threads has a tile of TILE rows by TILE columns in registers,
// SPAN by SPAN entries a thread; features pass by in shared memory, FEATURES at a time. Blocks walk over `per_group` tiles of
// columns each and leave one partial sum per row (or per tile) in a place of its own; `merge` adds those up in order. So
// the bits do not depend on the device, and there are no atomic operations on reals.
//
// The scalar maths is that of the compiled core (include/kcalib), which this file is pasted after.

#ifndef KCALIB_REAL
#error "kcalib/_operators/cuda.py says what to define"
#endif

namespace kcalib {
namespace {

using T = KCALIB_REAL;

constexpr int TILE = 64, LANES = 16, THREADS = LANES * LANES, SPAN = TILE / LANES, FEATURES = 8;
constexpr int VECTORS = 16;     // of a product, at a time
constexpr int THRESHOLDS = 8;   // of a count, at a time
enum Quantity { SQUARES = 1, CITYBLOCKS = 2, DOTS = 4 };
constexpr int QUANTITIES = KCALIB_QUANTITIES;
constexpr bool DIFFERENCES = KCALIB_DIFFERENCES, RESIDUALS = KCALIB_RESIDUALS;
// As in cpu/tile.cpp: squared distances below these shares of their terms are computed anew by differences.
constexpr double NEAR = 1e-3, NEAR_OTHERS = 4e-3;

// One side of a pair problem, row-major; norms are |x|^2 and |e|^2 of each row.
struct Side {
  const T *points, *marks, *norms;
  const int* labels;
  long long n;
  long long stride;  // of mixtures, which are transposed: column k of sample i is at k * stride + i
};

struct Problem {
  Side left, right;
  long long n_features, n_marks;
  const double* program;  // coefficients of terms, then scale and shape of each factor
  long long n_terms;
  const long long* mixtures;  // columns of `table`, numbers of the target's and of the predictions' mixtures
  const double* table;
};

KCALIB_FN double square_root(double x) { return ::sqrt(x); }
KCALIB_FN float square_root(float x) { return ::sqrtf(x); }
KCALIB_FN T lower(T a, T b) { return b < a ? b : a; }

// The quantities of one pair, and the kernel of them.
struct Pair {
  T squares, cityblock, dot;
  const double* program;
  long long n_terms;

  KCALIB_FN T coefficient(int t) const { return T(program[t]); }
  template <int PROFILE, int METRIC> KCALIB_FN T factor(int f) const {
    const T a = T(program[n_terms + 2 * f]), shape = T(program[n_terms + 2 * f + 1]);
    if constexpr (PROFILE == GAUSSIAN || PROFILE == RATIONAL_QUADRATIC) {
      const T square = METRIC == CITYBLOCK ? cityblock * cityblock : squares;
      if constexpr (PROFILE == GAUSSIAN) return gaussian(square, a);
      else return rational_quadratic(square, a, shape);
    } else if constexpr (METRIC == DOT) {
      return dot;
    } else {
      const T d = METRIC == CITYBLOCK ? cityblock : square_root(squares);
      if constexpr (PROFILE == EXPONENTIAL) return exponential(d, a);
      else if constexpr (PROFILE == GAMMA_EXPONENTIAL) return gamma_exponential(d, a, shape);
      else if constexpr (PROFILE == MATERN_3_2) return matern_3_2(d, a);
      else if constexpr (PROFILE == MATERN_5_2) return matern_5_2(d, a);
      else return d;
    }
  }
  KCALIB_FN T kernel() const { return KCALIB_EXPRESSION; }
};

// FEATURES columns of the rows of a tile, transposed, of both sides.
struct Panels {
  T rows[FEATURES][TILE + 1], columns[FEATURES][TILE + 1];
};

__device__ void load(T (*panel)[TILE + 1], const T* source, long long n, long long length, long long first, long long k) {
  for (int e = threadIdx.x; e < FEATURES * TILE; e += THREADS) {
    const int row = e / FEATURES, feature = e % FEATURES;
    const bool inside = first + row < n && k + feature < length;
    panel[feature][row] = inside ? source[(first + row) * length + k + feature] : T(0);
  }
}

// step(r, c, x, x') for all features of all pairs of the thread.
template <class Step>
__device__ void for_each_feature(Panels& panels, const T* left, const T* right, const Problem& problem, long long length,
                                 long long row, long long column, Step&& step) {
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  for (long long k = 0; k < length; k += FEATURES) {
    __syncthreads();
    load(panels.rows, left, problem.left.n, length, row, k);
    load(panels.columns, right, problem.right.n, length, column, k);
    __syncthreads();
#pragma unroll
    for (int f = 0; f < FEATURES; ++f) {
      T x[SPAN], y[SPAN];
#pragma unroll
      for (int s = 0; s < SPAN; ++s) x[s] = panels.rows[f][ty + LANES * s], y[s] = panels.columns[f][tx + LANES * s];
#pragma unroll
      for (int r = 0; r < SPAN; ++r)
#pragma unroll
        for (int c = 0; c < SPAN; ++c) step(r, c, x[r], y[c]);
    }
  }
}

__device__ __noinline__ T squared_difference(const Problem& problem, long long i, long long j) {
  const T *x = problem.left.points + i * problem.n_features, *y = problem.right.points + j * problem.n_features;
  T sum = 0;
  for (long long k = 0; k < problem.n_features; ++k) sum += (x[k] - y[k]) * (x[k] - y[k]);
  return sum;
}

// Squared distance from the inner product t of the residuals, as in cpu/tile.cpp.
__device__ T squares_from(const Problem& problem, T t, long long i, long long j) {
  const Side &a = problem.left, &b = problem.right;
  const int label = a.labels[i], other = b.labels[j];
  if (label == other) {
    const T norms = a.norms[2 * i + 1] + b.norms[2 * j + 1], squares = norms - T(2) * t;
    return squares < norms * T(NEAR) ? squared_difference(problem, i, j) : squares;
  }
  const T crossed = a.marks[i * problem.n_marks + other] + b.marks[j * problem.n_marks + label];
  const T squares = T(2) * (crossed - t) + (a.norms[2 * i] + b.norms[2 * j]);
  return squares < T(NEAR_OTHERS) ? squared_difference(problem, i, j) : squares;
}

// Mixtures: the atoms' kernels, and how far it is from a sample to the next one.
#ifdef KCALIB_TARGET
struct TargetPair : Pair {
  KCALIB_FN T kernel() const { return KCALIB_TARGET_EXPRESSION; }
};
#define MARK_STEP(columns) 1
#else
#define MARK_STEP(columns) (columns)
#endif
#ifdef KCALIB_PREDICTED
struct PredictedPair : Pair {
  KCALIB_FN T kernel() const { return KCALIB_PREDICTED_EXPRESSION; }
};
#define POINT_STEP(columns) 1
#else
#define POINT_STEP(columns) (columns)
#endif

// h[r][c] = H of the thread's pairs: rows row + ty + LANES r, columns column + tx + LANES c. Zero outside the
// problem, and, if `symmetric_sum`, for pairs of a sample with itself.
__device__ void entries(const Problem& problem, Panels& panels, long long row, long long column, bool no_diagonal,
                        T (*h)[SPAN]) {
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  const Side &left = problem.left, &right = problem.right;
  T target[SPAN][SPAN] = {}, squares[SPAN][SPAN] = {}, cityblock[SPAN][SPAN] = {}, dot[SPAN][SPAN] = {};
  constexpr bool EXPANDED = (QUANTITIES & SQUARES) && !DIFFERENCES && !RESIDUALS;
#if defined(KCALIB_PREDICTED)
  for_each_row<SPAN>(left.points, left.stride, left.n, row + ty, right.points, right.stride, right.n, column + tx, LANES,
                     [&](auto one, auto others, int r) {
                       squared_mmd<PredictedPair, KCALIB_PREDICTED, KCALIB_PREDICTED_DIMS>(
                           MixtureNumbers{problem.mixtures + PREDICTED_NUMBERS}, problem.program, one, others, squares[r]);
                     });
#elif defined(KCALIB_TABLE)
  for (int r = 0; r < SPAN; ++r)
    for (int c = 0; c < SPAN; ++c) {
      const long long i = row + ty + LANES * r, j = column + tx + LANES * c;
      if (i >= left.n || j >= right.n) continue;
      const long long place = (long long)left.points[i] * problem.mixtures[0] + (long long)right.points[j];
      cityblock[r][c] = T(problem.table[place]);
    }
#else
  if constexpr (((QUANTITIES & SQUARES) && DIFFERENCES) || (QUANTITIES & (CITYBLOCKS | DOTS)) || EXPANDED)
    for_each_feature(panels, left.points, right.points, problem, problem.n_features, row, column,
                     [&](int r, int c, T x, T y) {
                       const T d = x - y;
                       if constexpr ((QUANTITIES & SQUARES) && DIFFERENCES) squares[r][c] += d * d;
                       if constexpr (QUANTITIES & CITYBLOCKS) cityblock[r][c] += d < T(0) ? -d : d;
                       if constexpr ((QUANTITIES & DOTS) || EXPANDED) dot[r][c] += x * y;
                     });
#endif
#ifdef KCALIB_TARGET
  for_each_row<SPAN>(left.marks, left.stride, left.n, row + ty, right.marks, right.stride, right.n, column + tx, LANES,
                     [&](auto one, auto others, int r) {
                       target_factors<TargetPair, KCALIB_TARGET, KCALIB_TARGET_DIMS>(
                           MixtureNumbers{problem.mixtures + TARGET_NUMBERS}, problem.program, one, others, target[r]);
                     });
#else
  for_each_feature(panels, left.marks, right.marks, problem, problem.n_marks, row, column,
                   [&](int r, int c, T x, T y) { target[r][c] += x * y; });
#endif
#pragma unroll
  for (int r = 0; r < SPAN; ++r)
#pragma unroll
    for (int c = 0; c < SPAN; ++c) {
      const long long i = row + ty + LANES * r, j = column + tx + LANES * c;
      h[r][c] = T(0);
      if (i >= left.n || j >= right.n || (no_diagonal && i == j)) continue;
      Pair pair{squares[r][c], cityblock[r][c], dot[r][c], problem.program, problem.n_terms};
      if constexpr (RESIDUALS) {
        pair.squares = squares_from(problem, target[r][c], i, j);
      } else if constexpr (EXPANDED) {
        const T norms = left.norms[2 * i] + right.norms[2 * j];
        pair.squares = norms - T(2) * pair.dot;
        if (pair.squares < norms * T(NEAR)) pair.squares = squared_difference(problem, i, j);
      }
      h[r][c] = pair.kernel() * target[r][c];
    }
}

// The sum over a block's threads of one number each, in order, in thread 0.
template <class S> __device__ S block_sum(S value, S* shared) {
  __syncthreads();
  shared[threadIdx.x] = value;
  for (unsigned half = THREADS / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  __syncthreads();
  return shared[0];
}

}  // namespace
}  // namespace kcalib

using namespace kcalib;

#define KCALIB_PROBLEM                                                                                          \
  const T *left_points, const T *left_marks, const T *left_norms, const int *left_labels, long long left_n,     \
      const T *right_points, const T *right_marks, const T *right_norms, const int *right_labels,               \
      long long right_n, long long n_features, long long n_marks, const double *program, long long n_terms, \
      const long long *mixtures, const double *table
#define KCALIB_THE_PROBLEM                                                                                      \
  {{left_points, left_marks, left_norms, left_labels, left_n, left_n},                                          \
   {right_points, right_marks, right_norms, right_labels, right_n, right_n}, n_features, n_marks, program, n_terms, \
   mixtures, table}

// Sums of H over the tiles of column group blockIdx.y, for the rows of tile blockIdx.x: rows[group * n + row] if `rows`
// is given; totals[group * tiles + tile] and, of squares, likewise. Symmetric problems leave pairs of a sample with
// itself out, and their totals count tiles above the diagonal twice and those below not at all, so that these
// need no look where there are no `rows`, and the total has the same bits either way.
extern "C" __global__ void kcalib_sums(KCALIB_PROBLEM, long long symmetric, long long per_group, double* rows, double* totals,
                                       double* squares) {
  const Problem problem = KCALIB_THE_PROBLEM;
  __shared__ Panels panels;
  __shared__ double row_parts[TILE][LANES + 1];
  __shared__ double parts[THREADS];
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  const long long tile = blockIdx.x, group = blockIdx.y, tiles = (right_n + TILE - 1) / TILE;
  const long long end = (group + 1) * per_group < tiles ? (group + 1) * per_group : tiles;
  double row_sum[SPAN] = {}, total_sum = 0, square_sum = 0;
  for (long long other = group * per_group; other < end; ++other) {
    const double weight = !symmetric || other == tile ? 1 : other > tile ? 2 : 0;
    if (weight == 0 && !rows) continue;
    T h[SPAN][SPAN];
    entries(problem, panels, tile * TILE, other * TILE, symmetric, h);
    double tile_sum = 0;
    for (int r = 0; r < SPAN; ++r) {
      T sum = 0;
      for (int c = 0; c < SPAN; ++c) {
        sum += h[r][c];
        square_sum += weight * (double(h[r][c]) * double(h[r][c]));
      }
      row_sum[r] += double(sum);
      tile_sum += double(sum);
    }
    total_sum += weight * tile_sum;
  }
  const double total = block_sum(total_sum, parts), square = block_sum(square_sum, parts);
  if (threadIdx.x == 0) {
    totals[group * gridDim.x + tile] = total;
    if (squares) squares[group * gridDim.x + tile] = square;
  }
  if (!rows) return;
  for (int r = 0; r < SPAN; ++r) row_parts[ty + LANES * r][tx] = row_sum[r];
  __syncthreads();
  if (threadIdx.x >= TILE || tile * TILE + threadIdx.x >= left_n) return;
  double own = 0;
  for (int lane = 0; lane < LANES; ++lane) own += row_parts[threadIdx.x][lane];
  rows[group * left_n + tile * TILE + threadIdx.x] = own;
}

// out[b] = sum of H over the pairs i != j of samples [b * size, (b + 1) * size), for block b = blockIdx.x.
extern "C" __global__ void kcalib_block_sums(KCALIB_PROBLEM, long long size, double* out) {
  Problem problem = KCALIB_THE_PROBLEM;
  __shared__ Panels panels;
  __shared__ double parts[THREADS];
  const long long first = blockIdx.x * size;
  for (Side* side : {&problem.left, &problem.right}) {
    side->points += first * POINT_STEP(n_features);
    side->marks += first * MARK_STEP(n_marks);
    if (side->norms) side->norms += 2 * first;
    if (side->labels) side->labels += first;
    side->n = size;
  }
  double sum = 0;
  for (long long row = 0; row < size; row += TILE)
    for (long long column = row; column < size; column += TILE) {
      T h[SPAN][SPAN], tile_sum = 0;
      entries(problem, panels, row, column, true, h);
      for (int r = 0; r < SPAN; ++r)
        for (int c = 0; c < SPAN; ++c) tile_sum += h[r][c];
      sum += (column > row ? 2 : 1) * double(tile_sum);
    }
  const double total = block_sum(sum, parts);
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}

// out[row * stride + column] = H.
extern "C" __global__ void kcalib_entries(KCALIB_PROBLEM, double* out, long long stride) {
  const Problem problem = KCALIB_THE_PROBLEM;
  __shared__ Panels panels;
  T h[SPAN][SPAN];
  const long long row = blockIdx.y * (long long)TILE, column = blockIdx.x * (long long)TILE;
  entries(problem, panels, row, column, false, h);
  for (int r = 0; r < SPAN; ++r)
    for (int c = 0; c < SPAN; ++c) {
      const long long i = row + threadIdx.x / LANES + LANES * r, j = column + threadIdx.x % LANES + LANES * c;
      if (i < left_n && j < right_n) out[i * stride + j] = h[r][c];
    }
}

namespace kcalib {
namespace {

// A tile of H and VECTORS columns of what it is multiplied with; the panels that H came from are done with by then.
template <class W> struct ProductTile {
  W h[TILE][TILE + 1];
  union {
    Panels panels;
    W vectors[TILE][VECTORS];
  };
};

// sum[k] += (H tile) (vectors of columns [column, ...)) for row threadIdx.x / 4 and vectors 4 (threadIdx.x % 4) + k.
template <class W>
__device__ void add_product(const Problem& problem, ProductTile<W>& tile, long long row, long long column, const W* vectors,
                            double* sum) {
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  T h[SPAN][SPAN];
  entries(problem, tile.panels, row, column, false, h);
  __syncthreads();
  for (int r = 0; r < SPAN; ++r)
    for (int c = 0; c < SPAN; ++c) tile.h[ty + LANES * r][tx + LANES * c] = W(h[r][c]);
  for (int e = threadIdx.x; e < TILE * VECTORS; e += THREADS) {
    const long long j = column + e / VECTORS;
    tile.vectors[e / VECTORS][e % VECTORS] = j < problem.right.n ? vectors[j * VECTORS + e % VECTORS] : W(0);
  }
  __syncthreads();
  const int i = threadIdx.x / 4, first = 4 * (threadIdx.x % 4);
  W part[4] = {};
#pragma unroll 8
  for (int j = 0; j < TILE; ++j)
#pragma unroll
    for (int k = 0; k < 4; ++k) part[k] += tile.h[i][j] * tile.vectors[j][first + k];
  for (int k = 0; k < 4; ++k) sum[k] += double(part[k]);
  __syncthreads();
}

template <class W>
__device__ void product(const Problem& problem, ProductTile<W>& tile, const W* vectors, long long per_group, double* out) {
  const long long row = blockIdx.x * (long long)TILE, group = blockIdx.y, tiles = (problem.right.n + TILE - 1) / TILE;
  const long long end = (group + 1) * per_group < tiles ? (group + 1) * per_group : tiles;
  double sum[4] = {};
  for (long long other = group * per_group; other < end; ++other)
    add_product(problem, tile, row, other * TILE, vectors, sum);
  const long long i = row + threadIdx.x / 4;
  if (i >= problem.left.n) return;
  for (int k = 0; k < 4; ++k) out[(group * problem.left.n + i) * VECTORS + 4 * (threadIdx.x % 4) + k] = sum[k];
}

template <class W>
__device__ void forms(const Problem& problem, ProductTile<W>& tile, const W* weights, long long per_group, double* out) {
  const long long row = blockIdx.x * (long long)TILE, group = blockIdx.y, tiles = (problem.right.n + TILE - 1) / TILE;
  const long long end = (group + 1) * per_group < tiles ? (group + 1) * per_group : tiles;
  double sum[4] = {};
  for (long long other = group * per_group; other < end; ++other) {
    if (other < blockIdx.x) continue;
    double own[4] = {};
    add_product(problem, tile, row, other * TILE, weights, own);
    for (int k = 0; k < 4; ++k) sum[k] += (other > blockIdx.x ? 2 : 1) * own[k];
  }
  // The rows' weights times their sums, summed over the tile's rows in order.
  double* parts = reinterpret_cast<double*>(tile.h);
  static_assert(sizeof tile.h >= TILE * VECTORS * sizeof(double), "room for the parts");
  const long long i = row + threadIdx.x / 4;
  for (int k = 0; k < 4; ++k) {
    const int c = 4 * (threadIdx.x % 4) + k;
    parts[threadIdx.x / 4 * VECTORS + c] = i < problem.left.n ? double(weights[i * VECTORS + c]) * sum[k] : 0.0;
  }
  __syncthreads();
  if (threadIdx.x >= VECTORS) return;
  double total = 0;
  for (int r = 0; r < TILE; ++r) total += parts[r * VECTORS + threadIdx.x];
  out[(group * gridDim.x + blockIdx.x) * VECTORS + threadIdx.x] = total;
}

}  // namespace
}  // namespace kcalib

// out[(group * n + row) * VECTORS + c] = H vectors over the columns of group blockIdx.y; vectors are (n right, VECTORS).
extern "C" __global__ void kcalib_product(KCALIB_PROBLEM, const double* vectors, long long per_group, double* out) {
  __shared__ ProductTile<double> tile;
  product<double>(KCALIB_THE_PROBLEM, tile, vectors, per_group, out);
}
extern "C" __global__ void kcalib_product_single(KCALIB_PROBLEM, const float* vectors, long long per_group, double* out) {
  __shared__ ProductTile<float> tile;
  product<float>(KCALIB_THE_PROBLEM, tile, vectors, per_group, out);
}

// out[(group * tiles + tile) * VECTORS + c]: what rows of tile blockIdx.x and columns of group blockIdx.y from the
// diagonal on contribute to w^T H w, w = column c of `weights`, shape (n, VECTORS).
extern "C" __global__ void kcalib_forms(KCALIB_PROBLEM, const double* weights, long long per_group, double* out) {
  __shared__ ProductTile<double> tile;
  forms<double>(KCALIB_THE_PROBLEM, tile, weights, per_group, out);
}
extern "C" __global__ void kcalib_forms_single(KCALIB_PROBLEM, const float* weights, long long per_group, double* out) {
  __shared__ ProductTile<float> tile;
  forms<float>(KCALIB_THE_PROBLEM, tile, weights, per_group, out);
}

// counts[t] += number of pairs i < j with H_ij < thresholds[t], t < THRESHOLDS. Integers: the order does not matter.
extern "C" __global__ void kcalib_counts(KCALIB_PROBLEM, const double* thresholds, unsigned long long* counts) {
  const Problem problem = KCALIB_THE_PROBLEM;
  __shared__ Panels panels;
  __shared__ unsigned long long parts[THREADS];
  const long long row = blockIdx.y * (long long)TILE, column = blockIdx.x * (long long)TILE;
  if (column < row) return;
  T h[SPAN][SPAN];
  entries(problem, panels, row, column, false, h);
  for (int t = 0; t < THRESHOLDS; ++t) {
    unsigned long long count = 0;
    for (int r = 0; r < SPAN; ++r)
      for (int c = 0; c < SPAN; ++c) {
        const long long i = row + threadIdx.x / LANES + LANES * r, j = column + threadIdx.x % LANES + LANES * c;
        count += i < j && j < right_n && h[r][c] < T(thresholds[t]);
      }
    count = block_sum(count, parts);
    if (threadIdx.x == 0 && count) atomicAdd(counts + t, count);
  }
}

// The entries H_ij in [low, high) of pairs i < j, in no order; *found is how many there are, `capacity` are written.
extern "C" __global__ void kcalib_between(KCALIB_PROBLEM, double low, double high, double* out, long long capacity,
                                          unsigned long long* found) {
  const Problem problem = KCALIB_THE_PROBLEM;
  __shared__ Panels panels;
  const long long row = blockIdx.y * (long long)TILE, column = blockIdx.x * (long long)TILE;
  if (column < row) return;
  T h[SPAN][SPAN];
  entries(problem, panels, row, column, false, h);
  for (int r = 0; r < SPAN; ++r)
    for (int c = 0; c < SPAN; ++c) {
      const long long i = row + threadIdx.x / LANES + LANES * r, j = column + threadIdx.x % LANES + LANES * c;
      if (!(i < j && j < right_n && h[r][c] >= T(low) && h[r][c] < T(high))) continue;
      const unsigned long long place = atomicAdd(found, 1ull);
      if ((long long)place < capacity) out[place] = h[r][c];
    }
}

// out[k] = sum of parts[g * length + k] over g < count, in order.
extern "C" __global__ void kcalib_merge(const double* parts, long long count, long long length, double* out) {
  const long long k = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (k >= length) return;
  double sum = 0;
  for (long long g = 0; g < count; ++g) sum += parts[g * length + k];
  out[k] = sum;
}

// norms[2 i] = |x_i|^2, norms[2 i + 1] = |e_i|^2.
extern "C" __global__ void kcalib_norms(const T* points, long long n_features, const T* marks, long long n_marks, long long n,
                                        T* norms) {
  const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (i >= n) return;
  T sum = 0;
  for (long long k = 0; k < n_features; ++k) sum += points[i * n_features + k] * points[i * n_features + k];
  norms[2 * i] = sum;
  sum = 0;
  for (long long k = 0; k < n_marks; ++k) sum += marks[i * n_marks + k] * marks[i * n_marks + k];
  norms[2 * i + 1] = sum;
}
