// One block of pairs: points -> quantity -> profile -> target factor -> reduce.
//
// Compiled once per instruction set (meson.build gives KCALIB_TABLE its name). The
// unit of work is a register tile of ROWS rows by VECTORS packs of columns: its
// entries pass from stage to stage through a buffer of a few KiB that stays in L1,
// so kernels, metrics, dtypes and reductions add up instead of multiplying.
//
// No std:: code with external linkage in here: an inline function compiled for
// AVX-512 must not be the copy that the linker keeps for everyone.
//
// panels.h packs samples, quantities.h has their distances, kernel_tile.h the profiles, mixture_kernels.cpp the target
// factors of signed measures, visitors.h what is done with the entries, written_entries.h and block_products.h what is done with a block of
// entries once it is written, match_kernels.h its sums over pairs with equal labels.
#include "cpu/pairs/tile.h"

#include "cpu/pairs/block_products.h"
#include "cpu/pairs/kernel_tile.h"
#include "cpu/pairs/match_kernels.h"
#include "cpu/pairs/panels.h"
#include "cpu/pairs/quantities.h"
#include "cpu/pairs/visitors.h"
#include "cpu/pairs/written_entries.h"

namespace kcalib {
namespace {

// They come from register tiles on the diagonal, so that they have the very bits of products of equal points.
template <class T> void own_products(const Mixtures& m, const Side<T>& side, int64_t samples, const T* packed, T* out) {
  T tile[ROWS * WIDTH<T>];
  for (int64_t i = 0; i < samples; i += ROWS) {
    RowGroup<T> rows;
    rows.look_at(side, packed, i);
    for (int64_t p = i / WIDTH<T>; p <= (i + ROWS - 1) / WIDTH<T> && p < panels_of<T>(samples); ++p) {
      mixtures<T>().products(m, rows.points, Panel<T>(side, packed + p * Panel<T>::size(side)).points, tile);
      for (int64_t r = 0; r < ROWS && i + r < samples; ++r)
        if ((i + r) / WIDTH<T> == p) out[i + r] = tile[r * WIDTH<T> + (i + r) % WIDTH<T>];
    }
  }
}

// Zeros for all but pairs i < j of a register tile whose first row is `below` rows below its first column.
template <class V> __attribute__((noinline)) void keep_above(int64_t below, V* tile) {
  Bits<V> lanes;
  for (int l = 0; l < LANES<V>; ++l) lanes[l] = l;
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) {
      const int64_t last = below + r - v * LANES<V>;  // lanes up to it are no such pairs
      if (last >= 0) tile[r * VECTORS + v] = lanes <= typename Lane<Real<V>>::bits(last) ? V{} : tile[r * VECTORS + v];
    }
}

// What `ExpectedSumVisitor` asks of a tile, from the distances of its points; zeros for rows and columns beyond the last. A
// function of its own: beside what its caller keeps in registers half of the product's sums would be in memory.
template <class V> __attribute__((noinline)) void expected_parts(const RegisterTile<V>& tile, const V* d2, V* products, V* dots) {
  using T = Real<V>;
  const auto& rows = tile.rows;
  const auto& columns = tile.columns;
  const int64_t m = columns.n_coordinates;
  accumulate<Product, V>(panel_rows(rows.squares, m), columns.squares, 2 * m, storing(products));
  V half_norms[VECTORS];
  for (int v = 0; v < VECTORS; ++v) half_norms[v] = load<V>(columns.half_norms + v * LANES<V>);
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) dots[r * VECTORS + v] = (rows.half_norms[r] + half_norms[v]) - T(0.5) * d2[r * VECTORS + v];
  if (tile.row + ROWS <= tile.row_end && tile.column + WIDTH<T> <= tile.column_end) return;
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v)
      for (int l = 0; l < LANES<V>; ++l)
        if (tile.row + r >= tile.row_end || tile.column + v * LANES<V> + l >= tile.column_end) dots[r * VECTORS + v][l] = T(0);
}

// Shows `visitor` every entry of the block, a row of a register tile at a time:
//   start_panel();  row(r, i, kernel, factor), whose products are H[i + r][j...], for r < ROWS;  end_tile(i);  end_panel(j).
// Columns outside, rows inside: a panel stays in cache. Rows beyond the block's last
// (up to ROWS - 1) and columns beyond its last are shown as zeros. On the diagonal, tiles without a pair i < j are not
// shown, and other pairs are zeros.
template <class T, class Visitor> KCALIB_FN void for_each_tile(const BlockOfPairs<T>& block, Visitor& visitor) {
  using V = Pack<T>;
  const Side<T>&left = *block.left, &right = *block.right;
  const int64_t rows = block.row_end - block.row_begin, columns = block.column_end - block.column_begin;
  const int64_t panel_size = Panel<T>::size(right);
  const PairProgram& program = *block.program;
  const bool residual = left.labels;
  const bool in_one_pass = residual && !block.on_diagonal && is_one_decay(program.kernel);

  RowGroup<T> groups[MAX_BLOCK_ROWS / ROWS];
  const int64_t n_groups = (rows + ROWS - 1) / ROWS, part_size = FEATURES_AT_ONCE * WIDTH<T>;
  for (int64_t g = 0; g < n_groups; ++g) groups[g].look_at(left, block.packed_rows, g * ROWS);
  T row_parts[MAX_BLOCK_ROWS / ROWS][ROWS];  // of columns that all have the label `parts_of`
  int64_t parts_of = -1;
  V kernel[TILE], targets[MAX_BLOCK_ROWS / ROWS][TILE];  // targets: not of vectors without labels
  V products[Visitor::EXPECTING ? TILE : 1], dots[Visitor::EXPECTING ? TILE : 1];  // see `ExpectedSumVisitor`
  for (int64_t j = 0, p = 0; j < columns; j += WIDTH<T>, ++p) {
    const Panel<T> panel(right, block.packed_columns + p * panel_size);
    const int64_t rows_here = block.on_diagonal && j + WIDTH<T> - 1 < rows ? j + WIDTH<T> - 1 : rows;
    const int64_t groups_here = (rows_here + ROWS - 1) / ROWS;
    visitor.start_panel();
    int64_t column_labels[VECTORS] = {}, common_label = -1, first = 0;
    T least_feature_norm{};
    if (residual) {
      for (int v = 0; v < VECTORS; ++v) {
        const Bits<V> labels = to_bits(load<V>(panel.labels + v * LANES<V>));
        column_labels[v] = any(labels != labels[0]) ? -1 : int64_t(labels[0]);
      }
      common_label = column_labels[0];
      for (int v = 1; v < VECTORS; ++v)
        if (column_labels[v] != column_labels[0]) common_label = -1;
      if (right.centre) {
        least_feature_norm = panel.feature_norms[0];
        for (int l = 1; l < WIDTH<T>; ++l)
          least_feature_norm = panel.feature_norms[l] < least_feature_norm ? panel.feature_norms[l] : least_feature_norm;
      } else if (common_label >= 0 && common_label != parts_of) {
        parts_of = common_label;
        for (int64_t g = 0; g < n_groups; ++g)
          for (int r = 0; r < ROWS; ++r)
            row_parts[g][r] = groups[g].point_norms[r] + T(2) * groups[g].features[r][parts_of * WIDTH<T>];
      }
      // All of the product but the last features, whose part of the panel then is at hand.
      for (; first + FEATURES_AT_ONCE < panel.n_features; first += FEATURES_AT_ONCE) {
        const T* part = panel.features + first * WIDTH<T>;
        const int64_t share = WIDTH<T> * int64_t(sizeof(T)) / groups_here;  // bytes of the next part, for a feature of a group
        for (int64_t g = 0; g < groups_here; ++g) {
          // Feature by feature: many lines at once would be in the way of the rows, which come from the second level.
          const char* next = reinterpret_cast<const char*>(part + part_size) + g * share * FEATURES_AT_ONCE;
          const auto rows = g + 1 < groups_here ? panel_rows(groups[g + 1].features, first)
                                                : panel_rows(groups[0].features, first + FEATURES_AT_ONCE);
          const auto ahead = [=](int64_t k) KCALIB_INLINE {
            __builtin_prefetch(next + k * share);
            __builtin_prefetch(rows.at[0] + k * WIDTH<T>);
            __builtin_prefetch(rows.at[ROWS - 1] + k * WIDTH<T>);
          };
          accumulate<Product, V>(panel_rows(groups[g].features, first), part, FEATURES_AT_ONCE, storing(targets[g]),
                                 first ? targets[g] : nullptr, ahead);
        }
      }
    }
    const Prefetch prefetch(panel.points + panel_size, (panel_size < part_size ? panel_size : part_size) * int64_t(sizeof(T)), groups_here);
    for (int64_t i = 0; i < rows_here; i += ROWS) {
      const RegisterTile<V> tile{groups[i / ROWS], panel, program, left, right, block.row_begin + i, block.column_begin + j,
                                 block.row_end, block.column_end, column_labels, common_label, least_feature_norm};
      Quantities<V> quantities(tile);
      V* target = targets[first ? i / ROWS : 0];  // one that stays in L1, if there is no part of the product yet
      prefetch.step(i / ROWS);
      if (residual && right.centre) {
        accumulate<Product, V>(panel_rows(tile.rows.features, first), panel.features + first * WIDTH<T>,
                               panel.n_features - first, storing(target), first ? target : nullptr);
        quantities.both_from(target);
      } else if (residual) {
        quantities.from_residuals(first, row_parts[i / ROWS], target);
      } else if (program.target) {
        mixtures<T>().targets(*program.target, tile.rows.features, panel.features, reinterpret_cast<T*>(target));
      }
      if constexpr (Visitor::EXPECTING) {
        expected_parts(tile, quantities.squared(EUCLIDEAN), products, dots);
      }
      if (in_one_pass) {
        const Factor& factor = program.kernel.factors[program.kernel.terms[0].first_factor];
        decays_of<true, V>(factor, quantities,
                           [&](int r, const V* k) KCALIB_INLINE {
                             visitor.row(r, i, k, target + r * VECTORS);
                             if constexpr (Visitor::EXPECTING) visitor.squares(k, products + r * VECTORS, dots + r * VECTORS);
                           });
        visitor.end_tile(i);
        continue;
      }
      kernel_values<V>(program.kernel, quantities, kernel);
      if (block.on_diagonal)
        keep_above<V>(i - j, kernel);
      const auto show = [&](int r, const V* factor) KCALIB_INLINE {
        visitor.row(r, i, kernel + r * VECTORS, factor);
        if constexpr (Visitor::EXPECTING) visitor.squares(kernel + r * VECTORS, products + r * VECTORS, dots + r * VECTORS);
      };
      if (residual || program.target) {
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; ++r) show(r, target + r * VECTORS);
      } else {
        accumulate<Product, V>(panel_rows(tile.rows.features), panel.features, panel.n_features, show);
      }
      visitor.end_tile(i);
    }
    visitor.end_panel(j);
  }
}

template <class T, class Visitor> void add_sums(const BlockOfPairs<T>& block, Visitor& visitor, BlockSums& sums) {
  visitor.column_sums = sums.columns;
  visitor.columns = block.column_end - block.column_begin;
  for_each_tile(block, visitor);
  for (const DoublePack& part : visitor.total) sums.total += sum_lanes(part);
  if constexpr (Visitor::HAS_ROWS) {
    for (int64_t i = 0; i < block.row_end - block.row_begin; ++i) sums.rows[i] += sum_lanes(visitor.row_sum[i]);
    sums.squares += sum_lanes(visitor.square_sum);
  }
  if constexpr (Visitor::EXPECTING) {
    for (const DoublePack& part : visitor.expected) sums.expected_squares += sum_lanes(part);
    for (const DoublePack& part : visitor.magnitude) sums.magnitude += sum_lanes(part);
  }
}

template <class Visitor, class T> void sums_as(const BlockOfPairs<T>& block, BlockSums& sums) {
  Visitor visitor;
  add_sums(block, visitor, sums);
}

template <class T> void sums(const BlockOfPairs<T>& block, BlockSums& sums) {
  if (!sums.rows) return sums_as<SumVisitor<T, false>>(block, sums);
  if (!sums.expected) return sums_as<SumVisitor<T, true>>(block, sums);
  sums_as<ExpectedSumVisitor<T>>(block, sums);
}

template <class T> void entries(const BlockOfPairs<T>& block, T* out, int64_t stride) {
  EntryVisitor<T> visitor{out, stride};
  for_each_tile(block, visitor);
}

template <class V> KCALIB_FN void add_pack(const double* x, double* sums, double* lost) {
  const V sum = load<V>(sums), more = load<V>(x), next = sum + more, added = next - sum;
  store<V>(lost, load<V>(lost) + ((sum - (next - added)) + (more - added)));
  store<V>(sums, next);
}

void add_compensated(const double* x, int64_t n, double* sums, double* lost) {
  constexpr int L = LANES<DoublePack>;
  int64_t i = 0;
  for (; i + L <= n; i += L) add_pack<DoublePack>(x + i, sums + i, lost + i);
  for (; i < n; ++i) {
    const double next = sums[i] + x[i], added = next - sums[i];
    lost[i] += (sums[i] - (next - added)) + (x[i] - added);
    sums[i] = next;
  }
}

template <class T> double probe(Probe what, int64_t repetitions, T* sink) {
  using V = Pack<T>;
  constexpr int CHAINS = 12;
  V x[CHAINS];
  for (int i = 0; i < CHAINS; ++i) x[i] = splat<V>(T(0.5) + T(i) / T(64));
  T a = T(1e-30);
  __asm__("" : "+m"(a));  // x * a + x is x, but the compiler is not to know
  double passes = 1;
  if (what == Probe::FMA) {
    for (int64_t n = 0; n < repetitions; ++n)
#pragma GCC unroll 12
      for (int i = 0; i < CHAINS; ++i) x[i] = x[i] * a + x[i];  // its own addend: NEON would copy another one
  } else {
    // Arguments from a buffer in L1, as the sweep's stages have them.
    constexpr int LENGTH = 48;
    alignas(PACK_BYTES) V buffer[LENGTH];
    for (int i = 0; i < LENGTH; ++i) buffer[i] = splat<V>(T(i) / T(LENGTH));
    passes = double(LENGTH) / CHAINS;
    for (int64_t n = 0; n < repetitions; ++n) {
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

template <class T> void evaluate(ScalarFunction f, const T* x, T a, int64_t n, T* out) {
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
      case ScalarFunction::COS_PI: return cos_pi(v);
      case ScalarFunction::SIN: return sin_cos(v).sine;
      case ScalarFunction::COS: return sin_cos(v).cosine;
      default: return power(v, a);
    }
  };
  for (int64_t i = 0; i < n; i += LANES<V>) {
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
          entries<T>,
          convert<T, double>,
          convert<T, float>,
          write_panels<T, double>,
          write_panels<T, float>,
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
extern const FeatureTable KCALIB_FEATURES;
extern const TileTable KCALIB_TABLE;
const TileTable KCALIB_TABLE = {
    KCALIB_LEVEL_NAME, table_of<double>(), table_of<float>(), in_units, round_panels, matches, LABELS, add_compensated,
    &KCALIB_WEIGHTS, &KCALIB_LINE, &KCALIB_DIRICHLET, &KCALIB_FEATURES,
};

}  // namespace kcalib
