// Sums of random features over blocks of rows, added exactly: what kcalib/streaming/_sums.py keeps.
//
// Each tile of at most STATE_TILE rows is added up in double precision, in order; the sums of tiles are added in fixed
// point, so that these may come in any order.
#pragma once

#include <cstdint>

#include "cpu/state/exact_sums.h"
#include "cpu/features/features.h"

namespace kcalib {

constexpr int64_t STATE_TILE = 128;

// Predictions, rows of m probabilities, with labels and weights; the target kernel is the matrix R R^T: root (m x rank),
// null for the identity.
struct StateRows {
  const double* p;
  const std::int64_t* labels;
  const double* weights;
  const double* root;
  int64_t m, rank;
};

struct StateSums {
  ExactSums sums;      // 2F x rank: phi(p_i) (x) a_i with a_i = w_i R^T (onehot(label) - p_i)
  ExactSums own;       // F: |a_i|^2 times the squares of a frequency's two columns
  ExactSums null_own;  // 1: w_i^2 |phi(p_i)|^2 E |R^T e|^2 of labels drawn from the predictions
};

// Adds the rows of tile t, which are [ends[t - 1], ends[t]). Returns false if `poll` stopped it.
bool state_sums(const FeatureMap& map, const StateRows& rows, const std::int64_t* ends, int64_t n_tiles, const Run& run,
                const StateSums& out);

}  // namespace kcalib
