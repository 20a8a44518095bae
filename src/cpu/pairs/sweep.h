// Sweeps over all pairs of a pair problem: the primitives of the `cpu` backend.
//
// _native.pyx calls these with the GIL released; they split the pairs into blocks,
// hand blocks to threads, and merge in an order that depends on n alone, so that
// the answer is the same bit for bit for any number of threads.
#pragma once

#include <cstdint>

#include "cpu/pairs/tile.h"
#include "cpu/simd/threads.h"

namespace kcalib {

template <class T> struct PairProblem {
  PairProgram program;
  Side<T> left, right;
  bool symmetric;  // right is left
};

// How the pairs of a problem are cut. The samples of a side are cut into blocks, and these into at most 32 groups; the
// pairs of two groups have sums of their own, which are merged in order. It depends on the problem's sizes alone.
struct Groups {
  int64_t block;          // rows of a block
  int64_t per_group;      // blocks of a group
  int64_t rows, columns;  // how many groups
};
template <class T> Groups groups_of(const PairProblem<T>& problem, const Run& run);

// Each returns false if `poll` stopped it; the results are then incomplete.

// Sums of H: its total, sums over columns (left.n) and rows (right.n), sum of squares. Symmetric problems:
// pairs of a sample with itself are left out. Pointers may be null: not wanted (column_sums: nor in
// symmetric problems; squares need row_sums). `expected`, which needs squares and sides that are
// `expecting`, gets their expectation given the points, and sum kernel^2 <x, x'>, beside which it is rounded; the others have
// the same bits with and without it.
template <class T>
bool moments(const PairProblem<T>& problem, const Run& run, double* total, double* row_sums, double* column_sums,
             double* squares, double* expected);

// The sums of `moments` before they are merged, of groups a of rows and b of columns, zeros for b < a in symmetric problems:
// totals[a * columns + b], squares and `expected` likewise; row_parts[b * left.n + i] of sample i with the columns of group b, and in
// rectangular problems column_parts[a * right.n + j].
template <class T>
bool moment_parts(const PairProblem<T>& problem, const Run& run, double* totals, double* row_parts, double* column_parts,
                  double* squares, double* expected);

// out[b] = sum of H over the pairs i != j of the b-th of n / size consecutive blocks.
template <class T> bool block_sums(const PairProblem<T>& problem, const Run& run, int64_t size, double* out);

// What becomes of the entries of H in a product: float64, float32 (and sums of up to a tile, too), or as `matches` has
// them, of symmetric problems those off the diagonal, in float64.
enum class Entries { DOUBLE, SINGLE, IN_UNITS };

// out (left.n x n_vectors) = H vectors for vectors (right.n x n_vectors), diagonal included; rows of both are those of
// the sides' points, whatever their order. Of rectangular problems also column_out (right.n x n_vectors) =
// H^T left_vectors, of the same entries; null: not wanted.
template <class T>
bool matmul(const PairProblem<T>& problem, const Run& run, const double* vectors, const double* left_vectors,
            int64_t n_vectors, Entries entries, double* out, double* column_out);

// The sums of `quadratic_forms` before they are merged, parts[task * n_panels * weights_at_once + ...], of tasks as in
// `moment_parts`. The left side's weights are the panels' rows from first_row on, the right side's those from first_column on.
template <class T, class W>
bool quadratic_parts(const PairProblem<T>& problem, const Run& run, const W* const* panels, int64_t n_panels, int64_t first_row,
                     int64_t first_column, double* parts);

// out[p * weights_at_once + c] = w^T H w for column c of the n x weights_at_once panels[p], in W's precision but
// for the sums over blocks; symmetric problems, diagonal included.
template <class T, class W>
bool quadratic_forms(const PairProblem<T>& problem, const Run& run, const W* const* panels, int64_t n_panels, double* out);
int64_t weights_at_once(const TileTable& table, int64_t size);  // of so many bytes a weight

// Panels of labels, n x labels_at_once.
struct LabelPanels {
  const int* const* panels;
  int64_t count;

  int64_t length(const TileTable& table) const { return count * table.labels_at_once; }  // of their sums
};

// The sums of `matches` before they are merged, as `quadratic_parts` has those of forms. Blocks have the units of those of
// the whole problem, so that their sums are the same.
template <class T>
bool match_parts(const PairProblem<T>& problem, const Run& run, const LabelPanels& labels, int64_t first_row, int64_t first_column,
                 double* parts);

// out[p * labels_at_once + c] = the sum of H over the pairs i != j with equal labels in column c of the p-th panel, its
// entries rounded to 2^-20 of a power of two above the largest of their block; symmetric problems.
template <class T> bool matches(const PairProblem<T>& problem, const Run& run, const LabelPanels& labels, double* out);

// counts[t] = number of pairs i < j with H_ij < thresholds[t], t < THRESHOLDS; symmetric problems.
template <class T>
bool counts(const PairProblem<T>& problem, const Run& run, const double* thresholds, int64_t* counts);

// The entries H_ij in [low, high) of pairs i < j, in no order, how many there are, and how many are below; at most
// `capacity` are written.
template <class T>
bool between(const PairProblem<T>& problem, const Run& run, double low, double high, double* out, int64_t capacity,
             int64_t* found, int64_t* below);

// out (left.n x right.n) = H, diagonal included.
template <class T> bool entries(const PairProblem<T>& problem, const Run& run, double* out);

// out[i] (left.n) = <P_i, P_i> under the target kernel, for the mixtures that the left side's points are.
template <class T> bool own_products(const PairProblem<T>& problem, const Run& run, T* out);

// Element operations done by `threads` threads, `repetitions` rounds each.
template <class T> double probe(const Run& run, Probe what, int64_t repetitions);

// out = f(x) on the calling thread.
template <class T> void evaluate(const Run& run, ScalarFunction f, const T* x, double a, int64_t n, T* out);

}  // namespace kcalib
