// Points with weights, P = delta_z, for any kernel l.
//
// Columns: w, z[d]. f(P, P') is the kernel at two places, so that the loops over them are those of the kernel's quantities:
// cpu/pairs/mixture_kernels.cpp, cuda/mixtures.cuh.
#pragma once

#include "kcalib/families/common.h"

namespace kcalib {
namespace {

struct Atoms : AnyFamily {
  KCALIB_FN static constexpr long long columns(long long d) { return 1 + d; }
  static constexpr bool OF_KERNEL = true;
};

}  // namespace
}  // namespace kcalib
