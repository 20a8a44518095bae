// Isotonic regressions of samples and one more, for Venn-Abers predictors (kcalib/recalibration/venn_abers.py).
#pragma once

#include <cstdint>

namespace kcalib {

// values[i] for each of k ascending points: the isotonic regression there if one more sample with the weight 1 lies there
// and is of the class; `weight` and `hits` are sums over the samples at each point, and of those of the class.
void isotonic_with_hit(const double* weight, const double* hits, std::int64_t k, double* values);

}  // namespace kcalib
