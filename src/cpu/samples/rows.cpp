#include "cpu/samples/rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <type_traits>

#include "cpu/simd/for_each_level.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

// Entries that a thread takes at a time: half a megabyte.
constexpr int64_t PART = 1 << 16;
constexpr int64_t LINE = 64;  // bytes of a line of the cache
constexpr int64_t STRIP = 1 << 11;  // entries that are read twice while they are in the first-level cache
constexpr int64_t LANES = 8;  // entries that are looked at together

// pass(begin, end) for parts of the rows 0..n; whether all of them returned true.
template <class Pass> bool for_parts(int64_t n, int64_t m, int threads, Pass pass) {
  const int64_t length = std::max<int64_t>(1, PART / m), parts = (n + length - 1) / length;
  const int team = team_size({nullptr, threads, nullptr, nullptr}, parts, 4.0 * double(n) * double(m));
  std::atomic<bool> all{true};
  parallel_tasks(team, parts, [&](int64_t part) {
    if (!pass(part * length, std::min(n, (part + 1) * length))) all.store(false, std::memory_order_relaxed);
  });
  return all.load();
}

// Rows of two are most of the large problems: for them `work` is compiled with a constant.
template <class Work> auto with_width(int64_t m, Work work) {
  return m == 2 ? work(std::integral_constant<int64_t, 2>{}) : work(m);
}

using Pair = double __attribute__((vector_size(16)));  // every machine has these
constexpr int PAIRS = 4;  // independent sums: faster, and more accurate, than one

Pair load(const double* x) { return Pair{x[0], x[1]}; }
Pair load(const float* x) { return Pair{double(x[0]), double(x[1])}; }
double total(const Pair* sums) {
  const Pair all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return all[0] + all[1];
}

// In LANES sums, so that additions need not wait for each other.
template <class T> KCALIB_PART double sum_of_row(const T* x, int64_t m) {
  double sums[LANES]{};
  int64_t k = 0;
  for (; k + LANES <= m; k += LANES)
    for (int64_t l = 0; l < LANES; ++l) sums[l] += double(x[k + l]);
  double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  for (; k < m; ++k) sum += double(x[k]);
  return sum;
}

// A NaN makes a sum that is not near 1.
template <class T> KCALIB_PART bool are_rows_distributions_of(const T* x, int64_t rows, int64_t m, double tolerance) {
  T lowest[LANES]{}, highest[LANES]{};
  const int64_t size = rows * m;
  int64_t k = 0;
  for (; k + 2 * LANES <= size; k += 2 * LANES)
    for (int64_t l = 0; l < LANES; ++l) {
      const T a = x[k + l], b = x[k + LANES + l], low = a < b ? a : b, high = a < b ? b : a;
      lowest[l] = low < lowest[l] ? low : lowest[l];
      highest[l] = high > highest[l] ? high : highest[l];
    }
  for (; k < size; ++k) {
    lowest[0] = x[k] < lowest[0] ? x[k] : lowest[0];
    highest[0] = x[k] > highest[0] ? x[k] : highest[0];
  }
  bool good = true;
  for (int64_t l = 0; l < LANES; ++l) good &= lowest[l] >= 0 && highest[l] <= 1;
  for (int64_t i = 0; i < rows; ++i, x += m) {
    for (int64_t j = 0; j < m; j += LINE / int64_t(sizeof(T))) __builtin_prefetch(x + size + j);
    good &= std::abs(sum_of_row(x, m) - 1) <= tolerance;
  }
  return good;
}
KCALIB_FOR_EACH_LEVEL(bool, are_rows_distributions, (const double* x, int64_t rows, int64_t m, double tolerance), (x, rows, m, tolerance))
KCALIB_FOR_EACH_LEVEL(bool, are_rows_distributions, (const float* x, int64_t rows, int64_t m, double tolerance), (x, rows, m, tolerance))

// Whether 0 <= p <= highest holds throughout. A count of those that are not is as wide as a double: it takes the same packs.
template <class T> KCALIB_PART bool complete_strip_of(const T* p, int64_t n, double highest, double* out) {
  std::int64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double given = double(p[i]), second = given > 1 ? 1 : given;
    bad += (given >= 0) & (given <= highest) ? 0 : 1;
    out[2 * i] = 1 - second;
    out[2 * i + 1] = second;
  }
  return bad == 0;
}

KCALIB_PART bool are_within_of(const double* p, int64_t n, double highest) {
  std::int64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) bad += (p[i] >= 0) & (p[i] <= highest) ? 0 : 1;
  return bad == 0;
}
KCALIB_FOR_EACH_LEVEL(bool, are_within, (const double* p, int64_t n, double highest), (p, n, highest))

KCALIB_FOR_EACH_LEVEL(bool, complete_strip, (const double* p, int64_t n, double highest, double* out), (p, n, highest, out))
KCALIB_FOR_EACH_LEVEL(bool, complete_strip, (const float* p, int64_t n, double highest, double* out), (p, n, highest, out))

template <class T> KCALIB_PART bool classes_strip_of(const T* labels, int64_t n, int64_t m, std::int64_t* out) {
  std::int64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    const T given = labels[i];
    const bool within = (given >= T(0)) & (given < T(m));  // false for a NaN
    const std::int64_t label = within ? std::int64_t(given) : 0;
    bad += within & (T(label) == given) ? 0 : 1;
    out[i] = label;
  }
  return bad == 0;
}

#define KCALIB_CLASSES_STRIP(T) \
  KCALIB_FOR_EACH_LEVEL(bool, classes_strip, (const T* x, int64_t n, int64_t m, std::int64_t* out), (x, n, m, out))
KCALIB_CLASSES_STRIP(double)
KCALIB_CLASSES_STRIP(std::int64_t)
KCALIB_CLASSES_STRIP(std::int32_t)
#undef KCALIB_CLASSES_STRIP

template <class T> double square_norm(const T* x, int64_t m) {
  Pair sums[PAIRS]{};
  int64_t k = 0;
  for (; k + 2 * PAIRS <= m; k += 2 * PAIRS)
    for (int i = 0; i < PAIRS; ++i) sums[i] += load(x + k + 2 * i) * load(x + k + 2 * i);
  double sum = k > 0 ? total(sums) : 0;
  for (; k < m; ++k) sum += double(x[k]) * double(x[k]);
  return sum;
}

}  // namespace

template <class T> bool are_distributions(const T* p, int64_t n, int64_t m, double tolerance, int threads, double* out) {
  // Sums of the same m terms in two orders differ by less than what is taken off.
  const double strict = tolerance - 2 * double(m) * std::numeric_limits<double>::epsilon();
  return with_width(m, [=](auto m) {
    return for_parts(n, m, threads, [=](int64_t begin, int64_t end) {
      const int64_t strip = std::max<int64_t>(1, STRIP / m);
      bool good = true;
      for (int64_t i = begin; i < end; i += strip) good &= are_rows_distributions(p + i * m, std::min(end - i, strip), m, strict);
      if (out)
        for (int64_t k = begin * m; k < end * m; ++k) out[k] = double(p[k]);
      return good;
    });
  });
}

template <class T> bool complete_pairs(const T* p, int64_t n, double tolerance, int threads, double* out) {
  const double highest = 1 + tolerance;
  return for_parts(n, 2, threads, [=](int64_t begin, int64_t end) {
    return complete_strip(p + begin, end - begin, highest, out + 2 * begin);
  });
}

bool are_probabilities(const double* p, int64_t n, double tolerance, int threads) {
  return for_parts(n, 1, threads, [=](int64_t begin, int64_t end) { return are_within(p + begin, end - begin, 1 + tolerance); });
}

template <class T> bool are_classes(const T* labels, int64_t n, int64_t m, int threads, std::int64_t* out) {
  return for_parts(n, 1, threads, [=](int64_t begin, int64_t end) {
    bool good = true;
    T some[STRIP];
    for (int64_t i = begin; i < end; i += STRIP) {
      const int64_t count = std::min(end - i, STRIP);
      std::copy_n(labels + i, count, some);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // they are read once: those of the caller may change at any time
      good &= classes_strip(some, count, m, out + i);
    }
    return good;
  });
}

template <class T>
void residuals(const double* p, const std::int64_t* labels, int64_t n, int64_t m, int threads, T* points, T* out) {
  with_width(m, [=](auto m) {
    return for_parts(n, m, threads, [=](int64_t begin, int64_t end) {
      for (int64_t k = begin * m; k < end * m; ++k) out[k] = T(-p[k]);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t own = i * m + int64_t(labels[i]);
        out[own] = T(1 - p[own]);
      }
      if (points)
        for (int64_t k = begin * m; k < end * m; ++k) points[k] = T(p[k]);
      return true;
    });
  });
}

template <class T> void square_norms(const T* v, int64_t n, int64_t m, int threads, double* out) {
  with_width(m, [=](auto m) {
    return for_parts(n, m, threads, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) out[i] = square_norm(v + i * m, m);
      return true;
    });
  });
}

#define KCALIB_INSTANTIATE(T)                                                                       \
  template bool are_distributions<T>(const T*, int64_t, int64_t, double, int, double*);                   \
  template bool complete_pairs<T>(const T*, int64_t, double, int, double*);                            \
  template void residuals<T>(const double*, const std::int64_t*, int64_t, int64_t, int, T*, T*);          \
  template void square_norms<T>(const T*, int64_t, int64_t, int, double*);
KCALIB_INSTANTIATE(double)
KCALIB_INSTANTIATE(float)
template bool are_classes<double>(const double*, int64_t, int64_t, int, std::int64_t*);
template bool are_classes<std::int64_t>(const std::int64_t*, int64_t, int64_t, int, std::int64_t*);
template bool are_classes<std::int32_t>(const std::int32_t*, int64_t, int64_t, int, std::int64_t*);

}  // namespace kcalib
