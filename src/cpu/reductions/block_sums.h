// Sums over consecutive blocks of samples.
#pragma once

#include "cpu/pairs/sweep.h"

namespace kcalib {

// out[b] = sum of H over the pairs i != j of the b-th of n / size consecutive blocks. It visits the blocks on the diagonal
// alone, by a sweep of its own. False if stopped.
bool sum_blocks(const AnyProblem& problem, const Run& run, int64_t size, double* out);

}  // namespace kcalib
