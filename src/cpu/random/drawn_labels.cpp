#include "cpu/random/drawn_labels.h"

#include <algorithm>
#include <cmath>

#include "cpu/features/feature_kernels.h"
#include "cpu/simd/aligned.h"
#include "cpu/simd/for_each_level.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

constexpr int64_t TILE_ROWS = 256, GROUP = 16;  // rows and draws at a time: a cache line of labels

// A tile of rows as labels are drawn from them, in memory for `size(m)` numbers.
class DrawnRows {
 public:
  DrawnRows(const double* cumulative, int64_t rows, int64_t m, double* memory) : rows_(rows), m_(m), cumulative_(memory) {
    const bool lanes = m <= LANE_CLASSES;
    for (int64_t i = 0; i < padded(rows); ++i) {
      const double* sums = cumulative + std::min(i, rows - 1) * m;
      double* to = cumulative_ + (lanes ? i / 8 * m * 8 + i % 8 : i * m);
      for (int64_t k = 0; k < m; ++k) to[k * (lanes ? 8 : 1)] = sums[k];
      totals_[i] = sums[m - 1];
      highest_[i] = std::nextafter(sums[m - 1], 0.0);
      likely_[i] = 0;
      for (int64_t k = 1; k < m; ++k)
        if (sums[k] - sums[k - 1] > sums[likely_[i]] - (likely_[i] ? sums[likely_[i] - 1] : 0)) likely_[i] = unsigned(k);
    }
  }
  LabelRows rows() const { return {padded(rows_), m_, cumulative_, totals_, highest_, likely_}; }

  static int64_t padded(int64_t rows) { return (rows + ROW_STEP - 1) / ROW_STEP * ROW_STEP; }
  static int64_t size(int64_t m) { return padded(TILE_ROWS) * m; }

 private:
  const int64_t rows_, m_;
  double* const cumulative_;
  double totals_[TILE_ROWS], highest_[TILE_ROWS];
  unsigned likely_[TILE_ROWS];
};

// sums[j] += row[j] (values[j] - likely[j])
KCALIB_PART void add_change_of(const double* row, const double* values, const double* likely, int64_t width, double* sums) {
  for (int64_t j = 0; j < width; j += 8)
    for (int64_t l = j; l < j + 8; ++l) sums[l] += row[l] * (values[l] - likely[l]);
}
KCALIB_FOR_EACH_LEVEL(void, add_change,
                      (const double* row, const double* values, const double* likely, int64_t width, double* sums),
                      (row, values, likely, width, sums))

}  // namespace

bool draw_labels(const double* cumulative, int64_t n, int64_t m, Word key0, Word key1, Word first, int64_t n_draws, int* out,
                 const Run& run) {
  const FeatureTable& table = *run.table->features;
  const int64_t tiles = (n + TILE_ROWS - 1) / TILE_ROWS, groups = (n_draws + GROUP - 1) / GROUP;
  const int threads = team_size(run, tiles, double(n) * double(n_draws) * double(20 + std::min<int64_t>(m, 64)));
  const AlignedBuffer<double> memory(threads * DrawnRows::size(m));
  Watch watch(run, tiles * groups);
  return parallel_tasks(watch, threads, tiles, [&](int64_t tile) {
    const int64_t begin = tile * TILE_ROWS, rows = std::min(TILE_ROWS, n - begin);
    const DrawnRows drawn(cumulative + begin * m, rows, m, memory.get() + thread_number() * DrawnRows::size(m));
    double uniform[TILE_ROWS + 16];
    unsigned labels[GROUP][TILE_ROWS];
    for (int64_t g = 0; g < groups && !watch.stopped(); ++g) {
      const int64_t size = std::min(GROUP, n_draws - g * GROUP);
      for (int64_t d = 0; d < size; ++d) {
        const int64_t number = int64_t(first) + (g * GROUP + d) * n + begin, before = number % 4;  // words come by fours
        table.uniforms(key0, key1, number - before, (before + DrawnRows::padded(rows) + 3) / 4 * 4, uniform);
        table.labels(drawn.rows(), uniform + before, labels[d]);
      }
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t d = 0; d < size; ++d) out[(begin + i) * n_draws + g * GROUP + d] = int(labels[d][i]);
      watch.task_done();
    }
  });
}

bool label_thresholds(const double* probabilities, int64_t n, const Run& run, Word* out) {
  constexpr int64_t ALL = int64_t(1) << 53, STRIP = 1 << 14;
  constexpr int ROUNDING = 8;  // steps; probabilities that have changed since they were checked may take any number
  const int64_t strips = (n + STRIP - 1) / STRIP;
  Watch watch(run, strips);
  return parallel_tasks(watch, team_size(run, strips, 20.0 * double(n)), strips, [&](int64_t strip) {
    for (int64_t i = strip * STRIP; i < std::min(n, (strip + 1) * STRIP); ++i) {
      const double first = probabilities[2 * i], total = first + probabilities[2 * i + 1];
      const double highest = std::nextafter(total, 0.0);
      const auto reached = [=](int64_t k) { return std::min(double(k) * 0x1p-53 * total, highest) >= first; };
      int64_t k = ALL;
      if (total > 0 && first <= highest) {  // the quotient is the threshold but for rounding
        k = int64_t(std::clamp(first / total, 0.0, 1.0) * double(ALL));
        for (int step = 0; step < ROUNDING && k > 0 && reached(k - 1); ++step) --k;
        for (int step = 0; step < ROUNDING && k < ALL && !reached(k); ++step) ++k;
      }
      out[i] = Word(k);
    }
    watch.task_done();
  });
}

void label_sums(const double* table, int64_t n, int64_t m, const int* labels, int64_t n_draws, double* out,
                const Run& run) {
  constexpr int64_t AT_ONCE = 256;  // draws: a KiB of a row
  const int64_t groups = (n_draws + AT_ONCE - 1) / AT_ONCE;
  const int threads = team_size(run, groups, double(n) * double(n_draws) * 4);
  parallel_tasks(threads, groups, [&](int64_t g) {
    const int64_t begin = g * AT_ONCE, size = std::min(AT_ONCE, n_draws - begin);
    double sums[AT_ONCE] = {};
    for (int64_t i = 0; i < n; ++i)
      for (int64_t d = 0; d < size; ++d) sums[d] += table[i * m + labels[i * n_draws + begin + d]];
    std::copy_n(sums, size, out + begin);
  });
}

bool changed_sums(const double* rows, int64_t n, int64_t width, const double* values, const int* likely, const int* labels,
                  int64_t n_draws, double* out, const Run& run) {
  constexpr int64_t PART = 1 << 13;  // rows, whose sums are merged in order
  constexpr int64_t STRIP = 1 << 7;  // rows between two looks at the watch
  const int64_t parts = (n + PART - 1) / PART, size = n_draws * width;
  const int threads = team_size(run, parts, double(n) * double(size));
  const AlignedBuffer<double> sums(parts * size);
  Watch watch(run, (n + STRIP - 1) / STRIP);
  parallel_tasks(watch, threads, parts, [&](int64_t part) {
    double* own = sums.get() + part * size;
    std::fill_n(own, size, 0.0);
    const int64_t end = std::min(n, (part + 1) * PART);
    for (int64_t strip = part * PART; strip < end && !watch.stopped(); strip += STRIP) {
      for (int64_t i = strip; i < std::min(end, strip + STRIP); ++i)
        for (int64_t d = 0; d < n_draws; ++d)
          if (const int label = labels[i * n_draws + d]; label != likely[i])
            add_change(rows + i * width, values + label * width, values + likely[i] * width, width, own + d * width);
      watch.task_done();
    }
  });
  std::fill_n(out, size, 0.0);
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t k = 0; k < size; ++k) out[k] += sums[part * size + k];
  return !watch.stopped();
}

}  // namespace kcalib
