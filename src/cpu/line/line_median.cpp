// The median of all pairwise distances on a line, without the distances: pairs at most t apart are
// counted in O(n) for several t at once, until so few are left in between that they can be listed.
#include <array>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "cpu/line/line.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

constexpr int TRIALS = 4;
constexpr int64_t FEW = 2048;  // of the sample's 32,640 distances
using Trials = std::array<double, TRIALS>;
using Counts = std::array<int64_t, TRIALS>;

class Distances {
 public:
  Distances(const double* places, int64_t n, const Run& run)
      : x_(places),
        n_(n),
        chunks_(n),
        threads_(team_size(run, chunks_.count, 20.0 * double(n))),
        counts_(chunks_.count),
        watch_(run, 16 * chunks_.count) {}

  int64_t pairs() const { return n_ * (n_ - 1) / 2; }
  // Pairs of equal places.
  int64_t zeros() const {
    int64_t total = 0;
    for (int64_t i = 1, equal = 0; i < n_; ++i) {
      equal = x_[i] == x_[i - 1] ? equal + 1 : 0;
      total += equal;
    }
    return total;
  }
  double largest() const { return x_[n_ - 1] - x_[0] + 0.0; }  // 0, not -0
  bool stopped() const { return watch_.stopped(); }

  // How many distances are at most t, for each t.
  Counts count(const Trials& t) {
    parallel_tasks(watch_, threads_, chunks_.count, [&](int64_t chunk) {
      counts_[chunk] = count(t, chunks_.begin(chunk), chunks_.end(chunk));
      watch_.task_done();
    });
    Counts total{};
    for (const Counts& part : counts_)
      for (int k = 0; k < TRIALS; ++k) total[k] += part[k];
    return total;
  }

  // Calls take(d) for all distances d in (low, high].
  template <class Take> void list(double low, double high, Take take) const {
    int64_t from = 0, to = 0;
    for (int64_t i = 0; i < n_; ++i) {
      from = std::max(from, i + 1);
      while (x_[from] - x_[i] <= low) ++from;
      to = std::max(to, from);
      while (x_[to] - x_[i] <= high) ++to;
      for (int64_t j = from; j < to; ++j) take(x_[j] - x_[i]);
    }
  }

  // The largest distance that is at most t, and the smallest above it.
  std::pair<double, double> around(double t) const {
    double below = 0, above = INFINITY;
    int64_t j = 0;
    for (int64_t i = 0; i < n_; ++i) {
      while (x_[j] - x_[i] <= t) ++j;
      below = std::max(below, x_[j - 1] - x_[i]);
      above = std::min(above, x_[j] - x_[i]);
    }
    return {below, above};
  }

  // Distances of points at equal steps in the order of the line, ascending.
  std::vector<double> sample() const {
    const int64_t size = std::min<int64_t>(n_, 256);
    std::vector<double> found;
    for (int64_t a = 0; a < size; ++a)
      for (int64_t b = a + 1; b < size; ++b) found.push_back(x_[at(b, size)] - x_[at(a, size)]);
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  int64_t at(int64_t k, int64_t size) const { return int64_t(double(k) * double(n_ - 1) / double(size - 1)); }

  // Over pairs (i, j), begin <= i < end: for each t, j follows i. No branch depends on the data, and
  // the trials do not wait for each other.
  Counts count(const Trials& t, int64_t begin, int64_t end) const {
    Counts total{};
    std::array<int64_t, TRIALS> i, j;
    for (int k = 0; k < TRIALS; ++k) {
      i[k] = begin;
      j[k] = std::partition_point(x_ + begin, x_ + n_, [&](double x) { return x - x_[begin] <= t[k]; }) - x_;
    }
    for (int64_t left = 1; left > 0;) {
      for (int step = 0; step < 64; ++step)
        for (int k = 0; k < TRIALS; ++k) {
          const bool active = i[k] < end, near = active & (x_[j[k]] - x_[i[k]] <= t[k]), moves = active & !near;
          total[k] += moves ? j[k] - i[k] - 1 : 0;
          i[k] += moves;
          j[k] += near;
        }
      left = 0;
      for (int k = 0; k < TRIALS; ++k) left += end - i[k];
    }
    return total;
  }

  const double* x_;  // x_[n] is infinite
  int64_t n_;
  Chunks chunks_;
  int threads_;
  std::vector<Counts> counts_;
  Watch watch_;
};

// Mean of the distances of ranks first and second (from 1, equal or neighbours). Distances in
// (low, high] hold both ranks at any time; between neighbouring doubles nothing is left to search.
double mean_of_ranks(Distances& distances, int64_t n, int64_t first, int64_t second) {
  const std::vector<double> sample = distances.sample();
  int64_t low_bits = -1, high_bits = std::bit_cast<int64_t>(distances.largest());  // in the order of their values
  int64_t low_count = 0, high_count = distances.pairs();
  bool smooth = true;
  const auto value = [](int64_t bits) { return bits < 0 ? -1.0 : std::bit_cast<double>(bits); };
  while (high_bits - low_bits > 1) {
    if (high_count - low_count <= 2 * n + (1 << 20)) {
      std::vector<double> found;
      found.reserve(high_count - low_count);
      distances.list(value(low_bits), value(high_bits), [&](double d) { found.push_back(d); });
      const auto nth = [&](int64_t rank) {
        const auto at = found.begin() + (rank - low_count - 1);
        std::nth_element(found.begin(), at, found.end());
        return *at;
      };
      const double a = nth(first);
      return 0.5 * (a + nth(second));
    }
    // Where the sample expects the rank, a little to both sides, and in the middle; once it has few distances
    // between low and high, where these expect it if all in between are equally likely, as far as that
    // helps; once it has none, at equal steps from the least to the largest distance in between.
    Trials t;
    const int64_t before = high_count - low_count;
    const double share = double(first - low_count) / double(high_count - low_count);
    const auto begin = std::upper_bound(sample.begin(), sample.end(), value(low_bits));
    const auto end = std::lower_bound(begin, sample.end(), value(high_bits));
    const int64_t size = end - begin, guess = int64_t(share * double(size)), step = size / 64 + 1;
    const bool interpolated = smooth && size < FEW && low_bits >= 0;
    if (interpolated) {
      const double width = value(high_bits) - value(low_bits), expected = value(low_bits) + share * width;
      t = {expected - width / 64, expected - width / 2048, expected + width / 2048, expected + width / 64};
    } else if (size > 0) {
      for (int k = 0; k < TRIALS; ++k)
        t[k] = begin[std::clamp<int64_t>(k < 3 ? guess + (k - 1) * step : size / 2, 0, size - 1)];
    } else {
      const double least = low_bits < 0 ? 0.0 : distances.around(value(low_bits)).second;
      if (least >= value(high_bits)) return value(high_bits);
      const double most = distances.around(value(high_bits - 1)).first;
      const int64_t from = std::bit_cast<int64_t>(least), to = std::bit_cast<int64_t>(most);
      for (int k = 0; k < TRIALS; ++k) t[k] = k < TRIALS - 1 ? value(from + (to - from) / (TRIALS - 1) * k) : most;
    }
    const Counts counts = distances.count(t);
    if (distances.stopped()) return 0;
    for (int k = 0; k < TRIALS; ++k) {
      const int64_t bits = std::bit_cast<int64_t>(t[k] + 0.0);  // -0 becomes 0
      if (bits <= low_bits || bits >= high_bits) continue;
      if (counts[k] < first) low_bits = bits, low_count = counts[k];
      else if (counts[k] >= second) high_bits = bits, high_count = counts[k];
      else {
        const auto [below, above] = distances.around(t[k]);
        return 0.5 * (below + above);
      }
    }
    if (interpolated && 2 * (high_count - low_count) > before) smooth = false;
  }
  return value(high_bits);
}

}  // namespace

bool line_median(const double* places, int64_t n, const Run& run, double* median, bool* of_positive) {
  Distances distances(places, n, run);
  const int64_t zeros = distances.zeros(), pairs = distances.pairs();
  const auto middle = [&](int64_t before) {
    const int64_t count = pairs - before;
    return mean_of_ranks(distances, n, before + (count + 1) / 2, before + count / 2 + 1);
  };
  *median = pairs > zeros ? middle(0) : 0;
  *of_positive = *median == 0 && pairs > zeros;
  if (*of_positive) *median = middle(zeros);
  return !distances.stopped();
}

}  // namespace kcalib
