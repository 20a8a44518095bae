#include "sweep.h"

#include <algorithm>
#include <cstddef>
#include <new>

#include "team.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace kcalib {
namespace {

// Operations of a sweep over n x n_right pairs: multiply-adds of points and marks, and the profile.
template <class T> double pair_work(const PairProblem<T>& problem, double n, double n_right) {
  return n * n_right * (problem.left.n_features + problem.left.n_marks + 20.0);
}

template <class T> class AlignedBuffer {
 public:
  explicit AlignedBuffer(long size)
      : data_(static_cast<T*>(::operator new(sizeof(T) * std::size_t(std::max(size, 1L)), alignment))) {}
  ~AlignedBuffer() { ::operator delete(data_, alignment); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  T* get() const { return data_; }
  T& operator[](long i) const { return data_[i]; }

 private:
  static constexpr std::align_val_t alignment{64};
  T* data_;
};

// Rows (and columns) of a block. Depends on n alone: it decides the order of summation.
long block_rows(long n) { return n < 4096 ? 96 : 192; }

long ceil_divide(long a, long b) { return (a + b - 1) / b; }

// The squared norms of the left-hand side.
template <class T> class RowNorms {
 public:
  RowNorms(const PairProblem<T>& problem, const Run& run, long block) : norms_(problem.left.n) {
    const long n = problem.left.n, blocks = ceil_divide(n, block);
    const auto square_norms = functions<T>(*run.table).square_norms;
    const int threads = team_size(run, blocks, double(n) * problem.left.n_features);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long i = 0; i < blocks; ++i)
      square_norms(problem.left, i * block, std::min(n, (i + 1) * block), norms_.get() + i * block);
  }
  const T* from(long row) const { return norms_.get() + row; }

 private:
  AlignedBuffer<T> norms_;
};

// The right-hand side, packed block by block.
template <class T> class PackedColumns {
 public:
  PackedColumns(const PairProblem<T>& problem, const Run& run, long block)
      : side_(problem.right),
        block_(block),
        stride_(functions<T>(*run.table).packed_size(side_, block)),
        buffer_(stride_ * ceil_divide(side_.n, block)) {
    const long blocks = ceil_divide(side_.n, block);
    const auto pack = functions<T>(*run.table).pack;
    const int threads = team_size(run, blocks, double(side_.n) * (side_.n_features + side_.n_marks));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long j = 0; j < blocks; ++j) pack(side_, j * block_, std::min(side_.n, (j + 1) * block_), buffer_.get() + j * stride_);
  }
  const T* operator[](long j) const { return buffer_.get() + j * stride_; }

 private:
  const Side<T>& side_;
  long block_, stride_;
  AlignedBuffer<T> buffer_;
};

}  // namespace

// The samples are cut into at most MAX_GROUPS groups of whole blocks; a task is a pair of
// groups and has sums of its own, which are merged in order at the end. So no task waits
// for another, which keeps a thread that loses its core from holding up the rest, and the
// order of summation is fixed, for MAX_GROUPS * 8 bytes a sample.
template <class T>
bool moments(const PairProblem<T>& problem, const Run& run, double* row_sums, double* column_sums, double* squares) {
  constexpr long MAX_GROUPS = 32;
  const long n = problem.left.n, n_right = problem.right.n;
  const long block = block_rows(std::max(n, n_right));
  const long blocks = ceil_divide(n, block), right_blocks = ceil_divide(n_right, block);
  const long per_group = ceil_divide(std::max(blocks, right_blocks), MAX_GROUPS);
  const long groups = ceil_divide(blocks, per_group), right_groups = ceil_divide(right_blocks, per_group);
  const bool symmetric = problem.symmetric;
  const auto sums = functions<T>(*run.table).sums;

  const PackedColumns<T> packed(problem, run, block);
  const RowNorms<T> norms(problem, run, block);
  const AlignedBuffer<double> row_parts(right_groups * n), square_parts(groups * right_groups);
  const AlignedBuffer<double> column_parts(symmetric ? 0 : groups * n_right);
  const int threads = team_size(run, groups * right_groups, pair_work(problem, n, n_right) / (symmetric ? 2 : 1));
  Watch watch(run, symmetric ? blocks * (blocks + 1) / 2 : blocks * right_blocks);

#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long task = 0; task < groups * right_groups; ++task) {
    const long a = task / right_groups, b = task % right_groups;
    double square = 0;
    square_parts[task] = 0;
    if (symmetric && b < a) continue;
    const long i_begin = a * per_group, i_end = std::min(blocks, i_begin + per_group);
    const long j_begin = b * per_group, j_end = std::min(right_blocks, j_begin + per_group);
    double* rows = &row_parts[b * n];
    double* columns = symmetric ? &row_parts[a * n] : &column_parts[a * n_right];
    std::fill(rows + i_begin * block, rows + std::min(n, i_end * block), 0.0);
    std::fill(columns + j_begin * block, columns + std::min(n_right, j_end * block), 0.0);
    for (long i = i_begin; i < i_end; ++i)
      for (long j = symmetric ? std::max(i, j_begin) : j_begin; j < j_end && !watch.stopped(); ++j) {
        const bool diagonal = symmetric && i == j;
        const BlockOfPairs<T> pairs{&problem.kernel, &problem.left, i * block, std::min(n, (i + 1) * block),
                                    norms.from(i * block), packed[j],       j * block,     std::min(n_right, (j + 1) * block), diagonal};
        const double part = sums(pairs, squares != nullptr, rows + i * block, diagonal ? nullptr : columns + j * block);
        square += (symmetric && !diagonal ? 2 : 1) * part;
        watch.task_done();
      }
    square_parts[task] = square;
  }
  if (watch.stopped()) return false;

  const auto merge = [](const AlignedBuffer<double>& parts, long count, long length, double* out) {
    for (long k = 0; k < length; ++k) {
      out[k] = parts[k];
      for (long g = 1; g < count; ++g) out[k] += parts[g * length + k];
    }
  };
  merge(row_parts, right_groups, n, row_sums);
  if (!symmetric) merge(column_parts, groups, n_right, column_sums);
  if (squares) merge(square_parts, groups * right_groups, 1, squares);
  return true;
}

template <class T> bool block_sums(const PairProblem<T>& problem, const Run& run, long size, double* out) {
  // A task is a strip of rows of one block against the columns from its own on: large
  // blocks are shared between threads, small ones are dealt out in runs.
  const long n_blocks = problem.left.n / size, step = block_rows(size);
  const long strips = ceil_divide(size, step), tasks = n_blocks * strips;
  const TileFunctions<T>& tile = functions<T>(*run.table);
  const long width = std::min(step, size), packed_size = tile.packed_size(problem.right, width);
  const int threads = team_size(run, tasks, pair_work(problem, problem.left.n, size / 2.0));
  AlignedBuffer<T> packed(packed_size * threads);
  AlignedBuffer<double> parts(tasks), row_sums(step * threads);
  const RowNorms<T> norms(problem, run, step);
  Watch watch(run, tasks);
  const int run_length = int(std::clamp(step / size, 1L, 64L));

#pragma omp parallel for schedule(dynamic, run_length) num_threads(threads)
  for (long task = 0; task < tasks; ++task) {
    if (watch.stopped()) continue;
    T* columns = packed.get() + packed_size * thread_number();
    double* rows = row_sums.get() + step * thread_number();
    const long begin = task / strips * size, end = begin + size;
    const long row_begin = begin + task % strips * step, row_end = std::min(end, row_begin + step);
    double off_block = 0, diagonal = 0;
    for (long j = row_begin; j < end; j += step) {
      const long j_end = std::min(end, j + step);
      tile.pack(problem.right, j, j_end, columns);
      std::fill(rows, rows + step, 0.0);
      const BlockOfPairs<T> pairs{&problem.kernel, &problem.left, row_begin, row_end, norms.from(row_begin), columns, j, j_end, true};
      tile.sums(pairs, false, rows, nullptr);
      double sum = 0;
      for (long i = 0; i < row_end - row_begin; ++i) sum += rows[i];
      (j == row_begin ? diagonal : off_block) += sum;
    }
    parts.get()[task] = diagonal + 2 * off_block;
    watch.task_done();
  }

  if (watch.stopped()) return false;
  for (long b = 0; b < n_blocks; ++b) {
    out[b] = 0;
    for (long s = 0; s < strips; ++s) out[b] += parts.get()[b * strips + s];
  }
  return true;
}

template <class T>
bool matmul(const PairProblem<T>& problem, const Run& run, const double* w, long n_vectors, double* out) {
  const long n = problem.left.n, n_right = problem.right.n;
  const long block = block_rows(std::max(n, n_right));
  const TileFunctions<T>& tile = functions<T>(*run.table);
  const long row_blocks = ceil_divide(n, block), column_blocks = ceil_divide(n_right, block);
  const int threads = team_size(run, row_blocks, pair_work(problem, n, n_right));
  const PackedColumns<T> packed(problem, run, block);
  const RowNorms<T> norms(problem, run, block);
  AlignedBuffer<double> buffer(block * block * threads);
  Watch watch(run, row_blocks * column_blocks);
  std::fill(out, out + n * n_vectors, 0.0);

#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long i = 0; i < row_blocks; ++i) {
    double* h = buffer.get() + block * block * thread_number();
    const long row_begin = i * block, row_end = std::min(n, row_begin + block);
    for (long j = 0; j < column_blocks && !watch.stopped(); ++j) {
      const long j_begin = j * block, j_end = std::min(n_right, j_begin + block);
      const BlockOfPairs<T> pairs{&problem.kernel, &problem.left, row_begin, row_end, norms.from(row_begin), packed[j], j_begin, j_end, false};
      tile.entries(pairs, h, block);
      run.table->multiply(h, block, row_end - row_begin, j_end - j_begin, w + j_begin, n_right, n_vectors,
                          out + row_begin * n_vectors, n_vectors);
      watch.task_done();
    }
  }
  return !watch.stopped();
}

template <class T> bool entries(const PairProblem<T>& problem, const Run& run, double* out) {
  const long n = problem.left.n, n_right = problem.right.n;
  const long block = block_rows(std::max(n, n_right));
  const TileFunctions<T>& tile = functions<T>(*run.table);
  const long row_blocks = ceil_divide(n, block), column_blocks = ceil_divide(n_right, block);
  const int threads = team_size(run, row_blocks, pair_work(problem, n, n_right));
  const PackedColumns<T> packed(problem, run, block);
  const RowNorms<T> norms(problem, run, block);
  Watch watch(run, row_blocks * column_blocks);

#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long i = 0; i < row_blocks; ++i)
    for (long j = 0; j < column_blocks && !watch.stopped(); ++j) {
      const BlockOfPairs<T> pairs{&problem.kernel, &problem.left, i * block, std::min(n, (i + 1) * block),
                                  norms.from(i * block), packed[j],       j * block,     std::min(n_right, (j + 1) * block), false};
      tile.entries(pairs, out + i * block * n_right + j * block, n_right);
      watch.task_done();
    }
  return !watch.stopped();
}

template <class T> double probe(const Run& run, Probe what, long repetitions) {
  const auto once = functions<T>(*run.table).probe;
  double elements = 0;
#pragma omp parallel num_threads(team_size(run, run.threads, double(repetitions) * 100)) reduction(+ : elements)
  {
    T sink;
    elements += once(what, repetitions, &sink);
  }
  return elements;
}

template <class T> void evaluate(const Run& run, ScalarFunction f, const T* x, double a, long n, T* out) {
  functions<T>(*run.table).evaluate(f, x, T(a), n, out);
}

bool compiled_with_openmp() {
#ifdef _OPENMP
  return true;
#else
  return false;
#endif
}

int openmp_max_threads() {
#ifdef _OPENMP
  return forked.load() || omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

int count_running_sweeps() { return running_sweeps.load(); }

void register_fork_handler() {
#if defined(__unix__) || defined(__APPLE__)
  pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
#endif
}

#define KCALIB_INSTANTIATE(T)                                                                      \
  template bool moments<T>(const PairProblem<T>&, const Run&, double*, double*, double*);          \
  template bool block_sums<T>(const PairProblem<T>&, const Run&, long, double*);                   \
  template bool matmul<T>(const PairProblem<T>&, const Run&, const double*, long, double*);        \
  template bool entries<T>(const PairProblem<T>&, const Run&, double*);                            \
  template double probe<T>(const Run&, Probe, long);                                               \
  template void evaluate<T>(const Run&, ScalarFunction, const T*, double, long, T*);
KCALIB_INSTANTIATE(double)
KCALIB_INSTANTIATE(float)

}  // namespace kcalib
