// What a register tile (tile.cpp) asks about signed measures, as a table of functions: mixture_kernels.cpp is compiled
// once per instruction set, as tile.cpp is.
#pragma once

#include "kcalib/mixtures.h"

namespace kcalib {

// rows[r] and columns point to the first columns of rows and of a panel; column k is k * width further. Numbers of
// pairs are written as the register tile lies: row after row, a panel's lanes.
template <class T> struct MixtureFunctions {
  void (*targets)(const Mixtures& mixtures, const T* const* rows, const T* columns, T* out);
  // The same of single normals on a line, and the kernel exp(-scale d): `powers` times `out` is the kernel times the targets.
  // False: not done.
  bool (*targets_and_decay)(const T* const* rows, const T* columns, const T* squared_distances, T scale, T* powers, T* out);
  void (*products)(const Mixtures& mixtures, const T* const* rows, const T* columns, T* out);  // of points
  void (*squared_mmd)(const Mixtures& mixtures, const T* const* rows, const T* columns, T* out);
};

struct MixtureTable {
  MixtureFunctions<double> float64;
  MixtureFunctions<float> float32;
};

namespace {
KCALIB_FN bool are_normals_on_a_line(const Mixtures& m) {
  return m.family == NORMAL && m.n_dims == 1 && m.n_components == 1 && m.n_terms == 1;
}
}  // namespace

}  // namespace kcalib
