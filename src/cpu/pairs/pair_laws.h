// How much two models' entries differ by the law of one of them, added up: kcalib/inference/metrics/pair_laws.py calls it.
#pragma once

#include <cstdint>

#include "cpu/pairs/sweep.h"

namespace kcalib {

// Some samples beside all n, and the law of one model, which has m classes. Matrices are given row by row.
struct PairLaws {
  int64_t rows, n, m;
  const double* traces;    // rows x n: tr(M V_i M V_j)
  const double* own;       // rows x n: the kernel's values by the model of the law, zeros where i is j
  const double* other;     // rows x n: by the other model
  const double* unlikely;  // rows x m: probabilities of the classes, 0 of the most probable one
  const std::int64_t* top;      // rows: that one
  const double* d;         // n x m: M (p - q) of the two models' predictions
};

// sums[i] = sum over j of (own - other)^2 traces + 2 other^2 d_j^T V_i d_j. False if stopped.
bool pair_law_sums(const PairLaws& laws, const Run& run, double* sums);

}  // namespace kcalib
