// What the thread-parallel sweep (sweep.cpp) asks of one block of pairs, as a
// table of functions. tile.cpp is compiled once per instruction set and fills one
// table for each; cpu_level.cpp picks the table the machine can run.
#pragma once

#include <cstdint>

#include "cpu/dirichlet/dirichlet_kernels.h"
#include "cpu/features/feature_kernels.h"
#include "kcalib/mixtures.h"
#include "kcalib/profiles.h"
#include "cpu/line/line_kernels.h"
#include "cpu/random/weights.h"

namespace kcalib {

// One side of a pair problem: row-major points (n x n_coordinates) and features (n x n_features), of which
// sample i is row order[i] (null: i).
// With `labels` (of the rows; else null; both sides or neither) the features are the residuals
// onehot(labels) - points, and computed where they are null. One product then gives distances and target factors, for
// Euclidean kernels only: that of the residuals, or of the points about `centre` if there is one (both sides or neither).
// With `classes` instead, which are labels, too, features are the residuals where they are null, and have a product of their own.
// `expecting`: points are probabilities, of which sums want the expected squares of target factors (`ExpectedSumVisitor`).
template <class T> struct Side {
  const T* points;
  int64_t n_coordinates;
  const T* features;
  int64_t n_features;
  const int* labels;
  const int* classes;
  const double* centre;
  const int64_t* order;
  int64_t n;
  bool expecting = false;

  int64_t row(int64_t i) const { return order ? order[i] : i; }
};

// What points and features mean, and what is computed of them.
struct PairProgram {
  KernelProgram kernel;
  const Mixtures* target;     // what the features are; null: vectors. Not with labels.
  const Mixtures* predicted;  // what the points are, for the metric MMD
  const double* table;        // metric TABLE: distances of samples, by their points, which are positions
  int64_t table_stride;
};

// A rectangle of pairs: packed rows [row_begin, row_end) of `left` against packed columns of `right`.
template <class T> struct BlockOfPairs {
  const PairProgram* program;
  const Side<T>* left;
  int64_t row_begin, row_end;
  const T* packed_rows;  // what `pack` wrote for them
  const Side<T>* right;
  int64_t column_begin, column_end;
  const T* packed_columns;
  bool on_diagonal;         // of a symmetric problem: pairs i < j alone
};

// What is wanted of a block's entries, all added to what is there. Sums run over register tiles
// in the entries' type, and over the tiles in float64.
struct BlockSums {
  double* rows;     // sums over columns, and with them the sum of squares; null: only the total is wanted
  double* columns;  // sums over rows; may be null
  bool expected;    // sum the expectation of squares given the points; needs rows, and sides that are `expecting`
  double total, squares, expected_squares, magnitude;  // the last: kernel^2 <x, x'>, beside which expected squares are rounded
};

constexpr int64_t WIDEST_PANEL = 64, MAX_ROWS_AT_ONCE = 8;  // columns of a panel, rows of a register tile: the most of all levels

// Entries that `TileFunctions::entries` has written; `on_diagonal`: of pairs i < j alone.
template <class T> struct WrittenBlock {
  const T* h;
  int64_t stride, rows, columns;
  bool on_diagonal;
};

// A block of entries in panels, h[(p * stride + row) * width + lane], and the vectors to multiply it with. Vectors and
// products lie one after the other, `length` apart; their elements belong to the block's rows, or to its columns.
// Rows are up to a multiple of 8, columns up to the last panel's: vectors are 0 there, products of no meaning.
template <class T> struct BlockProduct {
  const T* h;
  int64_t stride, rows, columns;
  int64_t n_vectors, length;
  const T *of_columns, *of_rows;  // vectors; of_rows may be null: the transposed product is not wanted
  double *to_rows, *to_columns;   // where H of_columns and H^T of_rows are added

  // Vectors [begin, end) only.
  BlockProduct vectors(int64_t begin, int64_t end) const {
    const int64_t skipped = begin * length;
    return {h, stride, rows, columns, end - begin, length,
            of_columns + skipped, of_rows ? of_rows + skipped : nullptr, to_rows + skipped, to_columns + skipped};
  }
};

constexpr int THRESHOLDS = 8;  // of one counting sweep

enum class Probe { FMA, EXP, SQRT };
enum class ScalarFunction { EXP, EXP_MINUS, ONE_MINUS_EXP, SQUARE_ROOT, RECIPROCAL_ROOT, RECIPROCAL, LOG, LOG1P, POWER, COS_PI, SIN, COS };

template <class T> struct TileFunctions {
  // Number of T that packing so many samples takes, and samples [begin, end) packed, for rows and columns alike:
  // sample by sample into the lanes of panels of a fixed width.
  int64_t (*packed_size)(const Side<T>& side, int64_t samples);
  void (*pack)(const Side<T>& side, int64_t begin, int64_t end, T* packed);
  // out[i] = <P_i, P_i> under the target kernel, for the mixtures that the points of packed samples are.
  void (*own_products)(const Mixtures& mixtures, const Side<T>& side, int64_t samples, const T* packed, T* out);
  void (*sums)(const BlockOfPairs<T>& block, BlockSums& sums);
  // Writes the block's entries to out[row * stride + column]: whole register tiles, with zeros beyond the last row and column.
  // There is room for up to MAX_ROWS_AT_ONCE rows more, and `stride` is a multiple of WIDEST_PANEL.
  void (*entries)(const BlockOfPairs<T>& block, T* out, int64_t stride);
  // Copies them, rows as far apart; and, for `BlockProduct`, to panels of the width that functions of the type written have.
  void (*to_double)(const WrittenBlock<T>& block, double* out);
  void (*to_single)(const WrittenBlock<T>& block, float* out);
  void (*panels)(const WrittenBlock<T>& block, double* out, int64_t stride);
  void (*panels_single)(const WrittenBlock<T>& block, float* out, int64_t stride);
  // Adds both products. Sums of at most 96 terms, and those in each lane, are in T, all beyond them in float64.
  void (*multiply)(const BlockProduct<T>& block);
  // Adds to counts[t] the number of entries below thresholds[t], t < THRESHOLDS.
  void (*counts)(const WrittenBlock<T>& block, const double* thresholds, int64_t* counts);
  // Writes the entries in [low, high), returns how many there are, and adds to `below` how many are below `low`. Up to
  // WIDEST_PANEL numbers behind them are overwritten.
  int64_t (*between)(const WrittenBlock<T>& block, double low, double high, double* out, int64_t* below);
  // Adds sum_ij w[i][c] h[i * stride + j] w[j][c] to out[p * weights_at_once + c] for the columns c of every
  // panel w = panels[p] of row-major weights; the rows of h are those from row_begin on, its columns alike.
  void (*quadratic)(const T* h, int64_t stride, int64_t row_begin, int64_t rows, int64_t column_begin, int64_t columns,
                    const T* const* panels, int64_t n_panels, double* out);
  int weights_at_once;
  // Runs `repetitions` rounds of one operation and returns how many elements that was:
  // the machine's own rate, against which the sweep's speed is read.
  double (*probe)(Probe what, int64_t repetitions, T* sink);
  // out[i] = f(x[i]), for power x[i]^a: the functions that profiles are made of, to be tested by themselves.
  void (*evaluate)(ScalarFunction f, const T* x, T a, int64_t n, T* out);
};

// Labels of a block's rows and columns: where they begin in panels, and how many there are.
struct MatchBlock {
  int64_t row_begin, rows, column_begin, columns;
  bool on_diagonal;
};
constexpr int64_t MAX_MATCH_ROWS = 4;  // rows of units at a time, on any instruction set

struct TileTable {
  const char* name;
  TileFunctions<double> float64;
  TileFunctions<float> float32;
  // The entries h[i * stride + j] in units, whole numbers of at most 2^20 of the power of two that is returned, which the
  // block's largest entry decides; columns up to a multiple of a pack, rows to one of MAX_MATCH_ROWS. On the diagonal
  // those of pairs i < j, beside zeros; h_ii becomes 0.
  double (*in_units)(double* h, int64_t stride, int64_t rows, int64_t columns, bool on_diagonal, int* units);
  // Rounds entries in panels to multiples of the same unit; on the diagonal h_ii becomes 0.
  void (*round_panels)(double* h, int64_t stride, int64_t rows, int64_t columns, bool on_diagonal);
  // out[p * labels_at_once + c] += unit times the sum of the units of pairs that have equal labels in column c of the
  // row-major panels[p].
  void (*matches)(const int* units, int64_t stride, const MatchBlock& block, const int* const* panels, int64_t n_panels,
                  double unit, double* out);
  int labels_at_once;
  // sums[i] += x[i] for i < n, and what the roundings take off is added to lost[i]: `Compensated` in compensated.h.
  void (*add_compensated)(const double* x, int64_t n, double* sums, double* lost);
  const WeightTable* weights;
  const LineFunctions* line;
  const DirichletTable* dirichlet;
  const FeatureTable* features;
};

template <class T> const TileFunctions<T>& functions(const TileTable& table);
template <> inline const TileFunctions<double>& functions<double>(const TileTable& t) { return t.float64; }
template <> inline const TileFunctions<float>& functions<float>(const TileTable& t) { return t.float32; }

}  // namespace kcalib
