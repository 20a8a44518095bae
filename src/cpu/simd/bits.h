// Matrices of bits, a lane of a pack each. Included once per instruction set, as pack.h is.
#pragma once

#include "kcalib/resampling.h"
#include "cpu/simd/pack.h"

namespace kcalib {
namespace {

using WordPack = Word __attribute__((vector_size(PACK_BYTES)));

// Bit i + HALF of word a and bit i of word b change places, for all i in whose number HALF has no part.
template <int HALF> KCALIB_FN void swap_bits(WordPack& a, WordPack& b) {
  constexpr Word mask = ~Word(0) / ((Word(1) << HALF) + 1);
  const WordPack swapped = ((a >> HALF) ^ b) & mask;
  b ^= swapped;
  a ^= swapped << HALF;
}

// Two rounds of the transposition, so that a word is loaded and stored once for both.
template <int HALF> KCALIB_FN void transpose_rounds(WordPack* words) {
  constexpr int QUARTER = HALF / 2;
  for (int block = 0; block < 64; block += 2 * HALF)
    for (int j = block; j < block + QUARTER; ++j) {
      WordPack a = words[j], b = words[j + QUARTER], c = words[j + HALF], d = words[j + HALF + QUARTER];
      swap_bits<HALF>(a, c);
      swap_bits<HALF>(b, d);
      swap_bits<QUARTER>(a, b);
      swap_bits<QUARTER>(c, d);
      words[j] = a, words[j + QUARTER] = b, words[j + HALF] = c, words[j + HALF + QUARTER] = d;
    }
}

// Bit i of word j becomes bit j of word i, in every lane.
KCALIB_FN void transpose_bits(WordPack* words) {
  transpose_rounds<32>(words);
  transpose_rounds<8>(words);
  transpose_rounds<2>(words);
}

}  // namespace
}  // namespace kcalib
