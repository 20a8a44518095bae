// Sums of H over the pairs whose labels are equal, for many labellings.
#pragma once

#include <optional>

#include "cpu/simd/aligned.h"
#include "cpu/reductions/quadratic_forms.h"

namespace kcalib {

// parts[task * panels * labels_at_once + ...] of pairs i != j, of entries that are rounded to 2^-20 of a power of two above the
// largest of their block; symmetric problems: zeros for b < a.
class LabelMatches final : public Reduction {
 public:
  LabelMatches(const int* const* panels, int64_t count, int64_t first_row, int64_t first_column, double* parts)
      : labels_{panels, count, first_row, first_column}, parts_(parts) {}
  Needs needs() const override { return DOUBLE_ENTRIES; }
  double work() const override { return 2.0 * 32 * double(labels_.count); }
  void start(const SweepShape& shape) override;
  void start_task(const Task& task) override;
  void add(const Task& task, Block& block) override;
  void finish_task(const Task& task, const Watch&) override;

 private:
  const Panels<int> labels_;
  double* const parts_;
  SweepShape shape_;
  int64_t length_ = 0, room_ = 0;
  std::optional<AlignedBuffer<double>> sums_;
  std::optional<AlignedBuffer<int>> units_;
};

}  // namespace kcalib
