// w^T H w for many weights w.
#pragma once

#include <optional>

#include "cpu/simd/aligned.h"
#include "cpu/reductions/reduction.h"

namespace kcalib {

// Panels of weights, or of labels: row-major, with as many columns as are taken at once. Rows of H have those from first_row
// on, columns of H those from first_column on.
template <class W> struct Panels {
  const W* const* panels;
  int64_t count, first_row, first_column;
};

// The forms of a task are parts[task * panels * weights_at_once + ...], in W's precision but for sums over blocks; symmetric
// problems: zeros for b < a, and blocks beside the diagonal count twice, whose diagonal is included.
template <class W> class QuadraticForms final : public Reduction {
 public:
  QuadraticForms(const W* const* panels, int64_t count, int64_t first_row, int64_t first_column, double* parts)
      : weights_{panels, count, first_row, first_column}, parts_(parts) {}
  Needs needs() const override { return sizeof(W) == sizeof(float) ? SINGLE_ENTRIES : DOUBLE_ENTRIES; }
  double work() const override { return double(weights_.count * 16); }
  void start(const SweepShape& shape) override;
  void start_task(const Task& task) override;
  void add(const Task& task, Block& block) override;
  void finish_task(const Task& task, const Watch&) override;

 private:
  const Panels<W> weights_;
  double* const parts_;
  SweepShape shape_;
  int64_t length_ = 0;  // of a task's forms
  std::optional<AlignedBuffer<double>> sums_;
};

}  // namespace kcalib
