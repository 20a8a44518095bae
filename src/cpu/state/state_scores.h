// Sums of scores, and of probabilities by bins, in fixed point: one pass over the rows. Called by
// kcalib/streaming/_tally.py through _native, which says what each sum is.
#pragma once

#include <cstdint>

#include "cpu/samples/bins.h"
#include "cpu/state/exact_sums.h"
#include "cpu/pairs/sweep.h"

namespace kcalib {

constexpr int64_t STATE_SCORES = 8, STATE_CELLS = 5;

// What rows add to; sums are added to what is there.
struct StateTally {
  ExactSums scores;  // STATE_SCORES
  ExactSums cells;   // of the top label, then of each class: (1 + m) x n_bins x STATE_CELLS
  std::int64_t* counts;  // rows by bins of the top label's confidence
  double *lowest, *highest;  // of the confidence in each of these bins
};

// Returns false if `poll` stopped it. Probabilities of labels are raised to `epsilon` for the log loss.
bool state_scores(const Predictions& rows, int64_t n_bins, double epsilon, const Run& run, const StateTally& tally);

}  // namespace kcalib
