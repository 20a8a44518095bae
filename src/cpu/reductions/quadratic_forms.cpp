#include "cpu/reductions/quadratic_forms.h"

#include <algorithm>

#include "cpu/pairs/compensated.h"

namespace kcalib {

template <class W> void QuadraticForms<W>::start(const SweepShape& shape) {
  shape_ = shape;
  length_ = weights_.count * functions<W>(*shape.run->table).weights_at_once;
  sums_.emplace(2 * length_ * shape.threads);
  std::fill_n(parts_, shape.tasks() * length_, 0.0);
}

template <class W> void QuadraticForms<W>::start_task(const Task& task) {
  std::fill_n(&(*sums_)[2 * length_ * task.thread], 2 * length_, 0.0);
}

template <class W> void QuadraticForms<W>::add(const Task& task, Block& block) {
  double* const sums = &(*sums_)[2 * length_ * task.thread];
  double* const lost = sums + length_;  // by roundings of the task's sums
  const W* h;
  if constexpr (sizeof(W) == sizeof(float)) h = block.entries_single();
  else h = block.entries();
  std::fill_n(sums, length_, 0.0);
  functions<W>(*shape_.run->table).quadratic(
      h, block.stride, weights_.first_row + block.row_begin, block.rows(), weights_.first_column + block.column_begin,
      block.columns(), weights_.panels, weights_.count, sums);
  if (shape_.symmetric && !block.on_diagonal)
    for (int64_t c = 0; c < length_; ++c) sums[c] *= 2;
  shape_.run->table->add_compensated(sums, length_, parts_ + task.number * length_, lost);
}

template <class W> void QuadraticForms<W>::finish_task(const Task& task, const Watch&) {
  settle(parts_ + task.number * length_, &(*sums_)[(2 * task.thread + 1) * length_], length_);
}

template class QuadraticForms<double>;
template class QuadraticForms<float>;

}  // namespace kcalib
