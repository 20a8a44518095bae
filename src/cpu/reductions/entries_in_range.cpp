#include "cpu/reductions/entries_in_range.h"

#include <algorithm>

namespace kcalib {

void EntriesInRange::start(const SweepShape& shape) {
  room_ = shape.block * shape.block + WIDEST_PANEL;
  of_threads_.emplace(room_ * shape.threads);
}

void EntriesInRange::add(const Task& task, Block& block) {
  double* const values = of_threads_->get() + room_ * task.thread;
  int64_t below = 0;
  const int64_t count = block.write_between(low_, high_, values, &below);
  below_.fetch_add(below);
  const int64_t begin = inside_.fetch_add(count);
  if (begin < capacity_) std::copy_n(values, std::min(count, capacity_ - begin), out_ + begin);
}

}  // namespace kcalib
