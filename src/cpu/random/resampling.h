// Matrices of resampling weights, by all threads.
#pragma once

#include <cstdint>

#include "cpu/pairs/sweep.h"

namespace kcalib {

// out[i * n_replicates + b] = weight of row i in replicate first_replicate + b (kcalib/resampling.h);
// out is (n x n_replicates). The same for any number of threads; false if `poll` stopped it.
template <class T>
bool fill_weights(WeightKind kind, Word seed, Word first_replicate, int64_t n_replicates, int64_t n, T* out, const Run& run);

// Weights that are whole numbers, in panels of `ByteForms`: replicate first_replicate + 16 p + c is column c of the p-th,
// which begins at out[p * 16 * ByteForms::panel_rows(n)]; zeros beyond the last replicate and row. Row i of a panel has the
// weights of row order[i] (null: i).
bool fill_bytes(WeightKind kind, Word seed, Word first_replicate, int64_t n_replicates, int64_t n, const std::int64_t* order,
                signed char* out, const Run& run);
// `count_products` of the draws in such panels, to the bit.
void panel_products(const signed char* panels, int64_t n_replicates, int64_t n, const std::int64_t* order, const double* vector,
                    double* out, const Run& run);

// out[b] = the sum over the rows of vector[row] times how often replicate first_replicate + b of MULTINOMIAL draws it.
bool count_products(Word seed, Word first_replicate, int64_t n_replicates, int64_t n, const double* vector, double* out,
                    const Run& run);

}  // namespace kcalib
