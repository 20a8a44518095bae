#include "cpu/state/exact_sums.h"

#include "cpu/simd/clones.h"

namespace kcalib {
namespace {

constexpr double HIGH_UNIT = 0x1p24, LOW_UNIT = 0x1p56;

}  // namespace

KCALIB_CLONES void cut(const double* x, int64_t n, std::uint64_t* low, std::int64_t* high) {
  for (int64_t i = 0; i < n; ++i) {
    const double scaled = x[i] * HIGH_UNIT;
    const std::int64_t whole = std::int64_t(scaled);
    const std::int64_t rest = std::int64_t((scaled - double(whole)) * LOW_UNIT);
    const std::int64_t up = whole + (rest >> 56);  // the rest of a negative number is negative
    low[i] = (std::uint64_t(up) << 56) | (std::uint64_t(rest) & ExactSums::LOW);
    high[i] = up >> 8;
  }
}

KCALIB_CLONES void add_exactly(const double* x, int64_t n, const ExactSums& sums) {
  std::int64_t *high = sums.high, *low = sums.low;
  for (int64_t i = 0; i < n; ++i) {
    const double scaled = x[i] * HIGH_UNIT;
    const std::int64_t whole = std::int64_t(scaled);
    const std::int64_t sum = low[i] + std::int64_t((scaled - double(whole)) * LOW_UNIT);
    high[i] += whole + (sum >> 56);
    low[i] = sum & std::int64_t(ExactSums::LOW);
  }
}

}  // namespace kcalib
