// Weights of training samples at queries, added up by class: a register tile of costs, its lowest entries, exp.
//
// Compiled once per instruction set, as tile.cpp is and with the same rule (no std:: code).
//
// Weights are exp(floor - cost), with a floor for each query. It starts at the lowest cost of the first tile,
// stays while no cost is lower by more than ROOM, and then goes down to that one. So each weight is at most
// exp(ROOM), their sum at least 1, and one pass is enough, however far the samples are.
#include "cpu/dirichlet/dirichlet_kernels.h"

#include "kcalib/log_gamma.h"
#include "cpu/simd/register_tile.h"

namespace kcalib {
namespace {

// Weights up to exp(ROOM) do not overflow, nor their sums over any number of samples.
template <class T> constexpr T ROOM = sizeof(T) == 8 ? 600 : 60;

// The training samples of a group.
template <class T> struct GroupRows {
  const T* at;
  KCALIB_FN T operator()(int64_t k, int r) const { return at[k * ROWS + r]; }
};

template <class V> KCALIB_FN void add_to(double* sums, V x) {
  DoublePack wide[WIDE<V>];
  widen(x, wide);
  for (int w = 0; w < WIDE<V>; ++w) {
    double* at = sums + w * LANES<DoublePack>;
    store<DoublePack>(at, load<DoublePack>(at) + wide[w]);
  }
}

// Floors of the lanes whose lowest cost is out of reach go down to it.
template <class V>
__attribute__((noinline)) void lower_floors(const V* lowest, V* floors, double* sums, int64_t n_classes) {
  using R = Real<V>;
  for (int v = 0; v < VECTORS; ++v) {
    const V floor = lowest[v] < floors[v] - ROOM<R> ? lowest[v] : floors[v];
    const V step = floors[v] - floor;
    const V factor = step < -Constants<R>::exp_low ? exp_minus(step) : V{};  // exp(0) is 1 exactly
    floors[v] = floor;
    DoublePack wide[WIDE<V>];
    widen(factor, wide);
    for (int64_t c = 0; c < n_classes; ++c)
      for (int w = 0; w < WIDE<V>; ++w) {
        double* at = sums + c * WIDTH<R> + v * LANES<V> + w * LANES<DoublePack>;
        store<DoublePack>(at, load<DoublePack>(at) * wide[w]);
      }
  }
}

template <class T>
void add_weights(const TrainingBlock<T>& block, const QueryPanel<T>& panel, int64_t n_features, int64_t n_classes, int64_t own) {
  using V = Pack<T>;
  V partial[MOST_GROUPS][TILE];  // costs before the last part of the features
  V cost[TILE], floors[VECTORS];
  for (int v = 0; v < VECTORS; ++v) floors[v] = load<V>(panel.floors + v * LANES<V>);

  const Parts parts(n_features);
  const T* points = block.points;
  int64_t first = 0;
  for (int64_t part = 0; part + 1 < parts.count; ++part) {
    const int64_t length = parts.begin(part + 1) - first;
    for (int64_t g = 0; g < block.n_groups; ++g, points += length * ROWS)
      accumulate<Product, V>(GroupRows<T>{points}, panel.points + first * WIDTH<T>, length, storing(partial[g]),
                             first ? partial[g] : nullptr);
    first += length;
  }
  const int64_t length = n_features - first;
  for (int64_t g = 0; g < block.n_groups; ++g, points += length * ROWS) {
    const T* offsets = block.offsets + g * ROWS;
    const auto add_offset = [&](int r, const V* sum) KCALIB_INLINE {
      for (int v = 0; v < VECTORS; ++v) cost[r * VECTORS + v] = sum[v] + offsets[r];
    };
    accumulate<Product, V>(GroupRows<T>{points}, panel.points + first * WIDTH<T>, length, add_offset, first ? partial[g] : nullptr);
    if (__builtin_expect(g * ROWS + ROWS > own && g * ROWS < own + WIDTH<T>, 0))
      for (int r = 0; r < ROWS; ++r) {
        const int64_t lane = g * ROWS + r - own;
        if (lane >= 0 && lane < WIDTH<T>) cost[r * VECTORS + lane / LANES<V>][lane % LANES<V>] = T(__builtin_inf());
      }
    V lowest[VECTORS], above{};  // above: below -ROOM in some lane if a floor is too high
    for (int v = 0; v < VECTORS; ++v) {
      lowest[v] = cost[v];
#pragma GCC unroll 6
      for (int r = 1; r < ROWS; ++r) lowest[v] = lower(cost[r * VECTORS + v], lowest[v]);
      above = lower(lowest[v] - floors[v], above);
    }
    if (__builtin_expect(any(above < -ROOM<T>), 0)) lower_floors<V>(lowest, floors, panel.sums, n_classes);

    const int* labels = block.labels + g * ROWS;
    const bool one_label = labels[0] == labels[ROWS - 1];
#pragma GCC unroll 1
    for (int v = 0; v < VECTORS; ++v) {
      V weight[ROWS];
      double* sums = panel.sums + v * LANES<V>;
#pragma GCC unroll 6
      for (int r = 0; r < ROWS; ++r) weight[r] = exp_minus(cost[r * VECTORS + v] - floors[v]);
      if (one_label) {
        V total = weight[0];
#pragma GCC unroll 6
        for (int r = 1; r < ROWS; ++r) total += weight[r];
        add_to(sums + labels[0] * WIDTH<T>, total);
      } else {
        for (int r = 0; r < ROWS; ++r) add_to(sums + labels[r] * WIDTH<T>, weight[r]);
      }
    }
  }
  for (int v = 0; v < VECTORS; ++v) store<V>(panel.floors + v * LANES<V>, floors[v]);
}

double sum_log_gamma(const double* x, int64_t n) {
  using V = DoublePack;
  V sum{};
  int64_t k = 0;
  for (; k + LANES<V> <= n; k += LANES<V>) sum += log_gamma(load<V>(x + k));
  double total = sum_lanes(sum);
  if (k == n) return total;
  V rest{};  // log Gamma(1) = 0
  for (int64_t l = 0; k + l < n; ++l) rest[l] = x[k + l];
  rest = log_gamma(rest);
  for (int64_t l = 0; k + l < n; ++l) total += rest[l];
  return total;
}

template <class T> constexpr DirichletFunctions<T> functions_of() { return {ROWS, WIDTH<T>, add_weights<T>}; }

}  // namespace

extern const DirichletTable KCALIB_DIRICHLET;
const DirichletTable KCALIB_DIRICHLET = {functions_of<double>(), functions_of<float>(), sum_log_gamma};

}  // namespace kcalib
