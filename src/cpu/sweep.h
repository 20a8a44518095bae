// Sweeps over all pairs of a pair problem: the primitives of the `openmp` operator.
//
// _native.pyx calls these with the GIL released; they split the pairs into blocks,
// hand blocks to threads, and merge in an order that depends on n alone, so that
// the answer is the same bit for bit for any number of threads.
#pragma once

#include "tile.h"

namespace kcalib {

template <class T> struct PairProblem {
  KernelProgram kernel;
  Side<T> left, right;
  bool symmetric;  // right is left
};

// How to run a sweep. `poll` is called by the calling thread about ten times a second
// with the share of the work done; the sweep stops soon after it returns non-zero.
struct Run {
  const TileTable* table;
  int threads;
  int (*poll)(void* context, double done);
  void* context;
};

// Each returns false if `poll` stopped it; the results are then incomplete.

// Sums over columns (left.n) and rows (right.n) and the sum of squares (null: not wanted)
// of H. Symmetric problems: pairs of a sample with itself are left out, column_sums unused.
template <class T>
bool moments(const PairProblem<T>& problem, const Run& run, double* row_sums, double* column_sums, double* squares);

// out[b] = sum of H over the pairs i != j of the b-th of n / size consecutive blocks.
template <class T> bool block_sums(const PairProblem<T>& problem, const Run& run, long size, double* out);

// out (left.n x n_vectors) = H w^T for w (n_vectors x right.n), diagonal included.
template <class T>
bool matmul(const PairProblem<T>& problem, const Run& run, const double* w, long n_vectors, double* out);

// out (left.n x right.n) = H, diagonal included.
template <class T> bool entries(const PairProblem<T>& problem, const Run& run, double* out);

// Element operations done by `threads` threads, `repetitions` rounds each.
template <class T> double probe(const Run& run, Probe what, long repetitions);

// out = f(x) on the calling thread.
template <class T> void evaluate(const Run& run, ScalarFunction f, const T* x, double a, long n, T* out);

bool compiled_with_openmp();
int openmp_max_threads();  // 1 in a forked child, inside a parallel region, or without OpenMP
int count_running_sweeps();  // in this process, by all its threads
void register_fork_handler();

}  // namespace kcalib
