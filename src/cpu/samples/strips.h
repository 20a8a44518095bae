// The uniform bins of a few rows at a time. Included by bins.cpp and cells.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/samples/row_parts.h"

namespace kcalib {

// Rows of which bins are found at once, so many numbers or a single row.
constexpr int64_t STRIP = 2048;
inline int64_t rows_in_strip(int64_t m) { return std::max<int64_t>(1, STRIP / m); }

constexpr int64_t LANES = 8;  // numbers that are looked at together

// What is known of some rows, as many as are looked at twice while they are in the first-level cache. Where nearly all
// entries are in the first bin, as those of many classes are, the bins of the others alone are found.
struct StripOfRows {
  std::vector<std::int32_t> bins, places;
  std::vector<double> values;
  bool sparse = false;

  explicit StripOfRows(int64_t m)
      : bins(std::size_t(rows_in_strip(m) * m + LANES)), places(bins.size()), values(bins.size()) {}

  // The bins of all entries; or, if these are `sparse`, of those that are not in the first bin, `values` at `places`, of
  // which the number is returned.
  int64_t find(const double* x, int64_t count, double n_bins);
};

}  // namespace kcalib
