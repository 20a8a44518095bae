// The distances of all pairs of points on a line: how many are below a threshold, and those in a range, in O(n).
#include <algorithm>
#include <array>
#include <vector>

#include "cpu/line/line.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

constexpr int AT_ONCE = 4;  // thresholds, whose loops do not wait for each other
using Counts = std::array<int64_t, AT_ONCE>;

// Of the pairs i < j with begin <= i < end. No branch depends on the data.
Counts count_below(const double* x, int64_t n, const double* t, int64_t begin, int64_t end) {
  Counts total{}, i, j;
  for (int k = 0; k < AT_ONCE; ++k) {
    i[k] = begin;
    j[k] = std::partition_point(x + begin, x + n, [&](double y) { return y - x[begin] < t[k]; }) - x;
  }
  for (int64_t left = 1; left > 0;) {
    for (int step = 0; step < 64; ++step)
      for (int k = 0; k < AT_ONCE; ++k) {
        const bool active = i[k] < end, near = active & (x[j[k]] - x[i[k]] < t[k]), moves = active & !near;
        total[k] += moves ? j[k] - i[k] - 1 : 0;
        i[k] += moves;
        j[k] += near;
      }
    left = 0;
    for (int k = 0; k < AT_ONCE; ++k) left += end - i[k];
  }
  return total;
}

}  // namespace

bool line_counts(const double* places, int64_t n, const double* thresholds, int64_t n_thresholds, const Run& run,
                 int64_t* counts) {
  const Chunks chunks(n);
  const int threads = team_size(run, chunks.count, 20.0 * double(n));
  std::fill_n(counts, n_thresholds, int64_t(0));
  std::vector<Counts> of_chunks(std::size_t(chunks.count), Counts{});
  Watch watch(run, (n_thresholds + AT_ONCE - 1) / AT_ONCE * chunks.count);
  for (int64_t first = 0; first < n_thresholds; first += AT_ONCE) {
    double t[AT_ONCE];
    for (int64_t k = 0; k < AT_ONCE; ++k) t[k] = thresholds[std::min(first + k, n_thresholds - 1)];
    const bool finished = parallel_tasks(watch, threads, chunks.count, [&](int64_t chunk) {
      of_chunks[std::size_t(chunk)] = count_below(places, n, t, chunks.begin(chunk), chunks.end(chunk));
      watch.task_done();
    });
    if (!finished) return false;
    for (int64_t k = 0; k < std::min<int64_t>(AT_ONCE, n_thresholds - first); ++k)
      for (const Counts& part : of_chunks) counts[first + k] += part[std::size_t(k)];
  }
  return true;
}

int64_t line_between(const double* places, int64_t n, double low, double high, double* out, int64_t room) {
  int64_t count = 0;
  for (int64_t i = 0, from = 0, to = 0; i < n; ++i) {
    from = std::max(from, i + 1);
    while (places[from] - places[i] < low) ++from;
    to = std::max(to, from);
    while (places[to] - places[i] < high) ++to;
    for (int64_t j = from; j < to && count < room; ++j) out[count++] = places[j] - places[i];
  }
  return count;
}

}  // namespace kcalib
