// Functions of which the compiler makes a copy for each instruction set, and the loader chooses; results differ in no more
// than the order in which one row's entries are added.
#pragma once

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define KCALIB_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define KCALIB_CLONES_BY_HAND 1  // functions of one name for several, with `target`
#define KCALIB_FUSED 1
#else
#define KCALIB_CLONES
#endif

// Whether machines multiply and add in one operation; if not, the library's function for it takes many.
#if !defined(KCALIB_FUSED) && (defined(__FMA__) || defined(__aarch64__) || defined(_M_ARM64))
#define KCALIB_FUSED 1
#endif
