// All pairs of a problem, cut into blocks and groups of blocks. Included by the sweep over all pairs (sweep.cpp) and by its
// reductions that have blocks of their own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "cpu/pairs/compensated.h"
#include "cpu/reductions/reduction.h"
#include "cpu/simd/aligned.h"
#include "cpu/simd/threads.h"

namespace kcalib {

// Operations that the parts of a pair of measures take.
inline double mixture_work(const Mixtures* m) {
  if (!m) return 0;
  const double parts = m->n_components + 1, d = m->n_dims;
  return m->n_terms * parts * parts * (20 + 6 * d + (m->family == NORMAL_FULL ? d * d * d / 3 : 0));
}

// Operations that a pair takes, about; of the entries alone, or with what is asked beside them.
template <class T> double pair_work(const PairProblem<T>& problem, bool of_entries = false) {
  const double products = problem.left.expecting && !of_entries ? 3 : 1;
  const double vectors = double(problem.left.n_coordinates) * products + double(problem.left.n_features) + 20.0;
  return vectors + mixture_work(problem.program.target) + mixture_work(problem.program.predicted);
}

// Rows (and columns) of a block: whole panels of columns on every instruction set (of float32 96 are one and a half), and
// no more than a second-level cache holds of the products' rows, which pass by once for each panel, or than takes some
// tenths of a second, for which Ctrl-C waits. Depends on the problem's sizes alone: it decides the order of summation.
template <class T> int64_t block_rows(const PairProblem<T>& problem, int64_t n) {
  constexpr int64_t SECOND_LEVEL = 1 << 20;  // bytes of it for rows
  constexpr double LONG = 2e4;            // operations of a pair: microseconds
  const bool few = n < 2048 || 192 * problem.left.n_features * int64_t(sizeof(T)) > SECOND_LEVEL;
  return (few && sizeof(T) == sizeof(double)) || pair_work(problem, true) > LONG ? 96 : 192;
}

inline int64_t round_up(int64_t a, int64_t b) { return ceil_divide(a, b) * b; }

// One side, packed block by block: all of them, or, if each is used once, by the thread that uses it.
template <class T> class PackedSide {
 public:
  PackedSide(const Side<T>& side, const Run& run, int64_t block, bool used_once)
      : side_(side),
        pack_(functions<T>(*run.table).pack),
        block_(block),
        used_once_(used_once),
        stride_(functions<T>(*run.table).packed_size(side, block)),
        buffer_(stride_ * (used_once ? run.threads : ceil_divide(side.n, block))) {
    if (used_once) return;
    const int64_t blocks = ceil_divide(side.n, block);
    const double work = 200 + 10.0 * double(side.n_coordinates * (side.expecting ? 3 : 1) + side.n_features);  // of a sample, with its share of fresh memory
    const int threads = team_size(run, blocks, double(side.n) * work);
    parallel_tasks(threads, blocks, [&](int64_t j) { pack(j, buffer_.get() + j * stride_); });
  }

  // Until the same thread asks for the next one.
  const T* operator[](int64_t j) const {
    if (!used_once_) return buffer_.get() + j * stride_;
    T* packed = buffer_.get() + thread_number() * stride_;
    pack(j, packed);
    return packed;
  }

 private:
  void pack(int64_t j, T* packed) const { pack_(side_, j * block_, std::min(side_.n, (j + 1) * block_), packed); }

  const Side<T>& side_;
  const decltype(TileFunctions<T>::pack) pack_;
  const int64_t block_;
  const bool used_once_;
  const int64_t stride_;
  const AlignedBuffer<T> buffer_;
};

template <class T> Groups groups_of(const PairProblem<T>& problem, const Run& run) {
  constexpr int64_t MAX_GROUPS = 32;
  const int64_t n = problem.left.n, n_right = problem.right.n, largest = std::max(n, n_right);
  const int64_t block = run.block ? run.block : block_rows(problem, largest);
  const int64_t per_group = run.block ? run.per_group : ceil_divide(ceil_divide(largest, block), MAX_GROUPS);
  return {block, per_group, ceil_divide(n, block * per_group), ceil_divide(n_right, block * per_group)};
}

// All pairs of a problem, cut into blocks, and both sides packed by them.
//
// A task is a pair of groups of blocks (`Groups`) and has sums of its own, which are merged in order at the end. So no
// task waits for another, which keeps a thread that loses its core from holding up the rest, and the order of summation
// is fixed, for MAX_GROUPS * 8 bytes a sample.
template <class T> class Blocks {
 public:
  const PairProblem<T>& problem;
  const TileFunctions<T>& tile;
  const int64_t n, n_right;

 private:
  const Run& run_;
  const Groups groups_;
  const PackedSide<T> columns_;
  const std::optional<PackedSide<T>> rows_;  // of rectangular problems; otherwise the columns are the rows

 public:
  const int64_t block, group, row_blocks, column_blocks, row_groups, column_groups;  // samples of a block, of a group; counts

  Blocks(const PairProblem<T>& pairs, const Run& run)
      : problem(pairs),
        tile(functions<T>(*run.table)),
        n(pairs.left.n),
        n_right(pairs.right.n),
        run_(run),
        groups_(groups_of(pairs, run)),
        columns_(pairs.right, run, groups_.block, !pairs.symmetric && pairs.left.n <= groups_.block),
        rows_(pairs.symmetric ? std::nullopt
                              : std::optional<PackedSide<T>>(std::in_place, pairs.left, run, groups_.block, false)),
        block(groups_.block),
        group(groups_.block * groups_.per_group),
        row_blocks(ceil_divide(n, block)),
        column_blocks(ceil_divide(n_right, block)),
        row_groups(groups_.rows),
        column_groups(groups_.columns) {}

  int64_t tasks() const { return row_groups * column_groups; }
  // Symmetric problems: i <= j.
  int64_t pairs_of_blocks() const { return problem.symmetric ? row_blocks * (row_blocks + 1) / 2 : row_blocks * column_blocks; }

  // Threads for a sweep that does `work` operations a pair besides the kernel's.
  int threads(double work = 0) const {
    const double pairs = double(n) * double(n_right) / (problem.symmetric ? 2 : 1);
    return team_size(run_, tasks(), pairs * (pair_work(problem) + work));
  }

  // Rows [i * block, ...) against columns [j * block, ...).
  BlockOfPairs<T> pairs(int64_t i, int64_t j) const {
    return {&problem.program, &problem.left,  i * block, std::min(n, (i + 1) * block),       (rows_ ? *rows_ : columns_)[i],
            &problem.right,  j * block,      std::min(n_right, (j + 1) * block), columns_[j], problem.symmetric && i == j};
  }

  // The task of groups a of rows and b of columns.
  Task task(int64_t a, int64_t b, int thread) const {
    return {a * column_groups + b, a, b, a * group, std::min(n, (a + 1) * group), b * group, std::min(n_right, (b + 1) * group), thread};
  }
};

}  // namespace kcalib
