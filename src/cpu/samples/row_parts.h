// Parts of the rows of predictions that threads take in turns, and what is done with one row. Included by bins.cpp,
// cells.cpp and median_variance.cpp.
#pragma once

#include <algorithm>
#include <cstdint>

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

inline double weight_of(const Predictions& data, int64_t i) { return data.weight ? data.weight[i] : 1.0; }

// Asks for a row that is read later.
inline void fetch(const double* row, int64_t m) {
  constexpr int64_t LINE = 8;
  for (int64_t j = 0; j < m; j += LINE) __builtin_prefetch(row + j);
}

// Of m numbers.
double norm_of_row(const double* gap, int64_t m, GapNorm norm);

}  // namespace kcalib
