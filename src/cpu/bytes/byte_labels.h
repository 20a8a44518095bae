// Sums of entries over pairs with equal labels, of up to 256 classes. byte_labels.cpp is compiled for machines that look
// bytes up in 64 others and add up products of bytes; TileTable points to its table where there is one. Called by sweep.cpp.
#pragma once

#include <cstdint>

namespace kcalib {

struct MatchBlock;

struct ByteLabels {
  static constexpr int64_t LABELS_AT_ONCE = 16, SAMPLES = 16;  // columns of a panel; samples of a group
  static constexpr int64_t MOST_PLANES = 8;                    // bits of a label

  // Bytes of a group of samples in a panel: the bits of their labels as columns, plane after plane, and the labels as rows.
  // A word of a plane has the bits of the samples 4 k.. of the group in the low half of byte k.
  static constexpr int64_t group_size(int64_t planes) { return (4 * planes + SAMPLES) * LABELS_AT_ONCE; }
  // Where the sums that blocks look up are written.
  static constexpr int64_t TABLES_SIZE = 8 * 12 * 3 * 64;

  // Writes the labels[i * stride + c] of n samples and `count` columns, zeros beyond both, to the groups of a panel.
  void (*pack)(const int* labels, int64_t n, int64_t stride, int64_t count, int64_t planes, unsigned char* panel);
  // Writes to out what `TileTable::matches` adds, the same to the bit, of such panels; a block's rows and columns begin at
  // multiples of 16, and are at most 192.
  void (*matches)(const int* units, int64_t stride, const MatchBlock& block, const unsigned char* const* panels, int64_t n_panels,
                  int64_t planes, double unit, unsigned char* tables, double* out);
};

}  // namespace kcalib
