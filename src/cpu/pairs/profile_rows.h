// The rows of include/kcalib/profiles.h as text, for Python.
#pragma once

#include "kcalib/profiles.h"

namespace kcalib {

struct ProfileRow {
  const char *name, *argument;
  double at_zero;
  const char *slope, *definite, *formula;
};

#define KCALIB_ROW(name, argument, at_zero, slope, definite, formula) \
  {#name, #argument, at_zero, #slope, #definite, #formula},
constexpr ProfileRow PROFILE_ROWS[] = {KCALIB_PROFILES(KCALIB_ROW)};
#undef KCALIB_ROW

constexpr int N_PROFILES = sizeof PROFILE_ROWS / sizeof PROFILE_ROWS[0];

}  // namespace kcalib
