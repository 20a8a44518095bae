#include "tall.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "aligned.h"
#include "clones.h"
#include "team.h"

namespace kcalib {
namespace {

using Pack = double __attribute__((vector_size(64), may_alias));
constexpr long LANES = 8;
constexpr long CHUNK = 512, AT_ONCE = 10;  // rows and vectors that stay in L1, a page of each
constexpr int COLUMNS = 4, VECTORS = 2;    // whose sums stay in registers
constexpr int TOGETHER = 4;                // rows that are eliminated, likewise
// Parts that are summed by themselves, and numbers in their sums at most: by the sizes alone, whatever threads there are.
constexpr long PARTS = 32, ROOM = 1 << 22;

struct Rows {
  alignas(64) double numbers[AT_ONCE][CHUNK];
};

// sums (column after column, `stride` numbers each) += products of rows of the columns with the vectors of some rows, zeros
// where there are no more.
KCALIB_CLONES void add_products(const Tall& tall, long begin, long rows, const Rows& some, long vectors, long stride, double* sums) {
  const long packed = rows / LANES * LANES;
  for (long a = 0; a < tall.count; a += COLUMNS) {
    const double* at[COLUMNS];
    for (long r = 0; r < COLUMNS; ++r) at[r] = tall.columns + std::min(a + r, tall.count - 1) * tall.n + begin;
    for (long c = 0; c < vectors; c += VECTORS) {
      Pack sum[COLUMNS][VECTORS] = {};
      for (long i = 0; i < packed; i += LANES)
        for (int r = 0; r < COLUMNS; ++r) {
          Pack x;
          std::memcpy(&x, at[r] + i, sizeof x);
          for (int v = 0; v < VECTORS; ++v) sum[r][v] += x * *reinterpret_cast<const Pack*>(some.numbers[c + v] + i);
        }
      for (long r = 0; r < std::min(long(COLUMNS), tall.count - a); ++r)
        for (long v = 0; v < std::min(long(VECTORS), vectors - c); ++v) {
          const Pack s = sum[r][v];
          double total = ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
          for (long i = packed; i < rows; ++i) total += at[r][i] * some.numbers[c + v][i];
          sums[(a + r) * stride + c + v] += total;
        }
    }
  }
}

// some += rows of the columns times their weights (column after column, `stride` numbers each).
KCALIB_CLONES void add_combined(const Tall& tall, long begin, long rows, const double* weights, long vectors, long stride, Rows& some) {
  const long packed = rows / LANES * LANES;
  long a = 0;
  for (; a + COLUMNS <= tall.count; a += COLUMNS) {
    const double* at = tall.columns + a * tall.n + begin;
    const double* w = weights + a * stride;
    for (long i = 0; i < packed; i += LANES) {
      Pack x[COLUMNS];
      for (int r = 0; r < COLUMNS; ++r) std::memcpy(&x[r], at + r * tall.n + i, sizeof(Pack));
      for (long c = 0; c < vectors; ++c) {
        Pack& sum = *reinterpret_cast<Pack*>(some.numbers[c] + i);
        Pack next = sum;
        for (int r = 0; r < COLUMNS; ++r) next += x[r] * w[r * stride + c];
        sum = next;
      }
    }
    for (long i = packed; i < rows; ++i)
      for (long c = 0; c < vectors; ++c)
        for (int r = 0; r < COLUMNS; ++r) some.numbers[c][i] += at[r * tall.n + i] * w[r * stride + c];
  }
  for (; a < tall.count; ++a)
    for (long c = 0; c < vectors; ++c)
      for (long i = 0; i < rows; ++i) some.numbers[c][i] += tall.columns[a * tall.n + begin + i] * weights[a * stride + c];
}

// Rows a, a + 1, ... of `inverse_root`, by those before them: no number of these is both read and written.
KCALIB_CLONES void eliminate(const double* rows, long a, long size, long stride, double* const* at) {
  for (long j = a / LANES * LANES; j < size + a; j += 2 * LANES) {
    Pack sum[TOGETHER][2];
    for (int q = 0; q < TOGETHER; ++q) std::memcpy(sum[q], at[q] + j, sizeof sum[q]);
    const double* row = rows + j;
    const double* weights = rows + a;
    for (long k = std::max(0L, j - size); k < a; ++k) {
      Pack x[2];
      std::memcpy(x, row + k * stride, sizeof x);
      for (int q = 0; q < TOGETHER; ++q)
        for (int h = 0; h < 2; ++h) sum[q][h] -= x[h] * weights[k * stride + q];
    }
    for (int q = 0; q < TOGETHER; ++q) std::memcpy(at[q] + j, sum[q], sizeof sum[q]);
  }
}

double work_of(const Tall& tall, long n_vectors) { return 2.0 * double(tall.n) * double(tall.count) * double(n_vectors); }

}  // namespace

bool tall_inner_products(const Tall& tall, const double* vectors, long n_vectors, const Run& run, double* out) {
  const long size = tall.count * n_vectors, chunks = (tall.n + CHUNK - 1) / CHUNK;
  const long parts = std::min(chunks, std::clamp(ROOM / size, 1L, PARTS));
  const AlignedBuffer<double> sums(parts * size);
  Watch watch(run, chunks);
#pragma omp parallel for schedule(dynamic, 1) num_threads(team_size(run, parts, work_of(tall, n_vectors)))
  for (long part = 0; part < parts; ++part) {
    double* own = sums.get() + part * size;
    std::fill_n(own, size, 0.0);
    Rows some;
    for (long chunk = part * chunks / parts; chunk < (part + 1) * chunks / parts && !watch.stopped(); ++chunk) {
      const long begin = chunk * CHUNK, rows = std::min(CHUNK, tall.n - begin);
      for (long c = 0; c < n_vectors; c += AT_ONCE) {
        const long count = std::min(AT_ONCE, n_vectors - c);
        for (long i = 0; i < rows; ++i)
          for (long v = 0; v < count; ++v) some.numbers[v][i] = vectors[(begin + i) * n_vectors + c + v];
        if (count % VECTORS) std::fill_n(some.numbers[count], rows, 0.0);
        add_products(tall, begin, rows, some, count, n_vectors, own + c);
      }
      watch.task_done();
    }
  }
  std::copy_n(sums.get(), size, out);
  for (long part = 1; part < parts; ++part)
    for (long k = 0; k < size; ++k) out[k] += sums[part * size + k];
  return !watch.stopped();
}

long inverse_root(double* rows, long size, long stride) {
  AlignedBuffer<double> spare(stride);  // of rows that a last block does not have
  std::fill_n(spare.get(), stride, 0.0);
  for (long a = 0; a < size; a += TOGETHER) {
    double* at[TOGETHER];
    for (int q = 0; q < TOGETHER; ++q) at[q] = a + q < size ? rows + (a + q) * stride : spare.get();
    eliminate(rows, a, size, stride, at);
    for (long i = a; i < std::min(size, a + TOGETHER); ++i) {
      double* own = rows + i * stride;
      for (long k = a; k < i; ++k) {
        const double* row = rows + k * stride;
        const double weight = row[i];
        for (long j = i; j <= size + k; ++j) own[j] -= weight * row[j];
      }
      if (!(own[i] > 0)) return i;
      const double scale = 1 / std::sqrt(own[i]);
      for (long j = i; j <= size + i; ++j) own[j] *= scale;
    }
  }
  return -1;
}

bool tall_combined(const Tall& tall, const double* weights, long n_vectors, const Run& run, double* out) {
  const long chunks = (tall.n + CHUNK - 1) / CHUNK;
  Watch watch(run, chunks);
#pragma omp parallel for schedule(dynamic, 1) num_threads(team_size(run, chunks, work_of(tall, n_vectors)))
  for (long chunk = 0; chunk < chunks; ++chunk) {
    if (watch.stopped()) continue;
    const long begin = chunk * CHUNK, rows = std::min(CHUNK, tall.n - begin);
    Rows some;
    for (long c = 0; c < n_vectors; c += AT_ONCE) {
      const long count = std::min(AT_ONCE, n_vectors - c);
      for (long v = 0; v < count; ++v) std::fill_n(some.numbers[v], rows, 0.0);
      add_combined(tall, begin, rows, weights + c, count, n_vectors, some);
      for (long v = 0; v < count; ++v) std::copy_n(some.numbers[v], rows, out + (c + v) * tall.n + begin);
    }
    watch.task_done();
  }
  return !watch.stopped();
}

}  // namespace kcalib
