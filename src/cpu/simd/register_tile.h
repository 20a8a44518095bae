// The register tile: ROWS rows by VECTORS packs of columns, whose sums stay in registers while the features pass by.
// Included by what is compiled once per instruction set, as pack.h is.
#pragma once

#include <cstdint>

#include "cpu/simd/pack.h"

namespace kcalib {
namespace {

constexpr int TILE = ROWS * VECTORS;

template <class T> constexpr int WIDTH = VECTORS * LANES<Pack<T>>;  // columns of a panel

// Features whose part of a panel stays in L1 while all rows of a block pass by.
constexpr int64_t FEATURES_AT_ONCE = 64;

#define KCALIB_INLINE __attribute__((always_inline))

struct Product {
  template <class V> static KCALIB_FN V step(V sum, Real<V> a, V b) { return a * b + sum; }
};

struct SquaredDifference {
  template <class V> static KCALIB_FN V step(V sum, Real<V> a, V b) {
    const V d = a - b;
    return d * d + sum;
  }
};
struct AbsoluteDifference {
  template <class V> static KCALIB_FN V step(V sum, Real<V> a, V b) { return sum + magnitude(a - b); }
};

// The rows of a register tile, by position and row: lanes of panels, or rows of a row-major matrix.
template <class T> struct PanelRows {
  const T* at[ROWS];
  KCALIB_FN T operator()(int64_t k, int r) const { return at[r][k * WIDTH<T>]; }
};
template <class T> KCALIB_FN PanelRows<T> panel_rows(const T* const* rows, int64_t first = 0) {
  PanelRows<T> result;
  for (int r = 0; r < ROWS; ++r) result.at[r] = rows[r] + first * WIDTH<T>;
  return result;
}

// finish(r, {sum_k step(rows(k, r), panel[k][v]) for all v}) for every row r < COUNT: the loop where the
// time goes. The sums never leave the registers unless `finish` stores them; they are added to
// `so_far` if that is given. ahead(k) asks for what is needed next.
struct NothingAhead {
  KCALIB_FN void operator()(int64_t) const {}
};
template <class Step, class V, int COUNT = ROWS, class Rows, class Finish, class Ahead = NothingAhead>
KCALIB_FN void accumulate(Rows rows, const Real<V>* panel, int64_t length, Finish&& finish, const V* so_far = nullptr,
                          Ahead ahead = {}) {
  V sum[COUNT][VECTORS] = {};
  if (so_far)
    for (int r = 0; r < COUNT; ++r)
      for (int v = 0; v < VECTORS; ++v) sum[r][v] = so_far[r * VECTORS + v];
#pragma GCC unroll 1
  for (int64_t k = 0; k < length; ++k, panel += WIDTH<Real<V>>) {
    V column[VECTORS];
    for (int v = 0; v < VECTORS; ++v) column[v] = load<V>(panel + v * LANES<V>);
    ahead(k);
#pragma GCC unroll 6
    for (int r = 0; r < COUNT; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sum[r][v] = Step::template step<V>(sum[r][v], rows(k, r), column[v]);
  }
#pragma GCC unroll 6
  for (int r = 0; r < COUNT; ++r) finish(r, sum[r]);
}

// Asks for `bytes` that will be needed next, a share of them with each of `steps` steps, until all are asked for: the
// hardware does not look as far ahead as the next panel.
class Prefetch {
 public:
  Prefetch(const void* next, int64_t bytes, int64_t steps)
      : next_(static_cast<const char*>(next)), lines_(bytes / 64), at_once_((lines_ + steps - 1) / steps) {}
  KCALIB_FN void step(int64_t i) const {
    const int64_t begin = i * at_once_, end = begin + at_once_ < lines_ ? begin + at_once_ : lines_;
    for (int64_t line = begin; line < end; ++line) __builtin_prefetch(next_ + line * 64);
  }

 private:
  const char* next_;
  int64_t lines_, at_once_;
};

template <class V> KCALIB_FN auto storing(V* tile) {
  return [tile](int r, const V* sum) KCALIB_INLINE {
    for (int v = 0; v < VECTORS; ++v) tile[r * VECTORS + v] = sum[v];
  };
}

}  // namespace
}  // namespace kcalib
