// Rows of eight numbers and more, eight at a time. Included by rows.cpp and bins.cpp, whose functions are compiled for
// several instruction sets: what is here becomes part of them.
#pragma once

#include <cstdint>
#include <type_traits>

// No pack is passed to a function that is called: how it would be is of no concern.
#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define KCALIB_PART __attribute__((always_inline)) inline

namespace kcalib {

constexpr long WIDTH = 8;  // of a pack, which takes one register or several
using Doubles = double __attribute__((vector_size(64)));
using Floats = float __attribute__((vector_size(32)));
using Integers = std::int64_t __attribute__((vector_size(64)));
template <class T> using Pack = std::conditional_t<std::is_same_v<T, double>, Doubles, Floats>;

template <class T> KCALIB_PART Pack<T> pack_at(const T* x) {
  Pack<T> pack;
  __builtin_memcpy(&pack, x, sizeof pack);
  return pack;
}

// The last pack of a row begins at m - WIDTH and has entries of the one before: 0 for these, 1 for the others.
KCALIB_PART Doubles rest_of(long m) {
  Doubles rest;
  for (long l = 0; l < WIDTH; ++l) rest[l] = m - WIDTH + l >= m / WIDTH * WIDTH;
  return rest;
}

// merge(a, b) of all numbers, in an order that is always the same.
template <class P, class Merge> KCALIB_PART auto merged(P pack, Merge merge) {
  pack = merge(pack, __builtin_shufflevector(pack, pack, 4, 5, 6, 7, 0, 1, 2, 3));
  pack = merge(pack, __builtin_shufflevector(pack, pack, 2, 3, 0, 1, 6, 7, 4, 5));
  pack = merge(pack, __builtin_shufflevector(pack, pack, 1, 0, 3, 2, 5, 4, 7, 6));
  return pack[0];
}
KCALIB_PART double total_of(Doubles pack) {
  return merged(pack, [](Doubles a, Doubles b) __attribute__((always_inline)) { return a + b; });
}
KCALIB_PART double highest_of(Doubles pack) {
  return merged(pack, [](Doubles a, Doubles b) __attribute__((always_inline)) { return a > b ? a : b; });
}
KCALIB_PART std::int64_t lowest_of(Integers pack) {
  return merged(pack, [](Integers a, Integers b) __attribute__((always_inline)) { return a < b ? a : b; });
}

}  // namespace kcalib
