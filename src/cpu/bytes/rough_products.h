// Products of float32 entries with vectors, both rounded to bytes: for what settles a p-value. rough_products.cpp is compiled
// for machines with AVX512_VNNI; TileTable points to its table on the levels that have it. Called by rough_sweep.cpp.
#pragma once

#include <cstdint>

namespace kcalib {

// Numbers are multiples of a unit, rounded up or down at random, by a hash of where they are, with the number itself as mean:
// rounded to the nearest, equal entries (of equal predictions) would all be off by the same, and eigenvalues too. Of random
// signs the errors of n entries shrink by sqrt(n). All entries have one unit, and each vector has one: products add up as
// whole numbers, in any order.
struct RoughProducts {
  static constexpr int64_t FEWEST = 8;    // vectors that are worth it
  static constexpr int64_t SAMPLES = 64;  // to a multiple of which blocks are filled up; the lanes of a strip
  static constexpr float ENTRIES = 254, SIGNED_ENTRIES = 126, NUMBERS = 126;  // the largest whole numbers
  static constexpr int ZERO = 128;     // what stands for 0 among entries with signs

  static constexpr int64_t padded(int64_t block) { return (block + SAMPLES - 1) / SAMPLES * SAMPLES; }
  // Bytes of a block's entries, whose words are four rows, with a lane for a column: 16 columns after the other, with all
  // their words, of which there are `length` / 4.
  static constexpr int64_t entries_size(int64_t length) { return length * length; }
  static constexpr int64_t columns_size(int64_t length) { return SAMPLES * length; }  // of a strip of columns

  // The largest sizes in the columns of rows that lie one after the other, and their sums of squares.
  void (*look_at)(const double* vectors, int64_t rows, int64_t n_vectors, double* most, double* squares);
  // Rows order[k] (null: k) of the vectors times `factors`, rounded: vector after vector, `length` bytes each, zeros beyond
  // the last row. And the sums of what each has become.
  void (*round)(const double* vectors, const int64_t* order, int64_t rows, int64_t n_vectors, const double* factors, int64_t length,
                unsigned seed, unsigned char* out, int* sums);
  // The entries h[(p * stride + row) * 64 + lane] of panels p, times `factor`. False where one has no byte.
  bool (*round_entries)(const float* h, int64_t stride, int64_t rows, int64_t columns, float factor, bool with_signs, int64_t length, unsigned seed,
                        unsigned char* out);
  // The entries of the 64 rows from `row` on as those of columns are: with a lane for a row.
  void (*turn)(const unsigned char* entries, int64_t row, int64_t columns, int64_t length, unsigned char* out);
  // sums[v * 64 + lane] += the product of vector v with the entries in a lane of a strip, over so many samples.
  void (*multiply)(const unsigned char* strip, int64_t samples, const unsigned char* vectors, int64_t n_vectors, int64_t length, int* sums);
  // out[order[k] * n_vectors + v] = factors[v] sums[v * 64 + k] + more[v] for k < rows; or, without `more`, that much more.
  void (*write)(const int* sums, const int64_t* order, int64_t rows, int64_t n_vectors, const double* factors, const double* more,
                double* out);
};

}  // namespace kcalib
