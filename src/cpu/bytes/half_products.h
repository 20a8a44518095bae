// Products of blocks of float32 entries with many vectors, by those of bfloat16 on tile registers. half_products.cpp is
// compiled for machines with AMX; TileTable points to its table where there is one. Called by products.cpp.
#pragma once

#include <cstdint>

namespace kcalib {

template <class T> struct BlockProduct;

struct HalfProducts {
  static constexpr int64_t FEWEST = 32;  // vectors that are worth it
  static constexpr int64_t PIECES = 3;   // bfloat16 numbers, of 8 bits each, whose sum is a float32
  static constexpr int64_t VECTORS = 16, SAMPLES = 32;  // of a tile register

  // Numbers that a block's vectors take, of `length` samples each, and both orders of a block's entries.
  static constexpr int64_t vectors_size(int64_t length, int64_t n_vectors) {
    return PIECES * ((n_vectors + VECTORS - 1) / VECTORS * VECTORS) * length;
  }
  static constexpr int64_t entries_size(int64_t block) {
    const int64_t padded = (block + SAMPLES - 1) / SAMPLES * SAMPLES;
    return 2 * PIECES * padded * padded;
  }

  // The pieces of a block's vectors, piece after piece, vector after vector. False if they are not all finite.
  bool (*split)(const float* vectors, int64_t length, int64_t n_vectors, unsigned short* pieces);
  // `TileFunctions::multiply` with the pieces of the vectors (of_rows may be null); products without the terms below 2^-24 of
  // the largest, added up in float32. False, and nothing is added, where entries are too small for three pieces, or not finite.
  bool (*multiply)(const BlockProduct<float>& block, const unsigned short* of_columns, const unsigned short* of_rows,
                   unsigned short* entries);
};

}  // namespace kcalib
