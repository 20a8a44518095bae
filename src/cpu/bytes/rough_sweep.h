// Products of a symmetric problem's H, without its diagonal, with vectors, of `RoughProducts`: for what settles a p-value.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/simd/aligned.h"
#include "cpu/pairs/sweep.h"

namespace kcalib {

// No entry is larger than `largest` in size; `with_signs`: some are below 0.
struct EntryRange {
  double largest;
  bool with_signs;
};

// Rounded entries of one H, half a byte a pair where that is not much, of which products are taken without a problem.
struct RoughEntries {
  std::unique_ptr<AlignedBuffer<unsigned char>> bytes;  // of all pairs of blocks i <= j, row by row; null: not yet there
  EntryRange range;
  int64_t n, block;               // samples, those of a block
  std::vector<int64_t> order;  // of the samples, see `Side`; empty: as they are

  bool are_there() const { return bytes != nullptr; }
};

enum class RoughResult { DONE, STOPPED, NOT_IN_BYTES };

// out = H vectors, both row-major, n_vectors to a row, whose squares sum to `spread` times those of their largest numbers.
// NOT_IN_BYTES, and `out` has no meaning, where the machine has no products of bytes, or they have no room for the numbers.
// Keeps the entries where they are not many.
template <class T>
RoughResult rough_products(const PairProblem<T>& problem, const Run& run, const EntryRange& range, const double* vectors,
                           int64_t n_vectors, double spread, RoughEntries& entries, double* out);
// The same with entries that are there.
RoughResult rough_products(const RoughEntries& entries, const Run& run, const double* vectors, int64_t n_vectors, double spread,
                           double* out);

// `moments` with rows and squares of a symmetric problem that is `expecting`, and by the same sweep entries to keep, unless the
// machine has no products of bytes, these are many, or have no room. False if stopped.
bool moments_and_rough_entries(const PairProblem<double>& problem, const Run& run, const EntryRange& range, RoughEntries& entries,
                               double* total, double* row_sums, double* squares, double* expected);

}  // namespace kcalib
