// Sums over the samples of random features, made tile by tile and never stored.
//
// Called by _native.pyx with the GIL released. Rows are cut in a way that depends on their number alone, and each sum is
// added up in one order: the answer is the same bit for bit for any number of threads. Loops that depend on the
// instruction set are in feature_kernels.cpp.
#pragma once

#include <cstdint>

#include "cpu/samples/label_cells.h"
#include "cpu/state/exact_sums.h"
#include "kcalib/philox.h"
#include "cpu/pairs/sweep.h"

namespace kcalib {

// phi(x) has the columns amplitude_f prod_l (<x, projection_lf> + offset_lf) cos <w_f, x>, and behind them the same with
// sines. Row-major: frequencies (F x d), projections (L x F x d), offsets (L x F).
struct FeatureMap {
  const double *frequencies, *amplitudes, *projections, *offsets;
  int64_t n_frequencies, n_coordinates, n_factors;
};

// Each returns false if `poll` stopped it; the results are then incomplete.

// sums (2F x rank) = sum_i phi(x_i) (x) a_i, and own (F) = sum_i |a_i|^2 times the squares of a frequency's two columns.
template <class T>
bool sum_products(const FeatureMap& map, const T* points, const T* target_features, int64_t n, int64_t rank, const Run& run, double* sums,
               double* own);

// forms (n) = <phi(x_i) (x) a_i, sums>, own (n) = |phi(x_i)|^2 |a_i|^2.
template <class T>
bool row_forms(const FeatureMap& map, const T* points, const T* target_features, int64_t n, int64_t rank, const double* sums,
               const Run& run, double* forms, double* own);

// out (n x 2F) = phi(x_i).
template <class T> bool feature_rows(const FeatureMap& map, const T* points, int64_t n, const Run& run, double* out);

// out[part] (w x w, w = 2F + n_columns) = sum_i z_i (x) z_i with z_i = (phi(x_i), columns_i), of parts of `part_rows` rows,
// fewer in the last one.
bool gram_parts(const FeatureMap& map, const double* points, const double* columns, int64_t n, int64_t n_columns, int64_t part_rows,
                const Run& run, double* out);

// Predictions, rows of m probabilities, that labels are drawn from: label i of draw r by number i of NumPy's Philox
// generator with the key (seed, r). The target kernel is the matrix R R^T: root (m x rank), null for the identity.
struct DrawnLabels {
  const double* probabilities;
  int64_t n, m;
  const double* root;
  int64_t rank;
  Word seed, first;  // number of the first draw
  int64_t n_draws;
  Word first_row;  // labels are those of the rows from this number on, a multiple of 4
  const DrawnCells* cells = nullptr;  // count labels in these, too
  const double* weights = nullptr;  // of the rows: of features, and of what is counted; null for 1
};

// out[b] = |S R|^2 - sum_i w_i^2 |phi(x_i)|^2 |R^T e_i|^2 with S = sum_i w_i phi(x_i) (x) e_i and e_i = onehot(label) - p_i.
template <class T>
bool drawn_label_totals(const FeatureMap& map, const T* points, const DrawnLabels& labels, const Run& run, double* out);

// Sums in fixed point: of phi (x) base and phi (x) (e - base), of |phi|^2 |R^T base|^2 and of what |phi|^2 |R^T e|^2 is
// more, where the base of a row is what all draws share (drawn_features.cpp).
struct DrawnSums {
  ExactSums base;         // 2F x m
  ExactSums base_own;     // 1
  ExactSums changes;      // draws x 2F x m
  ExactSums changes_own;  // draws
};

// Adds blocks of `labels.n` rows each, whose first rows have these numbers; points are the probabilities.
bool drawn_block_sums(const FeatureMap& map, DrawnLabels labels, const std::int64_t* first_rows, int64_t n_blocks,
                      const Run& run, const DrawnSums& out);

}  // namespace kcalib
