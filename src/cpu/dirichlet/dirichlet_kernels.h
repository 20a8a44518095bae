// What the Dirichlet kernel ratio (dirichlet.cpp) asks of the instruction set, as a table of functions:
// dirichlet_kernels.cpp is compiled once for each, as tile.cpp is.
#pragma once

#include <cstdint>

namespace kcalib {

// Features are taken in parts whose part of a panel stays in the L1 cache while a block of training samples passes by.
namespace {  // its functions are compiled for each instruction set
struct Parts {
  static constexpr int64_t MOST = 64;
  explicit Parts(int64_t n_features) : n_features(n_features), count((n_features + MOST - 1) / MOST) {}
  int64_t begin(int64_t part) const { return part * n_features / count; }
  int64_t n_features, count;
};
}  // namespace

// Training samples in groups of `rows`, those of a register tile. The points lie part of the features after part; of
// each part group after group, feature after feature.
template <class T> struct TrainingBlock {
  const T* points;
  const T* offsets;   // of each sample; infinite where a group has fewer than `rows`
  const int* labels;  // of each sample, ascending
  int64_t n_groups;
};

// Predictions at which the ratio is wanted, `width` of them, a lane each.
template <class T> struct QueryPanel {
  const T* points;  // points[k * width + lane]
  T* floors;        // of the costs; HIGHEST_FLOOR at the start
  double* sums;     // exp(floor - cost), summed up for each class: sums[class * width + lane]; 0 at the start
};

template <class T> struct DirichletFunctions {
  int rows, width;
  // Adds a block of training samples to the sums of a panel of queries,
  //   cost = <training point, query point> + offset.
  // Floors go down where the weights would overflow, and the sums with them. Lane `l` does not see training sample
  // own + l of the block (none where that is outside).
  void (*add_weights)(const TrainingBlock<T>& block, const QueryPanel<T>& panel, int64_t n_features, int64_t n_classes, int64_t own);
};

constexpr int64_t MOST_GROUPS = 32;  // in a block
constexpr double HIGHEST_FLOOR = 1e30;  // above all costs

struct DirichletTable {
  DirichletFunctions<double> float64;
  DirichletFunctions<float> float32;
  // sum_k log Gamma(1 + x_k), x >= 0.
  double (*sum_log_gamma)(const double* x, int64_t n);
};

}  // namespace kcalib
