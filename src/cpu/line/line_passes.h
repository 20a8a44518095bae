// Passes over the binary samples, which memory bounds. Included by line_kernels.cpp, once per instruction set, as pack.h is.
#pragma once

#include <cstdint>

#include "cpu/line/line_residual.h"
#include "cpu/line/line_scan.h"

namespace kcalib {
namespace {

template <int... LANE> KCALIB_FN P neighbours_swapped(P x, Lanes<LANE...>) { return __builtin_shufflevector(x, x, (LANE ^ 1)...); }

// 1 - x is exact for the larger of two that sum to 1.
double gap(const double* points, int64_t n) {
  constexpr int CHAINS = 4;  // which do not wait for each other
  P largest[CHAINS]{};
  int64_t k = 0;
  for (; k + CHAINS * WIDTH <= 2 * n; k += CHAINS * WIDTH)
#pragma GCC unroll 4
    for (int c = 0; c < CHAINS; ++c) {
      const P x = load<P>(points + k + c * WIDTH), y = neighbours_swapped(x, typename LanesUpTo<WIDTH>::type{});
      largest[c] = higher(magnitude(1 - higher(x, y) - lower(x, y)), largest[c]);
    }
  double most = 0;
  for (const P& part : largest)
    for (int i = 0; i < WIDTH; ++i) most = part[i] > most ? part[i] : most;
  for (; k < 2 * n; k += 2) {
    const double x = points[k], y = points[k + 1], apart = __builtin_fabs(1 - higher(x, y) - lower(x, y));
    most = apart > most ? apart : most;
  }
  return most;
}

int64_t ones(const int64_t* labels, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += labels[i];
  return count;
}

#if defined(__AVX512F__)
KCALIB_FN P contained(P x) {
  const P within = at_most(at_least(x, -MOST_FINITE), MOST_FINITE);
  return within == within ? within : P{};
}
// The lanes of the mask, side by side; nothing beside them is written.
KCALIB_FN double* store_chosen(double* out, P x, __mmask8 chosen) {
  const int count = __builtin_popcount(chosen);
  store_some(out, P(_mm512_maskz_compress_pd(chosen, __m512d(x))), count);
  return out + count;
}
#endif

// Of points (p, q), or of q alone, as `complete_pairs` has them then.
template <int N_FEATURES>
void residuals(const double* points, const int64_t* labels, int64_t n, double* zero, double* one, double sums[2]) {
  int64_t i = 0;
  sums[0] = sums[1] = 0;
#if defined(__AVX512F__)
  [[maybe_unused]] const __m512i first = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), second = first + _mm512_set1_epi64(1);
  P off{}, squares{};
  for (; i + WIDTH <= n; i += WIDTH) {
    P of_zero, of_one;
    if constexpr (N_FEATURES == 1) {
      const P given = load<P>(points + i), within = given > 1 ? splat<P>(1.0) : given;
      of_zero = contained(1 - within), of_one = contained(within);
    } else {
      const __m512d a = __m512d(load<P>(points + 2 * i)), b = __m512d(load<P>(points + 2 * i + WIDTH));
      of_zero = contained(P(_mm512_permutex2var_pd(a, first, b))), of_one = contained(P(_mm512_permutex2var_pd(a, second, b)));
    }
    const __m512i label = _mm512_loadu_si512(labels + i);
    const __mmask8 is_one = _mm512_test_epi64_mask(label, label);
    const P other = P(_mm512_mask_mov_pd(__m512d(of_one), is_one, __m512d(of_zero)));
    const P rest = 1 - P(_mm512_mask_mov_pd(__m512d(of_zero), is_one, __m512d(of_one)));
    off += 0.5 * magnitude(other - rest);
    squares += other * other + rest * rest;
    const P size = 0.5 * (other + rest);
    zero = store_chosen(zero, size, __mmask8(~is_one));
    one = store_chosen(one, size, is_one);
  }
  sums[0] = sum_lanes(off);
  sums[1] = sum_lanes(squares);
#endif
  for (; i < n; ++i) {
    double point[2];
    if constexpr (N_FEATURES == 1) {
      const double given = points[i];
      point[1] = given > 1 ? 1 : given;
      point[0] = 1 - point[1];
    } else {
      point[0] = points[2 * i], point[1] = points[2 * i + 1];
    }
    const Residual residual(point, labels[i]);
    *(labels[i] ? one : zero) = residual.size();
    one += labels[i];
    zero += 1 - labels[i];
    sums[0] += residual.off_line();
    sums[1] += residual.square_norm();
  }
}

}  // namespace
}  // namespace kcalib
