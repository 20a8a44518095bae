// What a register tile (tile.cpp) asks about signed measures, as a table of functions: mixture_kernels.cpp is compiled
// once per instruction set, as tile.cpp is.
#pragma once

#include "kcalib/mixtures.h"

namespace kcalib {

// rows[r] and columns point to the first columns of rows and of a panel; column k is k * width further. Numbers of
// pairs are written as the register tile lies: row after row, a panel's lanes.
template <class T> struct MixtureFunctions {
  void (*targets)(const Mixtures& mixtures, const T* const* rows, const T* columns, T* out);
  void (*products)(const Mixtures& mixtures, const T* const* rows, const T* columns, T* out);  // of points
  void (*squared_mmd)(const Mixtures& mixtures, const T* const* rows, const T* columns, T* out);
};

struct MixtureTable {
  MixtureFunctions<double> float64;
  MixtureFunctions<float> float32;
};

}  // namespace kcalib
