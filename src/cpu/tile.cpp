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

#include "pack.h"

namespace kcalib {
namespace {

constexpr int TILE = ROWS * VECTORS;

// Up to this many features the squared distance comes from differences; beyond it
// from |x|^2 + |x'|^2 - 2 x.x', with pairs nearer than NEAR recomputed by differences,
// because the expansion loses their digits (identical rows: 2e-8 in the distance).
constexpr long DIRECT_FEATURES = 8;
constexpr double NEAR = 1e-3;

// Features whose part of a panel stays in L1 while all rows of a block pass by.
constexpr long FEATURES_AT_ONCE = 96;

constexpr long MAX_BLOCK_ROWS = 192;

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

// finish(r, {sum_k step(rows[r][k], panel[k][v]) for all v}) for every row r: the loop where the
// time goes. The sums never leave the registers unless `finish` stores them. k runs over
// [first, first + length), and the sums are added to `so_far` if that is given.
template <class Step, class V, class Finish>
KCALIB_FN void accumulate(const Real<V>* const* rows, const Real<V>* panel, long length, Finish&& finish,
                          long first = 0, const V* so_far = nullptr) {
  constexpr int WIDTH = VECTORS * LANES<V>;
  V sum[ROWS][VECTORS] = {};
  if (so_far)
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECTORS; ++v) sum[r][v] = so_far[r * VECTORS + v];
  const Real<V>* row[ROWS];
  for (int r = 0; r < ROWS; ++r) row[r] = rows[r] + first;
  panel += first * WIDTH;
#pragma GCC unroll 1
  for (long k = 0; k < length; ++k, panel += WIDTH) {
    V column[VECTORS];
    for (int v = 0; v < VECTORS; ++v) column[v] = load<V>(panel + v * LANES<V>);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sum[r][v] = Step::template step<V>(sum[r][v], row[r][k], column[v]);
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; ++r) finish(r, sum[r]);
}

template <class V> KCALIB_FN auto storing(V* tile) {
  return [tile](int r, const V* sum) KCALIB_INLINE {
    for (int v = 0; v < VECTORS; ++v) tile[r * VECTORS + v] = sum[v];
  };
}

template <class V> struct RowGroup {
  const Real<V>* points[ROWS];
  const Real<V>* marks[ROWS];
  Real<V> norm[ROWS];           // |x|^2, with labels |e|^2
  Real<V> label_residual[ROWS];  // e_y
  int label[ROWS];
};

// Columns packed lane by lane: points, marks, then a row each of norms and, with labels, of e_y
// and the labels themselves (as integers of the lane's size).
template <class V> struct Panel {
  static constexpr int WIDTH = VECTORS * LANES<V>;
  const Real<V>* points;
  const Real<V>* marks;
  const Real<V>* norms;
  const Real<V>* label_residuals;
  const Real<V>* labels;
  long n_features, n_marks;

  Panel(const Side<Real<V>>& side, const Real<V>* packed)
      : points(packed),
        marks(packed + side.n_features * WIDTH),
        norms(marks + side.n_marks * WIDTH),
        label_residuals(norms + WIDTH),
        labels(label_residuals + WIDTH),
        n_features(side.n_features),
        n_marks(side.n_marks) {}
  static long size(const Side<Real<V>>& side) {
    return (side.n_features + side.n_marks + (side.labels ? 3 : 1)) * WIDTH;
  }
};

// The quantities of a tile's pairs that the kernel's factors ask for, each computed at
// most once.
template <class V> class Quantities {
 public:
  // `target`: the target factors, if distances are to be had from them (else null).
  Quantities(const RowGroup<V>& rows, const Panel<V>& panel, const V* target)
      : rows_(rows), panel_(panel), target_(target) {}

  const V* dot() {
    if (!have_dot_) accumulate<Product, V>(rows_.points, panel_.points, panel_.n_features, storing(dot_));
    have_dot_ = true;
    return dot_;
  }

  const V* cityblock() {
    if (!have_cityblock_)
      accumulate<AbsoluteDifference, V>(rows_.points, panel_.points, panel_.n_features, storing(cityblock_));
    have_cityblock_ = true;
    return cityblock_;
  }

  const V* squared_euclidean() {
    if (have_squared_) return squared_;
    have_squared_ = true;
    if (panel_.n_features <= DIRECT_FEATURES) {
      accumulate<SquaredDifference, V>(rows_.points, panel_.points, panel_.n_features, storing(squared_));
      return squared_;
    }
    if (target_) {
      from_residuals();
      return squared_;
    }
    V column_norm[VECTORS], nearest{};  // below 0: some pair is near
    for (int v = 0; v < VECTORS; ++v) column_norm[v] = load<V>(panel_.norms + v * LANES<V>);
    accumulate<Product, V>(rows_.points, panel_.points, panel_.n_features, [&](int r, const V* dot) KCALIB_INLINE {
      for (int v = 0; v < VECTORS; ++v) {
        const V norms = rows_.norm[r] + column_norm[v];
        const V d2 = norms - Real<V>(2) * dot[v];
        nearest = lower(d2 - norms * Real<V>(NEAR), nearest);
        dot_[r * VECTORS + v] = dot[v];
        squared_[r * VECTORS + v] = d2;
      }
    });
    have_dot_ = true;
    if (__builtin_expect(any(nearest < Real<V>(0)), 0))
      repair([&](int r, int v) { return (rows_.norm[r] + load<V>(panel_.norms + v * LANES<V>)) * Real<V>(NEAR); });
    return squared_;
  }

 private:
  // With o = onehot(y), e = o - p and t = <e, e'>,
  //   |p - p'|^2 = |e|^2 + |e'|^2 - 2 t                                     if y = y'
  //              = the same + 2 - 2 (e_y - e_y' - e'_y + e'_y')             otherwise:
  // one product of residuals gives the target factor and the distance.
  void from_residuals() {
    using R = Real<V>;
    V nearest{};
    for (int v = 0; v < VECTORS; ++v) {
      const int lane = v * LANES<V>;
      const V column_norm = load<V>(panel_.norms + lane), column_own = load<V>(panel_.label_residuals + lane);
      const Bits<V> labels = to_bits(load<V>(panel_.labels + lane));
      for (int r = 0; r < ROWS; ++r) {
        const V crossed = gather<V>(rows_.marks[r], labels) + load<V>(panel_.marks + rows_.label[r] * Panel<V>::WIDTH + lane);
        const V other = R(2) - R(2) * (rows_.label_residual[r] + column_own - crossed);
        const V same = rows_.norm[r] + column_norm;
        const V differ = labels == rows_.label[r] ? V{} : other;
        const V d2 = same - R(2) * target_[r * VECTORS + v] + differ;
        nearest = lower(d2 - scale_from_residuals(same, labels == rows_.label[r]), nearest);
        squared_[r * VECTORS + v] = d2;
      }
    }
    if (__builtin_expect(any(nearest < R(0)), 0))
      repair([&](int r, int v) {
        const int lane = v * LANES<V>;
        const Bits<V> labels = to_bits(load<V>(panel_.labels + lane));
        return scale_from_residuals(rows_.norm[r] + load<V>(panel_.norms + lane), labels == rows_.label[r]);
      });
  }

  // Below this, the terms that d2 is the sum of have cancelled too far.
  static KCALIB_FN V scale_from_residuals(V norms, Bits<V> same_label) {
    using R = Real<V>;
    return (norms + (same_label ? V{} : splat<V>(R(4)))) * R(NEAR);
  }

  // By differences, where a squared distance is below `bound(r, v)`.
  template <class Bound> __attribute__((noinline)) void repair(Bound&& bound) {
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECTORS; ++v) {
        V& d2 = squared_[r * VECTORS + v];
        if (any(d2 < bound(r, v))) d2 = by_differences(r, v);
      }
  }

  V by_differences(int r, int v) const {
    V even{}, odd{};
    const Real<V>* row = rows_.points[r];
    const Real<V>* column = panel_.points + v * LANES<V>;
    long k = 0;
    for (; k + 1 < panel_.n_features; k += 2) {
      even = SquaredDifference::step<V>(even, row[k], load<V>(column + k * Panel<V>::WIDTH));
      odd = SquaredDifference::step<V>(odd, row[k + 1], load<V>(column + (k + 1) * Panel<V>::WIDTH));
    }
    if (k < panel_.n_features) even = SquaredDifference::step<V>(even, row[k], load<V>(column + k * Panel<V>::WIDTH));
    return even + odd;
  }

  const RowGroup<V>& rows_;
  const Panel<V>& panel_;
  const V* target_;
  bool have_dot_ = false, have_squared_ = false, have_cityblock_ = false;
  V dot_[TILE], squared_[TILE], cityblock_[TILE];
};

// out = profile(distance), and out = profile(squared distance), in the factor's metric.
template <class V, class F> KCALIB_FN void of_distance(int metric, Quantities<V>& quantities, V* out, F&& profile) {
  if (metric == CITYBLOCK) {
    const V* d = quantities.cityblock();
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) out[i] = profile(d[i]);
  } else {
    const V* d2 = quantities.squared_euclidean();
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) out[i] = profile(square_root(d2[i]));
  }
}
template <class V, class F> KCALIB_FN void of_square(int metric, Quantities<V>& quantities, V* out, F&& profile) {
  if (metric == CITYBLOCK) {
    const V* d = quantities.cityblock();
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) out[i] = profile(d[i] * d[i]);
  } else {
    const V* d2 = quantities.squared_euclidean();
#pragma GCC unroll 4
    for (int i = 0; i < TILE; ++i) out[i] = profile(d2[i]);
  }
}

template <class V> void factor_values(const Factor& factor, Quantities<V>& quantities, V* out) {
  using R = Real<V>;
  const R a = R(factor.scale), shape = R(factor.shape);
  const int metric = factor.metric;
  switch (factor.profile) {
    case EXPONENTIAL: return of_distance(metric, quantities, out, [=](V d) KCALIB_INLINE { return exponential(d, a); });
    case GAUSSIAN: return of_square(metric, quantities, out, [=](V d2) KCALIB_INLINE { return gaussian(d2, a); });
    case GAMMA_EXPONENTIAL:
      return of_distance(metric, quantities, out, [=](V d) KCALIB_INLINE { return gamma_exponential(d, a, shape); });
    case MATERN_3_2: return of_distance(metric, quantities, out, [=](V d) KCALIB_INLINE { return matern_3_2(d, a); });
    case MATERN_5_2: return of_distance(metric, quantities, out, [=](V d) KCALIB_INLINE { return matern_5_2(d, a); });
    case RATIONAL_QUADRATIC:
      return of_square(metric, quantities, out, [=](V d2) KCALIB_INLINE { return rational_quadratic(d2, a, shape); });
    default:  // IDENTITY
      if (metric != DOT) return of_distance(metric, quantities, out, [=](V d) KCALIB_INLINE { return d; });
      const V* dot = quantities.dot();
      for (int i = 0; i < TILE; ++i) out[i] = dot[i];
  }
}

// k(x_i, x'_j) of one register tile.
template <class V>
void kernel_values(const KernelProgram& kernel, const RowGroup<V>& rows, const Panel<V>& panel, const V* target, V* out) {
  using R = Real<V>;
  Quantities<V> quantities(rows, panel, target);
  V value[TILE], factor[TILE];
  for (int t = 0; t < kernel.n_terms; ++t) {
    const Term& term = kernel.terms[t];
    V* product = t == 0 ? out : value;
    factor_values(kernel.factors[term.first_factor], quantities, product);
    for (int f = 1; f < term.n_factors; ++f) {
      factor_values(kernel.factors[term.first_factor + f], quantities, factor);
      for (int i = 0; i < TILE; ++i) product[i] *= factor[i];
    }
    const R c = R(term.coefficient);
    if (t > 0)
      for (int i = 0; i < TILE; ++i) out[i] += c * value[i];
    else if (c != R(1))
      for (int i = 0; i < TILE; ++i) out[i] *= c;
  }
}

template <class T> void square_norms(const Side<T>& side, long begin, long end, T* out) {
  using V = Pack<T>;
  constexpr int CHAINS = 4, STEP = CHAINS * LANES<V>;
  const long length = side.labels ? side.n_marks : side.n_features;
  const T* x = (side.labels ? side.marks : side.points) + begin * length;
  for (long i = begin; i < end; ++i, x += length) {
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
    out[i - begin] = norm;
  }
}

// Shows `visitor` every entry of the block, a row of a register tile at a time:
//   start_panel();  row(i, j, h)  with h[VECTORS] = H[i][j...];  end_panel(j).
// Columns outside, rows inside: a panel stays in cache. Rows beyond the block's last
// (up to ROWS - 1) and columns beyond its last are shown as zeros.
template <class T, class Visitor> KCALIB_FN void for_each_tile(const BlockOfPairs<T>& block, Visitor& visitor) {
  using V = Pack<T>;
  constexpr int WIDTH = Panel<V>::WIDTH;
  const Side<T>& left = *block.left;
  const long rows = block.row_end - block.row_begin, columns = block.column_end - block.column_begin;

  const bool residual = left.labels;
  RowGroup<V> groups[MAX_BLOCK_ROWS / ROWS];
  for (long row = 0; row < (rows + ROWS - 1) / ROWS * ROWS; ++row) {
    const long i = block.row_begin + (row < rows ? row : rows - 1);  // any row will do beyond the last
    RowGroup<V>& group = groups[row / ROWS];
    const int r = int(row % ROWS);
    group.points[r] = left.points + i * left.n_features;
    group.marks[r] = left.marks + i * left.n_marks;
    group.norm[r] = block.row_norms[i - block.row_begin];
    group.label[r] = left.labels ? left.labels[i] : 0;
    group.label_residual[r] = left.labels ? group.marks[r][group.label[r]] : T(0);
  }

  const long panel_size = Panel<V>::size(left);
  V kernel[TILE], targets[MAX_BLOCK_ROWS / ROWS][TILE];  // targets: with labels only
  for (long column = 0, p = 0; column < columns; column += WIDTH, ++p) {
    const Panel<V> panel(left, block.packed + p * panel_size);
    visitor.start_panel();
    if (residual)
      for (long k = 0; k < panel.n_marks; k += FEATURES_AT_ONCE) {
        const long length = panel.n_marks - k < FEATURES_AT_ONCE ? panel.n_marks - k : FEATURES_AT_ONCE;
        for (long g = 0; g * ROWS < rows; ++g)
          accumulate<Product, V>(groups[g].marks, panel.marks, length, storing(targets[g]), k, k ? targets[g] : nullptr);
      }
    for (long row = 0; row < rows; row += ROWS) {
      const RowGroup<V>& group = groups[row / ROWS];
      const V* target = targets[row / ROWS];
      kernel_values<V>(*block.kernel, group, panel, residual ? target : nullptr, kernel);
      for (long r = rows - row; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v) kernel[r * VECTORS + v] = V{};
      if (block.skip_diagonal)
        for (int r = 0; r < ROWS; ++r) {
          const long j = (block.row_begin + row + r) - (block.column_begin + column);
          if (j >= 0 && j < WIDTH) kernel[r * VECTORS + j / LANES<V>][j % LANES<V>] = T(0);
        }
      const auto show = [&](int r, const V* factor) KCALIB_INLINE {
        V h[VECTORS];
        for (int v = 0; v < VECTORS; ++v) h[v] = kernel[r * VECTORS + v] * factor[v];
        visitor.row(row + r, column, h);
      };
      if (residual)
        for (int r = 0; r < ROWS; ++r) show(r, target + r * VECTORS);
      else
        accumulate<Product, V>(group.marks, panel.marks, panel.n_marks, show);
    }
    visitor.end_panel(column);
  }
}

template <class T> long packed_size(const Side<T>& side, long columns) {
  constexpr int WIDTH = Panel<Pack<T>>::WIDTH;
  return (columns + WIDTH - 1) / WIDTH * Panel<Pack<T>>::size(side);
}

// Columns beyond the last are zeros: their marks make every entry zero.
template <class T> void pack(const Side<T>& side, long begin, long end, T* packed) {
  using V = Pack<T>;
  constexpr int WIDTH = Panel<V>::WIDTH;
  for (long first = begin; first < end; first += WIDTH) {
    const int valid = end - first < WIDTH ? int(end - first) : WIDTH;
    if (valid < WIDTH)
      for (long k = 0; k < Panel<V>::size(side); ++k) packed[k] = T(0);
    const auto transpose = [&](const T* source, long length) {
      constexpr long LINE = 64 / sizeof(T);  // a cache line of every row at a time
      source += first * length;
      for (long begin = 0; begin < length; begin += LINE) {
        const long end = length - begin < LINE ? length : begin + LINE;
        for (int j = 0; j < valid; ++j)
          for (long k = begin; k < end; ++k) packed[k * WIDTH + j] = source[j * length + k];
      }
      packed += length * WIDTH;
    };
    transpose(side.points, side.n_features);
    transpose(side.marks, side.n_marks);
    square_norms(side, first, first + valid, packed);
    packed += WIDTH;
    if (!side.labels) continue;
    for (int j = 0; j < valid; ++j) {
      const int label = side.labels[first + j];
      packed[j] = side.marks[(first + j) * side.n_marks + label];
      packed[WIDTH + j] = __builtin_bit_cast(T, typename Lane<T>::bits(label));
    }
    packed += 2 * WIDTH;
  }
}

// Sums of the entries over columns, over rows, and of their squares, in float64.
template <class T, bool SECOND> struct SumVisitor {
  using V = Pack<T>;
  static constexpr int WIDTH = Panel<V>::WIDTH, WIDE_VECTORS = VECTORS * WIDE<V>;

  DoublePack row_sum[MAX_BLOCK_ROWS + ROWS] = {};
  DoublePack column_sum[WIDE_VECTORS];
  DoublePack square_sum{};
  double* column_sums;
  long columns;

  KCALIB_FN void start_panel() {
    for (int v = 0; v < WIDE_VECTORS; ++v) column_sum[v] = DoublePack{};
  }
  KCALIB_FN void row(long i, long, const V* h) {
    DoublePack wide[WIDE_VECTORS];
    for (int v = 0; v < VECTORS; ++v) widen(h[v], wide + v * WIDE<V>);
    DoublePack sum = wide[0];
    for (int v = 1; v < WIDE_VECTORS; ++v) sum += wide[v];
    row_sum[i] += sum;
    for (int v = 0; v < WIDE_VECTORS; ++v) column_sum[v] += wide[v];
    if constexpr (SECOND)
      for (int v = 0; v < WIDE_VECTORS; ++v) square_sum += wide[v] * wide[v];
  }
  KCALIB_FN void end_panel(long column) {
    if (!column_sums) return;
    for (long j = 0; j < WIDTH && column + j < columns; ++j)
      column_sums[column + j] += column_sum[j / LANES<DoublePack>][j % LANES<DoublePack>];
  }
};

template <class T, bool SECOND>
double sums_as(const BlockOfPairs<T>& block, double* row_sums, double* column_sums) {
  SumVisitor<T, SECOND> visitor;
  visitor.column_sums = column_sums;
  visitor.columns = block.column_end - block.column_begin;
  for_each_tile(block, visitor);
  for (long i = 0; i < block.row_end - block.row_begin; ++i) row_sums[i] += sum_lanes(visitor.row_sum[i]);
  return sum_lanes(visitor.square_sum);
}

template <class T> double sums(const BlockOfPairs<T>& block, bool second, double* row_sums, double* column_sums) {
  return second ? sums_as<T, true>(block, row_sums, column_sums) : sums_as<T, false>(block, row_sums, column_sums);
}

// Writes the entries.
template <class T> struct EntryVisitor {
  using V = Pack<T>;
  double* out;
  long stride, rows, columns;

  KCALIB_FN void start_panel() {}
  KCALIB_FN void row(long i, long column, const V* h) {
    if (i >= rows) return;
    const long width = columns - column < Panel<V>::WIDTH ? columns - column : Panel<V>::WIDTH;
    T lanes[Panel<V>::WIDTH];
    for (int v = 0; v < VECTORS; ++v) store<V>(lanes + v * LANES<V>, h[v]);
    for (long j = 0; j < width; ++j) out[i * stride + column + j] = lanes[j];
  }
  KCALIB_FN void end_panel(long) {}
};

template <class T> void entries(const BlockOfPairs<T>& block, double* out, long stride) {
  EntryVisitor<T> visitor{out, stride, block.row_end - block.row_begin, block.column_end - block.column_begin};
  for_each_tile(block, visitor);
}

void multiply(const double* h, long h_stride, long rows, long columns, const double* w, long w_stride,
              long n_vectors, double* out, long stride) {
  constexpr int L = LANES<DoublePack>, GROUP = 4;
  for (long i = 0; i < rows; ++i) {
    const double* row = h + i * h_stride;
    for (long c = 0; c < n_vectors; c += GROUP) {
      const int group = n_vectors - c < GROUP ? int(n_vectors - c) : GROUP;
      const double* vector[GROUP];
      for (int g = 0; g < GROUP; ++g) vector[g] = w + (g < group ? c + g : c) * w_stride;
      DoublePack sum[GROUP] = {};
      long j = 0;
      for (; j + L <= columns; j += L) {
        const DoublePack entry = load<DoublePack>(row + j);
        for (int g = 0; g < GROUP; ++g) sum[g] += entry * load<DoublePack>(vector[g] + j);
      }
      for (int g = 0; g < group; ++g) {
        double total = sum_lanes(sum[g]);
        for (long k = j; k < columns; ++k) total += row[k] * vector[g][k];
        out[i * stride + c + g] += total;
      }
    }
  }
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

template <class T> constexpr TileFunctions<T> table_of() {
  return {square_norms<T>, packed_size<T>, pack<T>, sums<T>, entries<T>, probe<T>};
}

}  // namespace

extern const WeightTable KCALIB_WEIGHTS;
extern const LineFunctions KCALIB_LINE;
extern const TileTable KCALIB_TABLE;
const TileTable KCALIB_TABLE = {
    KCALIB_LEVEL_NAME, table_of<double>(), table_of<float>(), multiply, &KCALIB_WEIGHTS, &KCALIB_LINE,
};

}  // namespace kcalib
