// Sums of many parts that do not depend on the parts' order, but for the last digits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace kcalib {

// A sum, and what its roundings have lost (Knuth's two-sum). `TileTable::add_compensated` is the same for many sums,
// kcalib/_backend/compensated.py in Python.
struct Compensated {
  double sum = 0, lost = 0;

  void add(double x) {
    const double next = sum + x, added = next - sum;
    lost += (sum - (next - added)) + (x - added);
    sum = next;
  }
  double value() const { return std::isfinite(lost) ? sum + lost : sum; }
};

// sums[k] += lost[k], where sums have not overflown.
inline void settle(double* sums, const double* lost, int64_t n) {
  for (int64_t k = 0; k < n; ++k) sums[k] = Compensated{sums[k], lost[k]}.value();
}

}  // namespace kcalib
