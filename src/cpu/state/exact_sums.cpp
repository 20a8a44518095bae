#include "cpu/state/exact_sums.h"

#include "cpu/simd/for_each_level.h"

namespace kcalib {
namespace {

constexpr double HIGH_UNIT = 0x1p24, LOW_UNIT = 0x1p56;

KCALIB_PART void cut_of(const double* x, int64_t n, std::uint64_t* low, std::int64_t* high) {
  for (int64_t i = 0; i < n; ++i) {
    const double scaled = x[i] * HIGH_UNIT;
    const std::int64_t whole = std::int64_t(scaled);
    const std::int64_t rest = std::int64_t((scaled - double(whole)) * LOW_UNIT);
    const std::int64_t up = whole + (rest >> 56);  // the rest of a negative number is negative
    low[i] = (std::uint64_t(up) << 56) | (std::uint64_t(rest) & ExactSums::LOW);
    high[i] = up >> 8;
  }
}

KCALIB_PART void add_exactly_of(const double* x, int64_t n, const ExactSums& sums) {
  std::int64_t *high = sums.high, *low = sums.low;
  for (int64_t i = 0; i < n; ++i) {
    const double scaled = x[i] * HIGH_UNIT;
    const std::int64_t whole = std::int64_t(scaled);
    const std::int64_t sum = low[i] + std::int64_t((scaled - double(whole)) * LOW_UNIT);
    high[i] += whole + (sum >> 56);
    low[i] = sum & std::int64_t(ExactSums::LOW);
  }
}

}  // namespace

KCALIB_FOR_EACH_LEVEL(void, cut, (const double* x, int64_t n, std::uint64_t* low, std::int64_t* high), (x, n, low, high))
KCALIB_FOR_EACH_LEVEL(void, add_exactly, (const double* x, int64_t n, const ExactSums& sums), (x, n, sums))

}  // namespace kcalib
