// Target factors of signed measures and MMD distances of mixtures: the parts' products (kcalib/mixtures.h), added up.
//
// Compiled once per instruction set, as tile.cpp is and with the same rule (no std:: code). A row's sums against the
// packs of a panel stay in registers.
#include "kernel_tile.h"
#include "mixture_kernels.h"

namespace kcalib {
namespace {

// Parts of a row and of the columns, from some column on.
template <class T> struct RowPart {
  const T* at;
  KCALIB_FN T operator()(long k) const { return at[k * WIDTH<T>]; }
  KCALIB_FN RowPart from(long k) const { return {at + k * WIDTH<T>}; }
};
template <class V> struct ColumnPart {
  const Real<V>* at;
  KCALIB_FN V operator()(long k, int v) const { return load<V>(at + k * WIDTH<Real<V>> + v * LANES<V>); }
  KCALIB_FN ColumnPart from(long k) const { return {at + k * WIDTH<Real<V>>}; }
};

// Products of parts, for the numbers of columns that the family has: f[VECTORS] of a row.
template <class V, int D> struct Normals {
  using Row = RowPart<Real<V>>;
  using Column = ColumnPart<V>;
  const int n_dims;
  KCALIB_FN explicit Normals(const Mixtures& m) : n_dims(m.n_dims) {}
  KCALIB_FN int d() const { return D ? D : n_dims; }
  KCALIB_FN void points(Row y, Column z, V* f) const { gaussian_points<VECTORS>(y, z, d(), f); }
  KCALIB_FN void component_point(Row p, Column z, V* f) const { normal_point<VECTORS>(p, z, d(), f); }
  KCALIB_FN void point_component(Row y, Column q, V* f) const { point_normal<VECTORS>(y, q, d(), f); }
  KCALIB_FN void components(Row p, Column q, V* f) const { normal_normal<VECTORS>(p, q, d(), f); }
};

template <class V> struct FullNormals {
  using Row = RowPart<Real<V>>;
  using Column = ColumnPart<V>;
  const int d;
  KCALIB_FN explicit FullNormals(const Mixtures& m) : d(m.n_dims) {}
  KCALIB_FN void points(Row y, Column z, V* f) const { gaussian_points<VECTORS>(y, z, d, f); }
  KCALIB_FN void component_point(Row p, Column z, V* f) const { full_normal_point<VECTORS>(p, z, d, f); }
  KCALIB_FN void point_component(Row y, Column q, V* f) const { point_full_normal<VECTORS>(y, q, d, f); }
  KCALIB_FN void components(Row p, Column q, V* f) const { full_normal_full_normal<VECTORS>(p, q, d, f); }
};
template <class V> struct Laplaces {
  using Row = RowPart<Real<V>>;
  using Column = ColumnPart<V>;
  KCALIB_FN explicit Laplaces(const Mixtures&) {}
  KCALIB_FN void points(Row y, Column z, V* f) const {
    for (int v = 0; v < VECTORS; ++v) f[v] = exp_minus(magnitude(y(0) - z(0, v)));
  }
  KCALIB_FN void component_point(Row p, Column z, V* f) const { laplace_point<VECTORS>(p, z, f); }
  KCALIB_FN void point_component(Row y, Column q, V* f) const { point_laplace<VECTORS>(y, q, f); }
  KCALIB_FN void components(Row p, Column q, V* f) const { laplace_laplace<VECTORS>(p, q, f); }
};

// Quantities of a pair of atoms: by differences, which are exact where atoms are near each other.
template <class V> class AtomQuantities {
  using R = Real<V>;

 public:
  AtomQuantities(const PanelRows<R>& rows, const R* columns, long n_dims) : rows_(rows), columns_(columns), n_dims_(n_dims) {}
  const V* squared(int) {
    if (!have_squared_) accumulate<SquaredDifference, V>(rows_, columns_, n_dims_, storing(squared_));
    have_squared_ = true;
    return squared_;
  }
  const V* distance(int) {
    if (!have_distance_) accumulate<AbsoluteDifference, V>(rows_, columns_, n_dims_, storing(distance_));
    have_distance_ = true;
    return distance_;
  }
  const V* dot() {
    accumulate<Product, V>(rows_, columns_, n_dims_, storing(dot_));
    return dot_;
  }

 private:
  const PanelRows<R> rows_;
  const R* columns_;
  const long n_dims_;
  bool have_squared_ = false, have_distance_ = false;
  V squared_[TILE], distance_[TILE], dot_[TILE];
};

// Atoms of a part: columns of the weight, and from which on their places are.
struct Atom {
  long weight, place;
};
KCALIB_FN Atom atom(const Mixtures& m, long k, long first) { return {first + k * (1 + m.n_dims), first + k * (1 + m.n_dims) + 1}; }

// out += sign sum_ij w_i w_j' l(z_i, z_j') over two lists of atoms: kernels of a whole register tile at a time.
template <class V>
void add_atoms(const Mixtures& m, const Real<V>* const* rows, long row_first, long n_row_atoms, const Real<V>* columns,
               long column_first, long n_column_atoms, Real<V> sign, V* sums) {
  using R = Real<V>;
  V values[TILE];
  for (long a = 0; a < n_row_atoms; ++a) {
    const Atom one = atom(m, a, row_first);
    R weight[ROWS];
    bool none = true;
    for (int r = 0; r < ROWS; ++r) {
      weight[r] = sign * rows[r][one.weight * WIDTH<R>];
      none = none && weight[r] == R(0);
    }
    if (none) continue;
    for (long b = 0; b < n_column_atoms; ++b) {
      const Atom other = atom(m, b, column_first);
      AtomQuantities<V> quantities(panel_rows(rows, one.place), columns + other.place * WIDTH<R>, m.n_dims);
      kernel_values<V>(m.kernel, quantities, values);
      for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v)
          sums[r * VECTORS + v] += weight[r] * load<V>(columns + other.weight * WIDTH<R> + v * LANES<V>) * values[r * VECTORS + v];
    }
  }
}

// The observation's c and y lie as a component's weight and place do.
template <class T> void atom_targets(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  using V = Pack<T>;
  const long first = 2 + m.n_dims, k = m.n_components;
  V sums[TILE] = {};
  add_atoms<V>(m, rows, 1, 1, columns, 1, 1, T(1), sums);
  add_atoms<V>(m, rows, 1, 1, columns, first, k, T(-1), sums);
  add_atoms<V>(m, rows, first, k, columns, 1, 1, T(-1), sums);
  add_atoms<V>(m, rows, first, k, columns, first, k, T(1), sums);
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v)
      store<V>(out + (r * VECTORS + v) * LANES<V>, rows[r][0] * load<V>(columns + v * LANES<V>) * sums[r * VECTORS + v]);
}

// sum_kl w w' f(P_k, P'_l) of points, over all terms.
template <class V, class Family>
void point_products(const Mixtures& m, const Real<V>* const* rows, const Real<V>* columns, Real<V>* out) {
  using R = Real<V>;
  const Family family(m);
  const long step = component_columns(m), width = m.n_components * step;
  for (int r = 0; r < ROWS; ++r, out += WIDTH<R>) {
    V sum[VECTORS] = {}, f[VECTORS];
    for (long t = 0; t < m.n_terms; ++t)
      for (long k = 0; k < m.n_components; ++k) {
        const RowPart<R> component{rows[r] + (t * width + k * step) * WIDTH<R>};
        if (component(0) == R(0)) continue;
        for (long l = 0; l < m.n_components; ++l) {
          family.components(component, ColumnPart<V>{columns + (t * width + l * step) * WIDTH<R>}, f);
          for (int v = 0; v < VECTORS; ++v) sum[v] += f[v];
        }
      }
    for (int v = 0; v < VECTORS; ++v) store<V>(out + v * LANES<V>, sum[v]);
  }
}

template <class T> void atom_products(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  using V = Pack<T>;
  V sums[TILE] = {};
  add_atoms<V>(m, rows, 0, m.n_components, columns, 0, m.n_components, T(1), sums);
  for (int i = 0; i < TILE; ++i) store<V>(out + i * LANES<V>, sums[i]);
}

// u u' (c c' l(y, y') - c' sum_k f(P_k, y') - c sum_k f(y, P'_k) + sum_kl f(P_k, P'_l)), weights in f. Parts of a row
// that weigh nothing are left out.
template <class V, class Family>
void target_factors(const Mixtures& m, const Real<V>* const* rows, const Real<V>* columns, Real<V>* out) {
  using R = Real<V>;
  const Family family(m);
  const long step = component_columns(m), first = 2 + m.n_dims, width = first + m.n_components * step;
  for (int r = 0; r < ROWS; ++r, out += WIDTH<R>) {
    V total[VECTORS] = {};
    for (int t = 0; t < m.n_terms; ++t) {
      const RowPart<R> row{rows[r] + t * width * WIDTH<R>};
      const ColumnPart<V> column{columns + t * width * WIDTH<R>};
      const R c = row(1);
      V sum[VECTORS] = {}, f[VECTORS];
      if (c != R(0)) {
        family.points(row.from(2), column.from(2), f);
        for (int v = 0; v < VECTORS; ++v) sum[v] = column(1, v) * f[v];
        for (int l = 0; l < m.n_components; ++l) {
          family.point_component(row.from(2), column.from(first + l * step), f);
          for (int v = 0; v < VECTORS; ++v) sum[v] -= f[v];
        }
        for (int v = 0; v < VECTORS; ++v) sum[v] *= c;
      }
      for (int k = 0; k < m.n_components; ++k) {
        const RowPart<R> component = row.from(first + k * step);
        if (component(0) == R(0)) continue;
        family.component_point(component, column.from(2), f);
        for (int v = 0; v < VECTORS; ++v) sum[v] -= column(1, v) * f[v];
        for (int l = 0; l < m.n_components; ++l) {
          family.components(component, column.from(first + l * step), f);
          for (int v = 0; v < VECTORS; ++v) sum[v] += f[v];
        }
      }
      for (int v = 0; v < VECTORS; ++v) total[v] += row(0) * column(0, v) * sum[v];
    }
    for (int v = 0; v < VECTORS; ++v) store<V>(out + v * LANES<V>, total[v]);
  }
}

template <class T> void targets(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  using V = Pack<T>;
  switch (m.family) {
    case NORMAL:
      if (m.n_dims == 1) return target_factors<V, Normals<V, 1>>(m, rows, columns, out);
      return target_factors<V, Normals<V, 0>>(m, rows, columns, out);
    case NORMAL_FULL: return target_factors<V, FullNormals<V>>(m, rows, columns, out);
    case LAPLACE: return target_factors<V, Laplaces<V>>(m, rows, columns, out);
    default: return atom_targets(m, rows, columns, out);
  }
}

template <class T> void products(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  using V = Pack<T>;
  switch (m.family) {
    case NORMAL: return point_products<V, Normals<V, 0>>(m, rows, columns, out);
    case NORMAL_FULL: return point_products<V, FullNormals<V>>(m, rows, columns, out);
    case LAPLACE: return point_products<V, Laplaces<V>>(m, rows, columns, out);
    default: return atom_products(m, rows, columns, out);
  }
}

// Squared distances, with products with themselves in the column `own`. Equal points have equal products, and distance 0.
template <class T> void from_products(const Mixtures& m, const T* const* rows, const T* columns, long own, T* out) {
  using V = Pack<T>;
  products(m, rows, columns, out);
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v, out += LANES<V>) {
      const V both = rows[r][own * WIDTH<T>] + load<V>(columns + own * WIDTH<T> + v * LANES<V>);
      store<V>(out, at_least(both - T(2) * load<V>(out), T(0)));
    }
}

// What covariances add, and what means do: the second has no cancellation.
template <class T> void of_full_normals(const Mixtures& m, const T* const* rows, const T* columns, long own, T* out) {
  using V = Pack<T>;
  const long width = component_columns(m);
  for (int r = 0; r < ROWS; ++r) {
    V roots[VECTORS] = {}, apart[VECTORS] = {}, root[VECTORS], exponent[VECTORS];
    for (long t = 0; t < m.n_terms; ++t) {
      const long first = t * width * WIDTH<T>;
      full_normals<VECTORS>(RowPart<T>{rows[r] + first}, ColumnPart<V>{columns + first}, m.n_dims, root, exponent);
      for (int v = 0; v < VECTORS; ++v) {
        roots[v] += root[v];
        apart[v] += T(2) * root[v] * one_minus_exp(exponent[v]);
      }
    }
    for (int v = 0; v < VECTORS; ++v, out += LANES<V>) {
      const V both = rows[r][own * WIDTH<T>] + load<V>(columns + own * WIDTH<T> + v * LANES<V>);
      store<V>(out, at_least(both - T(2) * roots[v], T(0)) + apart[v]);
    }
  }
}

template <class T> void of_normals(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  using V = Pack<T>;
  const long width = component_columns(m);
  for (int r = 0; r < ROWS; ++r) {
    V sum[VECTORS] = {}, part[VECTORS];
    for (long t = 0; t < m.n_terms; ++t) {
      const long first = t * width * WIDTH<T>;
      normals_apart<VECTORS>(RowPart<T>{rows[r] + first}, ColumnPart<V>{columns + first}, m.n_dims, part);
      for (int v = 0; v < VECTORS; ++v) sum[v] += part[v];
    }
    for (int v = 0; v < VECTORS; ++v, out += LANES<V>) store<V>(out, sum[v]);
  }
}

template <class T> void squared_mmd(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  const long own = m.n_terms * m.n_components * component_columns(m);
  if (single_normals(m)) return of_normals(m, rows, columns, out);
  if (m.family == NORMAL_FULL && m.n_components == 1) return of_full_normals(m, rows, columns, own, out);
  from_products(m, rows, columns, own, out);
}

template <class T> constexpr MixtureFunctions<T> functions_of() { return {targets<T>, products<T>, squared_mmd<T>}; }

}  // namespace

extern const MixtureTable KCALIB_MIXTURES;
const MixtureTable KCALIB_MIXTURES = {functions_of<double>(), functions_of<float>()};

}  // namespace kcalib
