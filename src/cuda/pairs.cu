// The pair engine on a GPU: tiles of H in registers. The functions that reduce them are in pair_*.cu, pasted behind this.
//
// kcalib/_pairs/backends/cuda.py compiles this text by NVRTC with the function that is wanted, once for each combination of
// what it defines:
//
//   KCALIB_TILE, KCALIB_LANES, KCALIB_FEATURES, KCALIB_THREADS   the sizes below
//   KCALIB_REAL          double or float: the type of points, features and entries
//   KCALIB_EXPRESSION    the kernel as an expression of factor<Profile::name, METRIC>(f) and coefficient(t)
//   KCALIB_QUANTITIES    which quantities of a pair it needs: a sum of SQUARES, CITYBLOCKS, DOTS
//   KCALIB_DIFFERENCES   squared distances are sums of squared differences (few features), not expansions
//   KCALIB_RESIDUALS     features are residuals onehot(label) - point: one product gives distance and target factor (1: of
//                        FEATURES classes at most; 2: of any number)
//   KCALIB_GRAM          inner products are not computed here, but read from matrices that cuBLAS has filled
//   KCALIB_TARGET        features are rows of mixtures (kcalib/_pairs/problem.py) of this family, of KCALIB_TARGET_DIMS dimensions
//                        (0: any); the atoms' kernel is KCALIB_TARGET_EXPRESSION. mixtures.cuh is pasted before then
//   KCALIB_PREDICTED     the same for points, whose squared MMD distances are the squares of the kernel
//   KCALIB_TABLE         points are positions in a table, whose numbers are the cityblock distances of the kernel
//
// A launch is for a rectangle of H. A block of THREADS threads has a tile of TILE rows by TILE columns in registers,
// SPAN by SPAN entries a thread; features pass by in shared memory, FEATURES at a time. Every partial sum has a place
// of its own, and sums.cu adds those up in order: the bits depend neither on the device nor on how H is divided among
// launches, and there are no atomic operations on reals. (With KCALIB_GRAM they are those of cuBLAS, which depend
// on its version, on the model of the GPU, and on the rectangle.)
//
// Problem, which every function is passed by value, is in problem.cuh. The scalar maths is that of the compiled core
// (include/kcalib). This file is pasted after both.

namespace kcalib {
namespace {

using T = KCALIB_REAL;

constexpr int TILE = KCALIB_TILE, LANES = KCALIB_LANES, THREADS = KCALIB_THREADS, SPAN = TILE / LANES;
constexpr int FEATURES = KCALIB_FEATURES;
static_assert(THREADS == LANES * LANES, "a thread for each pair of lanes");
constexpr int BLOCKS_AT_ONCE = 2;  // on a multiprocessor: at most 128 registers a thread
enum Quantity { SQUARES = 1, CITYBLOCKS = 2, DOTS = 4 };
constexpr int QUANTITIES = KCALIB_QUANTITIES;
constexpr bool DIFFERENCES = KCALIB_DIFFERENCES, RESIDUALS = KCALIB_RESIDUALS, GRAM = KCALIB_GRAM;
constexpr bool ALL_IN_PANELS = KCALIB_RESIDUALS == 1 && !GRAM;
constexpr bool EXPANDED = (QUANTITIES & SQUARES) && !DIFFERENCES && !RESIDUALS;
#if defined(KCALIB_TARGET) || defined(KCALIB_PREDICTED)
constexpr int PACK = 1;  // whose parameters a warp reads sample beside sample
#else
constexpr int PACK = 16 / sizeof(T);  // as much as a thread reads from shared memory at once
#endif
// As in cpu/pairs/quantities.h: squared distances below these shares of their terms are computed anew by differences.
constexpr double NEAR = 1e-3, NEAR_OTHERS = 4e-3;

KCALIB_FN double square_root(double x) { return ::sqrt(x); }
KCALIB_FN float square_root(float x) { return ::sqrtf(x); }

// The quantities of one pair, and the kernel of them.
struct Pair {
  T squares, cityblock, dot;
  const double* program;
  long long n_terms;

  KCALIB_FN T coefficient(int t) const { return T(program[t]); }
  template <Profile PROFILE, int METRIC> KCALIB_FN T factor(int f) const {
    using F = Formula<PROFILE>;
    const double* numbers = program + n_terms + 3 * f;
    const T scale = T(numbers[0]), a = T(numbers[1]), b = T(numbers[2]);
    if constexpr (METRIC == DOT) return dot;
    else if constexpr (F::of_square) return F::value((METRIC == CITYBLOCK ? cityblock * cityblock : squares) * scale, a, b);
    else return F::value((METRIC == CITYBLOCK ? cityblock : square_root(squares)) * scale, a, b);
  }
  KCALIB_FN T kernel() const { return KCALIB_EXPRESSION; }
};

// The row (column) of a tile that the s-th of thread row (column) `lane` is: PACK lie beside each other.
KCALIB_FN int place(int lane, int s) { return PACK * lane + s / PACK * (LANES * PACK) + s % PACK; }

// FEATURES columns of the rows of a tile, transposed, of both sides.
struct alignas(PACK * sizeof(T)) Packed {
  T at[PACK];
};
struct Panels {
  Packed rows[FEATURES][TILE / PACK + 1], columns[FEATURES][TILE / PACK + 1];
};

__device__ void load(Packed (*panel)[TILE / PACK + 1], const T* source, long long n, long long length, long long first,
                     long long k) {
  for (int e = threadIdx.x; e < FEATURES * TILE; e += THREADS) {
    const int row = e / FEATURES, feature = e % FEATURES;
    const bool inside = first + row < n && k + feature < length;
    panel[feature][row / PACK].at[row % PACK] = inside ? source[(first + row) * length + k + feature] : T(0);
  }
}

// step(r, c, x, x') for all features of all pairs of the thread; of samples beyond the rectangle they are 0.
template <class Step>
__device__ void for_each_feature(Panels& panels, const T* left, const T* right, const Problem& problem, long long length,
                                 long long row, long long column, Step&& step) {
  constexpr int AT_ONCE = 2;
  static_assert(FEATURES % AT_ONCE == 0, "features beyond the last are 0");
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  for (long long k = 0; k < length; k += FEATURES) {
    __syncthreads();
    load(panels.rows, left, problem.left.n, length, row, k);
    load(panels.columns, right, problem.right.n, length, column, k);
    __syncthreads();
    const int count = length - k < FEATURES ? int(length - k) : FEATURES;
#pragma unroll 1
    for (int first = 0; first < count; first += AT_ONCE)
#pragma unroll
      for (int f = first; f < first + AT_ONCE; ++f) {
        Packed x[SPAN / PACK], y[SPAN / PACK];
#pragma unroll
        for (int s = 0; s < SPAN / PACK; ++s) x[s] = panels.rows[f][ty + LANES * s], y[s] = panels.columns[f][tx + LANES * s];
#pragma unroll
        for (int r = 0; r < SPAN; ++r)
#pragma unroll
          for (int c = 0; c < SPAN; ++c) step(r, c, x[r / PACK].at[r % PACK], y[c / PACK].at[c % PACK]);
      }
  }
}

__device__ __noinline__ T squared_difference(const Problem& problem, long long i, long long j) {
  const T *x = problem.left.points + i * problem.n_coordinates, *y = problem.right.points + j * problem.n_coordinates;
  T sum = 0;
  for (long long k = 0; k < problem.n_coordinates; ++k) sum += (x[k] - y[k]) * (x[k] - y[k]);
  return sum;
}

// A sample of a tile: beyond the rectangle, the last one.
struct Sample {
  int at;  // within its side: of fewer than 2^31 samples, as n^2 pairs take longer than anyone waits
  bool inside;
  int label;
  T point_norm, feature_norm;
  KCALIB_FN void read(const Side& side, long long i) {
    inside = i < side.n;
    at = int(inside ? i : side.n - 1);
    if constexpr (RESIDUALS) label = side.labels[at], feature_norm = side.norms[2LL * at + 1];
    if constexpr (RESIDUALS || EXPANDED) point_norm = side.norms[2LL * at];
  }
};

#ifdef KCALIB_TARGET
struct TargetPair : Pair {
  KCALIB_FN T kernel() const { return KCALIB_TARGET_EXPRESSION; }
};
#endif
#ifdef KCALIB_PREDICTED
struct PredictedPair : Pair {
  KCALIB_FN T kernel() const { return KCALIB_PREDICTED_EXPRESSION; }
};
#endif

// h[r][c] = H of the thread's pairs: rows row + place(ty, r), columns column + place(tx, c). Zero outside the
// rectangle, and, with `no_diagonal`, for pairs of a sample with itself.
__device__ void entries(const Problem& problem, Panels& panels, long long row, long long column, bool no_diagonal,
                        T (*h)[SPAN]) {
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  const Side &left = problem.left, &right = problem.right;
  T target[SPAN][SPAN] = {}, squares[SPAN][SPAN] = {}, cityblock[SPAN][SPAN] = {}, dot[SPAN][SPAN] = {};
  constexpr bool DOTS_HERE = ((QUANTITIES & DOTS) || EXPANDED) && !GRAM;
#if defined(KCALIB_PREDICTED)
  for_each_row<SPAN>(left.points, left.stride, left.n, row + ty, right.points, right.stride, right.n, column + tx, LANES,
                     [&](auto one, auto others, int r) {
                       squared_mmd<PredictedPair, KCALIB_PREDICTED, KCALIB_PREDICTED_DIMS>(
                           problem.predicted, problem.program, one, others, squares[r]);
                     });
#elif defined(KCALIB_TABLE)
  for (int r = 0; r < SPAN; ++r)
    for (int c = 0; c < SPAN; ++c) {
      const long long i = row + place(ty, r), j = column + place(tx, c);
      if (i >= left.n || j >= right.n) continue;
      const long long position = (long long)left.points[i] * problem.table_columns + (long long)right.points[j];
      cityblock[r][c] = T(problem.table[position]);
    }
#else
  if constexpr (((QUANTITIES & SQUARES) && DIFFERENCES) || (QUANTITIES & CITYBLOCKS) || DOTS_HERE)
    for_each_feature(panels, left.points, right.points, problem, problem.n_coordinates, row, column,
                     [&](int r, int c, T x, T y) {
                       const T d = x - y;
                       if constexpr ((QUANTITIES & SQUARES) && DIFFERENCES) squares[r][c] += d * d;
                       if constexpr (QUANTITIES & CITYBLOCKS) cityblock[r][c] += d < T(0) ? -d : d;
                       if constexpr (DOTS_HERE) dot[r][c] += x * y;
                     });
#endif
#ifdef KCALIB_TARGET
  for_each_row<SPAN>(left.features, left.stride, left.n, row + ty, right.features, right.stride, right.n, column + tx, LANES,
                     [&](auto one, auto others, int r) {
                       target_factors<TargetPair, KCALIB_TARGET, KCALIB_TARGET_DIMS>(
                           problem.target, problem.program, one, others, target[r]);
                     });
#else
  if constexpr (!GRAM)
    for_each_feature(panels, left.features, right.features, problem, problem.n_features, row, column,
                     [&](int r, int c, T x, T y) { target[r][c] += x * y; });
#endif
  Sample rows[SPAN], columns[SPAN];
#pragma unroll
  for (int s = 0; s < SPAN; ++s) {
    rows[s].read(left, row + place(ty, s));
    columns[s].read(right, column + place(tx, s));
  }
  if constexpr (GRAM) {
    const long long stride = right.n - right.begin;
#pragma unroll
    for (int r = 0; r < SPAN; ++r)
#pragma unroll
      for (int c = 0; c < SPAN; ++c) {
        const long long at = (rows[r].at - left.begin) * stride + (columns[c].at - right.begin);
        target[r][c] = problem.features_gram[at];
        if constexpr ((QUANTITIES & DOTS) || EXPANDED) dot[r][c] = problem.points_gram[at];
      }
  }
#pragma unroll
  for (int r = 0; r < SPAN; ++r)
#pragma unroll
    for (int c = 0; c < SPAN; ++c) {
      const Sample &a = rows[r], &b = columns[c];
      Pair pair{squares[r][c], cityblock[r][c], dot[r][c], problem.program, problem.n_terms};
      if constexpr (RESIDUALS) {
        T crossed;  // of different labels: each residual at the other's
        if constexpr (ALL_IN_PANELS)
          crossed = panels.rows[b.label][ty + LANES * (r / PACK)].at[r % PACK] +
                    panels.columns[a.label][tx + LANES * (c / PACK)].at[c % PACK];
        else
          crossed = left.features[a.at * problem.n_features + b.label] + right.features[b.at * problem.n_features + a.label];
        // As in cpu/pairs/quantities.h, without branches, as most warps have pairs of both kinds.
        const bool same = a.label == b.label;
        const T norms = same ? a.feature_norm + b.feature_norm : a.point_norm + b.point_norm;
        pair.squares = T(2) * ((same ? T(0) : crossed) - target[r][c]) + norms;
        if (pair.squares < (same ? norms * T(NEAR) : T(NEAR_OTHERS)))
          pair.squares = squared_difference(problem, a.at, b.at);
      } else if constexpr (EXPANDED) {
        const T norms = a.point_norm + b.point_norm;
        pair.squares = norms - T(2) * pair.dot;
        if (pair.squares < norms * T(NEAR)) pair.squares = squared_difference(problem, a.at, b.at);
      }
      h[r][c] = a.inside && b.inside ? pair.kernel() * target[r][c] : T(0);
    }
  if (no_diagonal && row == column && ty == tx)
#pragma unroll
    for (int s = 0; s < SPAN; ++s) h[s][s] = T(0);
}

// The sum over a block's threads of one number each, in a fixed order, in all of them.
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
