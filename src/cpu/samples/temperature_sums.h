// Sums over predictions p and their images p^t / sum p^t under maps of the temperature. Called by
// kcalib/_pairs/label_cells.py through _native.
#pragma once

#include <cstdint>

#include "cpu/pairs/sweep.h"
#include "cpu/samples/bins.h"
#include "cpu/state/exact_sums.h"

namespace kcalib {

// With l = log p, not below log(floor), theta = t - 1, the total variation TV between p and its image q, and the classes
// that q raises, whose probability is P and of which the label's is or is not one, sums over the rows of
// log(sum_k p_k exp(theta l_k)) - theta sum_k p_k l_k; x = TV (1 or 0 - P); x^2; TV^2 P (1 - P); TV^2.
constexpr int64_t TEMPERATURE_SUMS = 5, N_EXPONENTS = 14;
// t; those of kcalib/_pairs/label_cells.py.
constexpr double EXPONENTS[N_EXPONENTS] = {1. / 8,   1. / 4,   1. / 2,  3. / 4, 7. / 8, 15. / 16, 31. / 32,
                                           33. / 32, 17. / 16, 9. / 8, 5. / 4, 3. / 2, 2,        3};

// Adds to sums (N_EXPONENTS x TEMPERATURE_SUMS). Returns false if `poll` stopped it. The same for any number of threads.
bool sum_temperatures(const Predictions& rows, double floor, const Run& run, const ExactSums& sums);

}  // namespace kcalib
