// Products of a block of entries that has been written: with weights from both sides, and with vectors. Included by
// tile.cpp, once per instruction set.
#pragma once

#include <cstdint>

#include "cpu/simd/register_tile.h"
#include "cpu/pairs/tile.h"

namespace kcalib {
namespace {

template <class T> struct StridedRows {
  const T* at;
  int64_t stride;
  KCALIB_FN T operator()(int64_t k, int r) const { return at[r * stride + k]; }
};

template <class T>
void quadratic(const T* h, int64_t stride, int64_t row_begin, int64_t rows, int64_t column_begin, int64_t columns,
               const T* const* panels, int64_t n_panels, double* out) {
  using V = Pack<T>;
  constexpr int64_t AT_ONCE = 96;                               // columns whose weights stay in L1
  const int64_t groups = (rows + ROWS - 1) / ROWS;
  for (int64_t p = 0; p < n_panels; ++p, out += WIDTH<T>) {
    const T* left = panels[p] + row_begin * WIDTH<T>;
    const T* right = panels[p] + column_begin * WIDTH<T>;
    DoublePack total[VECTORS * WIDE<V>] = {};
    for (int64_t k = 0; k < columns; k += AT_ONCE) {
      const int64_t length = columns - k < AT_ONCE ? columns - k : AT_ONCE;
      const T* next = k + AT_ONCE < columns ? right + (k + AT_ONCE) * WIDTH<T> : panels[p + 1 < n_panels ? p + 1 : p] + column_begin * WIDTH<T>;
      const Prefetch prefetch(next, AT_ONCE * WIDTH<T> * int64_t(sizeof(T)), groups);
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t i = g * ROWS;
        prefetch.step(g);
        V part[VECTORS] = {};
        accumulate<Product, V>(StridedRows<T>{h + i * stride + k, stride}, right + k * WIDTH<T>, length,
                               [&](int r, const V* sum) KCALIB_INLINE {
                                 if (i + r >= rows) return;
                                 const T* weights = left + (i + r) * WIDTH<T>;
                                 for (int v = 0; v < VECTORS; ++v) part[v] += load<V>(weights + v * LANES<V>) * sum[v];
                               });
        for (int v = 0; v < VECTORS; ++v) add_wide(part[v], total + v * WIDE<V>);
      }
    }
    for (int v = 0; v < VECTORS * WIDE<V>; ++v)
      for (int l = 0; l < LANES<DoublePack>; ++l) out[v * LANES<DoublePack> + l] += total[v][l];
  }
}

// apply(begin, count) for parts of 0..n, as few and as even as can be, of MOST at most; count is a constant.
template <int COUNT> struct Count { static constexpr int value = COUNT; };
template <int COUNT, class Apply> KCALIB_FN void with_count(int64_t count, Apply&& apply) {
  if (count == COUNT) return apply(Count<COUNT>{});
  if constexpr (COUNT > 1) with_count<COUNT - 1>(count, apply);
}
template <int MOST, class Apply> KCALIB_FN void in_parts(int64_t n, Apply&& apply) {
  const int64_t parts = (n + MOST - 1) / MOST;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = part * n / parts, end = (part + 1) * n / parts;
    with_count<MOST>(end - begin, [&](auto count) KCALIB_INLINE { apply(begin, count); });
  }
}

// The sum of pack i in lane i, of as many packs as a double pack has lanes.
template <class V, int STEP = LANES<DoublePack> / 2> KCALIB_FN DoublePack sums_of_lanes(V* packs) {
  for (int i = 0; i < STEP; ++i) {
    exchange<STEP>(packs[i], packs[i + STEP], typename LanesUpTo<LANES<V>>::type{});
    packs[i] += packs[i + STEP];
  }
  if constexpr (STEP > 1) {
    return sums_of_lanes<V, STEP / 2>(packs);
  } else {
    DoublePack wide[WIDE<V>];
    widen(packs[0], wide);
    for (int w = 1; w < WIDE<V>; ++w) wide[0] += wide[w];
    return wide[0];
  }
}

// Rows [i, i + lanes of a double pack) times COUNT vectors from the c-th on: lane by lane along the columns.
template <int COUNT, class T> KCALIB_FN void row_products(const BlockProduct<T>& block, int64_t i, int64_t c) {
  using V = Pack<T>;
  constexpr int AT_ONCE = LANES<DoublePack>;
  V sum[COUNT][AT_ONCE] = {};
  for (int64_t j = 0; j < block.columns; j += WIDTH<T>) {
    const T* h = block.h + j * block.stride + i * WIDTH<T>;
    const T* vectors = block.of_columns + c * block.length + j;
#pragma GCC unroll 1
    for (int v = 0; v < VECTORS; ++v) {
      V vector[COUNT];
      for (int k = 0; k < COUNT; ++k) vector[k] = load<V>(vectors + k * block.length + v * LANES<V>);
#pragma GCC unroll 8
      for (int r = 0; r < AT_ONCE; ++r) {
        const V entries = rounded(load<V>(h + r * WIDTH<T> + v * LANES<V>));  // once for all vectors
#pragma GCC unroll 6
        for (int k = 0; k < COUNT; ++k) sum[k][r] += entries * vector[k];
      }
    }
  }
  for (int k = 0; k < COUNT; ++k) {
    double* at = block.to_rows + (c + k) * block.length + i;
    store<DoublePack>(at, load<DoublePack>(at) + sums_of_lanes(sum[k]));
  }
}

// Rows [begin, end), transposed, times COUNT vectors from the c-th on, for the panel of columns from j on.
template <int COUNT, class T>
KCALIB_FN void column_products(const BlockProduct<T>& block, int64_t begin, int64_t end, int64_t j, int64_t c) {
  using V = Pack<T>;
  double* out = block.to_columns + c * block.length + j;
  accumulate<Product, V, COUNT>(
      StridedRows<T>{block.of_rows + c * block.length + begin, block.length},
      block.h + j * block.stride + begin * WIDTH<T>, end - begin, [&](int r, const V* sum) KCALIB_INLINE {
        for (int v = 0; v < VECTORS; ++v) {
          DoublePack part[WIDE<V>], total[WIDE<V>];
          double* at = out + r * block.length + v * LANES<V>;
          widen(sum[v], part);
          __builtin_memcpy(total, at, sizeof total);
          for (int w = 0; w < WIDE<V>; ++w) total[w] += part[w];
          __builtin_memcpy(at, total, sizeof total);
        }
      });
}

template <class T> void multiply(const BlockProduct<T>& whole) {
  constexpr int ROWS_AT_ONCE = LANES<DoublePack>, VECTORS_AT_ONCE = ROWS * VECTORS / ROWS_AT_ONCE;
  constexpr int64_t PART = 96;  // rows: 24 KiB of a panel, with AVX-512, that stay in L1
  constexpr int64_t MOST = 96 / int64_t(sizeof(T));  // vectors: 18 KiB, which stay there too
  const int64_t chunks = (whole.n_vectors + MOST - 1) / MOST;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t begin = chunk * whole.n_vectors / chunks, end = (chunk + 1) * whole.n_vectors / chunks;
    const BlockProduct<T> block = whole.vectors(begin, end);
    for (int64_t i = 0; i < block.rows; i += ROWS_AT_ONCE)
      in_parts<VECTORS_AT_ONCE>(block.n_vectors, [&](int64_t c, auto count) KCALIB_INLINE { row_products<count.value>(block, i, c); });
    if (!block.of_rows) continue;
    for (int64_t i = 0; i < block.rows; i += PART) {
      const int64_t i_end = i + PART < block.rows ? i + PART : block.rows;
      for (int64_t j = 0; j < block.columns; j += WIDTH<T>)
        in_parts<ROWS>(block.n_vectors, [&](int64_t c, auto count) KCALIB_INLINE { column_products<count.value>(block, i, i_end, j, c); });
    }
  }
}

}  // namespace
}  // namespace kcalib
