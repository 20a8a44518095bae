#include "resampling.h"

#include <algorithm>
#include <vector>

#include "team.h"

namespace kcalib {
namespace {

long ceil_divide(long a, long b) { return (a + b - 1) / b; }

template <class T> const WeightFunctions<T>& weight_functions(const WeightTable& table) {
  if constexpr (sizeof(T) == 8) return table.float64;
  else return table.float32;
}

// Independent weights: rectangles of some 100 KB.
template <class T>
bool fill_rectangles(bool gaussian, Word seed, Word first, long n_replicates, long n, T* out, const Run& run) {
  constexpr long ROWS = Rectangle::BLOCK, REPLICATES = 512;
  const WeightFunctions<T>& weights = weight_functions<T>(*run.table->weights);
  const auto fill = gaussian ? weights.gaussian : weights.rademacher;
  const long across = ceil_divide(n_replicates, REPLICATES), tasks = ceil_divide(n, ROWS) * across;
  const int threads = team_size(run, tasks, double(n) * double(n_replicates) * (gaussian ? 100 : 5));
  Watch watch(run, tasks);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (long task = 0; task < tasks; ++task) {
    if (watch.stopped()) continue;
    const long row = task / across * ROWS, begin = task % across * REPLICATES;
    const Rectangle rectangle{seed, first + Word(begin), std::min(REPLICATES, n_replicates - begin), row, std::min(n, row + ROWS)};
    fill(rectangle, out + row * n_replicates + begin, n_replicates);
    watch.task_done();
  }
  return !watch.stopped();
}

// Counts of draws: each replicate in a buffer of its own, the buffers of a group written together.
template <class T> bool fill_counts(Word seed, Word first, long n_replicates, long n, T* out, const Run& run) {
  constexpr long PAIRS = 1L << 18;  // between two looks at the watch
  const long pairs = ceil_divide(n, 2), parts = ceil_divide(pairs, PAIRS);
  const long group = std::clamp(n_replicates / std::max(1, run.threads), 1L, long(GROUP));
  const long groups = ceil_divide(n_replicates, group);
  const int threads = team_size(run, groups, double(n) * double(n_replicates) * 20);
  std::vector<unsigned char> buffer(std::size_t(threads * group * n));
  Watch watch(run, n_replicates * parts);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long g = 0; g < groups; ++g) {
    unsigned char* counts = buffer.data() + thread_number() * group * n;
    const long begin = g * group, size = std::min(group, n_replicates - begin);
    std::fill_n(counts, size * n, 0);
    for (long part = 0; part < size * parts && !watch.stopped(); ++part) {
      const long replicate = part / parts, pair = part % parts * PAIRS;
      run.table->weights->draw(seed, first + Word(begin + replicate), pair, std::min(pairs, pair + PAIRS), n, counts + replicate * n);
      watch.task_done();
    }
    weight_functions<T>(*run.table->weights).transpose(counts, n, int(size), out + begin, n_replicates);
  }
  return !watch.stopped();
}

}  // namespace

template <class T>
bool fill_weights(WeightKind kind, Word seed, Word first_replicate, long n_replicates, long n, T* out, const Run& run) {
  if (kind == WeightKind::MULTINOMIAL) return fill_counts(seed, first_replicate, n_replicates, n, out, run);
  return fill_rectangles(kind == WeightKind::GAUSSIAN, seed, first_replicate, n_replicates, n, out, run);
}

template bool fill_weights<double>(WeightKind, Word, Word, long, long, double*, const Run&);
template bool fill_weights<float>(WeightKind, Word, Word, long, long, float*, const Run&);

}  // namespace kcalib
