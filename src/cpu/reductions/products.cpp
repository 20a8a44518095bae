#include "cpu/reductions/products.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <thread>
#include <vector>

#include "cpu/pairs/blocks.h"
#include "cpu/pairs/compensated.h"
#include "cpu/simd/aligned.h"

namespace kcalib {
namespace {

// Whose turn it is to add to each group of results: the order of summation is fixed, and no thread has results of its own.
class Turns {
 public:
  explicit Turns(int64_t groups) : next_(groups) {}
  // Waits until the turns before have passed. False if the sweep was stopped. Threads take tasks in order, so the earliest
  // that is not done waits for none.
  bool wait_for(int64_t group, int64_t turn, const Watch& watch) const {
    while (next_[group].load(std::memory_order_acquire) != turn) {
      if (watch.stopped()) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void pass(int64_t group, int64_t turn) { next_[group].store(turn + 1, std::memory_order_release); }

 private:
  std::vector<std::atomic<int64_t>> next_;
};

// The samples of a side in blocks, and where a sample is in arrays.
struct SideBlocks {
  int64_t n, block;
  const int64_t* order;

  int64_t blocks() const { return ceil_divide(n, block); }
  int64_t row(int64_t i) const { return order ? order[i] : i; }
};

// Numbers for each sample of a side and each of some columns: block by block, a column after the other, `length` numbers
// for the samples of a block.
template <class W> class BlockColumns {
 public:
  BlockColumns(const SideBlocks& side, int64_t length, int64_t columns)
      : side_(side), length_(length), columns_(columns), numbers_(side.blocks() * length * columns) {}
  W* operator[](int64_t block) const { return numbers_.get() + block * length_ * columns_; }

  // visit(i, c, number) for sample i and column c, and for the numbers of no sample, with i = -1.
  template <class Visit> void for_each(const Run& run, Visit&& visit) const {
    const int threads = team_size(run, side_.blocks(), 4.0 * double(side_.n) * double(columns_));
    parallel_tasks(threads, side_.blocks(), [&](int64_t b) {
      for (int64_t k = 0; k < length_; ++k) {
        const bool is_sample = k < side_.block && b * side_.block + k < side_.n;
        for (int64_t c = 0; c < columns_; ++c) visit(is_sample ? b * side_.block + k : -1, c, (*this)[b][c * length_ + k]);
      }
    });
  }

 private:
  const SideBlocks side_;
  const int64_t length_, columns_;
  const AlignedBuffer<W> numbers_;
};

// Powers of two that bring the columns of v into the range of float32.
std::vector<double> scales_of(const double* v, int64_t n, int64_t stride, int64_t count) {
  std::vector<double> scales(count, 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < count; ++c) scales[c] = std::max(scales[c], std::abs(v[i * stride + c]));
  for (double& scale : scales) {
    const bool is_usual = scale > 0 && std::isfinite(scale);
    scale = is_usual ? std::ldexp(1.0, std::clamp(std::ilogb(scale), -1000, 1000)) : 1.0;
  }
  return scales;
}

// Vectors with a number for each sample of a side, in blocks, and brought into W's range by powers of two.
template <class W> struct Vectors {
  const std::vector<double> scales;
  const BlockColumns<W> numbers;

  Vectors(const SideBlocks& side, int64_t length, const double* values, int64_t stride, int64_t count, const Run& run)
      : scales(sizeof(W) == sizeof(float) ? scales_of(values, side.n, stride, count) : std::vector<double>(count, 1.0)),
        numbers(side, length, count) {
    std::vector<double> factors;
    for (double scale : scales) factors.push_back(1 / scale);
    numbers.for_each(run, [&](int64_t i, int64_t c, W& number) {
      number = i < 0 ? W(0) : W(values[side.row(i) * stride + c] * factors[c]);
    });
  }
};

// What tasks add up to, and what roundings have lost of it.
struct Sums {
  const SideBlocks side;
  const int64_t size, group_blocks;  // numbers of a block; blocks of a group
  const BlockColumns<double> numbers, lost;
  Turns turns;
  const int64_t last_turn;

  Sums(const SideBlocks& side, int64_t length, int64_t columns, int64_t group_blocks, int64_t n_turns)
      : side(side), size(length * columns), group_blocks(group_blocks), numbers(side, length, columns), lost(side, length, columns),
        turns(ceil_divide(side.blocks(), group_blocks)), last_turn(n_turns - 1) {}

  // Adds a task's sums to those of a group when it is their turn.
  void add(const TileTable& table, int64_t group, int64_t turn, const double* part, const Watch& watch) {
    if (!turns.wait_for(group, turn, watch)) return;
    const int64_t begin = group * group_blocks, count = std::min(group_blocks, side.blocks() - begin) * size;
    if (turn == 0) {
      std::copy_n(part, count, numbers[begin]);
      std::fill_n(lost[begin], count, 0.0);
    } else {
      table.add_compensated(part, count, numbers[begin], lost[begin]);
    }
    if (turn == last_turn) settle(numbers[begin], lost[begin], count);
    turns.pass(group, turn);
  }

  void write(const Run& run, const std::vector<double>& scales, int64_t stride, double* out) const {
    numbers.for_each(run, [&](int64_t i, int64_t c, double sum) {
      if (i >= 0) out[side.row(i) * stride + c] = sum * scales[c];
    });
  }
};

}  // namespace

// A task's products are added up in the thread's own memory, and then to the results, in the order of the other side's groups.
template <class W> class Products<W>::State {
 public:
  const SweepShape shape;
  const SideBlocks left, right;
  const int64_t length, size;              // numbers of a block in a column, to the widest panels, and in all columns
  const int64_t panel_stride, room;        // rows of entries in panels, and numbers
  const int64_t part_size;                 // numbers of a group
  const AlignedBuffer<double> parts;       // of threads, of rows and columns
  const AlignedBuffer<W> entries;          // of threads
  const Vectors<W> right_vectors;
  std::optional<Vectors<W>> left_vectors;
  std::optional<Sums> sums, column_sums;

  State(const SweepShape& shape, const ProductArrays& arrays)
      : shape(shape), left{shape.n, shape.block, shape.order}, right{shape.n_right, shape.block, shape.right_order},
        length(round_up(shape.block, shape.run->table->float32.weights_at_once)), size(length * arrays.count),
        panel_stride(shape.block + MAX_ROWS_AT_ONCE), room(panel_stride * length), part_size(shape.group / shape.block * size),
        parts(2 * part_size * shape.threads), entries(room * shape.threads),
        right_vectors(right, length, arrays.vectors, arrays.stride, arrays.count, *shape.run) {
    std::fill_n(entries.get(), room * shape.threads, W(0));
    if (arrays.left_vectors) left_vectors.emplace(left, length, arrays.left_vectors, arrays.stride, arrays.count, *shape.run);
    if (arrays.is_apart) return;
    sums.emplace(left, length, arrays.count, shape.group / shape.block, shape.column_groups);
    if (left_vectors) column_sums.emplace(right, length, arrays.count, shape.group / shape.block, shape.row_groups);
  }

  bool is_on_diagonal(const Task& task) const { return shape.symmetric && task.row_group == task.column_group; }
  double* row_part(const Task& task) const { return parts.get() + 2 * part_size * task.thread; }
  double* column_part(const Task& task) const { return row_part(task) + (is_on_diagonal(task) ? 0 : part_size); }
};

template <class W> Products<W>::Products(const ProductArrays& arrays, bool is_rounded) : arrays_(arrays), is_rounded_(is_rounded) {}
template <class W> Products<W>::~Products() = default;
template <class W> void Products<W>::start(const SweepShape& shape) { state_ = std::make_unique<State>(shape, arrays_); }
template <class W> void Products<W>::start_task(const Task& task) { std::fill_n(state_->row_part(task), 2 * state_->part_size, 0.0); }

template <class W> void Products<W>::add(const Task& task, Block& block) {
  const State& state = *state_;
  const bool symmetric = state.shape.symmetric;
  const TileTable& table = *state.shape.run->table;
  W* const h = state.entries.get() + state.room * task.thread;
  block.write_panels(h, state.panel_stride);
  if constexpr (sizeof(W) == sizeof(double))
    if (is_rounded_) table.round_panels(h, state.panel_stride, block.rows(), block.columns(), block.on_diagonal);
  const int64_t i = block.row_begin / state.shape.block, j = block.column_begin / state.shape.block;
  const Vectors<W>* const of_rows = state.left_vectors ? &*state.left_vectors : symmetric && !block.on_diagonal ? &state.right_vectors : nullptr;
  const int64_t row = (block.row_begin - task.row_begin) / state.shape.block * state.size;
  const int64_t column = (block.column_begin - task.column_begin) / state.shape.block * state.size;
  functions<W>(table).multiply({h, state.panel_stride, block.rows(), block.columns(), arrays_.count, state.length,
                                state.right_vectors.numbers[j], of_rows ? of_rows->numbers[i] : nullptr,
                                state.row_part(task) + row, state.column_part(task) + column});
}

template <class W> void Products<W>::finish_task(const Task& task, const Watch& watch) {
  State& state = *state_;
  const SweepShape& shape = state.shape;
  const bool has_mirror = shape.symmetric && !state.is_on_diagonal(task);
  if (arrays_.is_apart) {
    const std::vector<double>& scales = state.right_vectors.scales;
    write_part(task.row_begin, task.row_end, state.row_part(task), scales, arrays_.out + task.column_group * shape.n * arrays_.stride);
    double* const mirror = arrays_.out + task.row_group * shape.n * arrays_.stride;
    if (has_mirror) write_part(task.column_begin, task.column_end, state.column_part(task), scales, mirror);
    if (!state.left_vectors) return;
    double* const columns = arrays_.column_out + task.row_group * shape.n_right * arrays_.stride;
    write_part(task.column_begin, task.column_end, state.column_part(task), state.left_vectors->scales, columns);
    return;
  }
  const TileTable& table = *shape.run->table;
  state.sums->add(table, task.row_group, task.column_group, state.row_part(task), watch);
  if (has_mirror) state.sums->add(table, task.column_group, task.row_group, state.column_part(task), watch);
  if (state.column_sums) state.column_sums->add(table, task.column_group, task.row_group, state.column_part(task), watch);
}

// Writes a task's products with samples [begin, end) to their rows of `out`.
template <class W>
void Products<W>::write_part(int64_t begin, int64_t end, const double* part, const std::vector<double>& scales, double* out) const {
  const int64_t block = state_->shape.block, length = state_->length;
  for (int64_t i = begin; i < end; ++i)
    for (int64_t c = 0; c < arrays_.count; ++c)
      out[i * arrays_.stride + c] = scales[c] * part[(i - begin) / block * state_->size + c * length + (i - begin) % block];
}

template <class W> void Products<W>::finish() {
  if (arrays_.is_apart) return;
  const Run& run = *state_->shape.run;
  state_->sums->write(run, state_->right_vectors.scales, arrays_.stride, arrays_.out);
  if (state_->column_sums) state_->column_sums->write(run, state_->left_vectors->scales, arrays_.stride, arrays_.column_out);
}

template class Products<double>;
template class Products<float>;

}  // namespace kcalib
