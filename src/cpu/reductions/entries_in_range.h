// The entries in a range.
#pragma once

#include <atomic>
#include <optional>

#include "cpu/simd/aligned.h"
#include "cpu/reductions/reduction.h"

namespace kcalib {

// The entries H_ij in [low, high) of pairs i < j, in no order, how many there are, and how many are below; at most `capacity`
// are written. Symmetric problems.
class EntriesInRange final : public Reduction {
 public:
  EntriesInRange(double low, double high, double* out, int64_t capacity) : low_(low), high_(high), out_(out), capacity_(capacity) {}
  void start(const SweepShape& shape) override;
  void add(const Task& task, Block& block) override;
  int64_t inside() const { return inside_.load(); }
  int64_t below() const { return below_.load(); }

 private:
  const double low_, high_;
  double* const out_;
  const int64_t capacity_;
  int64_t room_ = 0;
  std::optional<AlignedBuffer<double>> of_threads_;
  std::atomic<int64_t> inside_{0}, below_{0};
};

}  // namespace kcalib
