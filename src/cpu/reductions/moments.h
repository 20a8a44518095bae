// Totals, row and column sums, sums of squares, and the null variance.
#pragma once

#include <memory>
#include <vector>

#include "cpu/reductions/reduction.h"

namespace kcalib {

// Where the sums of tasks go, of row group a and column group b; null: not wanted.
struct MomentParts {
  double* totals;   // [a * column_groups + b]; symmetric problems: 0 for b < a
  double* rows;     // [b * n + i] of sample i with the columns of group b
  double* columns;  // [a * n_right + j], of rectangular problems
  double* squares;  // as totals; needs rows
  double* expected;  // two numbers each: what squares are on average over labels drawn from the points, and the sum of
                     // kernel^2 <x, x'>, of which roundings of the first are a share; needs squares
};

// Symmetric problems: pairs of a sample with itself are left out, and each other pair counts twice.
class Moments final : public Reduction {
 public:
  explicit Moments(const MomentParts& parts);
  ~Moments() override;
  Needs needs() const override { return parts_.expected ? NULL_VARIANCE : NOTHING; }
  void start(const SweepShape& shape) override;
  void start_task(const Task& task) override;
  void add(const Task& task, Block& block) override;
  void finish_task(const Task& task, const Watch&) override;

 private:
  class TaskSums;

  const MomentParts parts_;
  SweepShape shape_;
  std::vector<std::unique_ptr<TaskSums>> sums_;  // of threads
};

}  // namespace kcalib
