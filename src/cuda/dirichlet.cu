// The Dirichlet kernel ratio on a GPU: the weights of training samples at queries, added up by class.
//
// kcalib/regression/dirichlet_kde.py compiles this text by NVRTC with KCALIB_REAL, the type of costs and weights
// (double or float; sums are always double), and launches the functions below. What they compute is what
// cpu/dirichlet/dirichlet.h says.
//
// A block of THREADS threads has a tile of TILE queries and walks over the tiles of TILE training samples of its group;
// each thread has SPAN by SPAN costs in registers. Features pass by in shared memory; where there are many, the inner
// products come from cuBLAS instead. As in
// cpu/dirichlet/dirichlet_kernels.cpp weights are exp(floor - cost), with a floor for each query that goes down where a cost is
// lower by more than ROOM: one pass is enough, however far the samples are.
//
// Labels ascend, so that the samples of a class lie one behind the other: a thread adds its weights up in a register for
// each query until the class ends, and the block writes the sum of that class, with the floor that it refers to, where
// no other block writes. kcalib_class_shares merges these in order. So the bits of a query depend on itself and
// the training samples alone, and there are no atomic operations.

#ifndef KCALIB_REAL
#error "kcalib/regression/dirichlet_kde.py says what to define"
#endif

namespace kcalib {
namespace {

using T = KCALIB_REAL;

constexpr int TILE = KCALIB_TILE, LANES = KCALIB_LANES, THREADS = KCALIB_THREADS, SPAN = TILE / LANES, FEATURES = 16;
static_assert(THREADS == LANES * LANES, "a thread for each pair of lanes");
// Weights up to exp(ROOM) do not overflow, nor their sums over any number of samples.
constexpr T ROOM = sizeof(T) == 8 ? 600 : 60;
constexpr double HIGHEST = 1e30;  // above all costs; the cost of a pair that does not count

// What a block's threads share.
struct Shared {
  T queries[FEATURES][TILE + 1], training[FEATURES][TILE + 1];
  double parts[TILE][LANES + 1];
  T floors[TILE], offsets[TILE];
  int labels[TILE];
};

__device__ void load(T (*panel)[TILE + 1], const T* source, long long n, long long length, long long first, long long k) {
  for (int e = threadIdx.x; e < FEATURES * TILE; e += THREADS) {
    const int row = e / FEATURES, feature = e % FEATURES;
    const bool inside = first + row < n && k + feature < length;
    panel[feature][row] = inside ? source[(first + row) * length + k + feature] : T(0);
  }
}

// cost[r][c] += <query, training sample> of the thread's pairs.
__device__ void add_products(Shared& shared, T (*cost)[SPAN], const T* queries, long long n_queries, const T* training,
                             long long n_training, long long n_features, long long row, long long column) {
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  const auto add = [&](int f) {
    T x[SPAN], y[SPAN];
#pragma unroll
    for (int s = 0; s < SPAN; ++s) x[s] = shared.queries[f][ty + LANES * s], y[s] = shared.training[f][tx + LANES * s];
#pragma unroll
    for (int r = 0; r < SPAN; ++r)
#pragma unroll
      for (int c = 0; c < SPAN; ++c) cost[r][c] += x[r] * y[c];
  };
  for (long long k = 0; k < n_features; k += FEATURES) {
    __syncthreads();
    load(shared.queries, queries, n_queries, n_features, row, k);
    load(shared.training, training, n_training, n_features, column, k);
    __syncthreads();
    if (n_features - k >= FEATURES) {
#pragma unroll
      for (int f = 0; f < FEATURES; ++f) add(f);
    } else {
      for (int f = 0; f < int(n_features - k); ++f) add(f);
    }
  }
}

// Floors of the queries whose lowest cost is out of reach go down to it, and the sums with them.
__device__ void lower_floors(Shared& shared, const T* lowest, T* floors, double* sums) {
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  for (int r = 0; r < SPAN; ++r) shared.parts[ty + LANES * r][tx] = double(lowest[r]);
  __syncthreads();
  if (threadIdx.x < TILE) {
    double low = shared.parts[threadIdx.x][0];
    for (int lane = 1; lane < LANES; ++lane)
      if (shared.parts[threadIdx.x][lane] < low) low = shared.parts[threadIdx.x][lane];
    if (T(low) < shared.floors[threadIdx.x] - ROOM) shared.floors[threadIdx.x] = T(low);
  }
  __syncthreads();
  for (int r = 0; r < SPAN; ++r) {
    const T floor = shared.floors[ty + LANES * r], step = floors[r] - floor;
    if (step > T(0)) sums[r] *= step < -Constants<T>::exp_low ? double(exp_minus(step)) : 0.0;
    floors[r] = floor;
  }
}

}  // namespace
}  // namespace kcalib

using namespace kcalib;

// sums[(label + group) * n_queries + query] = sum of exp(floor - cost) over the training samples with that label in
// group blockIdx.y, for the queries of tile blockIdx.x, and floors[...] the floor. No two groups have a place
// in common, as labels ascend; places of labels that a group does not have are left as they are. Query i does
// not see training sample own + i. `products` are the inner products (n_queries, n_training), or null: then they come
// from the points.
extern "C" __global__ void kcalib_class_sums(const T* products, const T* queries, long long n_queries, const T* training,
                                             const T* offsets, const int* labels, long long n_training,
                                             long long n_features, long long own, long long per_group, double* sums,
                                             double* floors) {
  __shared__ Shared shared;
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  const long long row = blockIdx.x * (long long)TILE, group = blockIdx.y, tiles = (n_training + TILE - 1) / TILE;
  const long long end = (group + 1) * per_group < tiles ? (group + 1) * per_group : tiles;
  T floor[SPAN];
  double sum[SPAN] = {};  // of the thread's weights of class `label`
  int label = -1;
  for (int r = 0; r < SPAN; ++r) floor[r] = T(HIGHEST);
  if (threadIdx.x < TILE) shared.floors[threadIdx.x] = T(HIGHEST);

  const auto write_class = [&] {
    __syncthreads();
    for (int r = 0; r < SPAN; ++r) shared.parts[ty + LANES * r][tx] = sum[r], sum[r] = 0;
    __syncthreads();
    const long long query = row + threadIdx.x;
    if (label < 0 || threadIdx.x >= TILE || query >= n_queries) return;
    double total = 0;
    for (int lane = 0; lane < LANES; ++lane) total += shared.parts[threadIdx.x][lane];
    sums[(label + group) * n_queries + query] = total;
    floors[(label + group) * n_queries + query] = double(shared.floors[threadIdx.x]);
  };

  for (long long tile = group * per_group; tile < end; ++tile) {
    const long long column = tile * TILE;
    const int width = int(n_training - column < TILE ? n_training - column : TILE);
    T cost[SPAN][SPAN] = {};
    __syncthreads();
    if (int(threadIdx.x) < width) {
      shared.offsets[threadIdx.x] = offsets[column + threadIdx.x];
      shared.labels[threadIdx.x] = labels[column + threadIdx.x];
    }
    if (products) {
#pragma unroll
      for (int r = 0; r < SPAN; ++r)
#pragma unroll
        for (int c = 0; c < SPAN; ++c) {
          const long long i = row + ty + LANES * r, j = column + tx + LANES * c;
          if (i < n_queries && j < n_training) cost[r][c] = products[i * n_training + j];
        }
      __syncthreads();
    } else {
      add_products(shared, cost, queries, n_queries, training, n_training, n_features, row, column);
    }

    T lowest[SPAN];
    bool is_below = false;
#pragma unroll
    for (int r = 0; r < SPAN; ++r) {
      lowest[r] = T(HIGHEST);
#pragma unroll
      for (int c = 0; c < SPAN; ++c) {
        const int place = tx + LANES * c;
        const bool counts = place < width && own + row + ty + LANES * r != column + place;
        cost[r][c] = counts ? cost[r][c] + shared.offsets[place] : T(HIGHEST);
        if (cost[r][c] < lowest[r]) lowest[r] = cost[r][c];
      }
      is_below = is_below || lowest[r] < floor[r] - ROOM;
    }
    if (__syncthreads_or(is_below)) lower_floors(shared, lowest, floor, sum);
#pragma unroll
    for (int r = 0; r < SPAN; ++r)
#pragma unroll
      for (int c = 0; c < SPAN; ++c) cost[r][c] = cost[r][c] < T(HIGHEST) ? exp_minus(cost[r][c] - floor[r]) : T(0);

    for (int begin = 0; begin < width;) {  // class by class
      const int own_label = shared.labels[begin];
      int past = width;
      if (shared.labels[width - 1] != own_label)
        for (past = begin + 1; shared.labels[past] == own_label;) ++past;
      if (own_label != label) {
        write_class();
        label = own_label;
      }
#pragma unroll
      for (int r = 0; r < SPAN; ++r) {
        T part = 0;
#pragma unroll
        for (int c = 0; c < SPAN; ++c)
          if (tx + LANES * c >= begin && tx + LANES * c < past) part += cost[r][c];
        sum[r] += double(part);
      }
      begin = past;
    }
  }
  write_class();
}

// From these sums the classes' shares (n_queries, n_classes), which are zeros before, and log_sums, the logarithms of the
// sums of all weights. A thread has a query.
extern "C" __global__ void kcalib_class_shares(const double* sums, const double* floors, long long n_queries,
                                               const int* labels, long long n_training, long long per_group,
                                               long long n_groups, long long n_classes, double* shares, double* log_sums) {
  const long long query = blockIdx.x * (long long)THREADS + threadIdx.x, size = per_group * TILE;
  if (query >= n_queries) return;
  // step(place, label) for what the groups have written, labels ascending.
  const auto for_each = [&](auto step) {
    for (long long group = 0; group < n_groups; ++group) {
      const long long end = (group + 1) * size < n_training ? (group + 1) * size : n_training;
      const int last = labels[end - 1];
      for (int label = labels[group * size]; label <= last; ++label) step((label + group) * n_queries + query, label);
    }
  };
  double low = HIGHEST, total = 0, *own = shares + query * n_classes;
  for_each([&](long long place, int) { low = floors[place] < low ? floors[place] : low; });
  for_each([&](long long place, int label) {
    const double step = floors[place] - low;
    own[label] += step < -Constants<double>::exp_low ? sums[place] * exp_minus(step) : 0.0;
  });
  for (long long label = 0; label < n_classes; ++label) total += own[label];
  for (long long label = 0; label < n_classes; ++label) own[label] /= total;
  log_sums[query] = log(total) - low;
}

// out[i] = log Gamma(m + sum_k x_ik) - sum_k log Gamma(1 + x_ik) for the rows of x, shape (n, m). LANES threads a row.
extern "C" __global__ void kcalib_log_normalisers(const double* x, long long n, long long m, double* out) {
  __shared__ double values[LANES][LANES + 1], terms[LANES][LANES + 1];
  const int ty = threadIdx.x / LANES, tx = threadIdx.x % LANES;
  const long long row = blockIdx.x * (long long)LANES + ty;
  double value = 0, term = 0;
  if (row < n)
    for (long long k = tx; k < m; k += LANES) {
      value += x[row * m + k];
      term += log_gamma(x[row * m + k]);
    }
  values[ty][tx] = value;
  terms[ty][tx] = term;
  __syncthreads();
  if (tx > 0 || row >= n) return;
  for (int lane = 1; lane < LANES; ++lane) {
    value += values[ty][lane];
    term += terms[ty][lane];
  }
  out[row] = log_gamma(double(m - 1) + value) - term;
}
