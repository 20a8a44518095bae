// Matrices of resampling weights, by all threads.
#pragma once

#include <cstdint>

#include "cpu/pairs/sweep.h"

namespace kcalib {

// out[i * n_replicates + b] = weight of row i in replicate first_replicate + b (kcalib/resampling.h);
// out is (n x n_replicates). The same for any number of threads; false if `poll` stopped it.
template <class T>
bool fill_weights(WeightKind kind, Word seed, Word first_replicate, int64_t n_replicates, int64_t n, T* out, const Run& run);

// out[b] = the sum over the rows of vector[row] times how often replicate first_replicate + b of MULTINOMIAL draws it.
bool count_products(Word seed, Word first_replicate, int64_t n_replicates, int64_t n, const double* vector, double* out,
                    const Run& run);

}  // namespace kcalib
