#include "cpu/pairs/sweep.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

#include "cpu/pairs/blocks.h"
#include "cpu/reductions/block_sums.h"
#include "cpu/reductions/reduction.h"

namespace kcalib {
namespace {

template <class T> Side<T> typed(const Side<void>& side) {
  return {static_cast<const T*>(side.points), side.n_coordinates, static_cast<const T*>(side.features), side.n_features, side.labels,
          side.classes, side.centre, side.order, side.n, side.expecting};
}

// function(problem) for the problem in the type of its numbers.
template <class Function> auto with_type(const AnyProblem& problem, Function&& function) {
  const auto as = [&]<class T>(T) {
    return function(PairProblem<T>{problem.program, typed<T>(problem.left), typed<T>(problem.right), problem.symmetric});
  };
  return problem.single ? as(float()) : as(double());
}

struct GroupPair {
  int64_t rows, columns;
};

// All pairs of groups; symmetric problems: those with rows <= columns. Each group meets the others from the first to the last,
// which is the order in which products are added to its results, and tasks that follow each other belong to different groups.
std::vector<GroupPair> pairs_of_groups(bool symmetric, int64_t row_groups, int64_t column_groups) {
  std::vector<GroupPair> pairs;
  for (int64_t sum = 0; sum < row_groups + column_groups - 1; ++sum)
    for (int64_t i = std::max<int64_t>(0, sum - column_groups + 1); i < std::min(row_groups, sum + 1); ++i)
      if (!symmetric || 2 * i <= sum) pairs.push_back({i, sum - i});
  return pairs;
}

// Room for the entries of a block for each thread; its last rows are those of a register tile beyond the block's.
template <class W> class EntryRoom {
 public:
  EntryRoom(bool is_needed, int64_t block, int64_t stride, int threads)
      : size_(is_needed ? (block + MAX_ROWS_AT_ONCE) * stride : 0), entries_(size_ * threads) {
    std::fill_n(entries_.get(), size_ * threads, W(0));
  }
  W* of_thread() const { return entries_.get() + size_ * thread_number(); }

 private:
  const int64_t size_;
  const AlignedBuffer<W> entries_;
};

template <class T> struct Rooms {
  using Other = std::conditional_t<std::is_same_v<T, double>, float, double>;
  const int64_t stride;
  const EntryRoom<T> own;
  const EntryRoom<Other> converted;

  Rooms(unsigned needs, int64_t block, int threads)
      : stride(round_up(block, WIDEST_PANEL)),
        own(needs & (ENTRIES | DOUBLE_ENTRIES | SINGLE_ENTRIES), block, stride, threads),
        converted(needs & (std::is_same_v<T, double> ? SINGLE_ENTRIES : DOUBLE_ENTRIES), block, stride, threads) {}
};

template <class T> class TypedBlock final : public Block {
 public:
  TypedBlock(const Blocks<T>& blocks, int64_t i, int64_t j, const Rooms<T>& rooms)
      : tile_(blocks.tile), pairs_(blocks.pairs(i, j)), room_(rooms.own.of_thread()), converted_(rooms.converted.of_thread()) {
    row_begin = pairs_.row_begin;
    row_end = pairs_.row_end;
    column_begin = pairs_.column_begin;
    column_end = pairs_.column_end;
    on_diagonal = pairs_.on_diagonal;
    stride = rooms.stride;
  }

  void add_sums(BlockSums& sums) const override { tile_.sums(pairs_, sums); }
  double* entries() override { return entries_as<double>(tile_.to_double); }
  float* entries_single() override { return entries_as<float>(tile_.to_single); }
  void write_panels(double* out, int64_t panel_stride) override { tile_.panels(written(), out, panel_stride); }
  void write_panels(float* out, int64_t panel_stride) override { tile_.panels_single(written(), out, panel_stride); }
  void add_counts(const double* thresholds, int64_t* counts) override { tile_.counts(written(), thresholds, counts); }
  int64_t write_between(double low, double high, double* out, int64_t* below) override {
    return tile_.between(written(), low, high, out, below);
  }

 private:
  WrittenBlock<T> written() {
    if (!is_written_) {
      BlockOfPairs<T> with_diagonal = pairs_;
      with_diagonal.on_diagonal = false;
      tile_.entries(with_diagonal, room_, stride);
    }
    is_written_ = true;
    return {room_, stride, rows(), columns(), on_diagonal};
  }
  template <class W> W* entries_as(void (*convert)(const WrittenBlock<T>&, W*)) {
    const WrittenBlock<T> own = written();
    if constexpr (std::is_same_v<T, W>) {
      return room_;
    } else {
      if (!is_converted_) convert(own, converted_);
      is_converted_ = true;
      return converted_;
    }
  }

  const TileFunctions<T>& tile_;
  const BlockOfPairs<T> pairs_;
  T* const room_;
  typename Rooms<T>::Other* const converted_;
  bool is_written_ = false, is_converted_ = false;
};

template <class T> bool sweep_typed(PairProblem<T> problem, const Run& run, Reduction* const* begin, Reduction* const* end) {
  unsigned needs = 0;
  double work = 0;
  for (auto reduction = begin; reduction < end; ++reduction) {
    needs |= (*reduction)->needs();
    work += (*reduction)->work();
  }
  problem.left.expecting = problem.right.expecting = needs & NULL_VARIANCE;
  const Blocks<T> blocks(problem, run);
  const std::vector<GroupPair> pairs = pairs_of_groups(problem.symmetric, blocks.row_groups, blocks.column_groups);
  const int threads = int(std::min(int64_t(blocks.threads(work)), int64_t(pairs.size())));
  const Rooms<T> rooms(needs, blocks.block, threads);
  const SweepShape shape{&run, threads, blocks.n, blocks.n_right, problem.left.order, problem.right.order, problem.symmetric,
                         blocks.block, blocks.group, rooms.stride, blocks.row_groups, blocks.column_groups};
  for (auto reduction = begin; reduction < end; ++reduction) (*reduction)->start(shape);
  Watch watch(run, blocks.pairs_of_blocks());
  // Tasks begin in order, for which products wait.
  const bool is_finished = parallel_tasks(watch, threads, int64_t(pairs.size()), [&](int64_t place) {
    const Task task = blocks.task(pairs[place].rows, pairs[place].columns, thread_number());
    for (auto reduction = begin; reduction < end; ++reduction) (*reduction)->start_task(task);
    for (int64_t i = task.row_begin / blocks.block; i * blocks.block < task.row_end; ++i) {
      const int64_t first = task.column_begin / blocks.block;
      for (int64_t j = problem.symmetric ? std::max(i, first) : first; j * blocks.block < task.column_end && !watch.stopped(); ++j) {
        TypedBlock<T> block(blocks, i, j, rooms);
        for (auto reduction = begin; reduction < end; ++reduction) (*reduction)->add(task, block);
        watch.task_done();
      }
    }
    for (auto reduction = begin; reduction < end; ++reduction) (*reduction)->finish_task(task, watch);
  });
  if (!is_finished) return false;
  for (auto reduction = begin; reduction < end; ++reduction) (*reduction)->finish();
  return true;
}

template <class T> bool sum_blocks_typed(const PairProblem<T>& problem, const Run& run, int64_t size, double* out) {
  // A task is a strip of rows of one block against the columns from its own on: large blocks are shared between threads,
  // small ones are dealt out in runs.
  const int64_t n_blocks = problem.left.n / size, step = block_rows(problem, size);
  const int64_t strips = ceil_divide(size, step), tasks = n_blocks * strips;
  const TileFunctions<T>& tile = functions<T>(*run.table);
  const int64_t packed_size = tile.packed_size(problem.left, std::min(step, size));
  const int threads = team_size(run, tasks, pair_work(problem) * double(problem.left.n) * double(size) / 2);
  const AlignedBuffer<T> packed(2 * packed_size * threads);
  const AlignedBuffer<double> parts(tasks);
  Watch watch(run, n_blocks * (strips * (strips + 1) / 2));  // squares: of slow pairs a strip of a large block takes minutes
  const int64_t run_length = std::clamp<int64_t>(step / size, 1, 64);

  const auto add_strip = [&](int64_t task) {
    T* rows = packed.get() + 2 * packed_size * thread_number();
    const int64_t begin = task / strips * size, end = begin + size;
    const int64_t row_begin = begin + task % strips * step, row_end = std::min(end, row_begin + step);
    tile.pack(problem.left, row_begin, row_end, rows);
    BlockSums sums{};
    for (int64_t j = row_begin; j < end && !watch.stopped(); j += step) {
      const int64_t j_end = std::min(end, j + step);
      const bool on_diagonal = j == row_begin;
      T* columns = on_diagonal ? rows : rows + packed_size;
      if (!on_diagonal) tile.pack(problem.right, j, j_end, columns);
      tile.sums({&problem.program, &problem.left, row_begin, row_end, rows, &problem.right, j, j_end, columns, on_diagonal}, sums);
      watch.task_done();
    }
    parts[task] = 2 * sums.total;
  };
  const bool is_finished = parallel_tasks(watch, threads, ceil_divide(tasks, run_length), [&](int64_t k) {
    for (int64_t task = k * run_length; task < std::min(tasks, (k + 1) * run_length) && !watch.stopped(); ++task) add_strip(task);
  });
  if (!is_finished) return false;
  for (int64_t b = 0; b < n_blocks; ++b) {
    out[b] = 0;
    for (int64_t s = 0; s < strips; ++s) out[b] += parts[b * strips + s];
  }
  return true;
}

template <class T> bool own_products_typed(const PairProblem<T>& problem, const Run& run, T* out) {
  const TileFunctions<T>& tile = functions<T>(*run.table);
  const Side<T>& side = problem.left;
  const int64_t step = 96, tasks = ceil_divide(side.n, step), packed_size = tile.packed_size(side, std::min(step, side.n));
  const Mixtures& mixtures = *problem.program.predicted;
  constexpr double LANES_OF_A_TILE = 32;  // of which one is wanted
  const int threads = team_size(run, tasks, double(side.n) * LANES_OF_A_TILE * mixture_work(&mixtures));
  const AlignedBuffer<T> packed(packed_size * threads);
  Watch watch(run, tasks);
  return parallel_tasks(watch, threads, tasks, [&](int64_t task) {
    const int64_t begin = task * step, end = std::min(side.n, begin + step);
    T* samples = packed.get() + packed_size * thread_number();
    tile.pack(side, begin, end, samples);
    tile.own_products(mixtures, side, end - begin, samples, out + begin);
    watch.task_done();
  });
}

}  // namespace

Groups groups_of(const AnyProblem& problem, const Run& run) {
  return with_type(problem, [&](const auto& typed) { return groups_of(typed, run); });
}

bool sweep(const AnyProblem& problem, const Run& run, Reduction* const* reductions, int64_t count) {
  return with_type(problem, [&](const auto& typed) { return sweep_typed(typed, run, reductions, reductions + count); });
}

bool sum_blocks(const AnyProblem& problem, const Run& run, int64_t size, double* out) {
  return with_type(problem, [&](const auto& typed) { return sum_blocks_typed(typed, run, size, out); });
}

bool own_products(const AnyProblem& problem, const Run& run, void* out) {
  return with_type(problem, [&]<class T>(const PairProblem<T>& typed) { return own_products_typed(typed, run, static_cast<T*>(out)); });
}

void merge(const Run& run, const double* parts, int64_t count, int64_t length, double* out) {
  constexpr int64_t AT_ONCE = 512;
  double lost[AT_ONCE];
  for (int64_t k = 0; k < length; k += AT_ONCE) {
    const int64_t size = std::min(AT_ONCE, length - k);
    std::copy_n(parts + k, size, out + k);
    std::fill_n(lost, size, 0.0);
    for (int64_t g = 1; g < count; ++g) run.table->add_compensated(parts + g * length + k, size, out + k, lost);
    settle(out + k, lost, size);
  }
}

int64_t weights_at_once(const TileTable& table, int64_t size) {
  return size == sizeof(float) ? table.float32.weights_at_once : table.float64.weights_at_once;
}

template <class T> double probe(const Run& run, Probe what, int64_t repetitions) {
  const auto once = functions<T>(*run.table).probe;
  const int threads = team_size(run, run.threads, double(repetitions) * 100);
  std::vector<double> elements(std::size_t(threads), 0.0);
  parallel_tasks(threads, threads, [&](int64_t task) {
    T sink;
    elements[std::size_t(task)] = once(what, repetitions, &sink);
  });
  return std::accumulate(elements.begin(), elements.end(), 0.0);
}

template <class T> void evaluate(const Run& run, ScalarFunction f, const T* x, double a, int64_t n, T* out) {
  functions<T>(*run.table).evaluate(f, x, T(a), n, out);
}

template double probe<double>(const Run&, Probe, int64_t);
template double probe<float>(const Run&, Probe, int64_t);
template void evaluate<double>(const Run&, ScalarFunction, const double*, double, int64_t, double*);
template void evaluate<float>(const Run&, ScalarFunction, const float*, double, int64_t, float*);

}  // namespace kcalib
