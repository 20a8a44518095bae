// Passes over predictions for binned calibration errors: top labels, sums in bins of equal width, bins of whole rows
// on the simplex (cells.cpp), and median-variance bins (median_variance.cpp). Called by kcalib/estimators/binning.py through _native.
//
// Sums are made of parts of the samples whose size depends on the sizes of the arrays alone, and merged in
// order: results have the same bits for any number of threads.
#pragma once

#include <cstdint>

namespace kcalib {

// n predictions of m classes, row-major, entries from 0 to 1 but for rounding, with a label each; `weight` may be null.
struct Predictions {
  const double* p;
  const std::int64_t* labels;
  const double* weight;
  int64_t n, m;
};

// confidence[i] = largest entry of row i; correct[i] = whether the first entry of that size is the label's, 1 or 0.
void top_labels(const Predictions& data, int threads, double* confidence, double* correct);

// For each column j and bin b of `n_bins` of equal width, (edge b, edge b + 1] with 0 in the first, at j * n_bins + b
// of three arrays (m x n_bins) in a row: sums of the weighted entries; of weights; of the weights of samples whose
// label is j. Labels that are no column count nowhere. Edges are those of kcalib.estimators.binning.bin_edges.
void uniform_bins(const Predictions& data, int64_t n_bins, int threads, double* sums);

// out[i] = the bin of x[i], one of those above.
void find_bins(const double* x, int64_t count, double n_bins, std::int32_t* out);

enum class GapNorm { CITYBLOCK, EUCLIDEAN };

// group[i] = number of the product of uniform bins that row i is in, counted from 0 in the order of first rows; returns
// how many products hold samples. Rows are compared by 128 bits of a hash of their bins; there are less than 2^31. Of each:
// weight[g] = its sum of weights (samples), gap[g] = norm of the difference between its mean prediction and its mean one-hot
// label; 0 where the weight is 0. Both have room for n numbers.
int64_t uniform_cells(const Predictions& data, int64_t n_bins, GapNorm norm, int threads, std::int64_t* group, double* weight,
                   double* gap);

// group[i] of at most `max_bins` median-variance bins of at least `min_size` samples: the bin in which some entry has
// the largest variance is split into values below the median of that entry and others, if both have the size, else into
// values up to the median and others, else by the entry of the next variance. A bin that no entry splits is left as it is.
// Bins are counted in the order of their first rows; `weight` is how many rows each has, `gap` is that of `uniform_cells`.
// Returns how many there are: `max_bins` and n / min_size at most, or one.
int64_t median_variance_cells(const Predictions& data, int64_t max_bins, int64_t min_size, GapNorm norm, int threads,
                           std::int64_t* group, double* weight, double* gap);

}  // namespace kcalib
