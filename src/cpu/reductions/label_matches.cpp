#include "cpu/reductions/label_matches.h"

#include <algorithm>

#include "cpu/pairs/compensated.h"

namespace kcalib {

void LabelMatches::start(const SweepShape& shape) {
  shape_ = shape;
  length_ = labels_.count * shape.run->table->labels_at_once;
  room_ = (shape.block + MAX_MATCH_ROWS) * shape.stride;
  sums_.emplace((2 * length_ + shape.block) * shape.threads);
  units_.emplace(room_ * shape.threads);
  std::fill_n(parts_, shape.tasks() * length_, 0.0);
}

void LabelMatches::start_task(const Task& task) {
  std::fill_n(&(*sums_)[(2 * length_ + shape_.block) * task.thread], 2 * length_, 0.0);
}

void LabelMatches::add(const Task& task, Block& block) {
  const TileTable& table = *shape_.run->table;
  double* const sums = &(*sums_)[(2 * length_ + shape_.block) * task.thread];
  double* const lost = sums + length_;
  double* const diagonal = lost + length_;
  int* const units = units_->get() + room_ * task.thread;
  double* const h = block.entries();
  // `in_units` leaves the diagonal out, which other reductions of the sweep read.
  if (block.on_diagonal)
    for (int64_t i = 0; i < block.rows(); ++i) diagonal[i] = h[i * (block.stride + 1)];
  const double unit = table.in_units(h, block.stride, block.rows(), block.columns(), block.on_diagonal, units);
  if (block.on_diagonal)
    for (int64_t i = 0; i < block.rows(); ++i) h[i * (block.stride + 1)] = diagonal[i];
  const MatchBlock of{labels_.first_row + block.row_begin, block.rows(), labels_.first_column + block.column_begin, block.columns(),
                      block.on_diagonal};
  std::fill_n(sums, length_, 0.0);
  table.matches(units, block.stride, of, labels_.panels, labels_.count, shape_.symmetric ? 2 * unit : unit, sums);
  table.add_compensated(sums, length_, parts_ + task.number * length_, lost);
}

void LabelMatches::finish_task(const Task& task, const Watch&) {
  settle(parts_ + task.number * length_, &(*sums_)[(2 * length_ + shape_.block) * task.thread + length_], length_);
}

}  // namespace kcalib
