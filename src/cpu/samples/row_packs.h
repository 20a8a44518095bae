// Rows that are as long as a pack or longer, a pack of numbers at a time. Included by rows.cpp and bins.cpp, which compile
// their functions for several instruction sets, with packs as wide as a register of each: GCC makes comparisons of wider
// ones a number at a time.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cpu/simd/clones.h"

// No pack is passed to a function that is called: how it would be is of no concern.
#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define KCALIB_PART __attribute__((always_inline)) inline

// KCALIB_FOR_EACH_WIDTH(name, (parameters), (arguments)): bool name(parameters) that returns name_of<WIDTH>(arguments).
#ifdef KCALIB_CLONES_BY_HAND
#define KCALIB_FOR_EACH_WIDTH(NAME, PARAMETERS, ARGUMENTS)                                              \
  __attribute__((target("arch=x86-64-v4"))) bool NAME PARAMETERS { return NAME##_of<8> ARGUMENTS; }     \
  __attribute__((target("arch=x86-64-v3"))) bool NAME PARAMETERS { return NAME##_of<4> ARGUMENTS; }     \
  __attribute__((target("default"))) bool NAME PARAMETERS { return NAME##_of<2> ARGUMENTS; }
#else
#define KCALIB_FOR_EACH_WIDTH(NAME, PARAMETERS, ARGUMENTS) bool NAME PARAMETERS { return NAME##_of<2> ARGUMENTS; }
#endif

namespace kcalib {

constexpr int64_t LONG_ROW = 8;  // numbers, which the widest pack has, too

template <int64_t WIDTH> struct Packs;
#define KCALIB_PACKS(WIDTH)                                                        \
  template <> struct Packs<WIDTH> {                                                \
    using Doubles = double __attribute__((vector_size(WIDTH * 8)));                \
    using Floats = float __attribute__((vector_size(WIDTH * 4)));                  \
    using Integers = std::int64_t __attribute__((vector_size(WIDTH * 8)));         \
  };
KCALIB_PACKS(2)
KCALIB_PACKS(4)
KCALIB_PACKS(8)
#undef KCALIB_PACKS

template <int64_t WIDTH> using Doubles = typename Packs<WIDTH>::Doubles;
template <int64_t WIDTH> using Integers = typename Packs<WIDTH>::Integers;
template <int64_t WIDTH, class T>
using Pack = std::conditional_t<std::is_same_v<T, double>, Doubles<WIDTH>, typename Packs<WIDTH>::Floats>;

template <int64_t WIDTH, class T> KCALIB_PART Pack<WIDTH, T> pack_at(const T* x) {
  Pack<WIDTH, T> pack;
  __builtin_memcpy(&pack, x, sizeof pack);
  return pack;
}

// The last pack of a row begins at m - WIDTH and has entries of the one before: 0 for these, 1 for the others.
template <int64_t WIDTH> KCALIB_PART Doubles<WIDTH> rest_of(int64_t m) {
  Doubles<WIDTH> rest;
  for (int64_t l = 0; l < WIDTH; ++l) rest[l] = m - WIDTH + l >= m / WIDTH * WIDTH;
  return rest;
}

// merge(a, b) of all numbers, in an order that is always the same.
template <int64_t WIDTH, class P, class Merge> KCALIB_PART auto merged(P pack, Merge merge) {
  if constexpr (WIDTH == 8) {
    pack = merge(pack, __builtin_shufflevector(pack, pack, 4, 5, 6, 7, 0, 1, 2, 3));
    pack = merge(pack, __builtin_shufflevector(pack, pack, 2, 3, 0, 1, 6, 7, 4, 5));
    pack = merge(pack, __builtin_shufflevector(pack, pack, 1, 0, 3, 2, 5, 4, 7, 6));
  } else if constexpr (WIDTH == 4) {
    pack = merge(pack, __builtin_shufflevector(pack, pack, 2, 3, 0, 1));
    pack = merge(pack, __builtin_shufflevector(pack, pack, 1, 0, 3, 2));
  } else {
    pack = merge(pack, __builtin_shufflevector(pack, pack, 1, 0));
  }
  return pack[0];
}
template <int64_t WIDTH> KCALIB_PART double total_of(Doubles<WIDTH> pack) {
  return merged<WIDTH>(pack, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}
template <int64_t WIDTH> KCALIB_PART double highest_of(Doubles<WIDTH> pack) {
  return merged<WIDTH>(pack, [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; });
}
template <int64_t WIDTH> KCALIB_PART std::int64_t lowest_of(Integers<WIDTH> pack) {
  return merged<WIDTH>(pack, [](auto a, auto b) __attribute__((always_inline)) { return a < b ? a : b; });
}

}  // namespace kcalib
