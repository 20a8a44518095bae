#include "cpu/samples/rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <type_traits>

#include "cpu/simd/clones.h"
#include "cpu/samples/row_packs.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

// Entries that a thread takes at a time: half a megabyte.
constexpr int64_t PART = 1 << 16;
constexpr int64_t LINE = 64;  // bytes of a line of the cache
constexpr int64_t STRIP = 1 << 11;  // entries that are read twice while they are in the first-level cache
constexpr int64_t LANES = 16;  // entries that are looked at together

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
using Flags = decltype(Pair{} < Pair{});
constexpr int PAIRS = 4;  // independent sums: faster, and more accurate, than one

Pair load(const double* x) { return Pair{x[0], x[1]}; }
Pair load(const float* x) { return Pair{double(x[0]), double(x[1])}; }
double total(const Pair* sums) {
  const Pair all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return all[0] + all[1];
}

// A NaN makes a sum that is not near 1; so does an entry above 1 + tolerance: no sum of non-negative terms is below one of
// them. Here a negative entry is looked for among those of all rows at once.
template <class T> __attribute__((always_inline)) inline bool are_short_distributions(const T* x, int64_t rows, int64_t m, double tolerance) {
  T lowest[LANES]{};
  const int64_t size = rows * m;
  int64_t k = 0;
  for (; k + LANES <= size; k += LANES)
    for (int64_t l = 0; l < LANES; ++l) lowest[l] = x[k + l] < lowest[l] ? x[k + l] : lowest[l];
  for (; k < size; ++k) lowest[0] = x[k] < lowest[0] ? x[k] : lowest[0];
  bool good = true;
  for (int64_t l = 0; l < LANES; ++l) good &= lowest[l] >= 0;
  for (int64_t i = 0; i < rows; ++i, x += m) {
    // What comes next, of which nothing is read while sums are made.
    for (int64_t j = 0; j < m; j += LINE / int64_t(sizeof(T))) __builtin_prefetch(x + size + j);
    double first = 0, second = 0;
    for (k = 0; k + 2 <= m; k += 2) first += double(x[k]), second += double(x[k + 1]);
    if (k < m) first += double(x[k]);
    good &= std::abs(first + second - 1) <= tolerance;
  }
  return good;
}

// Rows of LONG_ROW numbers or more. Their last pack has entries of the one before, which `rest` keeps out of the sum.
template <int64_t WIDTH, class T> KCALIB_PART bool are_long_distributions(const T* x, int64_t rows, int64_t m, double tolerance) {
  constexpr int64_t AHEAD = 8192 / int64_t(sizeof(T));  // is asked for: memory sends more than it does unasked
  constexpr int64_t TOGETHER = 16;
  using Sums = Doubles<WIDTH>;
  const Sums rest = rest_of<WIDTH>(m);
  Pack<WIDTH, T> lowest{}, lowest_too{};
  bool good = true;
  for (int64_t i = 0; i < rows; ++i, x += m) {
    Sums sum{}, sum_too{};  // independent ones: faster, and more accurate
    int64_t k = 0;
    for (; k + TOGETHER <= m; k += TOGETHER) {
      for (int64_t line = 0; line < TOGETHER; line += LINE / int64_t(sizeof(T))) __builtin_prefetch(x + k + line + AHEAD);
      for (int64_t l = 0; l < TOGETHER; l += 2 * WIDTH) {
        const auto first = pack_at<WIDTH>(x + k + l), second = pack_at<WIDTH>(x + k + l + WIDTH);
        lowest = first < lowest ? first : lowest;
        lowest_too = second < lowest_too ? second : lowest_too;
        sum += __builtin_convertvector(first, Sums);
        sum_too += __builtin_convertvector(second, Sums);
      }
    }
    for (; k + WIDTH <= m; k += WIDTH) {
      const auto next = pack_at<WIDTH>(x + k);
      lowest = next < lowest ? next : lowest;
      sum += __builtin_convertvector(next, Sums);
    }
    const auto end = pack_at<WIDTH>(x + m - WIDTH);
    lowest_too = end < lowest_too ? end : lowest_too;
    sum_too += __builtin_convertvector(end, Sums) * rest;
    good &= std::abs(total_of<WIDTH>(sum + sum_too) - 1) <= tolerance;
  }
  for (int64_t l = 0; l < WIDTH; ++l) good &= (lowest[l] >= 0) & (lowest_too[l] >= 0);
  return good;
}

template <int64_t WIDTH, class T> KCALIB_PART bool strip_is_good_of(const T* x, int64_t rows, int64_t m, double tolerance) {
  return m < LONG_ROW ? are_short_distributions(x, rows, m, tolerance) : are_long_distributions<WIDTH>(x, rows, m, tolerance);
}

KCALIB_FOR_EACH_WIDTH(strip_is_good, (const double* x, int64_t rows, int64_t m, double tolerance), (x, rows, m, tolerance))
KCALIB_FOR_EACH_WIDTH(strip_is_good, (const float* x, int64_t rows, int64_t m, double tolerance), (x, rows, m, tolerance))

// Whether 0 <= p <= highest holds throughout. A count of those that are not is as wide as a double: it takes the same packs.
template <class T> __attribute__((always_inline)) inline bool pairs_of(const T* p, int64_t n, double highest, double* out) {
  std::int64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double given = double(p[i]), second = given > 1 ? 1 : given;
    bad += (given >= 0) & (given <= highest) ? 0 : 1;
    out[2 * i] = 1 - second;
    out[2 * i + 1] = second;
  }
  return bad == 0;
}

KCALIB_CLONES bool are_within(const double* p, int64_t n, double highest) {
  std::int64_t bad = 0;
  for (int64_t i = 0; i < n; ++i) bad += (p[i] >= 0) & (p[i] <= highest) ? 0 : 1;
  return bad == 0;
}

KCALIB_CLONES bool complete_strip(const double* p, int64_t n, double highest, double* out) { return pairs_of(p, n, highest, out); }
KCALIB_CLONES bool complete_strip(const float* p, int64_t n, double highest, double* out) { return pairs_of(p, n, highest, out); }

template <class T> __attribute__((always_inline)) inline bool classes_of(const T* labels, int64_t n, int64_t m, std::int64_t* out) {
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

KCALIB_CLONES bool classes_strip(const double* x, int64_t n, int64_t m, std::int64_t* out) { return classes_of(x, n, m, out); }
KCALIB_CLONES bool classes_strip(const std::int64_t* x, int64_t n, int64_t m, std::int64_t* out) { return classes_of(x, n, m, out); }
KCALIB_CLONES bool classes_strip(const std::int32_t* x, int64_t n, int64_t m, std::int64_t* out) { return classes_of(x, n, m, out); }

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

bool are_few_distributions(const double* p, int64_t rows, int64_t m, double tolerance) {
  return strip_is_good(p, rows, m, strict_tolerance(tolerance, m));
}

template <class T> bool are_distributions(const T* p, int64_t n, int64_t m, double tolerance, int threads, double* out) {
  const double strict = strict_tolerance(tolerance, m);
  return with_width(m, [=](auto m) {
    return for_parts(n, m, threads, [=](int64_t begin, int64_t end) {
      const int64_t strip = std::max<int64_t>(1, STRIP / m);
      bool good = true;
      for (int64_t i = begin; i < end; i += strip) good &= strip_is_good(p + i * m, std::min(end - i, strip), m, strict);
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
void residuals(const double* p, const std::int64_t* labels, int64_t n, int64_t m, int threads, T* points, T* marks) {
  with_width(m, [=](auto m) {
    return for_parts(n, m, threads, [=](int64_t begin, int64_t end) {
      for (int64_t k = begin * m; k < end * m; ++k) marks[k] = T(-p[k]);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t own = i * m + int64_t(labels[i]);
        marks[own] = T(1 - p[own]);
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
