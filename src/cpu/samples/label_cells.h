// Cells of predictions, and sums over labels in them: cells of each class's probability, of the largest probability, and
// sums of log probabilities. Called by kcalib/_pairs/label_cells.py through _native; drawn_features.cpp counts drawn labels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu/pairs/sweep.h"
#include "cpu/samples/bins.h"
#include "cpu/state/exact_sums.h"

namespace kcalib {

// Edges ascend; a probability that is equal to an edge lies above it. Cell c of class k has the number k * n_cells + c, those
// of the largest probability follow.
struct LabelCells {
  const double *edges, *top_edges;  // n_cells - 1 and n_top_cells - 1
  int64_t n_cells, n_top_cells;     // powers of two
  double floor;                     // of probabilities whose logarithms are taken

  int64_t size(int64_t m) const { return m * n_cells + n_top_cells; }
  double log_score(double p) const { return std::log(std::max(p, floor)); }
  unsigned cell(double p) const { return find(edges, n_cells, p); }
  unsigned top_cell(double p) const { return find(top_edges, n_top_cells, p); }

  // The number of edges up to the value.
  static unsigned find(const double* edges, int64_t n_cells, double value) {
    unsigned below = 0;
    for (unsigned step = unsigned(n_cells) / 2; step; step /= 2) below += edges[below + step - 1] <= value ? step : 0;
    return below;
  }
};

// What labels that are drawn from the predictions add to.
struct DrawnCells {
  LabelCells cells;
  double* counts;           // draws x size: weights of labels in the cells of their classes, and of the most probable ones
  std::int64_t* fractions;  // draws x size: null, or what weights have beyond multiples of 2^-15, which `counts` has, in 2^-38
  ExactSums log_scores;     // draws: of logarithms of the labels' probabilities, times weights

  void add(int64_t at, double weight) const {
    const double coarse = fractions ? std::floor(weight * 0x1p15) * 0x1p-15 : weight;
    counts[at] += coarse;
    if (fractions) fractions[at] += std::int64_t((weight - coarse) * 0x1p38);
  }
};

// Sums over rows, with weights w. The smaller side s of a probability p is p below 1/2, else the sum of all others: it has
// the digits of 1 - p.
constexpr int64_t CELL_SUMS = 4, LOG_SUMS = 3;
struct LabelSums {
  ExactSums cells;  // size x CELL_SUMS: w, w if the label is the cell's, w s, w^2 s (1 - s)
  ExactSums logs;   // LOG_SUMS: w times the label's logarithm, its mean times w and its variance times w^2 under calibration
  std::int64_t* impossible;  // the first row whose label has the probability 0, if it is below what is there
};

// Returns false if `poll` stopped it. The same for any number of threads.
bool sum_label_cells(const Predictions& rows, const LabelCells& cells, const Run& run, const LabelSums& out);

}  // namespace kcalib
