#include "cpu/pairs/sweep.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <type_traits>
#include <vector>

#include "cpu/pairs/task_sums.h"

namespace kcalib {

template <class T> Groups groups_of(const PairProblem<T>& problem, const Run& run) {
  constexpr int64_t MAX_GROUPS = 32;
  const int64_t n = problem.left.n, n_right = problem.right.n, largest = std::max(n, n_right);
  const int64_t block = run.block ? run.block : block_rows(problem, largest);
  const int64_t per_group = run.block ? run.per_group : ceil_divide(ceil_divide(largest, block), MAX_GROUPS);
  return {block, per_group, ceil_divide(n, block * per_group), ceil_divide(n_right, block * per_group)};
}

template <class T>
bool moment_parts(const PairProblem<T>& problem, const Run& run, double* totals, double* row_parts, double* column_parts,
                  double* squares, double* expected) {
  const Blocks<T> blocks(problem, run);
  const int threads = blocks.threads();
  MomentSums<T> sums(blocks, run, threads, {totals, row_parts, column_parts, squares, expected});
  return blocks.for_each(
      threads, [&](int64_t task) { sums.start(task); },
      [&](int64_t, int64_t i, int64_t j) {
        const BlockOfPairs<T> pairs = blocks.pairs(i, j);
        BlockSums found = sums.of_block();
        blocks.tile.sums(pairs, found);
        sums.add(pairs, found);
      },
      [&](int64_t task, auto rows, auto columns) { sums.finish(task, rows, columns); });
}

template <class T>
bool moments(const PairProblem<T>& problem, const Run& run, double* total, double* row_sums, double* column_sums,
             double* squares, double* expected) {
  const MergedMoments<T> merged(problem, run, row_sums, squares, expected);
  const PartsOfMoments parts = merged.parts();
  if (!moment_parts(problem, run, parts.totals, parts.rows, parts.columns, parts.squares, parts.expected)) return false;
  merged.write(total, row_sums, column_sums, squares, expected);
  return true;
}

int64_t weights_at_once(const TileTable& table, int64_t size) {
  return size == sizeof(float) ? table.float32.weights_at_once : table.float64.weights_at_once;
}

namespace {
template <class T, class W>
bool forms_of(const Blocks<T>& blocks, const Run& run, const WeightPanels<W>& weights,
              bool of_all_tasks, double* parts) {
  const int threads = blocks.threads(double(weights.length(run)));
  FormSums<T, W> sums(blocks, run, threads, weights, of_all_tasks, parts);
  return blocks.for_each(
      threads, [&](int64_t task) { sums.start(task); },
      [&](int64_t task, int64_t i, int64_t j) {
        const BlockOfPairs<T> pairs = blocks.pairs_and_diagonal(i, j);
        if constexpr (std::is_same_v<decltype(sums.entries()), double*>)
          blocks.tile.entries(pairs, sums.entries(), blocks.block);
        else
          blocks.tile.entries_single(pairs, sums.entries(), blocks.block);
        sums.add(task, pairs);
      },
      [&](int64_t task, auto, auto) { sums.finish(task); });
}
}  // namespace

template <class T, class W>
bool quadratic_parts(const PairProblem<T>& problem, const Run& run, const W* const* panels, int64_t n_panels, int64_t first_row,
                     int64_t first_column, double* parts) {
  return forms_of(Blocks<T>(problem, run), run, WeightPanels<W>{panels, n_panels, first_row, first_column}, true, parts);
}

template <class T, class W>
bool quadratic_forms(const PairProblem<T>& problem, const Run& run, const W* const* panels, int64_t n_panels, double* out) {
  const Blocks<T> blocks(problem, run);
  const WeightPanels<W> weights{panels, n_panels, 0, 0};
  const int64_t length = weights.length(run);
  const AlignedBuffer<double> parts(blocks.own_tasks() * length);
  if (!forms_of(blocks, run, weights, false, parts.get())) return false;
  merge(run, parts, blocks.own_tasks(), length, out);
  return true;
}

template <class T>
bool match_parts(const PairProblem<T>& problem, const Run& run, const LabelPanels& labels, int64_t first_row, int64_t first_column,
                 double* parts) {
  const Blocks<T> blocks(problem, run);
  const TileTable& table = *run.table;
  const int64_t length = labels.length(table), block = blocks.block, room = (block + MAX_MATCH_ROWS) * block;
  const int threads = blocks.threads(2.0 * double(length));
  const AlignedBuffer<double> entries(room * threads), sums(2 * length * threads);  // as in `quadratic_parts`
  const AlignedBuffer<int> units(room * threads);
  std::fill_n(parts, blocks.tasks() * length, 0.0);
  std::fill_n(entries.get(), room * threads, 0.0);
  const auto own = [&] { return &sums[2 * length * thread_number()]; };
  return blocks.for_each(
      threads, [&](int64_t) { std::fill_n(own() + length, length, 0.0); },
      [&](int64_t task, int64_t i, int64_t j) {
        const BlockOfPairs<T> pairs = blocks.pairs_and_diagonal(i, j);
        const MatchBlock of{first_row + pairs.row_begin, pairs.row_end - pairs.row_begin, first_column + pairs.column_begin,
                            pairs.column_end - pairs.column_begin, problem.symmetric && i == j};
        double* h = entries.get() + room * thread_number();
        int* whole = units.get() + room * thread_number();
        blocks.tile.entries(pairs, h, block);
        const double unit = table.in_units(h, block, of.rows, of.columns, of.on_diagonal, whole);
        std::fill_n(own(), length, 0.0);
        const double times = problem.symmetric ? 2 * unit : unit;
        table.matches(whole, block, of, labels.panels, labels.count, times, own());
        table.add_compensated(own(), length, parts + task * length, own() + length);
      },
      [&](int64_t task, auto, auto) { settle(parts + task * length, own() + length, length); });
}

template <class T> bool matches(const PairProblem<T>& problem, const Run& run, const LabelPanels& labels, double* out) {
  const Groups groups = groups_of(problem, run);
  const int64_t tasks = groups.rows * groups.columns, length = labels.length(*run.table);
  const AlignedBuffer<double> parts(tasks * length);
  if (!match_parts(problem, run, labels, 0, 0, parts.get())) return false;
  merge(run, parts, tasks, length, out);
  return true;
}

template <class T>
bool counts(const PairProblem<T>& problem, const Run& run, const double* thresholds, int64_t* counts) {
  const Blocks<T> blocks(problem, run);
  const AlignedBuffer<int64_t> parts(blocks.tasks() * THRESHOLDS);
  std::fill_n(parts.get(), blocks.tasks() * THRESHOLDS, int64_t(0));
  const bool finished = blocks.for_each(
      blocks.threads(), [](int64_t) {},
      [&](int64_t task, int64_t i, int64_t j) { blocks.tile.counts(blocks.pairs(i, j), thresholds, &parts[task * THRESHOLDS]); },
      [](int64_t, auto, auto) {});
  std::fill_n(counts, THRESHOLDS, int64_t(0));
  for (int64_t k = 0; k < blocks.tasks() * THRESHOLDS; ++k) counts[k % THRESHOLDS] += parts[k];
  return finished;
}

template <class T>
bool between(const PairProblem<T>& problem, const Run& run, double low, double high, double* out, int64_t capacity,
             int64_t* found, int64_t* below) {
  const Blocks<T> blocks(problem, run);
  const int threads = blocks.threads();
  const int64_t room = blocks.block * blocks.block;
  const AlignedBuffer<double> buffer(room * threads);
  std::atomic<int64_t> filled{0};
  std::atomic<int64_t> lower{0};
  const bool finished = blocks.for_each(
      threads, [](int64_t) {},
      [&](int64_t, int64_t i, int64_t j) {
        double* block = buffer.get() + room * thread_number();
        int64_t own = 0;
        const int64_t count = blocks.tile.between(blocks.pairs(i, j), low, high, block, room, &own);
        lower.fetch_add(own);
        const int64_t begin = filled.fetch_add(count);
        if (begin < capacity) std::copy_n(block, std::min(count, capacity - begin), out + begin);
      },
      [](int64_t, auto, auto) {});
  *found = filled.load();
  *below = lower.load();
  return finished;
}

template <class T> bool block_sums(const PairProblem<T>& problem, const Run& run, int64_t size, double* out) {
  // A task is a strip of rows of one block against the columns from its own on: large
  // blocks are shared between threads, small ones are dealt out in runs.
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
  const bool finished = parallel_tasks(watch, threads, ceil_divide(tasks, run_length), [&](int64_t k) {
    for (int64_t task = k * run_length; task < std::min(tasks, (k + 1) * run_length) && !watch.stopped(); ++task) add_strip(task);
  });
  if (!finished) return false;
  for (int64_t b = 0; b < n_blocks; ++b) {
    out[b] = 0;
    for (int64_t s = 0; s < strips; ++s) out[b] += parts[b * strips + s];
  }
  return true;
}

template <class T> bool entries(const PairProblem<T>& problem, const Run& run, double* out) {
  const Blocks<T> blocks(problem, run);
  return blocks.for_each_block(blocks.threads(), [&](int64_t i, int64_t j) {
    const BlockOfPairs<T> pairs = blocks.pairs_and_diagonal(i, j);
    blocks.tile.entries(pairs, out + pairs.row_begin * blocks.n_right + pairs.column_begin, blocks.n_right);
  });
}

template <class T> bool own_products(const PairProblem<T>& problem, const Run& run, T* out) {
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

#define KCALIB_INSTANTIATE(T)                                                                        \
  template Groups groups_of<T>(const PairProblem<T>&, const Run&);                                   \
  template bool moments<T>(const PairProblem<T>&, const Run&, double*, double*, double*, double*, double*); \
  template bool moment_parts<T>(const PairProblem<T>&, const Run&, double*, double*, double*, double*, double*); \
  template bool block_sums<T>(const PairProblem<T>&, const Run&, int64_t, double*);                     \
  template bool quadratic_parts<T>(const PairProblem<T>&, const Run&, const double* const*, int64_t, int64_t, int64_t, double*); \
  template bool quadratic_parts<T>(const PairProblem<T>&, const Run&, const float* const*, int64_t, int64_t, int64_t, double*); \
  template bool quadratic_forms<T>(const PairProblem<T>&, const Run&, const double* const*, int64_t, double*); \
  template bool quadratic_forms<T>(const PairProblem<T>&, const Run&, const float* const*, int64_t, double*); \
  template bool match_parts<T>(const PairProblem<T>&, const Run&, const LabelPanels&, int64_t, int64_t, double*); \
  template bool matches<T>(const PairProblem<T>&, const Run&, const LabelPanels&, double*);          \
  template bool counts<T>(const PairProblem<T>&, const Run&, const double*, int64_t*);                \
  template bool between<T>(const PairProblem<T>&, const Run&, double, double, double*, int64_t, int64_t*, int64_t*); \
  template bool entries<T>(const PairProblem<T>&, const Run&, double*);                              \
  template bool own_products<T>(const PairProblem<T>&, const Run&, T*);                              \
  template double probe<T>(const Run&, Probe, int64_t); \
  template void evaluate<T>(const Run&, ScalarFunction, const T*, double, int64_t, T*);
KCALIB_INSTANTIATE(double)
KCALIB_INSTANTIATE(float)

}  // namespace kcalib
