// What the sums of random features (features.cpp, drawn_features.cpp) ask of the instruction set, as a table of functions:
// feature_kernels.cpp is compiled once for each, as tile.cpp is.
//
// Features lie in panels of FREQUENCIES frequencies: a row of a panel is their cosines, then their sines. Sums over the
// rows lie in the same panels: sums[target * COLUMNS + column]. Target features lie in blocks of `block_columns` columns, with zeros
// behind the last: target_features[(block * rows + row) * block_columns + column].
#pragma once

#include <cstdint>

#include "kcalib/philox.h"

namespace kcalib {

constexpr int FREQUENCIES = 8, COLUMNS = 2 * FREQUENCIES;
constexpr int ROW_STEP = 8;         // rows of a tile are a multiple of it
constexpr int64_t LANE_CLASSES = 256;  // up to so many classes labels are drawn for several rows at once

// A feature map in panels; behind its frequencies the last panel is filled up with amplitudes 0.
struct FeaturePanels {
  int64_t n_panels, n_coordinates, n_factors;
  const double* frequencies;  // frequencies[(panel * n_coordinates + k) * FREQUENCIES + lane]
  const double* amplitudes;   // amplitudes[panel * FREQUENCIES + lane]
  const double* projections;  // those of factor l are as the frequencies, from l * n_panels panels on
  const double* offsets;      // as the amplitudes
};

// Probabilities of a tile of rows as labels are drawn from them.
struct LabelRows {
  int64_t rows, n_classes;
  // Up to LANE_CLASSES classes cumulative[(row / 8 * n_classes + class) * 8 + row % 8], beyond [row * n_classes + class].
  const double* cumulative;
  const double *totals, *highest;  // the last of the cumulative sums, and what is next below it
  const unsigned* likely;          // a label to be tried first; only beyond LANE_CLASSES classes
};

// Additions of rows of a tile to the sums of classes. Up to NEAR_CLASSES classes in runs of rows of one class, each filled
// up to fours with a row of zeros; what says where a row is is its number times COLUMNS.
struct Run4 {
  unsigned label, fours;
};
struct Runs {
  const unsigned short* rows;  // of all runs, one behind the other
  const Run4* runs;
  int64_t count;
};
// Beyond, rows have few classes in common: one by one.
struct Singles {
  const unsigned short* rows;
  const unsigned* classes;  // and of LOOK_AHEAD more
  int64_t count;
};
constexpr int64_t NEAR_CLASSES = 128, LOOK_AHEAD = 8;
constexpr int64_t MOST_ROWS = 256;  // of a tile

struct FeatureTable {
  int block_columns;
  // out[row * COLUMNS + column] = a panel of the features of `rows` rows of points, row-major.
  void (*features)(const FeaturePanels& map, int64_t panel, const double* points, int64_t rows, double* out);
  // sums += sum_row phi[row] (x) target_features[row].
  void (*add_products)(const double* phi, const double* target_features, int64_t rows, int64_t rank, double* sums);
  // The lanes of forms[row * FREQUENCIES ...] += <phi[row] (x) target_features[row], sums>, to be added up.
  void (*add_forms)(const double* phi, const double* target_features, int64_t rows, int64_t rank, const double* sums, double* forms);
  // squares[lane] += sum_row weights[row] (cosine^2 + sine^2).
  void (*add_squares)(const double* phi, const double* weights, int64_t rows, double* squares);
  // norms[row] += |phi[row]|^2.
  void (*add_norms)(const double* phi, int64_t rows, double* norms);
  // Uniform numbers [begin, begin + count) of NumPy's Philox generator with the key (seed, draw); both multiples of 4.
  void (*uniforms)(Word seed, Word draw, int64_t begin, int64_t count, double* out);
  // The labels that these numbers draw: how many cumulative sums are at most the share of the total.
  void (*labels)(const LabelRows& rows, const double* uniform, unsigned* out);
  // In the order of the list sums of the class += (-=) phi[row].
  void (*add_runs)(const double* phi, const Runs& list, double* sums);
  void (*subtract_runs)(const double* phi, const Runs& list, double* sums);
  void (*add_singles)(const double* phi, const Singles& list, double* sums);
  void (*subtract_singles)(const double* phi, const Singles& list, double* sums);
  // out[row * n + j] = sum_k x[row * n + k] matrix[k * n + j].
  void (*multiply)(const double* x, int64_t rows, const double* matrix, int64_t n, double* out);
  // The sum of (x[i] + y[i])^2, i < n, a multiple of 8; x is replaced by the sums.
  double (*square_of_sums)(double* x, const double* y, int64_t n);
};

}  // namespace kcalib
