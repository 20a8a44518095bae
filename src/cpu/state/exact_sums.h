// Sums of doubles in fixed point, as kcalib/_backend/exact_sums.py has them: integers in units of 2^-80, so that any order
// of additions gives the same bits. Numbers are below 2^38 in size and are cut at 2^-80, towards zero.
#pragma once

#include <cstdint>

namespace kcalib {

// An integer of 128 bits in two's complement: a sum in units of 2^-80.
struct Wide {
  std::uint64_t low = 0;
  std::int64_t high = 0;

  void add(std::uint64_t more_low, std::int64_t more_high) {
    low += more_low;
    high += more_high + std::int64_t(low < more_low);
  }
  void add(const Wide& more) { add(more.low, more.high); }
};

// low[i], high[i] = x[i] as a `Wide`.
void cut(const double* x, int64_t n, std::uint64_t* low, std::int64_t* high);

// An array of sums (high * 2^56 + low) * 2^-80 with 0 <= low < 2^56, high and low by themselves.
struct ExactSums {
  std::int64_t *high, *low;

  void add(int64_t at, const Wide& sum) const { add(at, (sum.high << 8) | std::int64_t(sum.low >> 56), sum.low & LOW); }
  void add(int64_t at, std::int64_t more_high, std::uint64_t more_low) const {
    const std::uint64_t sum = std::uint64_t(low[at]) + more_low;
    high[at] += more_high + std::int64_t(sum >> 56);
    low[at] = std::int64_t(sum & LOW);
  }

  static constexpr std::uint64_t LOW = (std::uint64_t(1) << 56) - 1;
};

// sums[i] += x[i].
void add_exactly(const double* x, int64_t n, const ExactSums& sums);

}  // namespace kcalib
