// Counts by their distribution functions: squared distances are squared 2-Wasserstein distances, to rounding.
//
// Columns: first, s[d], 0. A count X is first + N with N from 0 to d, and s_k = P(N > k), which descends; below `first` and
// above first + d there is less probability than rounding leaves. The best coupling of two counts is that of their quantile
// functions: the integral of (X - X')^2 over levels from 1 down to 0, where X is one more below each s_k, and X' below each
// s'_k. Both are passed in order, as lists are merged. Of rows of up to SHORT counts, all of which begin at the same one, it is
//   E (N - N')^2 = sum_k |s_k - s'_k| + 2 sum_{j < k} ((s_k - s'_j)_+ + (s'_k - s_j)_+):
// a squared whole number counts pairs of numbers below it, and (s_k - s'_j)_+ is the probability of N > k, N' <= j. That needs
// no pointers, and as k grows terms fall to 0 and stay there.
#pragma once

#include "kcalib/families/common.h"

namespace kcalib {
namespace {

struct Staircases : AnyFamily {
  KCALIB_FN static constexpr long long columns(long long d) { return 2 + d; }
  static constexpr Single SINGLE = Single::APART;
  static constexpr bool DISTANCES_ALONE = true;
  static constexpr double COST = 8;
  static constexpr int SHORT = 64;  // FEW of kcalib/distributions/_staircases.py

  template <int N, class V, class Row, class Column> KCALIB_FN static void apart(Row a, Column b, int d, V* out) {
    if (d <= SHORT) counted<N>(a, b, d, out);
    else merged<N>(a, b, out);
  }

 private:
  template <int N, class V, class Row, class Column> KCALIB_FN static void counted(Row a, Column b, int d, V* out) {
    using R = Real<V>;
    V same[N] = {}, ordered[N] = {};
    for (int j = 1; j <= d; ++j) {
      const R here = a(j);
      V there[N];
      for (int v = 0; v < N; ++v) {
        there[v] = b(j, v);
        same[v] += magnitude(here - there[v]);
      }
      for (int k = j + 1; k <= d; ++k) {
        const R beyond = a(k);
        V most{};
        for (int v = 0; v < N; ++v) {
          const V either = at_least(beyond - there[v], R(0)) + at_least(b(k, v) - here, R(0));
          ordered[v] += either;
          most += either;
        }
        if (!any(most > R(0))) break;
      }
    }
    for (int v = 0; v < N; ++v) out[v] = same[v] + R(2) * ordered[v];
  }

  // Some pairs at a time: a step waits for the one before it. A pair that is done before others has level 0.
  template <int N, class V, class Row, class Column> KCALIB_FN static void merged(Row a, Column b, V* out) {
    using R = Real<V>;
    constexpr int LANES = int(sizeof(V) / sizeof(R)), SOME = LANES < 4 ? LANES : 4;
    struct Numbers { R of[LANES]; };
    for (int v = 0; v < N; ++v) {
      Numbers squares;
      for (int begin = 0; begin < LANES; begin += SOME) {
        R level[SOME], gap[SOME], sum[SOME];
        int i[SOME], k[SOME];
        for (int l = 0; l < SOME; ++l) {
          level[l] = R(1);
          gap[l] = a(0) - b.lane(0, v, begin + l);
          sum[l] = R(0);
          i[l] = k[l] = 1;
        }
        for (bool more = true; more;) {
          more = false;
          for (int l = 0; l < SOME; ++l) {
            const R here = a(i[l]), there = b.lane(k[l], v, begin + l);
            const bool own = here >= there;
            const R next = own ? here : there;
            const bool on = next > R(0);
            sum[l] += (level[l] - next) * (gap[l] * gap[l]);
            level[l] = next;
            gap[l] += own ? R(1) : R(-1);
            i[l] += own && on;
            k[l] += !own && on;
            more = more || on;
          }
        }
        for (int l = 0; l < SOME; ++l) squares.of[begin + l] = sum[l];
      }
      out[v] = __builtin_bit_cast(V, squares);
    }
  }
};

}  // namespace
}  // namespace kcalib
