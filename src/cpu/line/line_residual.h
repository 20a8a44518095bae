// The residual of a binary sample. Included by line.cpp and, once per instruction set, by line_kernels.cpp.
#pragma once

#include <cstdint>

#include "kcalib/math.h"

namespace kcalib {
namespace {

constexpr double MOST_FINITE = 1.7976931348623157e308 / 4;

// Numbers that have been checked may be written by another thread since. What is sorted, merged or searched for has no
// NaN and no infinity, which mark the ends of lists, and differences do not overflow.
KCALIB_FN double contained(double x) { return x > MOST_FINITE ? MOST_FINITE : x < -MOST_FINITE ? -MOST_FINITE : x == x ? x : 0.0; }

// (-r, r) on the line.
struct Residual {
  KCALIB_FN Residual(const double* point, int64_t label) : other(contained(point[1 - label])), rest(1 - contained(point[label])) {}
  KCALIB_FN double size() const { return 0.5 * (other + rest); }
  KCALIB_FN double off_line() const { return 0.5 * __builtin_fabs(other - rest); }
  KCALIB_FN double square_norm() const { return other * other + rest * rest; }
  double other, rest;
};

}  // namespace
}  // namespace kcalib
