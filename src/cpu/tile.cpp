// One block of pairs: points -> quantity -> profile -> target factor -> reduce.
//
// Compiled once per instruction set (meson.build gives KCALIB_TABLE its name). The
// unit of work is a register tile of ROWS rows by VECTORS packs of columns: its
// entries pass from stage to stage through a buffer of a few KiB that stays in L1,
// so kernels, metrics, dtypes and reductions add up instead of multiplying.
//
// No std:: code with external linkage in here: an inline function compiled for
// AVX-512 must not be the copy that the linker keeps for everyone.
#include "tile.h"

#include "kernel_tile.h"
#include "mixture_kernels.h"
#include "register_tile.h"

namespace kcalib {

extern const MixtureTable KCALIB_MIXTURES;

namespace {

template <class T> const MixtureFunctions<T>& mixtures();
template <> const MixtureFunctions<double>& mixtures<double>() { return KCALIB_MIXTURES.float64; }
template <> const MixtureFunctions<float>& mixtures<float>() { return KCALIB_MIXTURES.float32; }

// Up to this many features the squared distance comes from differences; beyond it
// from |x|^2 + |x'|^2 - 2 x.x', with pairs nearer than NEAR recomputed by differences,
// because the expansion loses their digits (identical rows: 2e-8 in the distance).
constexpr long DIRECT_FEATURES = 8;
constexpr double NEAR = 1e-3;
// The same for pairs of different labels, whose distance is the sum of terms of size 1.
constexpr double NEAR_OTHERS = 4e-3;

constexpr long MAX_BLOCK_ROWS = 192;

template <class T> struct StridedRows {
  const T* at;
  long stride;
  KCALIB_FN T operator()(long k, int r) const { return at[r * stride + k]; }
};

// WIDTH samples, one in each lane: points (not with labels: see `repair`), marks, |x|^2 and,
// with labels, |e|^2 and the labels (as integers of the lane's size).
template <class T> struct Panel {
  const T* points;
  const T* marks;
  const T* point_norms;
  const T* mark_norms;
  const T* labels;
  long n_features, n_marks;

  Panel(const Side<T>& side, const T* packed)
      : points(packed),
        marks(packed + (side.labels ? 0 : side.n_features * WIDTH<T>)),
        point_norms(marks + side.n_marks * WIDTH<T>),
        mark_norms(point_norms + WIDTH<T>),
        labels(mark_norms + WIDTH<T>),
        n_features(side.n_features),
        n_marks(side.n_marks) {}
  static long size(const Side<T>& side) {
    return (side.labels ? side.n_marks + 3 : side.n_features + side.n_marks + 1) * WIDTH<T>;
  }
};

// ROWS lanes of panels that follow each other, from lane `first` on.
template <class T> struct RowGroup {
  const T *points[ROWS], *marks[ROWS];
  T point_norms[ROWS], mark_norms[ROWS];
  long labels[ROWS], common_label;  // -1 if they differ

  RowGroup() = default;
  RowGroup(const Side<T>& side, const T* packed, long first) {
    for (int r = 0; r < ROWS; ++r) {
      const long lane = (first + r) % WIDTH<T>;
      const Panel<T> panel(side, packed + (first + r) / WIDTH<T> * Panel<T>::size(side));
      points[r] = panel.points + lane;
      marks[r] = panel.marks + lane;
      point_norms[r] = panel.point_norms[lane];
      mark_norms[r] = side.labels ? panel.mark_norms[lane] : T(0);
      labels[r] = side.labels ? __builtin_bit_cast(typename Lane<T>::bits, panel.labels[lane]) : 0;
    }
    common_label = labels[0];
    for (int r = 1; r < ROWS; ++r)
      if (labels[r] != labels[0]) common_label = -1;
  }
};

// A register tile: ROWS rows against the WIDTH columns of a panel.
template <class V> struct RegisterTile {
  using T = Real<V>;
  const RowGroup<T>& rows;
  const Panel<T>& columns;
  const PairProgram& program;
  const Side<T>& left;  // for the pairs that are computed anew
  const Side<T>& right;
  long row, column;           // where the tile begins
  const long* column_labels;  // of each pack, the label of all of its columns, -1 if they differ; with labels only
  long common_label;          // of all columns
};

// The quantities of a tile's pairs that the kernel's factors ask for, each computed at
// most once.
template <class V> class Quantities {
  using R = Real<V>;

 public:
  explicit Quantities(const RegisterTile<V>& tile) : tile_(tile) {}

  const V* dot() {
    if (!have_dot_) accumulate<Product, V>(panel_rows(tile_.rows.points), tile_.columns.points, tile_.columns.n_features, storing(dot_));
    have_dot_ = true;
    return dot_;
  }

  const V* cityblock() {
    if (!have_distance_)
      accumulate<AbsoluteDifference, V>(panel_rows(tile_.rows.points), tile_.columns.points, tile_.columns.n_features, storing(distance_));
    have_distance_ = true;
    return distance_;
  }

  // The only metric of its problem.
  const V* table() {
    if (have_distance_) return distance_;
    have_distance_ = true;
    long column[WIDTH<R>];
    for (int j = 0; j < WIDTH<R>; ++j) column[j] = long(tile_.columns.points[j]);
    for (int r = 0; r < ROWS; ++r) {
      const double* row = tile_.program.table + long(tile_.rows.points[r][0]) * tile_.program.table_stride;
      for (int v = 0; v < VECTORS; ++v)
        for (int l = 0; l < LANES<V>; ++l) distance_[r * VECTORS + v][l] = R(row[column[v * LANES<V> + l]]);
    }
    return distance_;
  }

  const V* distance(int metric) { return metric == TABLE ? table() : cityblock(); }

  const V* squared(int metric) {
    if (have_squared_) return squared_;
    have_squared_ = true;
    const auto& rows = tile_.rows;
    const auto& columns = tile_.columns;
    if (metric == MMD) {
      mixtures<R>().squared_mmd(*tile_.program.predicted, rows.points, columns.points, reinterpret_cast<R*>(squared_));
      return squared_;
    }
    if (columns.n_features <= DIRECT_FEATURES) {
      accumulate<SquaredDifference, V>(panel_rows(rows.points), columns.points, columns.n_features, storing(squared_));
      return squared_;
    }
    V column_norm[VECTORS], nearest{};  // below 0: some pair is near
    for (int v = 0; v < VECTORS; ++v) column_norm[v] = load<V>(columns.point_norms + v * LANES<V>);
    accumulate<Product, V>(panel_rows(rows.points), columns.points, columns.n_features, [&](int r, const V* dot) KCALIB_INLINE {
      for (int v = 0; v < VECTORS; ++v) {
        const V norms = rows.point_norms[r] + column_norm[v];
        const V d2 = norms - R(2) * dot[v];
        nearest = lower(d2 - norms * R(NEAR), nearest);
        dot_[r * VECTORS + v] = dot[v];
        squared_[r * VECTORS + v] = d2;
      }
    });
    have_dot_ = true;
    if (__builtin_expect(any(nearest < R(0)), 0))
      for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) {
          V& d2 = squared_[r * VECTORS + v];
          if (any(d2 < (rows.point_norms[r] + column_norm[v]) * R(NEAR))) d2 = by_differences(r, v);
        }
    return squared_;
  }

  // Squared distances from the target factors t = <e, e'>, e = onehot(y) - p:
  //   |p - p'|^2 = |e|^2 + |e'|^2 - 2 t                       if y = y'
  //              = |p|^2 + |p'|^2 - 2 (t - e'_y - e_y')       otherwise.
  // Samples sorted by label have columns of one label in most packs; then nothing is gathered.
  void squared_from(const V* target) {
    have_squared_ = true;
    const auto& rows = tile_.rows;
    const auto& columns = tile_.columns;
    V nearest = splat<V>(R(NEAR_OTHERS));
    if (rows.common_label >= 0 && tile_.common_label >= 0 && rows.common_label != tile_.common_label) {
      // The usual case of sorted samples, without a look at each row's label.
      R row_part[ROWS];
      for (int r = 0; r < ROWS; ++r) row_part[r] = rows.point_norms[r] + R(2) * rows.marks[r][tile_.common_label * WIDTH<R>];
      const R* crossed = columns.marks + rows.common_label * WIDTH<R>;
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        const V column_part = R(2) * load<V>(crossed + v * LANES<V>) + load<V>(columns.point_norms + v * LANES<V>);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; ++r) {
          const V d2 = (column_part + row_part[r]) - R(2) * target[r * VECTORS + v];
          squared_[r * VECTORS + v] = d2;
          nearest = lower(d2, nearest);
        }
      }
      if (__builtin_expect(any(nearest < R(NEAR_OTHERS)), 0)) repair();
      return;
    }
    V near{};  // below 0: some pair of a label is near
#pragma GCC unroll 1
    for (int v = 0; v < VECTORS; ++v) {
      const int lane = v * LANES<V>;
      const V mark_norm = load<V>(columns.mark_norms + lane), point_norm = load<V>(columns.point_norms + lane);
      const long label = tile_.column_labels[v];
      if (label >= 0) {
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; ++r) {
          V& d2 = squared_[r * VECTORS + v];
          const V t = target[r * VECTORS + v];
          if (rows.labels[r] == label) {
            const V norms = rows.mark_norms[r] + mark_norm;
            d2 = norms - R(2) * t;
            near = lower(d2 - norms * R(NEAR), near);
          } else {
            const V other = load<V>(columns.marks + rows.labels[r] * WIDTH<R> + lane);
            d2 = R(2) * (other + rows.marks[r][label * WIDTH<R>] - t) + (point_norm + rows.point_norms[r]);
            nearest = lower(d2, nearest);
          }
        }
      } else {
        const Bits<V> labels = to_bits(load<V>(columns.labels + lane));
        for (int r = 0; r < ROWS; ++r) {
          V& d2 = squared_[r * VECTORS + v];
          const V t = target[r * VECTORS + v];
          const V crossed = gather<V>(rows.marks[r], labels * WIDTH<R>) + load<V>(columns.marks + rows.labels[r] * WIDTH<R> + lane);
          const V norms = rows.mark_norms[r] + mark_norm;
          const auto same = labels == typename Lane<R>::bits(rows.labels[r]);
          d2 = same ? norms - R(2) * t : R(2) * (crossed - t) + (rows.point_norms[r] + point_norm);
          near = lower(same ? d2 - norms * R(NEAR) : V{}, near);
          nearest = lower(same ? nearest : d2, nearest);
        }
      }
    }
    if (__builtin_expect(any(near < R(0)) || any(nearest < R(NEAR_OTHERS)), 0)) repair();
  }

 private:
  // Distances by differences, where the terms that their squares were the sums of have cancelled too far.
  __attribute__((noinline)) void repair() {
    const auto& rows = tile_.rows;
    const auto& columns = tile_.columns;
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECTORS; ++v) {
        V& d2 = squared_[r * VECTORS + v];
        const int lane = v * LANES<V>;
        const auto same = to_bits(load<V>(columns.labels + lane)) == typename Lane<R>::bits(rows.labels[r]);
        const V norms = rows.mark_norms[r] + load<V>(columns.mark_norms + lane);
        const auto near = d2 < (same ? norms * R(NEAR) : splat<V>(R(NEAR_OTHERS)));
        if (!any(near)) continue;
        for (int l = 0; l < LANES<V>; ++l) {
          if (!near[l]) continue;
          const long i = tile_.row + r, j = tile_.column + lane + l;
          const bool inside = i < tile_.left.n && j < tile_.right.n;  // otherwise any d2 with a root will do
          d2[l] = inside ? squared_difference(tile_.left.row(i), tile_.right.row(j)) : 0;
        }
      }
  }

  R squared_difference(long i, long j) const {
    const long length = tile_.left.n_features;
    const R* x = tile_.left.points + i * length;
    const R* y = tile_.right.points + j * length;
    V sum{};
    long k = 0;
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
    const long length = tile_.columns.n_features;
    long k = 0;
    for (; k + 1 < length; k += 2) {
      even = SquaredDifference::step<V>(even, row[k * WIDTH<R>], load<V>(column + k * WIDTH<R>));
      odd = SquaredDifference::step<V>(odd, row[(k + 1) * WIDTH<R>], load<V>(column + (k + 1) * WIDTH<R>));
    }
    if (k < length) even = SquaredDifference::step<V>(even, row[k * WIDTH<R>], load<V>(column + k * WIDTH<R>));
    return even + odd;
  }

  const RegisterTile<V>& tile_;
  bool have_dot_ = false, have_squared_ = false, have_distance_ = false;
  V dot_[TILE], squared_[TILE], distance_[TILE];
};

template <class T> T square_norm(const T* x, long length) {
  using V = Pack<T>;
  constexpr int CHAINS = 4, STEP = CHAINS * LANES<V>;
  V sum[CHAINS] = {};
  long k = 0;
  for (; k + STEP <= length; k += STEP)
    for (int c = 0; c < CHAINS; ++c) {
      const V part = load<V>(x + k + c * LANES<V>);
      sum[c] += part * part;
    }
  const V total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  T norm = 0;
  for (int lane = 0; lane < LANES<V>; ++lane) norm += total[lane];
  for (; k < length; ++k) norm += x[k] * x[k];
  return norm;
}

// Panels for `samples` samples, as columns or in groups of ROWS rows.
template <class T> long panels_of(long samples) { return ((samples + ROWS - 1) / ROWS * ROWS + WIDTH<T> - 1) / WIDTH<T>; }

template <class T> long packed_size(const Side<T>& side, long samples) { return panels_of<T>(samples) * Panel<T>::size(side); }

// packed[k * WIDTH + j] = value(source[row of sample first + j][k]), by squares of packs.
template <class T, class Value>
KCALIB_FN void pack_rows(const Side<T>& side, long first, long valid, const T* source, long length, T* packed, Value&& value) {
  using V = Pack<T>;
  constexpr int L = LANES<V>;
  for (int j = 0; j < WIDTH<T>; j += L) {
    const T* rows[L];
    for (int i = 0; i < L; ++i) rows[i] = j + i < valid ? source + side.row(first + j + i) * length : nullptr;
    const auto square = [&](long k, int count) KCALIB_INLINE {
      V numbers[L];
      for (int i = 0; i < L; ++i) {
        numbers[i] = V{};
        if (!rows[i]) continue;
        if (count == L) numbers[i] = value(load<V>(rows[i] + k));
        else for (int l = 0; l < count; ++l) numbers[i][l] = value(rows[i][k + l]);
      }
      transpose(numbers);
      for (int l = 0; l < L && l < count; ++l) store<V>(packed + (k + l) * WIDTH<T> + j, numbers[l]);
    };
    long k = 0;
    for (; k + L <= length; k += L) square(k, L);
    if (k < length) square(k, int(length - k));
  }
}

// Lanes beyond the last sample are zeros: their marks make every entry zero.
template <class T> void pack(const Side<T>& side, long begin, long end, T* packed) {
  const auto same = [](auto x) { return x; };
  for (long p = 0; p < panels_of<T>(end - begin); ++p) {
    const long first = begin + p * WIDTH<T>, valid = end - first < WIDTH<T> ? end - first : WIDTH<T>;
    if (!side.labels) {
      pack_rows(side, first, valid, side.points, side.n_features, packed, same);
      packed += side.n_features * WIDTH<T>;
    }
    T* marks = packed;
    packed += side.n_marks * WIDTH<T>;
    if (side.marks)
      pack_rows(side, first, valid, side.marks, side.n_marks, marks, same);
    else
      pack_rows(side, first, valid, side.points, side.n_features, marks, [](auto x) { return -x; });
    T *point_norms = packed, *mark_norms = packed + WIDTH<T>, *labels = packed + 2 * WIDTH<T>;
    packed += (side.labels ? 3 : 1) * WIDTH<T>;
    for (T* number = point_norms; number < packed; ++number) *number = T(0);
    for (long j = 0; j < valid; ++j) {
      const long row = side.row(first + j);
      const T* point = side.points + row * side.n_features;
      if (!side.labels) {
        point_norms[j] = square_norm(point, side.n_features);
        continue;
      }
      const int label = side.labels[row];
      T own, others;
      if (side.marks) {
        const T* residual = side.marks + row * side.n_marks;
        own = residual[label];
        others = square_norm(residual, label) + square_norm(residual + label + 1, side.n_marks - label - 1);
      } else {
        own = T(1) - point[label];
        others = square_norm(point, label) + square_norm(point + label + 1, side.n_features - label - 1);
        marks[label * WIDTH<T> + j] = own;
      }
      point_norms[j] = others + (T(1) - own) * (T(1) - own);
      mark_norms[j] = others + own * own;
      labels[j] = __builtin_bit_cast(T, typename Lane<T>::bits(label));
    }
  }
}

// From register tiles on the diagonal, so that they have the very bits of products of equal points.
template <class T> void own_products(const Mixtures& m, const Side<T>& side, long samples, const T* packed, T* out) {
  T tile[ROWS * WIDTH<T>];
  for (long i = 0; i < samples; i += ROWS) {
    const RowGroup<T> rows(side, packed, i);
    for (long p = i / WIDTH<T>; p <= (i + ROWS - 1) / WIDTH<T> && p < panels_of<T>(samples); ++p) {
      mixtures<T>().products(m, rows.points, Panel<T>(side, packed + p * Panel<T>::size(side)).points, tile);
      for (long r = 0; r < ROWS && i + r < samples; ++r)
        if ((i + r) / WIDTH<T> == p) out[i + r] = tile[r * WIDTH<T> + (i + r) % WIDTH<T>];
    }
  }
}

// Shows `visitor` every entry of the block, a row of a register tile at a time:
//   start_panel();  row(r, i, j, h) with h[VECTORS] = H[i + r][j...] for r < ROWS;  end_tile(i);  end_panel(j).
// Columns outside, rows inside: a panel stays in cache. Rows beyond the block's last
// (up to ROWS - 1) and columns beyond its last are shown as zeros.
template <class T, class Visitor> KCALIB_FN void for_each_tile(const BlockOfPairs<T>& block, Visitor& visitor) {
  using V = Pack<T>;
  const Side<T>&left = *block.left, &right = *block.right;
  const long rows = block.row_end - block.row_begin, columns = block.column_end - block.column_begin;
  const long panel_size = Panel<T>::size(right);
  const PairProgram& program = *block.program;
  const bool residual = left.labels;

  RowGroup<T> groups[MAX_BLOCK_ROWS / ROWS];
  const long n_groups = (rows + ROWS - 1) / ROWS, part_size = FEATURES_AT_ONCE * WIDTH<T>;
  for (long g = 0; g < n_groups; ++g) groups[g] = RowGroup<T>(left, block.packed_rows, g * ROWS);
  V kernel[TILE], targets[MAX_BLOCK_ROWS / ROWS][TILE];  // targets: not of vectors without labels
  for (long j = 0, p = 0; j < columns; j += WIDTH<T>, ++p) {
    const Panel<T> panel(right, block.packed_columns + p * panel_size);
    visitor.start_panel();
    long column_labels[VECTORS] = {}, common_label = -1, first = 0;
    if (residual) {
      for (int v = 0; v < VECTORS; ++v) {
        const Bits<V> labels = to_bits(load<V>(panel.labels + v * LANES<V>));
        column_labels[v] = any(labels != labels[0]) ? -1 : long(labels[0]);
      }
      common_label = column_labels[0];
      for (int v = 1; v < VECTORS; ++v)
        if (column_labels[v] != column_labels[0]) common_label = -1;
      // All of the product but the last features, whose part of the panel then is at hand.
      for (; first + FEATURES_AT_ONCE < panel.n_marks; first += FEATURES_AT_ONCE) {
        const T* part = panel.marks + first * WIDTH<T>;
        const Prefetch prefetch(part + part_size, part_size * long(sizeof(T)), n_groups);
        for (long g = 0; g < n_groups; ++g) {
          prefetch.step(g);
          accumulate<Product, V>(panel_rows(groups[g].marks, first), part, FEATURES_AT_ONCE, storing(targets[g]),
                                 first ? targets[g] : nullptr);
        }
      }
    }
    const Prefetch prefetch(panel.points + panel_size, (panel_size < part_size ? panel_size : part_size) * long(sizeof(T)), n_groups);
    for (long i = 0; i < rows; i += ROWS) {
      const RegisterTile<V> tile{groups[i / ROWS], panel, program, left, right, block.row_begin + i, block.column_begin + j, column_labels,
                                 common_label};
      Quantities<V> quantities(tile);
      V* target = targets[i / ROWS];
      prefetch.step(i / ROWS);
      if (residual) {
        accumulate<Product, V>(panel_rows(tile.rows.marks, first), panel.marks + first * WIDTH<T>,
                               panel.n_marks - first, storing(target), first ? target : nullptr);
        quantities.squared_from(target);
      } else if (program.target) {
        mixtures<T>().targets(*program.target, tile.rows.marks, panel.marks, reinterpret_cast<T*>(target));
      }
      kernel_values<V>(program.kernel, quantities, kernel);
      if (block.on_diagonal)
        for (int r = 0; r < ROWS; ++r) {
          const long d = tile.row + r - tile.column;
          if (d >= 0 && d < WIDTH<T>) kernel[r * VECTORS + d / LANES<V>][d % LANES<V>] = T(0);
        }
      const auto show = [&](int r, const V* factor) KCALIB_INLINE {
        V h[VECTORS];
        for (int v = 0; v < VECTORS; ++v) h[v] = rounded(kernel[r * VECTORS + v] * factor[v]);
        visitor.row(r, i, j, h);
      };
      if (residual || program.target) {
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; ++r) show(r, target + r * VECTORS);
      } else {
        accumulate<Product, V>(panel_rows(tile.rows.marks), panel.marks, panel.n_marks, show);
      }
      visitor.end_tile(i);
    }
    visitor.end_panel(j);
  }
}

// Adds a pack to double packs, in lane order.
template <class V> KCALIB_FN void add_wide(V x, DoublePack* sums) {
  DoublePack wide[WIDE<V>];
  widen(x, wide);
  for (int w = 0; w < WIDE<V>; ++w) sums[w] += wide[w];
}

// Sums of the entries; the order of those that make the total does not depend on what else is asked.
template <class T, bool WITH_ROWS, bool SECOND> struct SumVisitor {
  using V = Pack<T>;

  DoublePack total[WIDE<V>] = {};
  V tile_total{}, tile_columns[VECTORS];
  DoublePack row_sum[WITH_ROWS ? MAX_BLOCK_ROWS + ROWS : 1] = {};
  DoublePack column_sum[VECTORS * WIDE<V>];
  DoublePack square_sum{};
  double* column_sums;
  long columns;

  KCALIB_FN void start_panel() {
    for (auto& sum : column_sum) sum = DoublePack{};
  }
  KCALIB_FN void row(int r, long i, long, const V* h) {
    V sum = h[0];
    if constexpr (VECTORS == 4)
      sum = (h[0] + h[1]) + (h[2] + h[3]);
    else
      for (int v = 1; v < VECTORS; ++v) sum += h[v];
    tile_total = r == 0 ? sum : tile_total + sum;
    if constexpr (WITH_ROWS) {
      DoublePack wide[WIDE<V>];
      widen(sum, wide);
      for (int w = 0; w < WIDE<V>; ++w) row_sum[i + r] += wide[w];
      for (int v = 0; v < VECTORS; ++v) tile_columns[v] = r == 0 ? h[v] : tile_columns[v] + h[v];
    }
    if constexpr (SECOND)
      for (int v = 0; v < VECTORS; ++v) {
        DoublePack wide[WIDE<V>];
        widen(h[v], wide);
        for (int w = 0; w < WIDE<V>; ++w) square_sum += wide[w] * wide[w];
      }
  }
  KCALIB_FN void end_tile(long) {
    add_wide(tile_total, total);
    if constexpr (WITH_ROWS)
      for (int v = 0; v < VECTORS; ++v) add_wide(tile_columns[v], column_sum + v * WIDE<V>);
  }
  KCALIB_FN void end_panel(long column) {
    if (!WITH_ROWS || !column_sums) return;
    for (long j = 0; j < WIDTH<T> && column + j < columns; ++j)
      column_sums[column + j] += column_sum[j / LANES<DoublePack>][j % LANES<DoublePack>];
  }
};

template <class T, bool WITH_ROWS, bool SECOND> void sums_as(const BlockOfPairs<T>& block, BlockSums& sums) {
  SumVisitor<T, WITH_ROWS, SECOND> visitor;
  visitor.column_sums = sums.columns;
  visitor.columns = block.column_end - block.column_begin;
  for_each_tile(block, visitor);
  for (const DoublePack& part : visitor.total) sums.total += sum_lanes(part);
  if constexpr (WITH_ROWS)
    for (long i = 0; i < block.row_end - block.row_begin; ++i) sums.rows[i] += sum_lanes(visitor.row_sum[i]);
  if constexpr (SECOND) sums.squares += sum_lanes(visitor.square_sum);
}

template <class T> void sums(const BlockOfPairs<T>& block, BlockSums& sums) {
  if (!sums.rows) return sums_as<T, false, false>(block, sums);
  return sums.second ? sums_as<T, true, true>(block, sums) : sums_as<T, true, false>(block, sums);
}

// Writes the entries.
template <class T, class Out> struct EntryVisitor {
  using V = Pack<T>;
  Out* out;
  long stride, rows, columns;

  KCALIB_FN void start_panel() {}
  KCALIB_FN void row(int r, long i, long column, const V* h) {
    if (i + r >= rows) return;
    Out* begin = out + (i + r) * stride + column;
    if (columns - column >= WIDTH<T>) {
      for (int v = 0; v < VECTORS; ++v) store_as(begin + v * LANES<V>, h[v]);
      return;
    }
    T lanes[WIDTH<T>];
    for (int v = 0; v < VECTORS; ++v) store<V>(lanes + v * LANES<V>, h[v]);
    for (long j = 0; j < columns - column; ++j) begin[j] = Out(lanes[j]);
  }
  KCALIB_FN void end_tile(long) {}
  KCALIB_FN void end_panel(long) {}
};

template <class T, class Out> void entries(const BlockOfPairs<T>& block, Out* out, long stride) {
  EntryVisitor<T, Out> visitor{out, stride, block.row_end - block.row_begin, block.column_end - block.column_begin};
  for_each_tile(block, visitor);
}

// Writes the entries as panels of Out, whose width may be another than that of T.
template <class T, class Out> struct EntryPanels {
  using V = Pack<T>;
  static constexpr int PIECE = LANES<DoublePack>;  // lanes that are in one panel, whatever its width
  Out* out;
  long stride;

  KCALIB_FN Out* at(long row, long column) const {
    return out + (column / WIDTH<Out> * stride + row) * WIDTH<Out> + column % WIDTH<Out>;
  }
  KCALIB_FN void start_panel() {}
  KCALIB_FN void row(int r, long i, long column, const V* h) {
    if constexpr (WIDTH<Out> >= WIDTH<T>) {
      Out* begin = at(i + r, column);
      for (int v = 0; v < VECTORS; ++v) store_as(begin + v * LANES<V>, h[v]);
    } else {
      for (int v = 0; v < VECTORS; ++v) {
        DoublePack wide[WIDE<V>];
        widen(h[v], wide);
        for (int w = 0; w < WIDE<V>; ++w) store_as(at(i + r, column + v * LANES<V> + w * PIECE), wide[w]);
      }
    }
  }
  KCALIB_FN void end_tile(long) {}
  KCALIB_FN void end_panel(long) {}
};

template <class T, class Out> void panels(const BlockOfPairs<T>& block, Out* out, long stride) {
  EntryPanels<T, Out> visitor{out, stride};
  for_each_tile(block, visitor);
  const long rows = block.row_end - block.row_begin, columns = block.column_end - block.column_begin;
  const long written = (columns + WIDTH<T> - 1) / WIDTH<T> * WIDTH<T>;
  if (written % WIDTH<Out> == 0) return;
  for (long i = 0; i < rows; ++i)  // the other half of the last panel
    for (long l = 0; l < WIDTH<Out> - WIDTH<T>; ++l) visitor.at(i, written)[l] = Out(0);
}

// Shows take(V h) the entries of pairs of samples (on the diagonal: i < j), all others as infinity.
template <class T, class Take> struct PairVisitor {
  using V = Pack<T>;
  const BlockOfPairs<T>& block;
  Take take;

  KCALIB_FN void start_panel() {}
  KCALIB_FN void row(int r, long i, long column, const V* h) {
    const long rows = block.row_end - block.row_begin, columns = block.column_end - block.column_begin;
    if (i + r >= rows) return;
    const long first = block.on_diagonal ? i + r + 1 : 0;
    for (int v = 0; v < VECTORS; ++v) {
      const long j = column + v * LANES<V>;
      V shown = h[v];
      if (j < first || j + LANES<V> > columns)
        for (int l = 0; l < LANES<V>; ++l)
          if (j + l < first || j + l >= columns) shown[l] = Real<V>(__builtin_inf());
      take(shown);
    }
  }
  KCALIB_FN void end_tile(long) {}
  KCALIB_FN void end_panel(long) {}
};

template <class T> void counts(const BlockOfPairs<T>& block, const double* thresholds, long* counts) {
  using V = Pack<T>;
  V threshold[THRESHOLDS];
  Bits<V> count[THRESHOLDS] = {};
  for (int t = 0; t < THRESHOLDS; ++t) threshold[t] = splat<V>(T(thresholds[t]));
  const auto take = [&](V h) KCALIB_INLINE {
#pragma GCC unroll 8
    for (int t = 0; t < THRESHOLDS; ++t) count[t] -= h < threshold[t];
  };
  PairVisitor<T, decltype(take)> visitor{block, take};
  for_each_tile(block, visitor);
  for (int t = 0; t < THRESHOLDS; ++t)
    for (int l = 0; l < LANES<V>; ++l) counts[t] += count[t][l];
}

template <class T> long between(const BlockOfPairs<T>& block, double low, double high, double* out, long capacity) {
  using V = Pack<T>;
  long found = 0;
  const auto take = [&](V h) KCALIB_INLINE {
    const auto inside = (h >= T(low)) & (h < T(high));
    if (__builtin_expect(any(inside), 0))
      for (int l = 0; l < LANES<V>; ++l)
        if (inside[l]) {
          if (found < capacity) out[found] = h[l];
          ++found;
        }
  };
  PairVisitor<T, decltype(take)> visitor{block, take};
  for_each_tile(block, visitor);
  return found;
}

template <class T>
void quadratic(const T* h, long stride, long row_begin, long rows, long column_begin, long columns,
               const T* const* panels, long n_panels, double* out) {
  using V = Pack<T>;
  constexpr long AT_ONCE = 96;                               // columns whose weights stay in L1
  const long groups = (rows + ROWS - 1) / ROWS;
  for (long p = 0; p < n_panels; ++p, out += WIDTH<T>) {
    const T* left = panels[p] + row_begin * WIDTH<T>;
    const T* right = panels[p] + column_begin * WIDTH<T>;
    DoublePack total[VECTORS * WIDE<V>] = {};
    for (long k = 0; k < columns; k += AT_ONCE) {
      const long length = columns - k < AT_ONCE ? columns - k : AT_ONCE;
      const T* next = k + AT_ONCE < columns ? right + (k + AT_ONCE) * WIDTH<T> : panels[p + 1 < n_panels ? p + 1 : p] + column_begin * WIDTH<T>;
      const Prefetch prefetch(next, AT_ONCE * WIDTH<T> * long(sizeof(T)), groups);
      for (long g = 0; g < groups; ++g) {
        const long i = g * ROWS;
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
template <int COUNT, class Apply> KCALIB_FN void with_count(long count, Apply&& apply) {
  if (count == COUNT) return apply(Count<COUNT>{});
  if constexpr (COUNT > 1) with_count<COUNT - 1>(count, apply);
}
template <int MOST, class Apply> KCALIB_FN void in_parts(long n, Apply&& apply) {
  const long parts = (n + MOST - 1) / MOST;
  for (long part = 0; part < parts; ++part) {
    const long begin = part * n / parts, end = (part + 1) * n / parts;
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
template <int COUNT, class T> KCALIB_FN void row_products(const BlockProduct<T>& block, long i, long c) {
  using V = Pack<T>;
  constexpr int AT_ONCE = LANES<DoublePack>;
  V sum[COUNT][AT_ONCE] = {};
  for (long j = 0; j < block.columns; j += WIDTH<T>) {
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
KCALIB_FN void column_products(const BlockProduct<T>& block, long begin, long end, long j, long c) {
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
  constexpr long PART = 96;  // rows: 24 KiB of a panel, with AVX-512, that stay in L1
  constexpr long MOST = 96 / long(sizeof(T));  // vectors: 18 KiB, which stay there too
  const long chunks = (whole.n_vectors + MOST - 1) / MOST;
  for (long chunk = 0; chunk < chunks; ++chunk) {
    const long begin = chunk * whole.n_vectors / chunks, end = (chunk + 1) * whole.n_vectors / chunks;
    const BlockProduct<T> block = whole.vectors(begin, end);
    for (long i = 0; i < block.rows; i += ROWS_AT_ONCE)
      in_parts<VECTORS_AT_ONCE>(block.n_vectors, [&](long c, auto count) KCALIB_INLINE { row_products<count.value>(block, i, c); });
    if (!block.of_rows) continue;
    for (long i = 0; i < block.rows; i += PART) {
      const long i_end = i + PART < block.rows ? i + PART : block.rows;
      for (long j = 0; j < block.columns; j += WIDTH<T>)
        in_parts<ROWS>(block.n_vectors, [&](long c, auto count) KCALIB_INLINE { column_products<count.value>(block, i, i_end, j, c); });
    }
  }
}

void add(const double* x, long n, double* sums) {
  constexpr int L = LANES<DoublePack>;
  for (long i = 0; i < n; i += L) store<DoublePack>(sums + i, load<DoublePack>(sums + i) + load<DoublePack>(x + i));
}

template <class T> double probe(Probe what, long repetitions, T* sink) {
  using V = Pack<T>;
  constexpr int CHAINS = 12;
  V x[CHAINS];
  for (int i = 0; i < CHAINS; ++i) x[i] = splat<V>(T(0.5) + T(i) / T(64));
  const T a = T(0.999), b = T(1e-3);
  double passes = 1;
  if (what == Probe::FMA) {
    for (long n = 0; n < repetitions; ++n)
#pragma GCC unroll 12
      for (int i = 0; i < CHAINS; ++i) x[i] = x[i] * a + b;
  } else {
    // Arguments from a buffer in L1, as the sweep's stages have them.
    constexpr int LENGTH = 48;
    alignas(PACK_BYTES) V buffer[LENGTH];
    for (int i = 0; i < LENGTH; ++i) buffer[i] = splat<V>(T(i) / T(LENGTH));
    passes = double(LENGTH) / CHAINS;
    for (long n = 0; n < repetitions; ++n) {
      for (int i = 0; i < LENGTH; ++i)
        x[i % 2] += what == Probe::EXP ? exp_minus(buffer[i]) : square_root(buffer[i]);
      __asm__ volatile("" : : "r"(buffer) : "memory");
    }
  }
  V total = x[0];
  for (int i = 1; i < CHAINS; ++i) total += x[i];
  *sink = total[0];
  return double(repetitions) * CHAINS * passes * LANES<V>;
}

template <class T> void evaluate(ScalarFunction f, const T* x, T a, long n, T* out) {
  using V = Pack<T>;
  const auto apply = [=](V v) {
    switch (f) {
      case ScalarFunction::EXP: return exp(v);
      case ScalarFunction::EXP_MINUS: return exp_minus(v);
      case ScalarFunction::ONE_MINUS_EXP: return one_minus_exp(v);
      case ScalarFunction::SQUARE_ROOT: return square_root(v);
      case ScalarFunction::RECIPROCAL_ROOT: return reciprocal_root(v);
      case ScalarFunction::RECIPROCAL: return reciprocal(v);
      case ScalarFunction::LOG: return log(v);
      case ScalarFunction::LOG1P: return log1p(v);
      default: return power(v, a);
    }
  };
  for (long i = 0; i < n; i += LANES<V>) {
    const int valid = n - i < LANES<V> ? int(n - i) : LANES<V>;
    V v = splat<V>(T(1));
    for (int lane = 0; lane < valid; ++lane) v[lane] = x[i + lane];
    v = apply(v);
    for (int lane = 0; lane < valid; ++lane) out[i + lane] = v[lane];
  }
}

template <class T> constexpr TileFunctions<T> table_of() {
  return {packed_size<T>,
          pack<T>,
          own_products<T>,
          sums<T>,
          entries<T, double>,
          entries<T, float>,
          panels<T, double>,
          panels<T, float>,
          multiply<T>,
          counts<T>,
          between<T>,
          quadratic<T>,
          WIDTH<T>,
          probe<T>,
          evaluate<T>};
}

}  // namespace

extern const WeightTable KCALIB_WEIGHTS;
extern const LineFunctions KCALIB_LINE;
extern const DirichletTable KCALIB_DIRICHLET;
extern const TileTable KCALIB_TABLE;
const TileTable KCALIB_TABLE = {
    KCALIB_LEVEL_NAME, table_of<double>(), table_of<float>(), add, &KCALIB_WEIGHTS, &KCALIB_LINE, &KCALIB_DIRICHLET,
};

}  // namespace kcalib
