#include "cpu/random/resampling.h"

#include <algorithm>
#include <memory>

#include "cpu/simd/aligned.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

template <class T> const WeightFunctions<T>& weight_functions(const WeightTable& table) {
  if constexpr (sizeof(T) == 8) return table.float64;
  else return table.float32;
}

// Weights that are independent of each other, in rectangles.
template <class T>
bool fill_rectangles(bool gaussian, Word seed, Word first, int64_t n_replicates, int64_t n, T* out, const Run& run) {
  constexpr int64_t ROWS = Rectangle::MOST_ROWS, REPLICATES = Rectangle::MOST_REPLICATES;
  const WeightFunctions<T>& weights = weight_functions<T>(*run.table->weights);
  const auto fill = gaussian ? weights.gaussian : weights.rademacher;
  const int64_t across = ceil_divide(n_replicates, REPLICATES), tasks = ceil_divide(n, ROWS) * across;
  const int threads = team_size(run, tasks, double(n) * double(n_replicates) * (gaussian ? 100 : 5));
  Watch watch(run, tasks);
  return parallel_tasks(watch, threads, tasks, [&](int64_t task) {
    const int64_t row = task / across * ROWS, begin = task % across * REPLICATES;
    const int64_t width = std::min(REPLICATES, n_replicates - begin);
    const Rectangle rectangle{seed, first + Word(begin), width, row, std::min(n, row + ROWS)};
    fill(rectangle, out + row * n_replicates + begin, n_replicates);
    watch.task_done();
  });
}

// Counts of draws: each replicate in a buffer of its own; those of a group, neighbours in memory, are
// written together.
template <class T> bool fill_counts(Word seed, Word first, int64_t n_replicates, int64_t n, T* out, const Run& run) {
  constexpr int64_t GROUP = 8;        // a cache line of float64
  constexpr int64_t PART = 1 << 19;  // draws or rows between two looks at the watch; even
  const int64_t parts = ceil_divide(n, PART);
  const int64_t group = std::clamp<int64_t>(n_replicates / std::max(1, run.threads), 1, GROUP);
  const int64_t groups = ceil_divide(n_replicates, group);
  const int threads = team_size(run, groups, double(n) * double(n_replicates) * 20);
  const std::unique_ptr<unsigned char[]> buffer(new unsigned char[std::size_t(threads * group * n)]);
  const auto draw = run.table->weights->draw;
  Watch watch(run, (n_replicates + groups) * parts);
  return parallel_tasks(watch, threads, groups, [&](int64_t g) {
    unsigned char* counts = buffer.get() + thread_number() * group * n;
    const int64_t begin = g * group, size = std::min(group, n_replicates - begin);
    for (int64_t r = 0; r < size; ++r) {
      std::fill_n(counts + r * n, n, 0);
      for (int64_t k = 0; k < n && !watch.stopped(); k += PART) {
        draw(seed, first + Word(begin + r), k, std::min(n, k + PART), n, counts + r * n);
        watch.task_done();
      }
    }
    for (int64_t k = 0; k < n && !watch.stopped(); k += PART) {
      for (int64_t i = k; i < std::min(n, k + PART); ++i)
        for (int64_t r = 0; r < size; ++r) out[i * n_replicates + begin + r] = T(counts[r * n + i]);
      watch.task_done();
    }
  });
}

double product(const double* vector, const unsigned char* counts, int64_t n) {
  constexpr int LANES = 8;  // sums that do not wait for each other
  double sums[LANES] = {};
  for (int64_t i = 0; i < n; i += LANES)
    for (int64_t l = 0; l < std::min<int64_t>(LANES, n - i); ++l) sums[l] += vector[i + l] * double(counts[i + l]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace

bool count_products(Word seed, Word first_replicate, int64_t n_replicates, int64_t n, const double* vector, double* out,
                    const Run& run) {
  constexpr int64_t PART = 1 << 19;  // draws between two looks at the watch; even
  const int64_t parts = ceil_divide(n, PART);
  const int threads = team_size(run, n_replicates, double(n) * double(n_replicates) * 20);
  const std::unique_ptr<unsigned char[]> buffer(new unsigned char[std::size_t(threads * n)]);
  const auto draw = run.table->weights->draw;
  Watch watch(run, n_replicates * parts);
  return parallel_tasks(watch, threads, n_replicates, [&](int64_t r) {
    unsigned char* counts = buffer.get() + thread_number() * n;
    std::fill_n(counts, n, 0);
    for (int64_t k = 0; k < n && !watch.stopped(); k += PART) {
      draw(seed, first_replicate + Word(r), k, std::min(n, k + PART), n, counts);
      watch.task_done();
    }
    if (!watch.stopped()) out[r] = product(vector, counts, n);
  });
}

template <class T>
bool fill_weights(WeightKind kind, Word seed, Word first_replicate, int64_t n_replicates, int64_t n, T* out, const Run& run) {
  if (kind == WeightKind::MULTINOMIAL) return fill_counts(seed, first_replicate, n_replicates, n, out, run);
  return fill_rectangles(kind == WeightKind::GAUSSIAN, seed, first_replicate, n_replicates, n, out, run);
}

template bool fill_weights<double>(WeightKind, Word, Word, int64_t, int64_t, double*, const Run&);
template bool fill_weights<float>(WeightKind, Word, Word, int64_t, int64_t, float*, const Run&);

}  // namespace kcalib
