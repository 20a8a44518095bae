// Target factors of signed measures and MMD distances of mixtures: the products of their parts (kcalib/families/), added
// up.
//
// Compiled once per instruction set, as tile.cpp is and with the same rule (no std:: code). A row's sums against the
// packs of a panel stay in registers.
#include "cpu/pairs/kernel_tile.h"
#include "cpu/pairs/mixture_kernels.h"

namespace kcalib {
namespace {

// Parts of a row and of the columns, from some column on.
template <class T> struct RowPart {
  const T* at;
  KCALIB_FN T operator()(int64_t k) const { return at[k * WIDTH<T>]; }
  KCALIB_FN RowPart from(int64_t k) const { return {at + k * WIDTH<T>}; }
};
template <class V> struct ColumnPart {
  const Real<V>* at;
  KCALIB_FN V operator()(int64_t k, int v) const { return load<V>(at + k * WIDTH<Real<V>> + v * LANES<V>); }
  KCALIB_FN Real<V> lane(int64_t k, int v, int l) const { return at[k * WIDTH<Real<V>> + v * LANES<V> + l]; }
  KCALIB_FN ColumnPart from(int64_t k) const { return {at + k * WIDTH<Real<V>>}; }
};

// Quantities of a pair of atoms: by differences, which are exact where atoms are near each other.
template <class V> class AtomQuantities {
  using R = Real<V>;

 public:
  AtomQuantities(const PanelRows<R>& rows, const R* columns, int64_t n_dims) : rows_(rows), columns_(columns), n_dims_(n_dims) {}
  bool bounded() const { return false; }
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
  const int64_t n_dims_;
  bool have_squared_ = false, have_distance_ = false;
  V squared_[TILE], distance_[TILE], dot_[TILE];
};

// Atoms of a part: columns of the weight, and from which on their places are.
struct Atom {
  int64_t weight, place;
};
KCALIB_FN Atom atom(const Mixtures& m, int64_t k, int64_t first) { return {first + k * (1 + m.n_dims), first + k * (1 + m.n_dims) + 1}; }

// out += sign sum_ij w_i w_j' l(z_i, z_j') over two lists of atoms: kernels of a whole register tile at a time.
template <class V>
void add_atoms(const Mixtures& m, const Real<V>* const* rows, int64_t row_first, int64_t n_row_atoms, const Real<V>* columns,
               int64_t column_first, int64_t n_column_atoms, Real<V> sign, V* sums) {
  using R = Real<V>;
  V values[TILE];
  for (int64_t a = 0; a < n_row_atoms; ++a) {
    const Atom one = atom(m, a, row_first);
    R weight[ROWS];
    bool none = true;
    for (int r = 0; r < ROWS; ++r) {
      weight[r] = sign * rows[r][one.weight * WIDTH<R>];
      none = none && weight[r] == R(0);
    }
    if (none) continue;
    for (int64_t b = 0; b < n_column_atoms; ++b) {
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
  const int64_t first = 2 + m.n_dims, k = m.n_components;
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
template <class Family, class V>
void point_products(const Mixtures& m, const Real<V>* const* rows, const Real<V>* columns, Real<V>* out) {
  using R = Real<V>;
  const int d = m.n_dims;
  const int64_t step = component_columns(m), width = m.n_components * step;
  for (int r = 0; r < ROWS; ++r, out += WIDTH<R>) {
    V sum[VECTORS] = {}, f[VECTORS];
    for (int64_t t = 0; t < m.n_terms; ++t)
      for (int64_t k = 0; k < m.n_components; ++k) {
        const RowPart<R> component{rows[r] + (t * width + k * step) * WIDTH<R>};
        if (component(0) == R(0)) continue;
        for (int64_t l = 0; l < m.n_components; ++l) {
          Family::template components<VECTORS>(component, ColumnPart<V>{columns + (t * width + l * step) * WIDTH<R>}, d, f);
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
// that weigh nothing are left out. D is the number of dimensions where it is a constant, else 0. Not inlined beside others,
// where there are too few registers for all.
template <class Family, int D, class V>
__attribute__((noinline)) void target_factors(const Mixtures& m, const Real<V>* const* rows, const Real<V>* columns, Real<V>* out) {
  using R = Real<V>;
  const int d = D ? D : m.n_dims;
  const int64_t step = component_columns(m), first = 2 + m.n_dims, width = first + m.n_components * step;
  for (int r = 0; r < ROWS; ++r, out += WIDTH<R>) {
    V total[VECTORS] = {};
    for (int t = 0; t < m.n_terms; ++t) {
      const RowPart<R> row{rows[r] + t * width * WIDTH<R>};
      const ColumnPart<V> column{columns + t * width * WIDTH<R>};
      const R c = row(1);
      V sum[VECTORS] = {}, f[VECTORS];
      if (c != R(0)) {
        Family::template points<VECTORS>(row.from(2), column.from(2), d, f);
        for (int v = 0; v < VECTORS; ++v) sum[v] = column(1, v) * f[v];
        for (int l = 0; l < m.n_components; ++l) {
          Family::template point_component<VECTORS>(row.from(2), column.from(first + l * step), d, f);
          for (int v = 0; v < VECTORS; ++v) sum[v] -= f[v];
        }
        for (int v = 0; v < VECTORS; ++v) sum[v] *= c;
      }
      for (int k = 0; k < m.n_components; ++k) {
        const RowPart<R> component = row.from(first + k * step);
        if (component(0) == R(0)) continue;
        Family::template component_point<VECTORS>(component, column.from(2), d, f);
        for (int v = 0; v < VECTORS; ++v) sum[v] -= column(1, v) * f[v];
        for (int l = 0; l < m.n_components; ++l) {
          Family::template components<VECTORS>(component, column.from(first + l * step), d, f);
          for (int v = 0; v < VECTORS; ++v) sum[v] += f[v];
        }
      }
      for (int v = 0; v < VECTORS; ++v) total[v] += row(0) * column(0, v) * sum[v];
    }
    for (int v = 0; v < VECTORS; ++v) store<V>(out + v * LANES<V>, total[v]);
  }
}

template <class Family, class T> void targets_of(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  using V = Pack<T>;
  if constexpr (Family::OF_KERNEL) {
    atom_targets(m, rows, columns, out);
  } else if constexpr (!Family::DISTANCES_ALONE) {
    if constexpr (Family::LINE)
      if (m.n_dims == 1) return target_factors<Family, 1, V>(m, rows, columns, out);
    target_factors<Family, 0, V>(m, rows, columns, out);
  }
}

template <class Family, class T> void products_of(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  if constexpr (Family::OF_KERNEL) atom_products(m, rows, columns, out);
  else if constexpr (!Family::DISTANCES_ALONE) point_products<Family, Pack<T>>(m, rows, columns, out);
}

// Squared distances, with products with themselves in the column `own`. Equal points have equal products, and distance 0.
template <class Family, class T> void from_products(const Mixtures& m, const T* const* rows, const T* columns, int64_t own, T* out) {
  using V = Pack<T>;
  products_of<Family>(m, rows, columns, out);
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v, out += LANES<V>) {
      const V both = rows[r][own * WIDTH<T>] + load<V>(columns + own * WIDTH<T> + v * LANES<V>);
      store<V>(out, at_least(both - T(2) * load<V>(out), T(0)));
    }
}

// What scales make, and what locations add: the second has no cancellation.
template <class Family, class T> void split_distances(const Mixtures& m, const T* const* rows, const T* columns, int64_t own, T* out) {
  using V = Pack<T>;
  const int64_t width = component_columns(m);
  for (int r = 0; r < ROWS; ++r) {
    V roots[VECTORS] = {}, apart[VECTORS] = {}, root[VECTORS], exponent[VECTORS];
    for (int64_t t = 0; t < m.n_terms; ++t) {
      const int64_t first = t * width * WIDTH<T>;
      Family::template split<VECTORS>(RowPart<T>{rows[r] + first}, ColumnPart<V>{columns + first}, m.n_dims, root, exponent);
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

template <class Family, class T> void own_distances(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  using V = Pack<T>;
  const int64_t width = component_columns(m);
  for (int r = 0; r < ROWS; ++r) {
    V sum[VECTORS] = {}, part[VECTORS];
    for (int64_t t = 0; t < m.n_terms; ++t) {
      const int64_t first = t * width * WIDTH<T>;
      Family::template apart<VECTORS>(RowPart<T>{rows[r] + first}, ColumnPart<V>{columns + first}, m.n_dims, part);
      for (int v = 0; v < VECTORS; ++v) sum[v] += part[v];
    }
    for (int v = 0; v < VECTORS; ++v, out += LANES<V>) store<V>(out, sum[v]);
  }
}

template <class Family, class T> void squared_mmd_of(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  const int64_t own = m.n_terms * m.n_components * component_columns(m);
  if constexpr (Family::SINGLE == Single::APART)
    if (Family::DISTANCES_ALONE || m.n_components == 1) return own_distances<Family>(m, rows, columns, out);
  if constexpr (Family::SINGLE == Single::SPLIT)
    if (m.n_components == 1) return split_distances<Family>(m, rows, columns, own, out);
  from_products<Family>(m, rows, columns, own, out);
}

// The function for the family that the mixtures are of.
#define KCALIB_BY_FAMILY(NAME, Type) case NAME: return KCALIB_FUNCTION<Type>(m, rows, columns, out);
#define KCALIB_FUNCTION targets_of
template <class T> void targets(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  switch (m.family) { KCALIB_FAMILIES(KCALIB_BY_FAMILY) }
}
#undef KCALIB_FUNCTION
#define KCALIB_FUNCTION products_of
template <class T> void products(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  switch (m.family) { KCALIB_FAMILIES(KCALIB_BY_FAMILY) }
}
#undef KCALIB_FUNCTION
#define KCALIB_FUNCTION squared_mmd_of
template <class T> void squared_mmd(const Mixtures& m, const T* const* rows, const T* columns, T* out) {
  switch (m.family) { KCALIB_FAMILIES(KCALIB_BY_FAMILY) }
}
#undef KCALIB_FUNCTION
#undef KCALIB_BY_FAMILY

template <class T> constexpr MixtureFunctions<T> functions_of() {
  return {targets<T>, products<T>, squared_mmd<T>};
}

}  // namespace

extern const MixtureTable KCALIB_MIXTURES;
const MixtureTable KCALIB_MIXTURES = {functions_of<double>(), functions_of<float>()};

}  // namespace kcalib
