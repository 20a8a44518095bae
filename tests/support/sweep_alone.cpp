// A sweep without Python, for systems that are only compiled for: .ci/cross links it with the core. Prints the sum of
// all pairs' exponential kernel, and fails if it is not that of two plain loops, or has other bits with more threads.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <vector>

#include "cpu/reductions/moments.h"
#include "cpu/simd/cpu_level.h"

using namespace kcalib;

int main() {
  constexpr int64_t n = 1500, d = 3;
  std::vector<double> x(n * d);
  for (std::size_t k = 0; k < x.size(); ++k) x[k] = std::fmod(0.61803398875 * double(k), 1.0);
  const std::vector<double> ones(n, 1.0);
  double expected = 0;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double square = 0;
      for (int64_t k = 0; k < d; ++k) square += (x[i * d + k] - x[j * d + k]) * (x[i * d + k] - x[j * d + k]);
      if (i != j) expected += std::exp(-std::sqrt(square));
    }

  const Factor factor{int(Profile::exponential), EUCLIDEAN, 1, 0, 0};
  const Term term{1, 0, 1};
  Side<void> side{};
  side.points = x.data(), side.n_coordinates = d, side.features = ones.data(), side.n_features = 1, side.n = n;
  AnyProblem problem{};
  problem.program.kernel = {&term, 1, &factor};
  problem.left = problem.right = side;
  problem.symmetric = true;
  double first = 0;
  for (int threads = 1; threads <= 3; ++threads) {
    const Run run{tile_table(0), threads, nullptr, nullptr};
    const Groups groups = groups_of(problem, run);
    std::vector<double> totals(std::size_t(groups.rows * groups.columns));
    Moments moments({totals.data(), nullptr, nullptr, nullptr, nullptr});
    Reduction* const reduction = &moments;
    if (!sweep(problem, run, &reduction, 1)) return 1;
    double sum = 0;
    merge(run, totals.data(), groups.rows * groups.columns, 1, &sum);
    std::printf("%s, %s, %d of %d threads: %.17g, expected %.17g\n", thread_library(), run.table->name, threads, max_threads(),
                sum, expected);
    if (threads == 1) first = sum;
    if (std::memcmp(&sum, &first, sizeof sum) || std::abs(sum / expected - 1) > 1e-12) return 1;
  }
  return 0;
}
