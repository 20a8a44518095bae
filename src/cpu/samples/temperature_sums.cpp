#include "cpu/samples/temperature_sums.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/samples/row_parts.h"
#include "cpu/simd/for_each_level.h"

namespace kcalib {
namespace {


// powers[e * m + k] = p_k exp((t_e - 1) l_k), from square roots: (p / x) x^t with x the larger of p and the floor.
KCALIB_PART void make_powers_of(const double* p, int64_t m, double floor, double* powers) {
  for (int64_t k = 0; k < m; ++k) {
    const double x = std::max(p[k], floor), ratio = p[k] / x;
    const double half = std::sqrt(x), quarter = std::sqrt(half), eighth = std::sqrt(quarter);
    const double sixteenth = std::sqrt(eighth), last = std::sqrt(sixteenth);
    const double three = half * quarter, seven = three * eighth, fifteen = seven * sixteenth;
    const double values[N_EXPONENTS] = {eighth,        quarter,    half,        three,       seven,    fifteen, fifteen * last,
                                        x * last,      x * sixteenth, x * eighth, x * quarter, x * half, x * x,   x * x * x};
    for (int64_t e = 0; e < N_EXPONENTS; ++e) powers[e * m + k] = ratio * values[e];
  }
}
KCALIB_FOR_EACH_LEVEL(void, make_powers, (const double* p, int64_t m, double floor, double* powers), (p, m, floor, powers))

// The sums of one thread.
class Part {
 public:
  Part(const Predictions& rows, double floor)
      : rows_(rows),
        floor_(floor),
        powers_(std::size_t(N_EXPONENTS * rows.m)),
        terms_(std::size_t(N_EXPONENTS * TEMPERATURE_SUMS)),
        low_(terms_.size()),
        high_(terms_.size()),
        sums_(terms_.size()) {}

  void add(int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const double* p = rows_.p + row * rows_.m;
      double mean = 0;
      for (int64_t k = 0; k < rows_.m; ++k) mean += p[k] * std::log(std::max(p[k], floor_));
      make_powers(p, rows_.m, floor_, powers_.data());
      for (int64_t e = 0; e < N_EXPONENTS; ++e)
        read(p, powers_.data() + e * rows_.m, rows_.labels[row], EXPONENTS[e] - 1, mean, terms_.data() + e * TEMPERATURE_SUMS);
      cut(terms_.data(), int64_t(terms_.size()), low_.data(), high_.data());
      for (std::size_t k = 0; k < sums_.size(); ++k) sums_[k].add(low_[k], high_[k]);
    }
  }

  void merge_into(const ExactSums& out) const {
    for (std::size_t k = 0; k < sums_.size(); ++k) out.add(int64_t(k), sums_[k]);
  }

 private:
  void read(const double* p, const double* powers, int64_t label, double theta, double mean, double* terms) {
    double total = 0, distance = 0, raised = 0;
    for (int64_t k = 0; k < rows_.m; ++k) total += powers[k];
    const double scale = 1 / total;
    bool is_raised = false;
    for (int64_t k = 0; k < rows_.m; ++k) {
      const double change = powers[k] * scale - p[k];
      distance += std::abs(change);
      raised += change > 0 ? p[k] : 0;
      is_raised |= k == label && change > 0;
    }
    distance /= 2;
    const double term = distance * (double(is_raised) - raised);
    terms[0] = std::log(total) - theta * mean;
    terms[1] = term;
    terms[2] = term * term;
    terms[3] = distance * distance * raised * (1 - raised);
    terms[4] = distance * distance;
  }

  const Predictions& rows_;
  const double floor_;
  std::vector<double> powers_, terms_;
  std::vector<std::uint64_t> low_;
  std::vector<std::int64_t> high_;
  std::vector<Wide> sums_;
};

}  // namespace

bool sum_temperatures(const Predictions& rows, double floor, const Run& run, const ExactSums& sums) {
  const double work = 8.0 * double(N_EXPONENTS) * double(rows.n) * double(rows.m);
  return sum_parts(rows, run, run.threads, work, Part(rows, floor), sums);
}

}  // namespace kcalib
