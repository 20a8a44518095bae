// The words of numpy.random.Philox.
//
// NumPy's generator is Philox4x64-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011):
// word w of its stream is word w mod 4 of the block whose counter is w / 4 + 1, so that every thread has its number
// without those before it. Callers: cpu/features/feature_kernels.cpp, cpu/random/weights.cpp (packs of blocks), cuda/philox.cu.
#pragma once

#include "kcalib/math.h"

namespace kcalib {

using Word = unsigned long long;

namespace {

// The upper 64 bits of a * b.
KCALIB_FN Word upper_product(Word a, Word b) {
#ifdef __SIZEOF_INT128__
  __extension__ using Wide = unsigned __int128;
  return Word((Wide(a) * b) >> 64);
#else
  const Word a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
  const Word low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (middle & 0xffffffff);
  return a1 * b1 + (middle >> 32) + (other >> 32);
#endif
}

// Both halves of a * b.
template <class W> struct WideProduct {
  KCALIB_FN WideProduct(W a, Word b) : low(a * b), high(upper_product(a, b)) {}
  W low, high;
};

// The four words of a block, from 0 on, of the generator with the key (key0, key1).
template <class W> KCALIB_FN void numpy_words(Word key0, Word key1, W block, W* c) {
  c[0] = block + 1;
  c[1] = c[2] = c[3] = W{};
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const auto [low0, high0] = WideProduct<W>(c[0], 0xD2E7470EE14C6C93ull);
    const auto [low1, high1] = WideProduct<W>(c[2], 0xCA5A826395121157ull);
    c[0] = high1 ^ c[1] ^ key0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ key1;
    c[3] = low0;
    key0 += 0x9E3779B97F4A7C15ull;
    key1 += 0xBB67AE8584CAA73Bull;
  }
}

// The double in [0, 1) that NumPy makes of a word.
KCALIB_FN double unit_real(Word word) { return double((long long)(word >> 11)) * 0x1p-53; }

}  // namespace
}  // namespace kcalib
