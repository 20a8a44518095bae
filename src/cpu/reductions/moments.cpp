#include "cpu/reductions/moments.h"

#include <algorithm>

#include "cpu/simd/aligned.h"
#include "cpu/pairs/compensated.h"

namespace kcalib {

// What a thread adds up for a task: compensated sums of the rows and columns of its groups, and the sums of a block.
class Moments::TaskSums {
 public:
  Compensated total, squares, expected, magnitude;

  TaskSums(int64_t group, int64_t block) : group_(group), block_(block), numbers_(4 * group + 2 * block) {}

  // On the diagonal rows and columns are the same.
  void start(bool on_diagonal) {
    total = squares = expected = magnitude = {};
    columns_ = on_diagonal ? rows() : rows() + 2 * group_;
    std::fill_n(rows(), 4 * group_, 0.0);
  }
  BlockSums start_block(bool with_expected) {
    if (!group_) return {nullptr, nullptr, false, 0, 0, 0, 0};
    double* const sums = numbers_.get() + 4 * group_;
    std::fill_n(sums, 2 * block_, 0.0);
    return {sums, sums + block_, with_expected, 0, 0, 0, 0};
  }
  // Adds a block's sums; its rows and columns are counted in their groups.
  void add(const TileTable& table, const BlockSums& sums, double times, int64_t row, int64_t column) {
    total.add(times * sums.total);
    squares.add(times * sums.squares);
    expected.add(times * sums.expected_squares);
    magnitude.add(times * sums.magnitude);
    if (!sums.rows) return;
    table.add_compensated(sums.rows, block_, rows() + row, rows() + group_ + row);
    table.add_compensated(sums.columns, block_, columns_ + column, columns_ + group_ + column);
  }
  void write_rows(int64_t n, double* out) const { write(rows(), n, out); }
  void write_columns(int64_t n, double* out) const { write(columns_, n, out); }

 private:
  double* rows() const { return numbers_.get(); }
  void write(const double* sums, int64_t n, double* out) const {
    std::copy_n(sums, n, out);
    settle(out, sums + group_, n);
  }

  const int64_t group_, block_;  // samples; 0: rows are not wanted
  const AlignedBuffer<double> numbers_;
  double* columns_ = nullptr;
};

Moments::Moments(const MomentParts& parts) : parts_(parts) {}
Moments::~Moments() = default;

void Moments::start(const SweepShape& shape) {
  shape_ = shape;
  sums_.clear();
  for (int t = 0; t < shape.threads; ++t)
    sums_.push_back(std::make_unique<TaskSums>(parts_.rows ? shape.group : 0, parts_.rows ? shape.block : 0));
  std::fill_n(parts_.totals, shape.tasks(), 0.0);
  if (parts_.squares) std::fill_n(parts_.squares, shape.tasks(), 0.0);
  if (parts_.expected) std::fill_n(parts_.expected, 2 * shape.tasks(), 0.0);
}

void Moments::start_task(const Task& task) {
  sums_[task.thread]->start(shape_.symmetric && task.row_group == task.column_group);
}

void Moments::add(const Task& task, Block& block) {
  TaskSums& own = *sums_[task.thread];
  BlockSums sums = own.start_block(parts_.expected);
  block.add_sums(sums);
  own.add(*shape_.run->table, sums, shape_.symmetric ? 2 : 1, block.row_begin - task.row_begin, block.column_begin - task.column_begin);
}

void Moments::finish_task(const Task& task, const Watch&) {
  const TaskSums& sums = *sums_[task.thread];
  parts_.totals[task.number] = sums.total.value();
  if (parts_.squares) parts_.squares[task.number] = sums.squares.value();
  if (parts_.expected) {
    parts_.expected[2 * task.number] = sums.expected.value();
    parts_.expected[2 * task.number + 1] = sums.magnitude.value();
  }
  if (!parts_.rows) return;
  sums.write_rows(task.row_end - task.row_begin, parts_.rows + task.column_group * shape_.n + task.row_begin);
  if (shape_.symmetric && task.row_group == task.column_group) return;
  double* const out = shape_.symmetric ? parts_.rows + task.row_group * shape_.n : parts_.columns + task.row_group * shape_.n_right;
  sums.write_columns(task.column_end - task.column_begin, out + task.column_begin);
}

}  // namespace kcalib
