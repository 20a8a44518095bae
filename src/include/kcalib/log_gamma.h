// log Gamma, for the normalisers of Dirichlet densities: cpu/dirichlet/dirichlet_kernels.cpp and cuda/dirichlet.cu.
#pragma once

#include "kcalib/math.h"

namespace kcalib {
namespace {

// log Gamma(1 + x) for x >= 0, to within a few units of the last place of max(1, log Gamma): Stirling's series
// (NIST DLMF 5.11.1) at z = 1 + x, from z = 9 on with 7 terms, error 1e-16; below at z + 8, with
// Gamma(z + 8) = z (z + 1) ... (z + 7) Gamma(z).
template <class V> KCALIB_FN V log_gamma(V x) {
  const auto small = x < 8.0;
  V z = x + 1.0, product = z;
#pragma GCC unroll 7
  for (int i = 2; i <= 8; ++i) product *= x + double(i);
  product = small ? product : splat<V>(1.0);
  z = small ? z + 8.0 : z;
  const V y = 1.0 / z, y2 = y * y;
  V series = splat<V>(1.0 / 156);
  series = series * y2 - 691.0 / 360360;
  series = series * y2 + 1.0 / 1188;
  series = series * y2 - 1.0 / 1680;
  series = series * y2 + 1.0 / 1260;
  series = series * y2 - 1.0 / 360;
  series = series * y2 + 1.0 / 12;
  constexpr double half_log_2pi = 0.91893853320467274178;
  return (z - 0.5) * log(z) - z + (half_log_2pi + series * y) - log(product);
}

}  // namespace
}  // namespace kcalib
