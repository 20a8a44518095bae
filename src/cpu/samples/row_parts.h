// Parts of the rows of predictions that threads take in turns, and what is done with one row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/samples/bins.h"
#include "cpu/simd/threads.h"

namespace kcalib {

constexpr int64_t PART = 1 << 16;  // entries that a thread takes at a time: half a megabyte

inline int64_t rows_in_part(int64_t m) { return std::max<int64_t>(1, PART / m); }

inline int team_of(int threads, int64_t tasks, double work) { return team_size({nullptr, threads, nullptr, nullptr}, tasks, work); }

// pass(begin, end, part) for parts of 0..n, each of `length`.
template <class Pass> void for_parts(int64_t n, int64_t length, double work, int threads, Pass pass) {
  const int64_t parts = ceil_divide(n, length);
  const int team = team_of(threads, parts, work);
  parallel_tasks(team, parts, [&](int64_t part) { pass(part * length, std::min(n, (part + 1) * length), part); });
}

// Adds parts of the rows to copies of `empty`, at most `useful` of them, one for each thread, and merges these into `out`;
// false if the run was stopped. Sums are exact, so that it does not matter which thread adds a part.
template <class Sums, class Out>
bool sum_parts(const Predictions& rows, const Run& run, int64_t useful, double work, const Sums& empty, const Out& out) {
  const int64_t length = rows_in_part(rows.m), parts = ceil_divide(rows.n, length);
  const int threads = std::min(int(std::clamp<int64_t>(useful, 1, int64_t(run.threads))), team_size(run, parts, work));
  std::vector<Sums> sums(std::size_t(threads), empty);
  Watch watch(run, parts);
  parallel_tasks(watch, threads, parts, [&](int64_t part) {
    sums[std::size_t(thread_number())].add(part * length, std::min(rows.n, (part + 1) * length));
    watch.task_done();
  });
  for (const Sums& of_thread : sums) of_thread.merge_into(out);
  return !watch.stopped();
}

inline double weight_of(const Predictions& data, int64_t i) { return data.weight ? data.weight[i] : 1.0; }

// Asks for a row that is read later.
inline void fetch(const double* row, int64_t m) {
  constexpr int64_t LINE = 8;
  for (int64_t j = 0; j < m; j += LINE) __builtin_prefetch(row + j);
}

// Of m numbers.
double norm_of_row(const double* gap, int64_t m, GapNorm norm);

}  // namespace kcalib
