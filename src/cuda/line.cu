// H @ V and w^T H w for points on a line, on a GPU: what cpu/line/line_product.cpp and cpu/line/line_forms.cpp do on the CPU.
//
// kcalib/_pairs/backends/sorted_scan_cuda.py compiles this text by NVRTC, once for each combination of
//
//   KCALIB_DEGREE        of the polynomial in k(x, x') = exp(-rate D) sum_p coefficients[p] D^p, D = |x - x'|
//   KCALIB_COLUMNS       columns of V that a thread has
//   KCALIB_CHUNK         points of a node, and nodes of one of the level above
//
// and launches the functions below. What points give to a place is a state, A_p = sum_j u_j D_j^p exp(-rate D_j), D_j to
// that place, which moves on by the binomial theorem. Decays are between neighbours or further apart, never their inverse:
// nothing cancels that does not cancel in the sum.
//
// A path goes through the sorted points, forwards or backwards. CHUNK points of it are a node, CHUNK nodes a node of the
// level above, and so on. `point_sums` has what the points of a node give to the next node, `sums_up` the same a level
// above, `sums_down` replaces what a node gives by what reaches it, and the last pass follows the path through each node
// with what reaches it. A thread has a node and COLUMNS columns, so that sums are in an order that n alone decides.

#if !defined(KCALIB_DEGREE) || !defined(KCALIB_COLUMNS)
#error "kcalib/_pairs/backends/sorted_scan_cuda.py says what to define"
#endif

namespace kcalib {
namespace {

constexpr int DEGREE = KCALIB_DEGREE, POWERS = DEGREE + 1, COLUMNS = KCALIB_COLUMNS, THREADS = KCALIB_THREADS,
              CHUNK = KCALIB_CHUNK;

// Sorted points: positions are those of their samples in the user's order. Points of different blocks of consecutive
// sorted points do not see each other.
struct Path {
  const double* places;
  const long long* positions;
  long long n, block;
  double rate;
  bool backwards;

  KCALIB_FN long long point(long long step) const { return backwards ? n - 1 - step : step; }
  KCALIB_FN bool sees(long long a, long long b) const { return block >= n || a / block == b / block; }
};

// Rows of the samples from the number `first` on; others are 0. values == nullptr: all are 1.
struct Vectors {
  const double* values;
  long long count, first;

  KCALIB_FN double at(long long position, long long column) const {
    if (values == nullptr) return 1;
    return position < first ? 0 : values[(position - first) * count + column];
  }
};

// Column r of factors of sorted points, shape (n, rank).
struct Factors {
  const double* values;
  long long rank, r;

  KCALIB_FN double at(long long point) const { return values[point * rank + r]; }
};

// What points give to a place, in COLUMNS columns.
struct State {
  double sums[POWERS][COLUMNS];

  __device__ void clear() {
#pragma unroll
    for (int p = 0; p < POWERS; ++p)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sums[p][c] = 0;
  }
  __device__ void add(const State& other) {
#pragma unroll
    for (int p = 0; p < POWERS; ++p)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sums[p][c] += other.sums[p][c];
  }
  // From one step of the path to another; to nothing where exp(-rate D) is below all normal numbers.
  __device__ void move(const Path& path, long long from, long long to) {
    const long long a = path.point(from), b = path.point(to);
    const double gap = path.backwards ? path.places[a] - path.places[b] : path.places[b] - path.places[a];
    if (!path.sees(a, b) || path.rate * gap > -Constants<double>::exp_low) return clear();
    const double decay = exp_minus(path.rate * gap);
#pragma unroll
    for (int p = DEGREE; p > 0; --p) {
      double weight = 1;  // binomial(p, l) gap^(p - l), from l = p down
#pragma unroll
      for (int l = p - 1; l >= 0; --l) {
        weight *= gap * (double(l + 1) / double(p - l));
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sums[p][c] += weight * sums[l][c];
      }
    }
#pragma unroll
    for (int p = 0; p < POWERS; ++p)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) sums[p][c] *= decay;
  }
  // In memory: shape (nodes, POWERS, count).
  __device__ void load(const double* from, long long node, long long column, long long count) {
#pragma unroll
    for (int p = 0; p < POWERS; ++p)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
        sums[p][c] = column + c < count ? from[(node * POWERS + p) * count + column + c] : 0;
  }
  __device__ void store(double* to, long long node, long long column, long long count) const {
#pragma unroll
    for (int p = 0; p < POWERS; ++p)
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c)
        if (column + c < count) to[(node * POWERS + p) * count + column + c] = sums[p][c];
  }
};

// What the thread has: a node, and columns from `column` on.
struct Place {
  long long node, column;
  __device__ explicit Place(long long count) {
    const long long groups = (count + COLUMNS - 1) / COLUMNS, thread = blockIdx.x * (long long)THREADS + threadIdx.x;
    node = thread / groups;
    column = thread % groups * COLUMNS;
  }
};

KCALIB_FN long long lower(long long a, long long b) { return a < b ? a : b; }

// u = factor times the vector's number, of the columns of a thread.
__device__ void weighted(const Path& path, const Factors& factors, const Vectors& vectors, long long point,
                         long long column, double* u) {
  const double factor = factors.at(point);
  const long long position = path.positions[point];
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c)
    u[c] = column + c < vectors.count ? factor * vectors.at(position, column + c) : 0;
}

}  // namespace
}  // namespace kcalib

using namespace kcalib;

#define LINE                                                                                                  \
  const double *places, const long long *positions, long long n, long long block, double rate, long long nodes, \
      long long count

// sums[direction][node]: what the node's points give to the first point of the next node; blockIdx.y is the direction.
extern "C" __global__ void kcalib_line_point_sums(LINE, const double* factors, long long rank, long long r,
                                                  const double* values, long long first, double* sums) {
  const Place place(count);
  if (place.node >= nodes) return;
  const Path path{places, positions, n, block, rate, blockIdx.y == 1};
  const Factors of{factors, rank, r};
  const Vectors vectors{values, count, first};
  State state;
  state.clear();
  const long long begin = place.node * CHUNK, end = lower(n, begin + CHUNK);
  for (long long step = begin; step < end; ++step) {
    double u[COLUMNS];
    weighted(path, of, vectors, path.point(step), place.column, u);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) state.sums[0][c] += u[c];
    if (step + 1 < n) state.move(path, step, step + 1);
  }
  state.store(sums + blockIdx.y * (nodes * POWERS * count), place.node, place.column, count);
}

// From the sums of `children` nodes of `span` points to those of `nodes` nodes of CHUNK children.
extern "C" __global__ void kcalib_line_sums_up(LINE, long long span, long long children, const double* sums,
                                               double* above) {
  const Place place(count);
  if (place.node >= nodes) return;
  const Path path{places, positions, n, block, rate, blockIdx.y == 1};
  sums += blockIdx.y * (children * POWERS * count);
  State state, child;
  state.clear();
  const long long end = lower(children, (place.node + 1) * CHUNK);
  for (long long k = place.node * CHUNK; k < end && (k + 1) * span < n; ++k) {
    state.move(path, k * span, (k + 1) * span);
    child.load(sums, k, place.column, count);
    state.add(child);
  }
  state.store(above + blockIdx.y * (nodes * POWERS * count), place.node, place.column, count);
}

// Puts what reaches each child in the place of what it gives. above == nullptr: nothing reaches the only node.
extern "C" __global__ void kcalib_line_sums_down(LINE, long long span, long long children, double* sums,
                                                 const double* above) {
  const Place place(count);
  if (place.node >= nodes) return;
  const Path path{places, positions, n, block, rate, blockIdx.y == 1};
  sums += blockIdx.y * (children * POWERS * count);
  State state, child;
  state.clear();
  if (above != nullptr) state.load(above + blockIdx.y * (nodes * POWERS * count), place.node, place.column, count);
  const long long end = lower(children, (place.node + 1) * CHUNK);
  for (long long k = place.node * CHUNK; k < end; ++k) {
    child.load(sums, k, place.column, count);
    state.store(sums, k, place.column, count);
    if ((k + 1) * span >= n) break;
    state.move(path, k * span, (k + 1) * span);
    state.add(child);
  }
}

// out_i += left_i (own k(0) u_i + sum_j k(x_i, x_j) u_j) over the points j that the path passes before i, u = right v,
// for samples i < n_rows. `sums`: what reaches each node.
extern "C" __global__ void kcalib_line_products(LINE, const double* left, const double* right, long long rank, long long r,
                                                const double* values, long long first, const double* coefficients,
                                                double own, long long backwards, const double* sums, long long n_rows,
                                                double* out) {
  const Place place(count);
  if (place.node >= nodes) return;
  const Path path{places, positions, n, block, rate, backwards == 1};
  const Factors of_left{left, rank, r}, of_right{right, rank, r};
  const Vectors vectors{values, count, first};
  State state;
  state.load(sums, place.node, place.column, count);
  const long long begin = place.node * CHUNK, end = lower(n, begin + CHUNK);
  for (long long step = begin; step < end; ++step) {
    const long long point = path.point(step), position = positions[point];
    double u[COLUMNS];
    weighted(path, of_right, vectors, point, place.column, u);
    const double factor = of_left.at(point);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      double seen = own * coefficients[0] * u[c];
#pragma unroll
      for (int p = 0; p < POWERS; ++p) seen += coefficients[p] * state.sums[p][c];
      if (position < n_rows && place.column + c < count) out[position * count + place.column + c] += factor * seen;
      state.sums[0][c] += u[c];
    }
    if (step + 1 < end) state.move(path, step, step + 1);
  }
}

// parts[node]: sum of u_i (k(0) u_i + 2 sum_j k(x_i, x_j) u_j) over the points i of the node and j passed before,
// u = factors w; forwards.
extern "C" __global__ void kcalib_line_forms(LINE, const double* factors, long long rank, long long r, const double* values,
                                             const double* coefficients, const double* sums, double* parts) {
  const Place place(count);
  if (place.node >= nodes) return;
  const Path path{places, positions, n, block, rate, false};
  const Factors of{factors, rank, r};
  const Vectors vectors{values, count, 0};
  State state;
  state.load(sums, place.node, place.column, count);
  double total[COLUMNS] = {};
  const long long begin = place.node * CHUNK, end = lower(n, begin + CHUNK);
  for (long long step = begin; step < end; ++step) {
    double u[COLUMNS];
    weighted(path, of, vectors, step, place.column, u);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      double seen = 0.5 * coefficients[0] * u[c];
#pragma unroll
      for (int p = 0; p < POWERS; ++p) seen += coefficients[p] * state.sums[p][c];
      total[c] += 2 * (u[c] * seen);
      state.sums[0][c] += u[c];
    }
    if (step + 1 < end) state.move(path, step, step + 1);
  }
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c)
    if (place.column + c < count) parts[place.node * count + place.column + c] = total[c];
}
