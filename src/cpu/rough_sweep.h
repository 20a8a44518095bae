// Products of a symmetric problem's H, without its diagonal, with vectors, of `RoughProducts`: for what settles a p-value.
#pragma once

#include <memory>

#include "aligned.h"
#include "sweep.h"

namespace kcalib {

// Rounded entries of one H, which further products with it take as they are: half a byte a pair, where that is not much.
struct RoughEntries {
  std::unique_ptr<AlignedBuffer<unsigned char>> bytes;  // of all pairs of blocks i <= j, row by row; null: not yet there
};

struct RoughRange {
  double largest;     // no entry is larger in size
  bool with_signs;    // whether some are below 0
  double spread;      // least sum of squares of the vectors, in those of their largest numbers, with which errors are small
};

enum class RoughResult { DONE, STOPPED, NOT_IN_BYTES };

// out = H vectors, both row-major, n_vectors to a row. NOT_IN_BYTES, and `out` has no meaning, where the machine has no
// products of bytes, or they have no room for the numbers.
template <class T>
RoughResult rough_products(const PairProblem<T>& problem, const Run& run, const RoughRange& range, const double* vectors,
                           long n_vectors, RoughEntries& entries, double* out);

}  // namespace kcalib
