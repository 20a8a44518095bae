// Sums over all pairs in parts, one for each task of `Blocks`: what a thread adds up as a task's blocks pass by, and how the
// parts are merged. Included by sweep.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/pairs/blocks.h"

namespace kcalib {

// out[k] = sum of parts[g * length + k] over g < count, in order, and compensated.
inline void merge(const Run& run, const AlignedBuffer<double>& parts, int64_t count, int64_t length, double* out) {
  constexpr int64_t AT_ONCE = 512;
  double lost[AT_ONCE];
  for (int64_t k = 0; k < length; k += AT_ONCE) {
    const int64_t some = std::min(AT_ONCE, length - k);
    std::copy_n(&parts[k], some, out + k);
    std::fill_n(lost, some, 0.0);
    for (int64_t g = 1; g < count; ++g) run.table->add_compensated(&parts[g * length + k], some, out + k, lost);
    settle(out + k, lost, some);
  }
}

// What a thread adds up for a task: compensated sums of the rows and columns of its groups, and those of a block.
class TaskSums {
 public:
  Compensated total, squares, expected, magnitude;

  TaskSums(int64_t group, int64_t block)
      : group_(group), block_(block), numbers_(4 * group + 2 * block) {}

  // Of a task of so many rows and columns; on the diagonal those are the same.
  void start(bool on_diagonal) {
    total = squares = expected = magnitude = {};
    columns_ = on_diagonal ? rows() : rows() + 2 * group_;
    std::fill_n(rows(), 4 * group_, 0.0);
  }
  // Where a block's sums go.
  BlockSums of_block(bool second, bool expected_too) {
    if (!group_) return {nullptr, nullptr, second, false, 0, 0, 0, 0};
    std::fill_n(of_rows(), 2 * block_, 0.0);
    return {of_rows(), of_rows() + block_, second, expected_too, 0, 0, 0, 0};
  }
  // Adds them, for the block's rows and columns in their groups.
  void add(const Run& run, const BlockSums& sums, double times, int64_t row, int64_t column) {
    total.add(times * sums.total);
    squares.add(times * sums.squares);
    expected.add(times * sums.expected_squares);
    magnitude.add(times * sums.magnitude);
    if (!sums.rows) return;
    run.table->add_compensated(sums.rows, block_, rows() + row, rows() + group_ + row);
    run.table->add_compensated(sums.columns, block_, columns_ + column, columns_ + group_ + column);
  }
  void write_rows(int64_t n, double* out) const { write(rows(), n, out); }
  void write_columns(int64_t n, double* out) const { write(columns_, n, out); }

 private:
  double* rows() const { return numbers_.get(); }
  double* of_rows() const { return numbers_.get() + 4 * group_; }
  void write(const double* sums, int64_t n, double* out) const {
    std::copy_n(sums, n, out);
    settle(out, sums + group_, n);
  }

  const int64_t group_, block_;  // samples; 0: rows are not wanted
  const AlignedBuffer<double> numbers_;
  double* columns_ = nullptr;
};

// Where the parts of moments go, see `moment_parts`; null: not wanted.
struct PartsOfMoments {
  double *totals, *rows, *columns, *squares, *expected;
};

template <class T> class MomentSums {
 public:
  MomentSums(const Blocks<T>& blocks, const Run& run, int threads, const PartsOfMoments& out)
      : blocks_(blocks), run_(run), out_(out) {
    for (int t = 0; t < threads; ++t)
      sums_.push_back(std::make_unique<TaskSums>(out.rows ? blocks.group : 0, out.rows ? blocks.block : 0));
    std::fill_n(out.totals, blocks.tasks(), 0.0);
    if (out.squares) std::fill_n(out.squares, blocks.tasks(), 0.0);
    if (out.expected) std::fill_n(out.expected, 2 * blocks.tasks(), 0.0);
  }

  void start(int64_t task) { own().start(blocks_.problem.symmetric && row_group(task) == column_group(task)); }
  BlockSums of_block() { return own().of_block(out_.squares, out_.expected); }
  void add(const BlockOfPairs<T>& pairs, const BlockSums& found) {
    const double times = blocks_.problem.symmetric ? 2 : 1;
    own().add(run_, found, times, pairs.row_begin % blocks_.group, pairs.column_begin % blocks_.group);
  }
  template <class Range> void finish(int64_t task, Range rows, Range columns) {
    const bool symmetric = blocks_.problem.symmetric;
    const TaskSums& sums = own();
    const int64_t a = row_group(task), b = column_group(task);
    out_.totals[task] = sums.total.value();
    if (out_.squares) out_.squares[task] = sums.squares.value();
    if (out_.expected) {
      out_.expected[2 * task] = sums.expected.value();
      out_.expected[2 * task + 1] = sums.magnitude.value();
    }
    if (!out_.rows) return;
    sums.write_rows(rows.end - rows.begin, out_.rows + b * blocks_.n + rows.begin);
    double* out = symmetric ? out_.rows + a * blocks_.n : out_.columns + a * blocks_.n_right;
    if (!symmetric || a != b) sums.write_columns(columns.end - columns.begin, out + columns.begin);
  }

 private:
  TaskSums& own() { return *sums_[thread_number()]; }
  int64_t row_group(int64_t task) const { return task / blocks_.column_groups; }
  int64_t column_group(int64_t task) const { return task % blocks_.column_groups; }

  const Blocks<T>& blocks_;
  const Run& run_;
  const PartsOfMoments out_;
  std::vector<std::unique_ptr<TaskSums>> sums_;
};

// The parts of moments of a whole problem, and what they make.
template <class T> class MergedMoments {
 public:
  MergedMoments(const PairProblem<T>& problem, const Run& run, bool with_rows, bool second, bool expected_too)
      : run_(run), groups_(groups_of(problem, run)), n_(problem.left.n), n_right_(problem.right.n),
        tasks_(groups_.rows * groups_.columns), with_rows_(with_rows), with_columns_(with_rows && !problem.symmetric),
        second_(second), expected_too_(expected_too), totals_(tasks_), rows_(with_rows ? groups_.columns * n_ : 0),
        columns_(with_columns_ ? groups_.rows * n_right_ : 0), squares_(second ? tasks_ : 0),
        expected_(expected_too ? 2 * tasks_ : 0) {}

  PartsOfMoments parts() const {
    const auto wanted = [](bool is, const AlignedBuffer<double>& buffer) { return is ? buffer.get() : nullptr; };
    return {totals_.get(), wanted(with_rows_, rows_), wanted(with_columns_, columns_), wanted(second_, squares_),
            wanted(expected_too_, expected_)};
  }
  void write(double* total, double* row_sums, double* column_sums, double* squares, double* expected) const {
    merge(run_, totals_, tasks_, 1, total);
    if (second_) merge(run_, squares_, tasks_, 1, squares);
    if (expected_too_) merge(run_, expected_, tasks_, 2, expected);
    if (with_rows_) merge(run_, rows_, groups_.columns, n_, row_sums);
    if (with_columns_) merge(run_, columns_, groups_.rows, n_right_, column_sums);
  }

 private:
  const Run& run_;
  const Groups groups_;
  const int64_t n_, n_right_, tasks_;
  const bool with_rows_, with_columns_, second_, expected_too_;
  const AlignedBuffer<double> totals_, rows_, columns_, squares_, expected_;
};

// Panels of weights, see `quadratic_parts`.
template <class W> struct WeightPanels {
  const W* const* panels;
  int64_t count, first_row, first_column;

  int64_t length(const Run& run) const { return count * weights_at_once(*run.table, sizeof(W)); }  // of their forms
};

// The parts of quadratic forms of blocks whose entries are written to `entries()`: of all tasks, or of those that a sweep has.
template <class T, class W> class FormSums {
 public:
  const int64_t length;  // of a part

  FormSums(const Blocks<T>& blocks, const Run& run, int threads, const WeightPanels<W>& weights, bool of_all_tasks, double* parts)
      : length(weights.length(run)), blocks_(blocks), run_(run), weights_(weights), of_all_tasks_(of_all_tasks), parts_(parts),
        room_((blocks.block + MAX_ROWS_AT_ONCE) * blocks.block), sums_(2 * length * threads), entries_(room_ * threads) {
    if (of_all_tasks && blocks.problem.symmetric) std::fill_n(parts, blocks.tasks() * length, 0.0);
    std::fill_n(entries_.get(), room_ * threads, W(0));
  }

  void start(int64_t task) {
    std::fill_n(part(task), length, 0.0);
    std::fill_n(lost(), length, 0.0);
  }
  // Of a block, rows `blocks.block` apart: the thread's own. The last rows of a tile may be beyond the block's.
  W* entries() const { return entries_.get() + room_ * thread_number(); }
  // Of a symmetric problem those of blocks beside the diagonal count twice.
  void add(int64_t task, const BlockOfPairs<T>& pairs) {
    double* const sums = own();
    std::fill_n(sums, length, 0.0);
    const int64_t row = weights_.first_row + pairs.row_begin, rows = pairs.row_end - pairs.row_begin;
    const int64_t column = weights_.first_column + pairs.column_begin, columns = pairs.column_end - pairs.column_begin;
    functions<W>(*run_.table).quadratic(entries(), blocks_.block, row, rows, column, columns, weights_.panels, weights_.count, sums);
    const double times = blocks_.problem.symmetric && pairs.row_begin != pairs.column_begin ? 2 : 1;
    for (int64_t c = 0; c < length; ++c) sums[c] *= times;
    run_.table->add_compensated(sums, length, part(task), lost());
  }
  void finish(int64_t task) { settle(part(task), lost(), length); }

 private:
  double* part(int64_t task) const { return parts_ + (of_all_tasks_ ? task : blocks_.own_place(task)) * length; }
  double* own() const { return &sums_[2 * length * thread_number()]; }  // sums of a block
  double* lost() const { return own() + length; }                      // what those of a task have lost

  const Blocks<T>& blocks_;
  const Run& run_;
  const WeightPanels<W> weights_;
  const bool of_all_tasks_;
  double* const parts_;
  const int64_t room_;
  const AlignedBuffer<double> sums_;
  const AlignedBuffer<W> entries_;
};

}  // namespace kcalib
