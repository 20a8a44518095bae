#include "cpu/linalg/roots.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "cpu/simd/aligned.h"
#include "cpu/simd/clones.h"
#include "cpu/samples/row_parts.h"

namespace kcalib {
namespace {

constexpr int64_t TOGETHER = 8;  // of vectors at a time

// z_m = 0 where numbers that count but for a constant are narrow: what their sum is times then.
double share_of_last(int64_t m) { return 1 / (std::sqrt(double(m)) - 1); }

// work(j, count) for the c columns, `count` a constant: of the last ones some come twice, rather than few by themselves.
template <class Work> __attribute__((always_inline)) inline void for_columns(int64_t c, Work work) {
  int64_t j = 0;
  for (; j + TOGETHER <= c; j += TOGETHER) work(j, std::integral_constant<int64_t, TOGETHER>{});
  if (j == c) return;
  if (c >= TOGETHER)
    work(c - TOGETHER, std::integral_constant<int64_t, TOGETHER>{});
  else
    work(j, c - j);
}

// Of `count` columns of out, which are c numbers apart and hold z: L^T z.
template <class Count>
__attribute__((always_inline)) inline void transposed_root_times(
    const double* p, const double* deviations, int64_t top, int64_t m, int64_t c, Count count, double* out) {
  double of_top[TOGETHER], mean[TOGETHER]{};
  for (int64_t j = 0; j < count; ++j) of_top[j] = out[top * c + j];
  for (int64_t k = 0; k < m; ++k)
    for (int64_t j = 0; j < count; ++j) mean[j] += p[k] * (out[k * c + j] -= of_top[j]);
  for (int64_t k = 0; k < m; ++k)
    for (int64_t j = 0; j < count; ++j) out[k * c + j] = deviations[k] * (out[k * c + j] - mean[j]);
}

KCALIB_CLONES void roots_times(const Roots& roots, int64_t begin, int64_t end, const double* x, int64_t c, int64_t stride, double* out) {
  const int64_t m = roots.m;
  const double last = share_of_last(m);
  for (int64_t i = begin; i < end; ++i) {
    const double *p = roots.p + i * m, *deviations = roots.deviations + i * m;
    const int64_t top = int64_t(roots.top[i]);
    for_columns(c, [&](int64_t first, auto count) __attribute__((always_inline)) {
      const double* from = x + i * m * c + first;
      double* to = out + i * stride + first;
      double sum[TOGETHER]{}, others[TOGETHER]{}, of_last[TOGETHER];
      for (int64_t k = 0; k < m; ++k)
        for (int64_t j = 0; j < count; ++j) sum[j] += deviations[k] * from[k * c + j];
      for (int64_t k = 0; k < m - 1; ++k)
        for (int64_t j = 0; j < count; ++j)
          others[j] += k == top ? 0.0 : to[k * c + j] = deviations[k] * from[k * c + j] - p[k] * sum[j];
      if (top < m - 1) {  // the entries sum to 0
        for (int64_t j = 0; j < count; ++j) {
          of_last[j] = deviations[m - 1] * from[(m - 1) * c + j] - p[m - 1] * sum[j];
          to[top * c + j] = -(others[j] + of_last[j]);
        }
      } else {
        for (int64_t j = 0; j < count; ++j) of_last[j] = -others[j];
      }
      for (int64_t k = 0; k < m - 1; ++k)
        for (int64_t j = 0; j < count; ++j) to[k * c + j] += last * of_last[j];
    });
  }
}

KCALIB_CLONES void transposed_roots_times(
    const Roots& roots, int64_t begin, int64_t end, const double* z, const double* own, const double* y, int64_t c, double* out) {
  const int64_t m = roots.m, size = (m - 1) * c;
  const double last = share_of_last(m);
  for (int64_t i = begin; i < end; ++i)
    for_columns(c, [&](int64_t first, auto count) __attribute__((always_inline)) {
      const double* from = z + i * size + first;
      double* to = out + i * m * c + first;
      double sum[TOGETHER]{};
      if (own) {
        const double* less = y + i * size + first;
        for (int64_t k = 0; k < m - 1; ++k)
          for (int64_t j = 0; j < count; ++j) sum[j] += to[k * c + j] = from[k * c + j] - own[i] * less[k * c + j];
      } else {
        for (int64_t k = 0; k < m - 1; ++k)
          for (int64_t j = 0; j < count; ++j) sum[j] += to[k * c + j] = from[k * c + j];
      }
      for (int64_t j = 0; j < count; ++j) to[(m - 1) * c + j] = last * sum[j];
      transposed_root_times(roots.p + i * m, roots.deviations + i * m, int64_t(roots.top[i]), m, c, count, to);
    });
}

KCALIB_CLONES void some_covariances(const Roots& roots, int64_t begin, int64_t end, int64_t stride, double* out) {
  const int64_t m = roots.m;
  for (int64_t i = begin; i < end; ++i) {
    const double* p = roots.p + i * m;
    double* to = out + i * stride;
    for (int64_t a = 0; a < m; to += m - 1 - a, ++a)
      for (int64_t b = a + 1; b < m; ++b) to[b - a - 1] = -p[a] * p[b];
  }
}

using Pack = double __attribute__((vector_size(64), may_alias));
static_assert(sizeof(Pack) == TOGETHER * sizeof(double));

// A matrix of lines of whole packs, the last filled up with zeros, and what is made of it for a sample.
class Packs {
 public:
  Packs(const double* matrix, int64_t lines, int64_t w) : lines_(lines), numbers_(packs(w) * lines * TOGETHER) {
    for (int64_t j = 0; j < packs(w); ++j)
      for (int64_t q = 0; q < lines; ++q)
        for (int64_t l = 0; l < TOGETHER; ++l) {
          const int64_t column = j * TOGETHER + l;
          numbers_[(j * lines + q) * TOGETHER + l] = column < w ? matrix[q * w + column] : 0.0;
        }
  }
  static int64_t packs(int64_t w) { return (w + TOGETHER - 1) / TOGETHER; }
  // The pack of those columns of all lines.
  const Pack* operator[](int64_t j) const { return reinterpret_cast<const Pack*>(numbers_.get() + j * lines_ * TOGETHER); }

 private:
  int64_t lines_;
  AlignedBuffer<double> numbers_;
};

// z += rows of c numbers times as many lines, of ROWS rows.
template <int64_t ROWS> __attribute__((always_inline)) inline void add_rows_times(const double* rows, int64_t c, const Pack* lines, Pack* z) {
  Pack sum[ROWS];
  for (int64_t r = 0; r < ROWS; ++r) sum[r] = z[r];
  for (int64_t q = 0; q < c; ++q)
    for (int64_t r = 0; r < ROWS; ++r) sum[r] += rows[r * c + q] * lines[q];
  for (int64_t r = 0; r < ROWS; ++r) z[r] = sum[r];
}

__attribute__((always_inline)) inline void add_times(const double* rows, int64_t n_rows, int64_t c, const Pack* lines, Pack* z) {
  constexpr int64_t MANY = 5, FEW = 3;  // whose sums need not wait for each other
  int64_t k = 0;
  for (; k + MANY <= n_rows; k += MANY) add_rows_times<MANY>(rows + k * c, c, lines, z + k);
  for (; k + FEW <= n_rows; k += FEW) add_rows_times<FEW>(rows + k * c, c, lines, z + k);
  for (; k < n_rows; ++k) add_rows_times<1>(rows + k * c, c, lines, z + k);
}

// L^T z, which is done to z.
__attribute__((always_inline)) inline void transposed_root_of(const double* p, const double* deviations, int64_t top, int64_t m, Pack* z) {
  const Pack of_top = z[top];
  Pack mean{};
  for (int64_t k = 0; k < m; ++k) mean += p[k] * (z[k] -= of_top);
  for (int64_t k = 0; k < m; ++k) z[k] = deviations[k] * (z[k] - mean);
}

__attribute__((always_inline)) inline void write_packs(const Pack* z, int64_t m, int64_t j, int64_t w, double* out) {
  const int64_t first = j * TOGETHER, bytes = std::min(TOGETHER, w - first) * int64_t(sizeof(double));
  for (int64_t k = 0; k < m; ++k) std::memcpy(out + k * w + first, z + k, std::size_t(bytes));
}

// z has room for m packs.
KCALIB_CLONES void some_started_times(
    const Roots& roots, int64_t begin, int64_t end, const double* x, int64_t c, const Packs& matrix, int64_t w, Pack* z, double* out) {
  const int64_t m = roots.m;
  for (int64_t i = begin; i < end; ++i)
    for (int64_t j = 0; j < Packs::packs(w); ++j) {
      const Pack* lines = matrix[j];
      for (int64_t k = 0; k < m; ++k) z[k] = lines[k];
      transposed_root_of(roots.p + i * m, roots.deviations + i * m, int64_t(roots.top[i]), m, z);
      add_times(x + i * m * c, m, c, lines + m, z);
      write_packs(z, m, j, w, out + i * m * w);
    }
}

// `whole` has room for m x m numbers.
KCALIB_CLONES void some_products_times(
    const Roots& roots, int64_t begin, int64_t end, const double* products, int64_t c, const Packs& matrix, int64_t w, double* whole, Pack* z,
    double* out) {
  const int64_t m = roots.m, pairs = m * (m - 1) / 2, size = pairs + (m - 1) * c;
  const double last = share_of_last(m);
  for (int64_t i = begin; i < end; ++i) {
    const double *at = products + i * size, *narrow = at + pairs;
    for (int64_t a = 0; a < m; ++a) whole[a * m + a] = 0;
    for (int64_t a = 0; a < m; ++a)
      for (int64_t b = a + 1; b < m; ++b, ++at) {
        whole[a * m + b] = whole[b * m + a] = *at;
        whole[a * m + a] -= *at;  // rows of V_i sum to 0, and no other entry is positive
        whole[b * m + b] -= *at;
      }
    for (int64_t j = 0; j < Packs::packs(w); ++j) {
      Pack sum{};
      for (int64_t k = 0; k < m; ++k) z[k] = Pack{};
      add_times(narrow, m - 1, c, matrix[j] + m, z);
      for (int64_t k = 0; k < m - 1; ++k) sum += z[k];
      z[m - 1] = last * sum;
      add_times(whole, m, m, matrix[j], z);
      transposed_root_of(roots.p + i * m, roots.deviations + i * m, int64_t(roots.top[i]), m, z);
      write_packs(z, m, j, w, out + i * m * w);
    }
  }
}

KCALIB_CLONES void some_lengths(const double* p, int64_t rows, int64_t m, double* squares, double* fourths) {
  for (int64_t i = 0; i < rows; ++i, p += m) {
    int64_t top = 0;
    for (int64_t k = 1; k < m; ++k) top = p[k] > p[top] ? k : top;
    double rest = 0, shift = 0;  // of a residual to the centre: in these sums nothing cancels
    for (int64_t k = 0; k < m; ++k) {
      const double other = k == top ? 0.0 : p[k];
      rest += other;
      shift += other * other;
    }
    shift += rest * rest;
    double square = p[top] * shift, fourth = square * shift;
    for (int64_t k = 0; k < m; ++k) {
      const double other = k == top ? 0.0 : p[k], length = std::max(2 - 2 * (other + rest) + shift, 0.0);
      square += other * length;
      fourth += other * length * length;
    }
    squares[i] = square;
    fourths[i] = fourth;
  }
}

void for_samples(int64_t n, int64_t numbers, double work, int threads, auto pass) {
  for_parts(n, std::max<int64_t>(1, PART / numbers), work, threads, [&](int64_t begin, int64_t end, int64_t) { pass(begin, end); });
}

// pass(begin, end, memory), of `size` numbers for each thread: none is taken within a parallel region, where an exception ends
// the process.
void for_samples_with(int64_t size, int64_t n, int64_t numbers, double work, int threads, auto pass) {
  const int64_t length = std::max<int64_t>(1, PART / numbers);
  const AlignedBuffer<double> memory(team_of(threads, ceil_divide(n, length), work) * size);
  for_parts(n, length, work, threads, [&](int64_t begin, int64_t end, int64_t) { pass(begin, end, memory.get() + thread_number() * size); });
}

}  // namespace

void apply_roots(const Roots& roots, const double* x, int64_t c, int64_t stride, int threads, double* out) {
  const double work = 4.0 * double(roots.n) * double(roots.m) * double(c);
  for_samples(roots.n, roots.m * c, work, threads, [=](int64_t begin, int64_t end) { roots_times(roots, begin, end, x, c, stride, out); });
}

void apply_transposed_roots(const Roots& roots, const double* z, const double* own, const double* y, int64_t c, int threads, double* out) {
  const double work = 4.0 * double(roots.n) * double(roots.m) * double(c);
  for_samples(roots.n, roots.m * c, work, threads,
              [=](int64_t begin, int64_t end) { transposed_roots_times(roots, begin, end, z, own, y, c, out); });
}

void covariances(const Roots& roots, int64_t stride, int threads, double* out) {
  const int64_t m = roots.m;
  for_samples(roots.n, m * m, double(roots.n) * double(m) * double(m), threads,
              [=](int64_t begin, int64_t end) { some_covariances(roots, begin, end, stride, out); });
}

void started_times(const Roots& roots, const double* x, int64_t c, const double* matrix, int64_t w, int threads, double* out) {
  const Packs packs(matrix, roots.m + c, w);
  const double work = 2.0 * double(roots.n) * double(roots.m) * double(w) * double(c + 2);
  for_samples_with(roots.m * TOGETHER, roots.n, roots.m * w, work, threads, [&](int64_t begin, int64_t end, double* z) {
    some_started_times(roots, begin, end, x, c, packs, w, reinterpret_cast<Pack*>(z), out);
  });
}

void products_times(const Roots& roots, const double* products, int64_t c, const double* matrix, int64_t w, int threads, double* out) {
  const int64_t m = roots.m;
  const Packs packs(matrix, m + c, w);
  const double work = 2.0 * double(roots.n) * double(m) * double(w) * double(m + c + 2);
  const int64_t packed = m * TOGETHER, whole = ceil_divide(m * m, TOGETHER) * TOGETHER;
  for_samples_with(packed + whole, roots.n, m * w, work, threads, [&](int64_t begin, int64_t end, double* z) {
    some_products_times(roots, begin, end, products, c, packs, w, z + packed, reinterpret_cast<Pack*>(z), out);
  });
}

void residual_lengths(const double* p, int64_t n, int64_t m, int threads, double* squares, double* fourths) {
  for_samples(n, m, 8.0 * double(n) * double(m), threads,
              [=](int64_t begin, int64_t end) { some_lengths(p + begin * m, end - begin, m, squares + begin, fourths + begin); });
}

}  // namespace kcalib
