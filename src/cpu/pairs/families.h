// What Python asks about the families of distributions: what their headers (kcalib/families/) say.
#pragma once

#include "kcalib/mixtures.h"

namespace kcalib {
namespace {

struct FamilyFacts {
  const char* name;  // in upper case
  double bound, bound_single, cost;
  int max_dims;
  bool matrices, of_kernel, apart;
};

template <class Family> constexpr FamilyFacts facts_of(const char* name) {
  return {name,
          Family::BOUND,
          Family::BOUND_SINGLE,
          Family::COST,
          Family::MAX_DIMS,
          Family::MATRICES,
          Family::OF_KERNEL,
          Family::SINGLE == Single::APART};
}

#define KCALIB_FACTS(NAME, Type) facts_of<Type>(#NAME),
constexpr FamilyFacts FAMILIES[] = {KCALIB_FAMILIES(KCALIB_FACTS)};  // by their numbers
#undef KCALIB_FACTS
constexpr int N_FAMILIES = sizeof FAMILIES / sizeof FAMILIES[0];

}  // namespace
}  // namespace kcalib
