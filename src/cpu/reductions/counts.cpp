#include "cpu/reductions/counts.h"

#include <algorithm>

namespace kcalib {

void Counts::start(const SweepShape& shape) {
  size_ = shape.threads * THRESHOLDS;
  of_threads_.emplace(size_);
  std::fill_n(of_threads_->get(), size_, int64_t(0));
}

void Counts::add(const Task& task, Block& block) { block.add_counts(thresholds_, &(*of_threads_)[task.thread * THRESHOLDS]); }

void Counts::finish() {
  std::fill_n(counts_, THRESHOLDS, int64_t(0));
  for (int64_t k = 0; k < size_; ++k) counts_[k % THRESHOLDS] += (*of_threads_)[k];
}

}  // namespace kcalib
