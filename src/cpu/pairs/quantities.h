// Distances and inner products of a register tile's pairs, each computed at most once: what the kernel's factors
// (kernel_tile.h) ask for. Included by tile.cpp, once per instruction set.
#pragma once

#include <cstdint>

#include "cpu/pairs/mixture_kernels.h"
#include "cpu/pairs/panels.h"

namespace kcalib {

extern const MixtureTable KCALIB_MIXTURES;

namespace {

template <class T> const MixtureFunctions<T>& mixtures();
template <> const MixtureFunctions<double>& mixtures<double>() { return KCALIB_MIXTURES.float64; }
template <> const MixtureFunctions<float>& mixtures<float>() { return KCALIB_MIXTURES.float32; }

// Up to this many features the squared distance comes from differences; beyond it
// from |x|^2 + |x'|^2 - 2 x.x', with pairs nearer than NEAR recomputed by differences,
// because the expansion loses their digits (identical rows: 2e-8 in the distance).
constexpr int64_t DIRECT_COORDINATES = 8;
constexpr double NEAR = 1e-3;
// For pairs of different labels, whose distance from residuals is a sum of at most four: those no nearer than this are not
// NEAR whatever the terms are; of diffuse predictions terms are small, too, and so may be the distance.
constexpr double NEAR_OTHERS = 4e-3;
// Target factors had from points, whose terms have size 1, are recomputed from residuals where |e|^2 |e'|^2 is below.
constexpr double SMALL_TARGETS = 1e-4;

// A register tile: ROWS rows against the WIDTH columns of a panel.
template <class V> struct RegisterTile {
  using T = Real<V>;
  const RowGroup<T>& rows;
  const Panel<T>& columns;
  const PairProgram& program;
  const Side<T>& left;  // for the pairs that are computed anew
  const Side<T>& right;
  int64_t row, column;           // where the tile begins
  int64_t row_end, column_end;   // where the block ends
  const int64_t* column_labels;  // of each pack, the label of all of its columns, -1 if they differ; with labels only
  int64_t common_label;          // of all columns
  T least_feature_norm;          // of the columns
};

// The quantities of a tile's pairs that the kernel's factors ask for, each computed at
// most once.
template <class V> class Quantities {
  using R = Real<V>;

 public:
  explicit Quantities(const RegisterTile<V>& tile) : tile_(tile) {}

  const V* dot() {
    if (!have_dot_) accumulate<Product, V>(panel_rows(tile_.rows.points), tile_.columns.points, tile_.columns.n_coordinates, storing(dot_));
    have_dot_ = true;
    return dot_;
  }

  const V* cityblock() {
    if (!have_distance_)
      accumulate<AbsoluteDifference, V>(panel_rows(tile_.rows.points), tile_.columns.points, tile_.columns.n_coordinates, storing(distance_));
    have_distance_ = true;
    return distance_;
  }

  // The only metric of its problem.
  const V* table() {
    if (have_distance_) return distance_;
    have_distance_ = true;
    int64_t column[WIDTH<R>];
    for (int j = 0; j < WIDTH<R>; ++j) column[j] = int64_t(tile_.columns.points[j]);
    for (int r = 0; r < ROWS; ++r) {
      const double* row = tile_.program.table + int64_t(tile_.rows.points[r][0]) * tile_.program.table_stride;
      for (int v = 0; v < VECTORS; ++v)
        for (int l = 0; l < LANES<V>; ++l) distance_[r * VECTORS + v][l] = R(row[column[v * LANES<V> + l]]);
    }
    return distance_;
  }

  const V* distance(int metric) { return metric == TABLE ? table() : cityblock(); }

  // Between NEAR_OTHERS and 2: of predictions with other labels, which are probabilities.
  bool bounded() const { return bounded_; }

  const V* squared(int metric) {
    if (have_squared_) return squared_;
    have_squared_ = true;
    const auto& rows = tile_.rows;
    const auto& columns = tile_.columns;
    if (metric == MMD) {
      mixtures<R>().squared_mmd(*tile_.program.predicted, rows.points, columns.points, reinterpret_cast<R*>(squared_));
      return squared_;
    }
    if (columns.n_coordinates <= DIRECT_COORDINATES) {
      accumulate<SquaredDifference, V>(panel_rows(rows.points), columns.points, columns.n_coordinates, storing(squared_));
      return squared_;
    }
    V column_norm[VECTORS], nearest[VECTORS] = {};  // below 0: some pair is near
    for (int v = 0; v < VECTORS; ++v) column_norm[v] = load<V>(columns.point_norms + v * LANES<V>);
    accumulate<Product, V>(panel_rows(rows.points), columns.points, columns.n_coordinates, [&](int r, const V* dot) KCALIB_INLINE {
      for (int v = 0; v < VECTORS; ++v) {
        const V norms = rows.point_norms[r] + column_norm[v];
        const V d2 = norms - R(2) * dot[v];
        nearest[v] = lower(d2 - norms * R(NEAR), nearest[v]);
        dot_[r * VECTORS + v] = dot[v];
        squared_[r * VECTORS + v] = d2;
      }
    });
    have_dot_ = true;
    if (__builtin_expect(any(lowest(nearest) < R(0)), 0)) repair_expanded();
    return squared_;
  }

  // The product of residuals from feature `first` on, added to what `target` has, and squared distances from these target
  // factors t = <e, e'>, e = onehot(y) - p:
  //   |p - p'|^2 = |e|^2 + |e'|^2 - 2 t                       if y = y'
  //              = |p|^2 + |p'|^2 - 2 (t - e'_y - e_y')       otherwise.
  // Samples sorted by label have columns of one label in most packs; then nothing is gathered, and in most tiles all rows
  // have one label and all columns another: then `row_parts` are |p|^2 + 2 e_y' of the rows.
  void from_residuals(int64_t first, const R* row_parts, V* target) {
    const auto& rows = tile_.rows;
    const auto& columns = tile_.columns;
    const auto multiply = [&](auto&& finish) KCALIB_INLINE {
      accumulate<Product, V>(panel_rows(rows.features, first), columns.features + first * WIDTH<R>, columns.n_features - first, finish,
                             first ? target : nullptr);
    };
    if (rows.common_label < 0 || tile_.common_label < 0 || rows.common_label == tile_.common_label) {
      multiply(storing(target));
      return squared_from(target);
    }
    have_squared_ = true;
    const R* crossed = columns.features + rows.common_label * WIDTH<R>;
    V column_part[VECTORS], nearest[VECTORS];
    for (int v = 0; v < VECTORS; ++v) {
      column_part[v] = R(2) * load<V>(crossed + v * LANES<V>) + load<V>(columns.point_norms + v * LANES<V>);
      nearest[v] = splat<V>(R(NEAR_OTHERS));
    }
    multiply([&](int r, const V* t) KCALIB_INLINE {
      for (int v = 0; v < VECTORS; ++v) {
        const V d2 = (column_part[v] + row_parts[r]) - R(2) * t[v];
        target[r * VECTORS + v] = t[v];
        squared_[r * VECTORS + v] = d2;
        nearest[v] = lower(d2, nearest[v]);
      }
    });
    bounded_ = !any(lowest(nearest) < R(NEAR_OTHERS));
    if (__builtin_expect(!bounded_, 0)) repair(nullptr, nearest);
  }

  // Squared distances and, in the place of the products g = <x, x'> of points about the centre c, target factors. With
  // f = onehot(y) - c a residual is f - x, and with s = <c, x + c / 2> - c_y
  //   |p - p'|^2 = |x|^2 + |x'|^2 - 2 g,
  //   <e, e'>    = [y = y'] + g - x_{y'} - x'_y + s + s'.
  // Rounding, with u = 2^-53 (2^-24): a product of m terms is off by r u |x| |x'|, where r is sqrt(m), and m at worst, and s
  // by r u |c|. So D = |p - p'|^2 is off by r u (|x|^2 + |x'|^2), at most 1 / NEAR times r u D; from residuals it is by 4 r u,
  // whatever D is. <e, e'> is off by some 8 u for its six terms of size 1, and by r u (|x| |x'| + 2 |c|). Relative to
  // |e| |e'|, which is 0.01 at least (SMALL_TARGETS), that is 9e-14 + 1.1e-14 r (|x| |x'| + 2 |c|) in float64: below 1e-12
  // for 1000 classes whatever c is, and for any number of classes where |c| and |x| are small, as is |c| of diffuse ones.
  __attribute__((noinline)) void both_from(V* target) {
    have_squared_ = true;
    const auto& rows = tile_.rows;
    const auto& columns = tile_.columns;
    V near[VECTORS] = {};  // below 0: some pair is near
    const bool others = rows.common_label >= 0 && tile_.common_label >= 0 && rows.common_label != tile_.common_label;
#pragma GCC unroll 1
    for (int v = 0; v < VECTORS; ++v) {
      const int lane = v * LANES<V>;
      const V column_norm = load<V>(columns.point_norms + lane), offset = load<V>(columns.offsets + lane);
      const auto distances = [&](int r, V g) KCALIB_INLINE {
        const V norms = rows.point_norms[r] + column_norm, d2 = norms - R(2) * g;
        near[v] = lower(d2 - norms * R(NEAR), near[v]);
        squared_[r * VECTORS + v] = d2;
      };
      if (others) {
        const V column_part = offset - load<V>(columns.features + rows.common_label * WIDTH<R> + lane);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; ++r) {
          V& t = target[r * VECTORS + v];
          distances(r, t);
          t += column_part + (rows.offsets[r] - rows.features[r][tile_.common_label * WIDTH<R>]);
        }
      } else {
        const Bits<V> labels = to_bits(load<V>(columns.labels + lane));
        const int64_t label = tile_.column_labels[v];
        for (int r = 0; r < ROWS; ++r) {
          V& t = target[r * VECTORS + v];
          distances(r, t);
          const V other = label < 0 ? gather<V>(rows.features[r], labels * WIDTH<R>) : splat<V>(rows.features[r][label * WIDTH<R>]);
          const V crossed = load<V>(columns.features + rows.labels[r] * WIDTH<R> + lane) + other;
          const V hit = labels == typename Lane<R>::bits(rows.labels[r]) ? splat<V>(R(1)) : V{};
          t = (t - crossed) + ((offset + rows.offsets[r]) + hit);
        }
      }
    }
    if (__builtin_expect(any(lowest(near) < R(0)), 0)) repair_expanded();
    if (__builtin_expect(rows.least_feature_norm * tile_.least_feature_norm < R(SMALL_TARGETS), 0)) repair_targets(target);
  }

 private:
  // Of all columns: one chain through all packs of a tile would be longer than what else there is to do.
  static KCALIB_FN V lowest(const V* packs) {
    V low = packs[0];
    for (int v = 1; v < VECTORS; ++v) low = lower(packs[v], low);
    return low;
  }

  // The same from target factors of any labels.
  __attribute__((noinline)) void squared_from(const V* target) {
    have_squared_ = true;
    const auto& rows = tile_.rows;
    const auto& columns = tile_.columns;
    V nearest[VECTORS];
    for (V& x : nearest) x = splat<V>(R(NEAR_OTHERS));
    V near[VECTORS] = {};  // below 0: some pair of a label is near
#pragma GCC unroll 1
    for (int v = 0; v < VECTORS; ++v) {
      const int lane = v * LANES<V>;
      const V feature_norm = load<V>(columns.feature_norms + lane), point_norm = load<V>(columns.point_norms + lane);
      const int64_t label = tile_.column_labels[v];
      if (label >= 0) {
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; ++r) {
          V& d2 = squared_[r * VECTORS + v];
          const V t = target[r * VECTORS + v];
          if (rows.labels[r] == label) {
            const V norms = rows.feature_norms[r] + feature_norm;
            d2 = norms - R(2) * t;
            near[v] = lower(d2 - norms * R(NEAR), near[v]);
          } else {
            const V other = load<V>(columns.features + rows.labels[r] * WIDTH<R> + lane);
            d2 = R(2) * (other + rows.features[r][label * WIDTH<R>] - t) + (point_norm + rows.point_norms[r]);
            nearest[v] = lower(d2, nearest[v]);
          }
        }
      } else {
        const Bits<V> labels = to_bits(load<V>(columns.labels + lane));
        for (int r = 0; r < ROWS; ++r) {
          V& d2 = squared_[r * VECTORS + v];
          const V t = target[r * VECTORS + v];
          const V crossed = gather<V>(rows.features[r], labels * WIDTH<R>) + load<V>(columns.features + rows.labels[r] * WIDTH<R> + lane);
          const V norms = rows.feature_norms[r] + feature_norm;
          const auto same = labels == typename Lane<R>::bits(rows.labels[r]);
          d2 = same ? norms - R(2) * t : R(2) * (crossed - t) + (rows.point_norms[r] + point_norm);
          near[v] = lower(same ? d2 - norms * R(NEAR) : V{}, near[v]);
          nearest[v] = lower(same ? nearest[v] : d2, nearest[v]);
        }
      }
    }
    if (__builtin_expect(any(lowest(near) < R(0)) || any(lowest(nearest) < R(NEAR_OTHERS)), 0)) repair(near, nearest);
  }

  // Distances of points by differences, where their expansion has cancelled too far.
  __attribute__((noinline)) void repair_expanded() {
    const auto& rows = tile_.rows;
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECTORS; ++v) {
        V& d2 = squared_[r * VECTORS + v];
        const V norms = rows.point_norms[r] + load<V>(tile_.columns.point_norms + v * LANES<V>);
        if (any(d2 < norms * R(NEAR))) d2 = by_differences(r, v);
      }
  }

  // Target factors of small residuals, and zeros for rows and columns beyond the block's last.
  __attribute__((noinline)) void repair_targets(V* target) {
    const auto& rows = tile_.rows;
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECTORS; ++v) {
        const V product = rows.feature_norms[r] * load<V>(tile_.columns.feature_norms + v * LANES<V>);
        const auto small = product < R(SMALL_TARGETS);
        if (!any(small)) continue;
        for (int l = 0; l < LANES<V>; ++l) {
          if (!small[l]) continue;
          const int64_t i = tile_.row + r, j = tile_.column + v * LANES<V> + l;
          target[r * VECTORS + v][l] = i < tile_.row_end && j < tile_.column_end ? residual_product(tile_.left.row(i), tile_.right.row(j)) : 0;
        }
      }
  }

  // <e, e'>, in which no 1 - p is the difference of terms.
  R residual_product(int64_t i, int64_t j) const {
    const int64_t length = tile_.left.n_coordinates;
    if (tile_.left.features) return product(tile_.left.features + i * length, tile_.right.features + j * length, length);
    const R* x = tile_.left.points + i * length;
    const R* y = tile_.right.points + j * length;
    const int64_t a = tile_.left.labels[i], b = tile_.right.labels[j], low = a < b ? a : b, high = a < b ? b : a;
    R sum = product(x, y, low) + product(x + high + 1, y + high + 1, length - high - 1);
    if (a == b) return sum + (R(1) - x[a]) * (R(1) - y[a]);
    sum += product(x + low + 1, y + low + 1, high - low - 1);
    return sum - ((R(1) - x[a]) * y[a] + x[b] * (R(1) - y[b]));
  }

  static R product(const R* x, const R* y, int64_t length) {
    V sum{};
    int64_t k = 0;
    for (; k + LANES<V> <= length; k += LANES<V>) sum += load<V>(x + k) * load<V>(y + k);
    R total = 0;
    for (int l = 0; l < LANES<V>; ++l) total += sum[l];
    for (; k < length; ++k) total += x[k] * y[k];
    return total;
  }

  // Distances by differences, where the terms that their squares were the sums of have cancelled too far: in packs of
  // columns with a pair of one label (`near`, if there are any) or of two (`nearest`) that may be so.
  __attribute__((noinline)) void repair(const V* near, const V* nearest) {
    const auto& rows = tile_.rows;
    const auto& columns = tile_.columns;
    for (int v = 0; v < VECTORS; ++v) {
      if (!any(nearest[v] < R(NEAR_OTHERS)) && !(near && any(near[v] < R(0)))) continue;
      const int lane = v * LANES<V>;
      const Bits<V> labels = to_bits(load<V>(columns.labels + lane));
      const V feature_norms = load<V>(columns.feature_norms + lane), point_norms = load<V>(columns.point_norms + lane);
      const int64_t label = tile_.column_labels[v];
      for (int r = 0; r < ROWS; ++r) {
        V& d2 = squared_[r * VECTORS + v];
        const auto same = labels == typename Lane<R>::bits(rows.labels[r]);
        const V norms = rows.feature_norms[r] + feature_norms;
        if (!any(d2 < (same ? norms * R(NEAR) : splat<V>(R(NEAR_OTHERS))))) continue;
        const V other = label < 0 ? gather<V>(rows.features[r], labels * WIDTH<R>) : splat<V>(rows.features[r][label * WIDTH<R>]);
        const V crossed = load<V>(columns.features + rows.labels[r] * WIDTH<R> + lane) + other;
        const V others = (rows.point_norms[r] + point_norms) - R(2) * crossed;
        const auto close = d2 < (same ? norms : others) * R(NEAR);
        if (!any(close)) continue;
        for (int l = 0; l < LANES<V>; ++l) {
          if (!close[l]) continue;
          const int64_t i = tile_.row + r, j = tile_.column + lane + l;
          const bool inside = i < tile_.left.n && j < tile_.right.n;  // otherwise any d2 with a root will do
          d2[l] = inside ? squared_difference(tile_.left.row(i), tile_.right.row(j)) : 0;
        }
      }
    }
  }

  R squared_difference(int64_t i, int64_t j) const {
    const int64_t length = tile_.left.n_coordinates;
    const R* x = tile_.left.points + i * length;
    const R* y = tile_.right.points + j * length;
    if (x == y) return 0;  // a sample and itself, in blocks on the diagonal
    V sum{};
    int64_t k = 0;
    for (; k + LANES<V> <= length; k += LANES<V>) {
      const V d = load<V>(x + k) - load<V>(y + k);
      sum += d * d;
    }
    R total = 0;
    for (int l = 0; l < LANES<V>; ++l) total += sum[l];
    for (; k < length; ++k) total += (x[k] - y[k]) * (x[k] - y[k]);
    return total;
  }

  V by_differences(int r, int v) const {
    V even{}, odd{};
    const R* row = tile_.rows.points[r];
    const R* column = tile_.columns.points + v * LANES<V>;
    const int64_t length = tile_.columns.n_coordinates;
    int64_t k = 0;
    for (; k + 1 < length; k += 2) {
      even = SquaredDifference::step<V>(even, row[k * WIDTH<R>], load<V>(column + k * WIDTH<R>));
      odd = SquaredDifference::step<V>(odd, row[(k + 1) * WIDTH<R>], load<V>(column + (k + 1) * WIDTH<R>));
    }
    if (k < length) even = SquaredDifference::step<V>(even, row[k * WIDTH<R>], load<V>(column + k * WIDTH<R>));
    return even + odd;
  }

  const RegisterTile<V>& tile_;
  bool have_dot_ = false, have_squared_ = false, have_distance_ = false, bounded_ = false;
  V dot_[TILE], squared_[TILE], distance_[TILE];
};

}  // namespace
}  // namespace kcalib
