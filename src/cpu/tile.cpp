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

constexpr long MAX_BLOCK_ROWS = 256;

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

// tile[r][v] = sum_k step(rows[r][k], panel[k][v]): the loop where the time goes.
template <class Step, class V>
KCALIB_FN void accumulate(const Real<V>* const* rows, const Real<V>* panel, long length, V* tile) {
  constexpr int WIDTH = VECTORS * LANES<V>;
  V sum[ROWS][VECTORS] = {};
  const Real<V>* row[ROWS];
  for (int r = 0; r < ROWS; ++r) row[r] = rows[r];
#pragma GCC unroll 1
  for (long k = 0; k < length; ++k, panel += WIDTH) {
    V column[VECTORS];
    for (int v = 0; v < VECTORS; ++v) column[v] = load<V>(panel + v * LANES<V>);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) sum[r][v] = Step::template step<V>(sum[r][v], row[r][k], column[v]);
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) tile[r * VECTORS + v] = sum[r][v];
}

template <class V> struct RowGroup {
  const Real<V>* points[ROWS];
  const Real<V>* marks[ROWS];
  Real<V> norm[ROWS];
};

template <class V> struct Panel {
  const Real<V>* points;
  const Real<V>* marks;
  const Real<V>* norms;
  long n_features, n_marks;

  Panel(const Side<Real<V>>& side, const Real<V>* packed)
      : points(packed),
        marks(packed + side.n_features * WIDTH),
        norms(marks + side.n_marks * WIDTH),
        n_features(side.n_features),
        n_marks(side.n_marks) {}
  static constexpr int WIDTH = VECTORS * LANES<V>;
};

// The quantities of a tile's pairs that the kernel's factors ask for, each computed
// at most once.
template <class V> struct Quantities {
  const RowGroup<V>& rows;
  const Panel<V>& panel;
  bool have_dot = false, have_squared = false, have_cityblock = false, have_distance = false;
  V dot_[TILE], squared_[TILE], cityblock_[TILE], distance_[TILE];

  Quantities(const RowGroup<V>& r, const Panel<V>& p) : rows(r), panel(p) {}

  const V* dot() {
    if (!have_dot) accumulate<Product>(rows.points, panel.points, panel.n_features, dot_);
    have_dot = true;
    return dot_;
  }

  const V* squared_euclidean() {
    if (have_squared) return squared_;
    have_squared = true;
    if (panel.n_features <= DIRECT_FEATURES) {
      accumulate<SquaredDifference>(rows.points, panel.points, panel.n_features, squared_);
      return squared_;
    }
    const V* product = dot();
    for (int v = 0; v < VECTORS; ++v) {
      const V column_norm = load<V>(panel.norms + v * LANES<V>);
      for (int r = 0; r < ROWS; ++r) {
        const V norms = rows.norm[r] + column_norm;
        V d2 = norms - Real<V>(2) * product[r * VECTORS + v];
        if (__builtin_expect(any(d2 < norms * Real<V>(NEAR)), 0)) d2 = by_differences(r, v);
        squared_[r * VECTORS + v] = d2;
      }
    }
    return squared_;
  }

  __attribute__((noinline)) V by_differences(int r, int v) {
    V even{}, odd{};
    const Real<V>* column = panel.points + v * LANES<V>;
    long k = 0;
    for (; k + 1 < panel.n_features; k += 2) {
      even = SquaredDifference::step<V>(even, rows.points[r][k], load<V>(column + k * Panel<V>::WIDTH));
      odd = SquaredDifference::step<V>(odd, rows.points[r][k + 1], load<V>(column + (k + 1) * Panel<V>::WIDTH));
    }
    if (k < panel.n_features)
      even = SquaredDifference::step<V>(even, rows.points[r][k], load<V>(column + k * Panel<V>::WIDTH));
    return even + odd;
  }

  const V* cityblock() {
    if (!have_cityblock) accumulate<AbsoluteDifference>(rows.points, panel.points, panel.n_features, cityblock_);
    have_cityblock = true;
    return cityblock_;
  }

  const V* distance(int metric) {
    if (metric == CITYBLOCK) return cityblock();
    if (have_distance) return distance_;
    have_distance = true;
    const V* d2 = squared_euclidean();
    for (int i = 0; i < TILE; ++i) distance_[i] = square_root(d2[i]);
    return distance_;
  }

  // Squares of the cityblock metric go to `scratch`.
  const V* squared(int metric, V* scratch) {
    if (metric == EUCLIDEAN) return squared_euclidean();
    const V* d = cityblock();
    for (int i = 0; i < TILE; ++i) scratch[i] = d[i] * d[i];
    return scratch;
  }
};

template <class V> void factor_values(const Factor& factor, Quantities<V>& quantities, V* out) {
  using R = Real<V>;
  const R a = R(factor.scale), shape = R(factor.shape);
  const V* q;
  switch (factor.profile) {
    case EXPONENTIAL:
      q = quantities.distance(factor.metric);
      for (int i = 0; i < TILE; ++i) out[i] = exponential(q[i], a);
      break;
    case GAUSSIAN:
      q = quantities.squared(factor.metric, out);
      for (int i = 0; i < TILE; ++i) out[i] = gaussian(q[i], a);
      break;
    case GAMMA_EXPONENTIAL:
      q = quantities.distance(factor.metric);
      for (int i = 0; i < TILE; ++i) out[i] = gamma_exponential(q[i], a, shape);
      break;
    case MATERN_3_2:
      q = quantities.distance(factor.metric);
      for (int i = 0; i < TILE; ++i) out[i] = matern_3_2(q[i], a);
      break;
    case MATERN_5_2:
      q = quantities.distance(factor.metric);
      for (int i = 0; i < TILE; ++i) out[i] = matern_5_2(q[i], a);
      break;
    case RATIONAL_QUADRATIC:
      q = quantities.squared(factor.metric, out);
      for (int i = 0; i < TILE; ++i) out[i] = rational_quadratic(q[i], a, shape);
      break;
    default:  // IDENTITY
      q = factor.metric == DOT ? quantities.dot() : quantities.distance(factor.metric);
      for (int i = 0; i < TILE; ++i) out[i] = q[i];
  }
}

// k(x_i, x'_j) * <a_i, b_j> for one register tile.
template <class V>
void register_tile(const KernelProgram& kernel, const RowGroup<V>& rows, const Panel<V>& panel, V* out) {
  using R = Real<V>;
  Quantities<V> quantities(rows, panel);
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
  accumulate<Product>(rows.marks, panel.marks, panel.n_marks, value);
  for (int i = 0; i < TILE; ++i) out[i] *= value[i];
}

// Calls visit(first row of the group, rows in it, first column, tile) for every
// register tile of the block. Columns outside, rows inside: a panel stays in cache.
template <class T, class Visit> KCALIB_FN void for_each_tile(const BlockOfPairs<T>& block, Visit&& visit) {
  using V = Pack<T>;
  constexpr int WIDTH = Panel<V>::WIDTH;
  const Side<T>& left = *block.left;
  const long rows = block.row_end - block.row_begin, columns = block.column_end - block.column_begin;
  T norms[MAX_BLOCK_ROWS];
  for (long i = 0; i < rows; ++i) {
    const T* x = left.points + (block.row_begin + i) * left.n_features;
    T sum = 0;
    for (long k = 0; k < left.n_features; ++k) sum += x[k] * x[k];
    norms[i] = sum;
  }
  const long panel_size = (left.n_features + left.n_marks + 1) * WIDTH;
  alignas(PACK_BYTES) V tile[TILE];
  for (long column = 0, p = 0; column < columns; column += WIDTH, ++p) {
    const Panel<V> panel(left, block.packed + p * panel_size);
    for (long row = 0; row < rows; row += ROWS) {
      RowGroup<V> group;
      for (int r = 0; r < ROWS; ++r) {  // beyond the last row: repeat it, the visitor drops it
        const long i = row + r < rows ? row + r : rows - 1;
        group.points[r] = left.points + (block.row_begin + i) * left.n_features;
        group.marks[r] = left.marks + (block.row_begin + i) * left.n_marks;
        group.norm[r] = norms[i];
      }
      register_tile<V>(*block.kernel, group, panel, tile);
      const int valid = rows - row < ROWS ? int(rows - row) : ROWS;
      if (block.skip_diagonal)
        for (int r = 0; r < valid; ++r) {
          const long j = (block.row_begin + row + r) - (block.column_begin + column);
          if (j >= 0 && j < WIDTH) tile[r * VECTORS + j / LANES<V>][j % LANES<V>] = T(0);
        }
      visit(row, valid, column, tile);
    }
  }
}

template <class T> long packed_size(const Side<T>& side, long columns) {
  constexpr int WIDTH = Panel<Pack<T>>::WIDTH;
  return (columns + WIDTH - 1) / WIDTH * (side.n_features + side.n_marks + 1) * WIDTH;
}

// Columns beyond the last are zeros: their marks make every entry zero.
template <class T> void pack(const Side<T>& side, long begin, long end, T* packed) {
  constexpr int WIDTH = Panel<Pack<T>>::WIDTH;
  for (long first = begin; first < end; first += WIDTH) {
    const int valid = end - first < WIDTH ? int(end - first) : WIDTH;
    T* norms = packed + (side.n_features + side.n_marks) * WIDTH;
    for (int j = 0; j < WIDTH; ++j) norms[j] = T(0);
    const auto transpose = [&](const T* source, long length, bool squared_norm) {
      for (long k = 0; k < length; ++k)
        for (int j = valid; j < WIDTH; ++j) packed[k * WIDTH + j] = T(0);
      for (int j = 0; j < valid; ++j) {
        const T* row = source + (first + j) * length;
        T sum = 0;
        for (long k = 0; k < length; ++k) {
          packed[k * WIDTH + j] = row[k];
          sum += row[k] * row[k];
        }
        if (squared_norm) norms[j] = sum;
      }
      packed += length * WIDTH;
    };
    transpose(side.points, side.n_features, true);
    transpose(side.marks, side.n_marks, false);
    packed += WIDTH;
  }
}

template <class T> double sums(const BlockOfPairs<T>& block, bool second, double* row_sums, double* column_sums) {
  using V = Pack<T>;
  constexpr int WIDTH = Panel<V>::WIDTH, WIDE_VECTORS = VECTORS * WIDE<V>;
  const long rows = block.row_end - block.row_begin, columns = block.column_end - block.column_begin;
  DoublePack row_sum[MAX_BLOCK_ROWS];
  for (long i = 0; i < rows; ++i) row_sum[i] = DoublePack{};
  DoublePack square_sum{}, column_sum[WIDE_VECTORS] = {};
  for_each_tile(block, [&](long row, int valid, long column, const V* tile) __attribute__((always_inline)) {
    if (row == 0)
      for (int v = 0; v < WIDE_VECTORS; ++v) column_sum[v] = DoublePack{};
    for (int r = 0; r < valid; ++r) {
      DoublePack wide[WIDE_VECTORS];
      for (int v = 0; v < VECTORS; ++v) widen(tile[r * VECTORS + v], wide + v * WIDE<V>);
      DoublePack sum = wide[0];
      for (int v = 1; v < WIDE_VECTORS; ++v) sum += wide[v];
      row_sum[row + r] += sum;
      for (int v = 0; v < WIDE_VECTORS; ++v) column_sum[v] += wide[v];
      if (second)
        for (int v = 0; v < WIDE_VECTORS; ++v) square_sum += wide[v] * wide[v];
    }
    if (column_sums && row + valid == rows)
      for (long j = 0; j < WIDTH && column + j < columns; ++j)
        column_sums[column + j] += column_sum[j / LANES<DoublePack>][j % LANES<DoublePack>];
  });
  for (long i = 0; i < rows; ++i) row_sums[i] += sum_lanes(row_sum[i]);
  return sum_lanes(square_sum);
}

template <class T> void entries(const BlockOfPairs<T>& block, double* out, long stride) {
  using V = Pack<T>;
  constexpr int WIDTH = Panel<V>::WIDTH;
  const long columns = block.column_end - block.column_begin;
  for_each_tile(block, [&](long row, int valid, long column, const V* tile) {
    const int width = columns - column < WIDTH ? int(columns - column) : WIDTH;
    for (int r = 0; r < valid; ++r)
      for (int j = 0; j < width; ++j)
        out[(row + r) * stride + column + j] = tile[r * VECTORS + j / LANES<V>][j % LANES<V>];
  });
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
  return {packed_size<T>, pack<T>, sums<T>, entries<T>, probe<T>};
}

}  // namespace

extern const TileTable KCALIB_TABLE;
const TileTable KCALIB_TABLE = {KCALIB_LEVEL_NAME, table_of<double>(), table_of<float>(), multiply};

}  // namespace kcalib
