// Sweeps over all pairs of a pair problem: the engine of the `cpu` backend.
//
// _native.pyx calls these with the GIL released; they split the pairs into blocks,
// hand blocks to threads, and merge in an order that depends on n alone, so that
// the answer is the same bit for bit for any number of threads.
#pragma once

#include <cstdint>

#include "cpu/pairs/tile.h"
#include "cpu/simd/threads.h"

namespace kcalib {

template <class T> struct PairProblem {
  PairProgram program;
  Side<T> left, right;
  bool symmetric;  // right is left
};

// How the pairs of a problem are cut. The samples of a side are cut into blocks, and these into at most 32 groups; the
// pairs of two groups have sums of their own, which are merged in order. It depends on the problem's sizes alone.
struct Groups {
  int64_t block;          // samples of a block
  int64_t per_group;      // blocks of a group
  int64_t rows, columns;  // how many groups
};

// A problem whose numbers are float64, or float32 (`single`).
struct AnyProblem {
  PairProgram program;
  Side<void> left, right;
  bool symmetric, single;
};

class Reduction;

Groups groups_of(const AnyProblem& problem, const Run& run);

// Shows every block of H to each of the reductions (reductions/reduction.h). False if `poll` stopped it; what they keep is then
// incomplete.
bool sweep(const AnyProblem& problem, const Run& run, Reduction* const* reductions, int64_t count);

// out[k] = sum of parts[g * length + k] over g < count, in order, and compensated: the sums of all tasks, from those of each.
void merge(const Run& run, const double* parts, int64_t count, int64_t length, double* out);

int64_t weights_at_once(const TileTable& table, int64_t size);  // columns of a panel of weights of so many bytes

// out[i] (left.n) = <P_i, P_i> under the target kernel, for the mixtures that the left side's points are. False if stopped.
bool own_products(const AnyProblem& problem, const Run& run, void* out);

// Element operations done by `threads` threads, `repetitions` rounds each.
template <class T> double probe(const Run& run, Probe what, int64_t repetitions);

// out = f(x) on the calling thread.
template <class T> void evaluate(const Run& run, ScalarFunction f, const T* x, double a, int64_t n, T* out);

}  // namespace kcalib
