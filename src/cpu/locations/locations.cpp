#include "cpu/locations/locations.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "cpu/simd/aligned.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

// Samples whose sums are merged in order: a part of them takes a fraction of a second, after which signals are looked for.
int64_t part_of(const TestLocations& locations) {
  constexpr int64_t MOST = 1 << 13, STRIPS = 192, PRODUCTS = 1 << 28;  // STRIPS: whole ones, of every instruction set
  return std::clamp(PRODUCTS / (locations.n_locations * locations.m) / STRIPS * STRIPS, STRIPS, MOST);
}

// The locations with their places sorted by class.
class ByClass {
 public:
  ByClass(const LocationPoints& points, int64_t m) : members_(points.n_locations) {
    std::iota(members_.begin(), members_.end(), int64_t(0));
    const auto of = [&](int64_t j) { return points.classes[j]; };
    std::stable_sort(members_.begin(), members_.end(), [&](int64_t a, int64_t b) { return of(a) < of(b); });
    for (int64_t i = 0; i < points.n_locations; ++i)
      if (i == 0 || of(members_[i]) != of(members_[i - 1])) starts_.push_back(i);
    starts_.push_back(points.n_locations);
    locations = {points.kernel, points.points, points.classes, points.n_locations, m, members_.data(), starts_.data(),
                 int64_t(starts_.size()) - 1};
  }
  TestLocations locations;

 private:
  std::vector<int64_t> members_, starts_;
};

// pass(part, first sample, how many, sums of the part, memory) for all parts, whose sums of `size` numbers are added in order.
template <class Pass>
bool for_parts(const LocatedSamples& samples, const TestLocations& locations, const Run& run, int64_t size, double* out, Pass pass) {
  const int64_t length = part_of(locations), parts = (samples.n + length - 1) / length;
  const int64_t memory = (run.table->locations->memory(locations) + 7) / 8 * 8;
  const double work = double(samples.n) * double(locations.n_locations) * double(20 + samples.m);
  const int threads = team_size(run, parts, work);
  const AlignedBuffer<double> sums(parts * size), of_threads(threads * memory);
  Watch watch(run, parts);
  parallel_tasks(watch, threads, parts, [&](int64_t part) {
    const int64_t begin = part * length;
    double* own = sums.get() + part * size;
    std::fill_n(own, size, 0.0);
    pass(part, begin, std::min(length, samples.n - begin), own, of_threads.get() + thread_number() * memory);
    watch.task_done();
  });
  if (watch.stopped()) return false;
  std::fill_n(out, size, 0.0);
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t i = 0; i < size; ++i) out[i] += sums[part * size + i];
  return true;
}

}  // namespace

bool location_sums(const LocatedSamples& samples, const LocationPoints& points, const Run& run, double* differences,
                   double* covariance, double* largest) {
  const ByClass by_class(points, samples.m);
  const TestLocations& at = by_class.locations;
  const int64_t count = at.n_locations, size = covariance ? count * (count + 1) : count;
  // The largest values of parts are no sums.
  const int64_t length = part_of(at), parts = (samples.n + length - 1) / length;
  std::vector<double> sums(size), sizes(covariance ? parts * count : 0);
  const bool finished = for_parts(samples, at, run, size, sums.data(), [&](int64_t part, int64_t begin, int64_t rows, double* own, double* memory) {
    const LocationSums out{own, covariance ? own + count : nullptr, covariance ? &sizes[part * count] : nullptr};
    run.table->locations->add(at, samples.p + begin * samples.m, samples.labels + begin, rows, memory, out);
  });
  if (!finished) return false;
  std::copy_n(sums.begin(), count, differences);
  if (!covariance) return true;
  for (int64_t j = 0; j < count; ++j)
    for (int64_t l = j; l < count; ++l) covariance[j * count + l] = covariance[l * count + j] = sums[count * (j + 1) + l];
  std::fill_n(largest, count, 0.0);
  for (int64_t i = 0; i < parts * count; ++i) largest[i % count] = std::max(largest[i % count], sizes[i]);
  return true;
}

bool location_fourth(const LocatedSamples& samples, const LocationPoints& points, const double* gram, const Run& run,
                     double* fourth) {
  const ByClass by_class(points, samples.m);
  const TestLocations& at = by_class.locations;
  return for_parts(samples, at, run, 1, fourth, [&](int64_t, int64_t begin, int64_t rows, double* own, double* memory) {
    *own = run.table->locations->fourth(at, samples.p + begin * samples.m, rows, gram, memory);
  });
}

}  // namespace kcalib
