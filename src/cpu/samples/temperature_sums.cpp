#include "cpu/samples/temperature_sums.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

constexpr int64_t PART = 1 << 14;  // entries that a thread takes at a time

// The sums of one thread.
class Part {
 public:
  Part(const Predictions& rows, const double* exponents, int64_t n_exponents, double floor)
      : rows_(rows),
        exponents_(exponents),
        n_exponents_(n_exponents),
        floor_(floor),
        logarithms_(std::size_t(rows.m)),
        powers_(std::size_t(rows.m)),
        terms_(std::size_t(n_exponents * TEMPERATURE_SUMS)),
        low_(terms_.size()),
        high_(terms_.size()),
        sums_(terms_.size()) {}

  void add(int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const double* p = rows_.p + row * rows_.m;
      double mean = 0;
      for (int64_t k = 0; k < rows_.m; ++k) {
        logarithms_[std::size_t(k)] = std::log(std::max(p[k], floor_));
        mean += p[k] * logarithms_[std::size_t(k)];
      }
      for (int64_t e = 0; e < n_exponents_; ++e)
        read(p, rows_.labels[row], exponents_[e] - 1, mean, terms_.data() + e * TEMPERATURE_SUMS);
      cut(terms_.data(), int64_t(terms_.size()), low_.data(), high_.data());
      for (std::size_t k = 0; k < sums_.size(); ++k) sums_[k].add(low_[k], high_[k]);
    }
  }

  void merge_into(const ExactSums& out) const {
    for (std::size_t k = 0; k < sums_.size(); ++k) out.add(int64_t(k), sums_[k]);
  }

 private:
  void read(const double* p, int64_t label, double theta, double mean, double* terms) {
    double total = 0, distance = 0, raised = 0;
    for (int64_t k = 0; k < rows_.m; ++k) {
      powers_[std::size_t(k)] = p[k] * std::exp(theta * logarithms_[std::size_t(k)]);
      total += powers_[std::size_t(k)];
    }
    bool is_raised = false;
    for (int64_t k = 0; k < rows_.m; ++k) {
      const double change = powers_[std::size_t(k)] / total - p[k];
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
  const double* exponents_;
  const int64_t n_exponents_;
  const double floor_;
  std::vector<double> logarithms_, powers_, terms_;
  std::vector<std::uint64_t> low_;
  std::vector<std::int64_t> high_;
  std::vector<Wide> sums_;
};

}  // namespace

bool sum_temperatures(const Predictions& rows, const double* exponents, int64_t n_exponents, double floor, const Run& run,
                      const ExactSums& sums) {
  const int64_t length = std::max<int64_t>(1, PART / rows.m), parts = ceil_divide(rows.n, length);
  const int threads = team_size(run, parts, 30.0 * double(n_exponents) * double(rows.n) * double(rows.m));
  std::vector<Part> teams(std::size_t(threads), Part(rows, exponents, n_exponents, floor));
  Watch watch(run, parts);
  parallel_tasks(watch, threads, parts, [&](int64_t part) {
    teams[std::size_t(thread_number())].add(part * length, std::min(rows.n, (part + 1) * length));
    watch.task_done();
  });
  for (const Part& part : teams) part.merge_into(sums);
  return !watch.stopped();
}

}  // namespace kcalib
