// Passes over the samples, one each: what `_input.labels` asks of all values, and what `_packing` and
// `_pairs/backends/base.py` compute from each row. All are bound by memory, so none writes what it need not.
#pragma once

#include <cstdint>

namespace kcalib {

// Whether every row of p (n x m) is a distribution: no entry outside [0, 1] or NaN, the sum 1 within
// `tolerance`, in whichever order it is taken. A "no" says nothing of where, and may be caused by a
// sum within rounding of the tolerance. `out`, unless null, gets the rows as doubles.
template <class T> bool are_distributions(const T* p, int64_t n, int64_t m, double tolerance, int threads, double* out);

// Whether 0 <= p <= 1 + tolerance holds throughout. `out` (n x 2) gets the rows (1 - p, p).
template <class T> bool complete_pairs(const T* p, int64_t n, double tolerance, int threads, double* out);
bool are_probabilities(const double* p, int64_t n, double tolerance, int threads);  // without rows

// Whether every label is one of 0..m-1. `out` gets them as integers, 0 in place of others: labels are used as indices, and
// another thread or process may write into those of the caller.
template <class T> bool are_classes(const T* labels, int64_t n, int64_t m, int threads, std::int64_t* out);

// out = onehot(labels) - p, taken in double and then rounded; `points`, unless null, gets p rounded.
template <class T>
void residuals(const double* p, const std::int64_t* labels, int64_t n, int64_t m, int threads, T* points, T* out);

// out[i] = |v_i|^2, in double.
template <class T> void square_norms(const T* v, int64_t n, int64_t m, int threads, double* out);

}  // namespace kcalib
