// Functions that are compiled for each instruction level and chosen when they are called.
#pragma once

#include <cstdint>

#define KCALIB_PART __attribute__((always_inline)) inline

namespace kcalib {

enum class CpuLevel { BASELINE, V3, V4 };

// The level that compiled code runs at (cpu_level.cpp).
CpuLevel cpu_level();

}  // namespace kcalib

// KCALIB_FOR_EACH_LEVEL(type, name, (parameters), (arguments)) defines `type name(parameters)`, which returns
// name_of(arguments), a KCALIB_PART that is compiled once for each level of x86-64.
#ifdef KCALIB_X86_LEVELS
#define KCALIB_V3 __attribute__((target("avx2,fma")))
#define KCALIB_V4 __attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma")))
#define KCALIB_FOR_EACH_LEVEL(TYPE, NAME, PARAMETERS, ARGUMENTS)                 \
  KCALIB_V4 static TYPE NAME##_v4 PARAMETERS { return NAME##_of ARGUMENTS; }     \
  KCALIB_V3 static TYPE NAME##_v3 PARAMETERS { return NAME##_of ARGUMENTS; }     \
  KCALIB_CHOOSE_LEVEL(TYPE, NAME, PARAMETERS, ARGUMENTS)
// The last of these lines, where the functions of two levels are written by hand.
#define KCALIB_CHOOSE_LEVEL(TYPE, NAME, PARAMETERS, ARGUMENTS)                   \
  TYPE NAME PARAMETERS {                                                         \
    switch (cpu_level()) {                                                       \
      case CpuLevel::V4: return NAME##_v4 ARGUMENTS;                             \
      case CpuLevel::V3: return NAME##_v3 ARGUMENTS;                             \
      default: return NAME##_of ARGUMENTS;                                       \
    }                                                                            \
  }
#else
#define KCALIB_CHOOSE_LEVEL(TYPE, NAME, PARAMETERS, ARGUMENTS) \
  TYPE NAME PARAMETERS { return NAME##_of ARGUMENTS; }
#define KCALIB_FOR_EACH_LEVEL KCALIB_CHOOSE_LEVEL
#endif
