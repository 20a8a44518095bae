// The ratio of kernel densities, a density for each class, at many points: log-sum-exp over training samples.
// Called by _native.pyx; the loops that depend on the instruction set are in dirichlet_kernels.cpp.
#pragma once

#include <cstdint>

#include "cpu/pairs/sweep.h"

namespace kcalib {

// Training sample i has at query j the weight exp(-<training_i, query_j> - offset_i). Costs are below 1e30.
template <class T> struct WeightedClasses {
  const T* queries;   // row-major, n_queries x n_features
  int64_t n_queries;
  const T* training;  // row-major, n_training x n_features
  const T* offsets;
  const int* labels;  // ascending, 0..n_classes-1
  int64_t n_training, n_features, n_classes;
  bool leave_one_out;  // the queries are the training samples: query i does not see training sample i
};

// shares (n_queries x n_classes): each class's part of the sum of the weights. log_sums (n_queries): its logarithm.
// False if `run.poll` stopped it. A query's results do not depend on the other queries.
template <class T>
bool class_shares(const WeightedClasses<T>& problem, const Run& run, double* shares, double* log_sums);

// out[i] = log Gamma(m + sum_k x_ik) - sum_k log Gamma(1 + x_ik) for the n rows of x: the logarithm of the factor that
// normalises the Dirichlet density with parameters 1 + x_i. False if stopped.
bool log_normalisers(const double* x, int64_t n, int64_t m, const Run& run, double* out);

}  // namespace kcalib
