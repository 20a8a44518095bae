// Labels drawn from rows of probabilities, many draws at a time, and sums of what a table has for them.
#pragma once

#include <cstdint>

#include "cpu/pairs/sweep.h"

namespace kcalib {

// out[i * n_draws + d] = label of row i in draw d, by number first + d * n + i of NumPy's Philox generator with this key:
// how many of the row's cumulative sums (n x m, never falling) are at most its share of the last. The same for any
// number of threads; false if `poll` stopped it.
bool draw_labels(const double* cumulative, int64_t n, int64_t m, Word key0, Word key1, Word first, int64_t n_draws, int* out,
                 const Run& run);

// What labels 0 and 1 of rows of two probabilities are drawn by: row i gets label 1 from the numbers, as integers of 53
// bits, that are at least out[i]. The same labels as those of `draw_labels`.
bool label_thresholds(const double* probabilities, int64_t n, const Run& run, Word* out);

// out[d] = sum_i table[i * m + labels[i * n_draws + d]], in the order of the rows.
void label_sums(const double* table, int64_t n, int64_t m, const int* labels, int64_t n_draws, double* out,
                const Run& run);

// out[d * width + j] = sum_i rows[i * width + j] (values[label * width + j] - values[likely[i] * width + j]), the label
// that of row i in draw d; width a multiple of 8. The same for any number of threads; false if `poll` stopped it.
bool changed_sums(const double* rows, int64_t n, int64_t width, const double* values, const int* likely, const int* labels,
                  int64_t n_draws, double* out, const Run& run);

}  // namespace kcalib
