// Matrices of bits, a lane of a pack each. Included once per instruction set, as pack.h is.
#pragma once

#include "kcalib/resampling.h"
#include "pack.h"

namespace kcalib {
namespace {

using WordPack = Word __attribute__((vector_size(PACK_BYTES)));

// Bit i of word j becomes bit j of word i, in every lane.
KCALIB_FN void transpose_bits(WordPack* words) {
  Word mask = ~Word(0);
  for (int half = 32; half > 0; half /= 2) {
    mask ^= mask << half;  // bits whose number has no `half` in it
    for (int block = 0; block < 64; block += 2 * half)
      for (int j = block; j < block + half; ++j) {
        const WordPack swapped = ((words[j] >> half) ^ words[j + half]) & mask;
        words[j + half] ^= swapped;
        words[j] ^= swapped << half;
      }
  }
}

}  // namespace
}  // namespace kcalib
