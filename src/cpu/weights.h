// A rectangle of resampling weights, rows x replicates, on one thread. weights.cpp is
// compiled once per instruction set and fills one table for each; TileTable points to
// it. Called by resampling.cpp.
#pragma once

#include "kcalib/resampling.h"

namespace kcalib {

// Replicates [first, first + n) of rows [row_begin, row_end); row_begin a multiple of BLOCK.
struct Rectangle {
  static constexpr long BLOCK = 128;  // rows whose signs are one pair of words
  Word seed, first;
  long n, row_begin, row_end;
};

template <class T> struct WeightFunctions {
  // out[(row - row_begin) * stride + replicate - first] = weight.
  void (*rademacher)(const Rectangle& rectangle, T* out, long stride);
  void (*gaussian)(const Rectangle& rectangle, T* out, long stride);
  // out[i * stride + r] = counts[r * n_rows + i] for r < n <= GROUP.
  void (*transpose)(const unsigned char* counts, long n_rows, int n, T* out, long stride);
};

constexpr int GROUP = 8;

struct WeightTable {
  WeightFunctions<double> float64;
  WeightFunctions<float> float32;
  // Adds draws 2 * pair_begin ... 2 * pair_end - 1 of one replicate (those below n) to counts[n]. A row
  // that is drawn 256 times, with probability below 1/256!, would wrap.
  void (*draw)(Word seed, Word replicate, long pair_begin, long pair_end, long n, unsigned char* counts);
  // Signs of rows [128 * pair, 128 * pair + 128) in at most 512 replicates: bit b of out[row][word] is that of
  // replicate first + 8 b + word. A row is a cache line; see line_kernels.cpp.
  void (*sign_lines)(Word seed, Word first, int n_replicates, long pair, Word (*out)[8]);
};

}  // namespace kcalib
