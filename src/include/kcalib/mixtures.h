// Mixtures of distributions: inner products of embedded ones are target factors of predictions that are distributions,
// and give their MMD distances.
//
// A row of columns (kcalib/_pairs/problem.py, `Mixtures`, says which) is a signed measure, "observed minus predicted". A
// family, in families/, says how many columns a component has, `columns(d)`, and gives the products f of two parts of
// rows, for one row and N packs of columns: a(k) is column k of the row's part, a number, b(k, v) that of the columns' in
// pack v, b.lane(k, v, l) a number of that. They are
//
//   points(y, z, d, f)                 l(y, z), of two observations
//   component_point(p, z, d, f)        w f(P, z), and point_component(y, q, d, f) the same the other way round
//   components(p, q, d, f)             w w' f(P, P')
//   split(p, q, d, root, exponent)     with Single::SPLIT: components is root exp(-exponent), root does not know locations
//   apart(p, q, d, out)                with Single::APART: squared MMD distances
//
// all as sums of positive terms: nothing cancels but between the parts. cpu/pairs/mixture_kernels.cpp and cuda/mixtures.cuh
// add the parts up. A family OF_KERNEL has no products of its own, one of DISTANCES_ALONE nothing but `apart`.
//
// `reciprocal_root`, `reciprocal`, `magnitude`, `lower`, `higher` and `any` are the including file's, as the packs are: cpu/simd/pack.h,
// and for single numbers cuda/scalars.cuh.
//
// Columns of zeros alone, which fill up panels, give finite numbers. Numbers that enter squares and products are within
// the family's BOUND, others finite: kcalib/_pairs/backends/mixture_rows.py sees to it.
#pragma once

#include "kcalib/families/atoms.h"
#include "kcalib/families/laplace.h"
#include "kcalib/families/normal.h"
#include "kcalib/families/normal_full.h"
#include "kcalib/families/staircases.h"

// Every family: its number, which in lower case is its name in Python, and its struct.
#define KCALIB_FAMILIES(ROW) \
  ROW(NORMAL, Normal) ROW(NORMAL_FULL, NormalFull) ROW(LAPLACE, Laplace) ROW(ATOMS, Atoms) ROW(STAIRCASES, Staircases)

namespace kcalib {

#define KCALIB_NUMBER(NAME, Type) NAME,
enum Family : int { KCALIB_FAMILIES(KCALIB_NUMBER) };
#undef KCALIB_NUMBER

struct Mixtures {
  int family;
  int n_dims, n_components, n_terms;
  KernelProgram kernel;  // of a family OF_KERNEL
};

namespace {

template <int FAMILY> struct FamilyOf;
#define KCALIB_FAMILY_OF(NAME, Type) template <> struct FamilyOf<NAME> { using type = Type; };
KCALIB_FAMILIES(KCALIB_FAMILY_OF)
#undef KCALIB_FAMILY_OF

KCALIB_FN constexpr long long component_columns(int family, long long d) {
#define KCALIB_COLUMNS_OF(NAME, Type) case NAME: return Type::columns(d);
  switch (family) { KCALIB_FAMILIES(KCALIB_COLUMNS_OF) }
#undef KCALIB_COLUMNS_OF
  return 0;
}
KCALIB_FN constexpr long long component_columns(const Mixtures& m) { return component_columns(m.family, m.n_dims); }

}  // namespace
}  // namespace kcalib
