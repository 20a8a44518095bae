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
  if (m.n_dims == 1) return target_factors<V, Normals<V, 1>>(m, rows, columns, out);
  target_factors<V, Normals<V, 0>>(m, rows, columns, out);
}

template <class T> void squared_mmd(const Mixtures&, const T* const*, const T*, T*) {}

}  // namespace

extern const MixtureTable KCALIB_MIXTURES;
const MixtureTable KCALIB_MIXTURES = {{targets<double>, squared_mmd<double>}, {targets<float>, squared_mmd<float>}};

}  // namespace kcalib
