// What the thread-parallel sweep (sweep.cpp) asks of one block of pairs, as a
// table of functions. tile.cpp is compiled once per instruction set and fills one
// table for each; cpu_level.cpp picks the table the machine can run.
#pragma once

#include "kcalib/profiles.h"
#include "line_kernels.h"
#include "weights.h"

namespace kcalib {

// One side of a pair problem: row-major points (n x n_features) and marks (n x n_marks).
// With `labels` (else null; both sides or neither) the marks are the residuals
// onehot(labels) - points, and distances are had from them; for Euclidean kernels only.
template <class T> struct Side {
  const T* points;
  long n_features;
  const T* marks;
  long n_marks;
  const int* labels;
  long n;
};

// A rectangle of pairs: rows [row_begin, row_end) of `left` against packed columns.
template <class T> struct BlockOfPairs {
  const KernelProgram* kernel;
  const Side<T>* left;
  long row_begin, row_end;
  const T* row_norms;  // of rows row_begin, row_begin + 1, ...
  const T* packed;  // what `pack` wrote for these columns
  long column_begin, column_end;
  bool skip_diagonal;  // leave out the pairs of a sample with itself
};

enum class Probe { FMA, EXP, SQRT };

template <class T> struct TileFunctions {
  // |x|^2 of the points [begin, end); with labels |e|^2 of the residuals.
  void (*square_norms)(const Side<T>& side, long begin, long end, T* out);
  // Number of T that packing `columns` columns takes.
  long (*packed_size)(const Side<T>& side, long columns);
  // Columns [begin, end) of `side` in panels: per panel points, marks, and what PanelRows lists.
  void (*pack)(const Side<T>& side, long begin, long end, T* packed);
  // Adds the block's sums over columns to row_sums[0..rows), its sums over rows to
  // column_sums[0..columns) unless that is null, and returns its sum of squares if `second`.
  double (*sums)(const BlockOfPairs<T>& block, bool second, double* row_sums, double* column_sums);
  // Writes the block's entries to out[row * stride + column].
  void (*entries)(const BlockOfPairs<T>& block, double* out, long stride);
  // Runs `repetitions` rounds of one operation and returns how many elements that was:
  // the machine's own rate, against which the sweep's speed is read.
  double (*probe)(Probe what, long repetitions, T* sink);
};

// out[i * stride + c] += sum_j h[i * h_stride + j] * w[c * w_stride + j].
using MultiplyFunction = void (*)(const double* h, long h_stride, long rows, long columns, const double* w,
                                  long w_stride, long n_vectors, double* out, long stride);

struct TileTable {
  const char* name;
  TileFunctions<double> float64;
  TileFunctions<float> float32;
  MultiplyFunction multiply;
  const WeightTable* weights;
  const LineFunctions* line;
};

template <class T> const TileFunctions<T>& functions(const TileTable& table);
template <> inline const TileFunctions<double>& functions<double>(const TileTable& t) { return t.float64; }
template <> inline const TileFunctions<float>& functions<float>(const TileTable& t) { return t.float32; }

}  // namespace kcalib
