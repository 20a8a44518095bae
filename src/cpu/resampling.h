// Matrices of resampling weights, by all threads.
#pragma once

#include "sweep.h"

namespace kcalib {

// out[i * n_replicates + b] = weight of row i in replicate first_replicate + b (kcalib/resampling.h);
// out is (n x n_replicates). The same for any number of threads; false if `poll` stopped it.
template <class T>
bool fill_weights(WeightKind kind, Word seed, Word first_replicate, long n_replicates, long n, T* out, const Run& run);

// Weights that are whole numbers, in panels of `ByteForms`: replicate first_replicate + 16 p + c is column c of the p-th,
// which begins at out[p * 16 * ByteForms::panel_rows(n)]; zeros beyond the last replicate and row.
// With a vector (draws only; else null) products[b] are those of `count_products`, to the bit.
bool fill_bytes(WeightKind kind, Word seed, Word first_replicate, long n_replicates, long n, signed char* out,
                const double* vector, double* products, const Run& run);

// out[b] = the sum over the rows of vector[row] times how often replicate first_replicate + b of MULTINOMIAL draws it.
bool count_products(Word seed, Word first_replicate, long n_replicates, long n, const double* vector, double* out,
                    const Run& run);

}  // namespace kcalib
