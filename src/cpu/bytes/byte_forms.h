// Quadratic forms of whole-number weights, a byte each. byte_forms.cpp is compiled for machines with AMX, byte_dots.cpp for
// those with AVX512_VNNI; TileTable points to one of their tables where there is one. Called by sweep.cpp.
#pragma once

#include <cstdint>

namespace kcalib {

struct ByteForms {
  static constexpr int64_t WEIGHTS_AT_ONCE = 16;
  static constexpr int64_t ROWS = 16, COLUMNS = 64, PIECES = 4;  // of a tile register, and bytes of an entry in them

  // Bytes that the entries of a block take.
  static constexpr int64_t tiles_size(int64_t rows, int64_t columns) {
    return (rows + ROWS - 1) / ROWS * ((columns + COLUMNS - 1) / COLUMNS) * PIECES * ROWS * COLUMNS;
  }
  // Rows of a panel, of which the last ones are read beside zeros: four of them in the bytes of a 32-bit word, and words
  // of the panel's 16 replicates one after the other.
  static constexpr int64_t panel_rows(int64_t n) { return ((n + 2 * COLUMNS - 1) / COLUMNS | 1) * COLUMNS; }

  // Adds sum_ij w[i][c] h[i * stride + j] w[j][c] to out[p * WEIGHTS_AT_ONCE + c] for the columns c of every panel
  // w = panels[p]; the rows of h are those from row_begin on, its columns alike: both multiples of 4, and at most 192
  // of each. `triangle` says that there are as many rows as columns, and h is 0 for j < i: VNNI leaves most of these out.
  // With AMX entries are rounded to multiples of 2^-30 of a power of two above the largest, and their sums have no
  // rounding before they are multiplied with weights of rows, in float64. With VNNI they are rounded to multiples of
  // 1 / 6451200 of the largest of 16 rows, up or down such that equal ones are right on average, and their sums have no
  // rounding before the sum of 16 rows.
  void (*quadratic)(const double* h, int64_t stride, int64_t row_begin, int64_t rows, int64_t column_begin, int64_t columns, bool triangle,
                    const signed char* const* panels, int64_t n_panels, unsigned char* tiles, double* out);
};

}  // namespace kcalib
