// A rectangle of resampling weights, rows x replicates, on one thread. weights.cpp is
// compiled once per instruction set and fills one table for each; TileTable points to
// it. Called by resampling.cpp.
#pragma once

#include <cstdint>

#include "kcalib/resampling.h"

namespace kcalib {

// Replicates [first, first + n) of rows [row_begin, row_end): at most MOST_ROWS from a multiple of it on, and at most
// MOST_REPLICATES.
struct Rectangle {
  static constexpr int64_t MOST_ROWS = 128, MOST_REPLICATES = 512;
  Word seed, first;
  int64_t n, row_begin, row_end;
};

// Labels 0 and 1 that are drawn: in draw d row i has label 1 if number d * n + i of NumPy's Philox generator with this
// key, an integer of 53 bits, is at least thresholds[i].
struct LabelDraws {
  const Word* thresholds;  // at most 2^53; shape: (n,)
  int64_t n;
  Word key0, key1;
};

template <class T> struct WeightFunctions {
  // out[(row - row_begin) * stride + replicate - first] = weight.
  void (*rademacher)(const Rectangle& rectangle, T* out, int64_t stride);
  void (*gaussian)(const Rectangle& rectangle, T* out, int64_t stride);
};

struct WeightTable {
  WeightFunctions<double> float64;
  WeightFunctions<float> float32;
  // Adds draws [begin, end) of one replicate to counts[n]; begin even. A row that is drawn 256 times, with
  // probability below 1/256!, would wrap.
  void (*draw)(Word seed, Word replicate, int64_t begin, int64_t end, int64_t n, unsigned char* counts);
  // Signs of n rows, whose numbers are given, in n_words <= 8 times 64 replicates: bit b of out[i][w] is that of replicate
  // first + 64 w + b, `first` a multiple of 64. What a row has is a cache line; see line_kernels.cpp.
  void (*sign_lines)(Word seed, Word first, int n_words, const std::int64_t* rows, int64_t n, Word (*out)[8]);
  // The same of labels, of rows [begin, end) in draws from `first` on. begin is a multiple of 64, out has whole 64s of rows.
  void (*label_lines)(const LabelDraws& labels, Word first, int n_draws, int64_t begin, int64_t end, Word (*out)[8]);
};

}  // namespace kcalib
