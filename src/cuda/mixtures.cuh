// Target factors of signed measures and MMD distances of mixtures on a GPU: the products of their parts (kcalib/families/),
// added up. cpu/pairs/mixture_kernels.cpp is the same for the compiled core.
//
// Pasted before pairs.cu, which calls target_factors and squared_mmd. Rows of parameters are transposed: column k of
// sample i is at[k * stride + i], so that threads of a warp, which have columns of a tile beside each other, read
// numbers beside each other. A thread takes one row of its pairs at a time with all of its N columns.
//
// Parameters are read through the L1 cache and not staged: a tile's rows of ten-dimensional normals, 45 KiB, stay
// there, those of hundreds of atoms come from L2. What bounds it is arithmetic, above all the exponentials, one for
// each pair of parts: components squared of them for a pair of rows. Normals with full covariances keep a triangle per
// pair in local memory where their dimensions are no constant (DIMS = 0), and are bound by L1 there.
namespace kcalib {
namespace {

// Parts of a row and of N columns of a tile, from some column on.
template <class T> struct RowPart {
  const T* at;
  long long stride;
  KCALIB_FN T operator()(long long k) const { return at[k * stride]; }
  KCALIB_FN RowPart from(long long k) const { return {at + k * stride, stride}; }
};
template <class T, int N> struct ColumnPart {
  const T* at;
  long long stride;
  int sample[N];  // of each of the N, from `at` on
  KCALIB_FN T operator()(long long k, int v) const { return at[k * stride + sample[v]]; }
  KCALIB_FN T lane(long long k, int v, int) const { return (*this)(k, v); }
  KCALIB_FN ColumnPart from(long long k) const {
    ColumnPart part = *this;
    part.at += k * stride;
    return part;
  }
};

KCALIB_FN Mixtures mixtures_of(const MixtureNumbers& numbers, int family, int dims) {
  return {family, dims ? dims : int(numbers.n_dims), int(numbers.n_components), int(numbers.n_terms), {}};
}

// out += sign sum_ij w_i w_j' l(z_i, z_j') over two lists of atoms: weights and places from the first column on.
// AtomPair is the pair of the including file with l as its kernel.
template <class AtomPair, class T, int N>
KCALIB_FN void add_atoms(int d, const double* program, long long n_terms, RowPart<T> rows, int n_row_atoms,
                         ColumnPart<T, N> columns, int n_column_atoms, T sign, T* out) {
  for (int a = 0; a < n_row_atoms; ++a) {
    const RowPart<T> one = rows.from(a * (1LL + d));
    const T weight = sign * one(0);
    if (weight == T(0)) continue;
    for (int b = 0; b < n_column_atoms; ++b) {
      const ColumnPart<T, N> other = columns.from(b * (1LL + d));
      T squares[N] = {}, cityblock[N] = {}, dot[N] = {};
      for (int k = 1; k <= d; ++k) {
        const T x = one(k);
        for (int v = 0; v < N; ++v) {
          const T y = other(k, v), difference = x - y;
          squares[v] += difference * difference;
          cityblock[v] += magnitude(difference);
          dot[v] += x * y;
        }
      }
      for (int v = 0; v < N; ++v) {
        const AtomPair pair{{squares[v], cityblock[v], dot[v], program, n_terms}};
        out[v] += weight * other(0, v) * pair.kernel();
      }
    }
  }
}

// u u' (c c' l(y, y') - c' sum_k f(P_k, y') - c sum_k f(y, P'_k) + sum_kl f(P_k, P'_l)), weights in f, over all terms.
// Parts of a row that weigh nothing are left out. Not inlined: one copy serves all functions that are launched.
template <class AtomPair, int FAMILY, int DIMS, int N, class T>
__device__ __noinline__ void target_factors(MixtureNumbers numbers, const double* program, RowPart<T> rows,
                                            ColumnPart<T, N> columns, T* out) {
  using Family = typename FamilyOf<FAMILY>::type;
  const Mixtures m = mixtures_of(numbers, FAMILY, DIMS);
  const long long first = 2 + m.n_dims;
  for (int v = 0; v < N; ++v) out[v] = T(0);
  if constexpr (Family::OF_KERNEL) {
    // The observation's c and y lie as an atom's weight and place do.
    const int d = m.n_dims, count = m.n_components;
    const double* own = program + numbers.program;
    const long long terms = numbers.program_terms;
    add_atoms<AtomPair>(d, own, terms, rows.from(1), 1, columns.from(1), 1, T(1), out);
    add_atoms<AtomPair>(d, own, terms, rows.from(1), 1, columns.from(first), count, T(-1), out);
    add_atoms<AtomPair>(d, own, terms, rows.from(first), count, columns.from(1), 1, T(-1), out);
    add_atoms<AtomPair>(d, own, terms, rows.from(first), count, columns.from(first), count, T(1), out);
    for (int v = 0; v < N; ++v) out[v] *= rows(0) * columns(0, v);
  } else {
    const int d = m.n_dims;
    const long long step = component_columns(m), width = first + m.n_components * step;
    for (int t = 0; t < m.n_terms; ++t) {
      const RowPart<T> row = rows.from(t * width);
      const ColumnPart<T, N> column = columns.from(t * width);
      const T c = row(1);
      T sum[N] = {}, f[N];
      if (c != T(0)) {
        Family::template points<N>(row.from(2), column.from(2), d, f);
        for (int v = 0; v < N; ++v) sum[v] = column(1, v) * f[v];
        for (int l = 0; l < m.n_components; ++l) {
          Family::template point_component<N>(row.from(2), column.from(first + l * step), d, f);
          for (int v = 0; v < N; ++v) sum[v] -= f[v];
        }
        for (int v = 0; v < N; ++v) sum[v] *= c;
      }
      for (int k = 0; k < m.n_components; ++k) {
        const RowPart<T> component = row.from(first + k * step);
        if (component(0) == T(0)) continue;
        Family::template component_point<N>(component, column.from(2), d, f);
        for (int v = 0; v < N; ++v) sum[v] -= column(1, v) * f[v];
        for (int l = 0; l < m.n_components; ++l) {
          Family::template components<N>(component, column.from(first + l * step), d, f);
          for (int v = 0; v < N; ++v) sum[v] += f[v];
        }
      }
      for (int v = 0; v < N; ++v) out[v] += row(0) * column(0, v) * sum[v];
    }
  }
}

// f(P, P') of points, which squared distances have twice subtracted, and, in `apart`, what they have besides.
template <class AtomPair, int FAMILY, int DIMS, int N, class T>
__device__ __noinline__ void point_products(MixtureNumbers numbers, const double* program, RowPart<T> rows,
                                            ColumnPart<T, N> columns, T* out, T* apart) {
  using Family = typename FamilyOf<FAMILY>::type;
  const Mixtures m = mixtures_of(numbers, FAMILY, DIMS);
  for (int v = 0; v < N; ++v) out[v] = apart[v] = T(0);
  if constexpr (Family::OF_KERNEL) {
    add_atoms<AtomPair>(m.n_dims, program + numbers.program, numbers.program_terms, rows, m.n_components, columns,
                        m.n_components, T(1), out);
  } else if constexpr (!Family::DISTANCES_ALONE) {
    const long long step = component_columns(m), width = m.n_components * step;
    for (int t = 0; t < m.n_terms; ++t) {
      const RowPart<T> row = rows.from(t * width);
      const ColumnPart<T, N> column = columns.from(t * width);
      if constexpr (Family::SINGLE == Single::SPLIT)
        if (m.n_components == 1) {
          // What scales make, and what locations add: the second has no cancellation.
          T root[N], exponent[N];
          Family::template split<N>(row, column, m.n_dims, root, exponent);
          for (int v = 0; v < N; ++v) {
            out[v] += root[v];
            apart[v] += T(2) * root[v] * one_minus_exp(exponent[v]);
          }
          continue;
        }
      T f[N];
      for (int k = 0; k < m.n_components; ++k) {
        const RowPart<T> component = row.from(k * step);
        if (component(0) == T(0)) continue;
        for (int l = 0; l < m.n_components; ++l) {
          Family::template components<N>(component, column.from(l * step), m.n_dims, f);
          for (int v = 0; v < N; ++v) out[v] += f[v];
        }
      }
    }
  }
}

constexpr double NEARLY_SAME = 1e-5;  // above the rounding of products, in float32 too

template <class T, int N> KCALIB_FN bool same_points(RowPart<T> row, ColumnPart<T, N> columns, long long length, int v) {
  for (long long k = 0; k < length; ++k)
    if (row(k) != columns(k, v)) return false;
  return true;
}

// Squared MMD distances of points. Their products with themselves are in a further column unless a formula of the family
// does without.
template <class AtomPair, int FAMILY, int DIMS, int N, class T>
__device__ __noinline__ void squared_mmd(MixtureNumbers numbers, const double* program, RowPart<T> rows, ColumnPart<T, N> columns,
                            T* out) {
  using Family = typename FamilyOf<FAMILY>::type;
  const Mixtures m = mixtures_of(numbers, FAMILY, DIMS);
  const long long step = component_columns(m);
  if constexpr (Family::SINGLE == Single::APART) {
    if (Family::DISTANCES_ALONE || m.n_components == 1) {
      T part[N];
      for (int v = 0; v < N; ++v) out[v] = T(0);
      for (int t = 0; t < m.n_terms; ++t) {
        Family::template apart<N>(rows.from(t * step), columns.from(t * step), m.n_dims, part);
        for (int v = 0; v < N; ++v) out[v] += part[v];
      }
      return;
    }
  }
  T products[N], apart[N];
  point_products<AtomPair, FAMILY, DIMS>(numbers, program, rows, columns, products, apart);
  const long long own = m.n_terms * m.n_components * step;
  for (int v = 0; v < N; ++v) {
    const T both = rows(own) + columns(own, v), spread = at_least(both - T(2) * products[v], T(0));
    // The distance of equal points is 0, also where a product with itself was rounded otherwise.
    const bool same = spread < T(NEARLY_SAME) * both && same_points(rows, columns, own, v);
    out[v] = (same ? T(0) : spread) + apart[v];
  }
}

// step(row part, column part, r) for the rows first_row + r * lanes of a thread's pairs, r < N, beside the columns
// first_column + v * lanes, v < N. Rows beyond the last sample are left out, columns are the last one: their numbers are
// not used.
template <int N, class T, class Step>
KCALIB_FN void for_each_row(const T* left, long long left_stride, long long n, long long first_row, const T* right,
                            long long right_stride, long long n_right, long long first_column, int lanes, Step&& step) {
  if (first_column >= n_right) return;
  ColumnPart<T, N> columns{right + first_column, right_stride, {}};
  for (int v = 0; v < N; ++v) columns.sample[v] = int(lower<long long>(v * lanes, n_right - 1 - first_column));
#pragma unroll 1
  for (int r = 0; r < N && first_row + r * lanes < n; ++r)
    step(RowPart<T>{left + (first_row + r * lanes), left_stride}, columns, r);
}

}  // namespace
}  // namespace kcalib
