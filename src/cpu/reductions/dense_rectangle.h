// H itself.
#pragma once

#include <algorithm>

#include "cpu/reductions/reduction.h"

namespace kcalib {

// out (n x n_right) = H, diagonal included; rectangular problems.
class DenseRectangle final : public Reduction {
 public:
  explicit DenseRectangle(double* out) : out_(out) {}
  Needs needs() const override { return DOUBLE_ENTRIES; }
  void start(const SweepShape& shape) override { n_right_ = shape.n_right; }
  void add(const Task&, Block& block) override {
    const double* const h = block.entries();
    for (int64_t i = 0; i < block.rows(); ++i)
      std::copy_n(h + i * block.stride, block.columns(), out_ + (block.row_begin + i) * n_right_ + block.column_begin);
  }

 private:
  double* const out_;
  int64_t n_right_ = 0;
};

}  // namespace kcalib
