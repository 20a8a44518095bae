// With A_p(i) = sum_{j<i} v_j D^p exp(-s D), D = x_i - x_j, one step to the right of length g is
//
//   A_p(i + 1) = exp(-s g) sum_{l<=p} binomial(p, l) g^{p-l} (A_l(i) + [l = 0] v_i),
//
// and sum_{j<i} k(x_i, x_j) v_j = sum_p c_p A_p(i): O(n) for all i. The same from the right.
// Every term is damped, none is subtracted: nothing cancels that does not cancel in the sum.
//
// Threads: chunks whose number depends on n alone. A first pass gives each chunk's sums as if
// nothing stood before it, the sums are carried across chunks in order, a second pass
// starts each chunk from what was carried to it.
#include "line.h"

#include <algorithm>
#include <vector>

#include "team.h"

namespace kcalib {
namespace {

constexpr long CHUNK = 8192, MAX_CHUNKS = 64;

struct Step {
  double gap = 0, decay = 1;
  void operator+=(const Step& next) {
    gap += next.gap;
    decay *= next.decay;
  }
};

// The sums A_p of all vectors at one point: sums[p * n_vectors + c].
template <int DEGREE> class Sums {
 public:
  Sums(int degree, long n_vectors) : degree_(DEGREE < 0 ? degree : DEGREE), n_vectors_(n_vectors) {}

  // Across a gap; `added` (null: nothing) is the vectors' row at the point that is left behind.
  void step(double* sums, const Step& step, const double* added) const {
    if (added)
      for (long c = 0; c < n_vectors_; ++c) sums[c] += added[c];
    for (int p = degree(); p > 0; --p) {
      double weight = 1;  // binomial(p, l) gap^(p - l), from l = p down
      for (int l = p - 1; l >= 0; --l) {
        weight *= step.gap * (l + 1) / (p - l);
        for (long c = 0; c < n_vectors_; ++c) sums[p * n_vectors_ + c] += weight * sums[l * n_vectors_ + c];
      }
    }
    for (long k = 0; k < size(); ++k) sums[k] *= step.decay;
  }

  void add_value(const double* sums, const double* coefficients, double* out) const {
    for (int p = 0; p <= degree(); ++p)
      for (long c = 0; c < n_vectors_; ++c) out[c] += coefficients[p] * sums[p * n_vectors_ + c];
  }

  long size() const { return (degree() + 1) * n_vectors_; }

 private:
  int degree() const { return DEGREE < 0 ? degree_ : DEGREE; }
  int degree_;
  long n_vectors_;
};

template <int DEGREE>
bool product(const Line& line, const Run& run, const double* vectors, long n_vectors, double* out) {
  const Sums<DEGREE> algebra(line.degree, n_vectors);
  const long n = line.n, size = algebra.size();
  const long chunks = std::clamp((n + CHUNK - 1) / CHUNK, 1L, MAX_CHUNKS), length = (n + chunks - 1) / chunks;
  const int threads = team_size(run, chunks, 10.0 * double(n) * double(size));
  // What each chunk gets from the left and from the right; first what it adds to the next.
  std::vector<double> from_left(chunks * size), from_right(chunks * size), scratch(threads * size);
  std::vector<Step> to_next(chunks), to_previous(chunks);
  Watch watch(run, 2 * chunks);

#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long chunk = 0; chunk < chunks; ++chunk) {
    if (watch.stopped()) continue;
    const long begin = chunk * length, end = std::min(n, begin + length);
    double* left = &from_left[chunk * size];
    double* right = &from_right[chunk * size];
    for (long i = begin; i < end; ++i) {  // to the first point of the next chunk
      const Step step = i + 1 < n ? Step{line.gap[i + 1], line.decay[i + 1]} : Step{0, 0};
      algebra.step(left, step, vectors + i * n_vectors);
      to_next[chunk] += step;
    }
    for (long i = end - 1; i >= begin; --i) {  // to the last point of the chunk before
      const Step step = i > 0 ? Step{line.gap[i], line.decay[i]} : Step{0, 0};
      algebra.step(right, step, vectors + i * n_vectors);
      to_previous[chunk] += step;
    }
    watch.task_done();
  }
  if (watch.stopped()) return false;

  std::vector<double> carried(size), own(size);
  const auto carry = [&](double* chunk_sums, const Step& across) {
    std::copy_n(chunk_sums, size, own.begin());
    std::copy_n(carried.begin(), size, chunk_sums);
    algebra.step(carried.data(), across, nullptr);
    for (long k = 0; k < size; ++k) carried[k] += own[k];
  };
  std::fill(carried.begin(), carried.end(), 0.0);
  for (long chunk = 0; chunk < chunks; ++chunk) carry(&from_left[chunk * size], to_next[chunk]);
  std::fill(carried.begin(), carried.end(), 0.0);
  for (long chunk = chunks - 1; chunk >= 0; --chunk) carry(&from_right[chunk * size], to_previous[chunk]);

#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long chunk = 0; chunk < chunks; ++chunk) {
    if (watch.stopped()) continue;
    const long begin = chunk * length, end = std::min(n, begin + length);
    double* sums = &scratch[thread_number() * size];
    std::copy_n(&from_left[chunk * size], size, sums);
    for (long i = begin; i < end; ++i) {
      std::fill_n(out + i * n_vectors, n_vectors, 0.0);
      algebra.add_value(sums, line.coefficients, out + i * n_vectors);
      if (i + 1 < end) algebra.step(sums, {line.gap[i + 1], line.decay[i + 1]}, vectors + i * n_vectors);
    }
    std::copy_n(&from_right[chunk * size], size, sums);
    for (long i = end - 1; i >= begin; --i) {
      algebra.add_value(sums, line.coefficients, out + i * n_vectors);
      if (i > begin) algebra.step(sums, {line.gap[i], line.decay[i]}, vectors + i * n_vectors);
    }
    watch.task_done();
  }
  return !watch.stopped();
}

}  // namespace

bool line_product(const Line& line, const Run& run, const double* vectors, long n_vectors, double* out) {
  switch (line.degree) {
    case 0: return product<0>(line, run, vectors, n_vectors, out);
    case 1: return product<1>(line, run, vectors, n_vectors, out);
    case 2: return product<2>(line, run, vectors, n_vectors, out);
    default: return product<-1>(line, run, vectors, n_vectors, out);
  }
}

}  // namespace kcalib
