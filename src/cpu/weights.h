// A rectangle of resampling weights, rows x replicates, on one thread. weights.cpp is
// compiled once per instruction set and fills one table for each; TileTable points to
// it. Called by resampling.cpp.
#pragma once

#include "kcalib/resampling.h"

namespace kcalib {

// Replicates [first, first + n) of rows [row_begin, row_end): at most MOST_ROWS, whose signs are one pair
// of words, from a multiple of it on, and at most MOST_REPLICATES, whose words stay in the L1 cache.
struct Rectangle {
  static constexpr long MOST_ROWS = 128, MOST_REPLICATES = 512;
  Word seed, first;
  long n, row_begin, row_end;
};

template <class T> struct WeightFunctions {
  // out[(row - row_begin) * stride + replicate - first] = weight.
  void (*rademacher)(const Rectangle& rectangle, T* out, long stride);
  void (*gaussian)(const Rectangle& rectangle, T* out, long stride);
};

struct WeightTable {
  WeightFunctions<double> float64;
  WeightFunctions<float> float32;
  // Adds draws [begin, end) of one replicate to counts[n]; begin even. A row that is drawn 256 times, with
  // probability below 1/256!, would wrap.
  void (*draw)(Word seed, Word replicate, long begin, long end, long n, unsigned char* counts);
  // Signs of rows [128 * pair, 128 * pair + 128) in at most 512 replicates: bit b of out[row][word] is that of
  // replicate first + 8 b + word. A row is a cache line; see line_kernels.cpp.
  void (*sign_lines)(Word seed, Word first, int n_replicates, long pair, Word (*out)[8]);
};

}  // namespace kcalib
