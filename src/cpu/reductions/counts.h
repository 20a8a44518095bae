// How many entries are below each of some thresholds.
#pragma once

#include <optional>

#include "cpu/simd/aligned.h"
#include "cpu/reductions/reduction.h"

namespace kcalib {

// counts[t] = number of pairs i < j with H_ij < thresholds[t], t < THRESHOLDS; symmetric problems.
class Counts final : public Reduction {
 public:
  Counts(const double* thresholds, int64_t* counts) : thresholds_(thresholds), counts_(counts) {}
  void start(const SweepShape& shape) override;
  void add(const Task& task, Block& block) override;
  void finish() override;

 private:
  const double* const thresholds_;
  int64_t* const counts_;
  int64_t size_ = 0;
  std::optional<AlignedBuffer<int64_t>> of_threads_;
};

}  // namespace kcalib
