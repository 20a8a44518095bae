// Products of blocks of float32 entries, none below 0, with many vectors, all rounded to bytes: for what settles a p-value.
// rough_products.cpp is compiled for machines with AVX512_VNNI; TileTable points to its table on the levels that have it.
// Called by products.cpp.
#pragma once

namespace kcalib {

template <class T> struct BlockProduct;

// Numbers are multiples of a 254th of the largest of their block (of vectors: a 126th of that of each), rounded up or down at
// random, by a hash of where they are, with the number itself as mean: rounded to the nearest, equal entries (of equal
// predictions) would all be off by the same, and eigenvalues too. Of random signs the errors of n entries shrink by sqrt(n).
struct RoughProducts {
  static constexpr long FEWEST = 32;   // vectors that are worth it
  static constexpr long SAMPLES = 64;  // to a multiple of which vectors and blocks are filled up

  // Bytes that a block's vectors take, of `length` samples each, with their units; and both orders of a block's entries.
  static constexpr long vectors_size(long length, long n_vectors) {
    return n_vectors * length + (n_vectors * long(sizeof(float)) + SAMPLES - 1) / SAMPLES * SAMPLES;
  }
  static constexpr long entries_size(long block) {
    const long padded = (block + SAMPLES - 1) / SAMPLES * SAMPLES;
    return 2 * padded * padded;
  }

  // A block's vectors, rounded, vector after vector, and their units. False if they are not all finite.
  bool (*round)(const float* vectors, long length, long n_vectors, unsigned seed, unsigned char* out);
  // `TileFunctions::multiply` with rounded vectors (of_rows may be null). False, and nothing is added, where entries are
  // below 0, tiny, huge or not finite.
  bool (*multiply)(const BlockProduct<float>& block, const unsigned char* of_columns, const unsigned char* of_rows, unsigned seed,
                   unsigned char* entries);
};

}  // namespace kcalib
