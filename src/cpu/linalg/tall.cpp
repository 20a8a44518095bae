#include "cpu/linalg/tall.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/simd/aligned.h"
#include "cpu/simd/clones.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

using Pack = double __attribute__((vector_size(64), may_alias));
constexpr int64_t LANES = 8;
constexpr int64_t CHUNK = 512, AT_ONCE = 10;  // rows and vectors that stay in L1, a page of each
constexpr int COLUMNS = 4, VECTORS = 2;    // whose sums stay in registers
constexpr int TOGETHER = 4;                // rows that are eliminated, likewise
// Parts that are summed by themselves, and numbers in their sums at most: by the sizes alone, whatever threads there are.
constexpr int64_t PARTS = 32, ROOM = 1 << 22;

struct Rows {
  alignas(64) double numbers[AT_ONCE][CHUNK];
};

// sums (column after column, `stride` numbers each) += products of rows of the columns with the vectors of some rows, zeros
// where there are no more.
KCALIB_CLONES void add_products(const Tall& tall, int64_t begin, int64_t rows, const Rows& some, int64_t vectors, int64_t stride, double* sums) {
  const int64_t packed = rows / LANES * LANES;
  for (int64_t a = 0; a < tall.count; a += COLUMNS) {
    const double* at[COLUMNS];
    for (int64_t r = 0; r < COLUMNS; ++r) at[r] = tall.columns + std::min(a + r, tall.count - 1) * tall.n + begin;
    for (int64_t c = 0; c < vectors; c += VECTORS) {
      Pack sum[COLUMNS][VECTORS] = {};
      for (int64_t i = 0; i < packed; i += LANES)
        for (int r = 0; r < COLUMNS; ++r) {
          Pack x;
          std::memcpy(&x, at[r] + i, sizeof x);
          for (int v = 0; v < VECTORS; ++v) sum[r][v] += x * *reinterpret_cast<const Pack*>(some.numbers[c + v] + i);
        }
      for (int64_t r = 0; r < std::min(int64_t(COLUMNS), tall.count - a); ++r)
        for (int64_t v = 0; v < std::min(int64_t(VECTORS), vectors - c); ++v) {
          const Pack s = sum[r][v];
          double total = ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
          for (int64_t i = packed; i < rows; ++i) total += at[r][i] * some.numbers[c + v][i];
          sums[(a + r) * stride + c + v] += total;
        }
    }
  }
}

// some += rows of the columns times their weights (column after column, `stride` numbers each).
KCALIB_CLONES void add_combined(const Tall& tall, int64_t begin, int64_t rows, const double* weights, int64_t vectors, int64_t stride, Rows& some) {
  const int64_t packed = rows / LANES * LANES;
  int64_t a = 0;
  for (; a + COLUMNS <= tall.count; a += COLUMNS) {
    const double* at = tall.columns + a * tall.n + begin;
    const double* w = weights + a * stride;
    for (int64_t i = 0; i < packed; i += LANES) {
      Pack x[COLUMNS];
      for (int r = 0; r < COLUMNS; ++r) std::memcpy(&x[r], at + r * tall.n + i, sizeof(Pack));
      for (int64_t c = 0; c < vectors; ++c) {
        Pack& sum = *reinterpret_cast<Pack*>(some.numbers[c] + i);
        Pack next = sum;
        for (int r = 0; r < COLUMNS; ++r) next += x[r] * w[r * stride + c];
        sum = next;
      }
    }
    for (int64_t i = packed; i < rows; ++i)
      for (int64_t c = 0; c < vectors; ++c)
        for (int r = 0; r < COLUMNS; ++r) some.numbers[c][i] += at[r * tall.n + i] * w[r * stride + c];
  }
  for (; a < tall.count; ++a)
    for (int64_t c = 0; c < vectors; ++c)
      for (int64_t i = 0; i < rows; ++i) some.numbers[c][i] += tall.columns[a * tall.n + begin + i] * weights[a * stride + c];
}

// Rows a, a + 1, ... of `inverse_root`, by those before them: no number of these is both read and written.
KCALIB_CLONES void eliminate(const double* rows, int64_t a, int64_t size, int64_t stride, double* const* at) {
  for (int64_t j = a / LANES * LANES; j < size + a; j += 2 * LANES) {
    Pack sum[TOGETHER][2];
    for (int q = 0; q < TOGETHER; ++q) std::memcpy(sum[q], at[q] + j, sizeof sum[q]);
    const double* row = rows + j;
    const double* weights = rows + a;
    for (int64_t k = std::max<int64_t>(0, j - size); k < a; ++k) {
      Pack x[2];
      std::memcpy(x, row + k * stride, sizeof x);
      for (int q = 0; q < TOGETHER; ++q)
        for (int h = 0; h < 2; ++h) sum[q][h] -= x[h] * weights[k * stride + q];
    }
    for (int q = 0; q < TOGETHER; ++q) std::memcpy(at[q] + j, sum[q], sizeof sum[q]);
  }
}

// Rows of two packs, which stay in the first-level cache: what is read of each is one sum's vectors, filled up with zeros.
constexpr int64_t WIDE = 2 * LANES, FEW = 128;

struct WideRows {
  alignas(64) double numbers[FEW][WIDE];
};

// sums (a line of WIDE numbers for each column of the block) += products of the `needed` first columns of some rows of it with
// those of `some`.
KCALIB_CLONES void add_row_products(const double* block, int64_t columns, int64_t needed, int64_t rows, const WideRows& some, double* sums) {
  for (int64_t a = 0; a < needed; a += COLUMNS) {
    int64_t at[COLUMNS];
    for (int64_t r = 0; r < COLUMNS; ++r) at[r] = std::min(a + r, needed - 1);
    Pack sum[COLUMNS][2] = {};
    const double* row = block;
    for (int64_t i = 0; i < rows; ++i, row += columns) {
      const Pack* x = reinterpret_cast<const Pack*>(some.numbers[i]);
      for (int r = 0; r < COLUMNS; ++r)
        for (int h = 0; h < 2; ++h) sum[r][h] += row[at[r]] * x[h];
    }
    for (int64_t r = 0; r < std::min(int64_t(COLUMNS), needed - a); ++r)
      for (int h = 0; h < 2; ++h) *reinterpret_cast<Pack*>(sums + (a + r) * WIDE + h * LANES) += sum[r][h];
  }
}

// The sums of some rows of the blocks with their weights, of which each has a line.
KCALIB_CLONES void combine_rows(const TallRows* blocks, int64_t n_blocks, int64_t begin, int64_t rows, const double* weights, WideRows& some) {
  for (int64_t i = 0; i < rows; i += COLUMNS) {
    Pack sum[COLUMNS][2] = {};
    const double* weight = weights;
    for (int64_t b = 0; b < n_blocks; ++b) {
      const int64_t columns = blocks[b].columns;
      const double* at[COLUMNS];
      for (int64_t r = 0; r < COLUMNS; ++r) at[r] = blocks[b].numbers + (begin + std::min(i + r, rows - 1)) * columns;
      for (int64_t k = 0; k < columns; ++k, weight += WIDE) {
        const Pack* w = reinterpret_cast<const Pack*>(weight);
        for (int r = 0; r < COLUMNS; ++r)
          for (int h = 0; h < 2; ++h) sum[r][h] += at[r][k] * w[h];
      }
    }
    for (int64_t r = 0; r < std::min(int64_t(COLUMNS), rows - i); ++r) std::memcpy(some.numbers[i + r], sum[r], sizeof sum[r]);
  }
}

int64_t columns_of(const std::vector<TallRows>& blocks) {
  int64_t sum = 0;
  for (const TallRows& block : blocks) sum += block.columns;
  return sum;
}

double work_of(int64_t n, int64_t columns, int64_t n_vectors) { return 2.0 * double(n) * double(columns) * double(n_vectors); }
double work_of(const Tall& tall, int64_t n_vectors) { return work_of(tall.n, tall.count, n_vectors); }

}  // namespace

bool tall_inner_products(const Tall& tall, const double* vectors, int64_t n_vectors, const Run& run, double* out) {
  const int64_t size = tall.count * n_vectors, chunks = (tall.n + CHUNK - 1) / CHUNK;
  const int64_t parts = std::min(chunks, std::clamp<int64_t>(ROOM / size, 1, PARTS));
  const AlignedBuffer<double> sums(parts * size);
  Watch watch(run, chunks);
  parallel_tasks(watch, team_size(run, parts, work_of(tall, n_vectors)), parts, [&](int64_t part) {
    double* own = sums.get() + part * size;
    std::fill_n(own, size, 0.0);
    Rows some;
    for (int64_t chunk = part * chunks / parts; chunk < (part + 1) * chunks / parts && !watch.stopped(); ++chunk) {
      const int64_t begin = chunk * CHUNK, rows = std::min(CHUNK, tall.n - begin);
      for (int64_t c = 0; c < n_vectors; c += AT_ONCE) {
        const int64_t count = std::min(AT_ONCE, n_vectors - c);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t v = 0; v < count; ++v) some.numbers[v][i] = vectors[(begin + i) * n_vectors + c + v];
        if (count % VECTORS) std::fill_n(some.numbers[count], rows, 0.0);
        add_products(tall, begin, rows, some, count, n_vectors, own + c);
      }
      watch.task_done();
    }
  });
  std::copy_n(sums.get(), size, out);
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t k = 0; k < size; ++k) out[k] += sums[part * size + k];
  return !watch.stopped();
}

bool inner_products_of_rows(const std::vector<TallRows>& blocks, int64_t n, const Run& run, double* out) {
  const TallRows& vectors = blocks.back();
  const int64_t c = vectors.columns, columns = columns_of(blocks), lines = (c + WIDE - 1) / WIDE, size = columns * lines * WIDE;
  const int64_t chunks = (n + FEW - 1) / FEW, parts = std::min(chunks, std::clamp<int64_t>(ROOM / size, 1, PARTS));
  const AlignedBuffer<double> sums(parts * size);
  Watch watch(run, chunks);
  parallel_tasks(watch, team_size(run, parts, work_of(n, columns, c)), parts, [&](int64_t part) {
    double* own = sums.get() + part * size;
    std::fill_n(own, size, 0.0);
    WideRows some;
    for (int64_t chunk = part * chunks / parts; chunk < (part + 1) * chunks / parts && !watch.stopped(); ++chunk) {
      const int64_t begin = chunk * FEW, rows = std::min(FEW, n - begin);
      for (int64_t line = 0; line < lines; ++line) {
        const int64_t first = line * WIDE, count = std::min(WIDE, c - first);
        for (int64_t i = 0; i < rows; ++i) {
          const double* row = vectors.numbers + (begin + i) * c + first;
          for (int64_t k = 0; k < WIDE; ++k) some.numbers[i][k] = k < count ? row[k] : 0.0;
        }
        double* at = own + line * columns * WIDE;
        for (const TallRows& block : blocks) {
          // Of the vectors' own products those below the diagonal are not needed.
          const int64_t needed = &block == &vectors ? std::min(block.columns, first + WIDE) : block.columns;
          add_row_products(block.numbers + begin * block.columns, block.columns, needed, rows, some, at);
          at += block.columns * WIDE;
        }
      }
      watch.task_done();
    }
  });
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t k = 0; k < size; ++k) sums[k] += sums[part * size + k];
  for (int64_t a = 0; a < columns; ++a)
    for (int64_t k = 0; k < c; ++k) out[a * c + k] = sums[(k / WIDE * columns + a) * WIDE + k % WIDE];
  double* own = out + (columns - c) * c;
  for (int64_t a = 0; a < c; ++a)
    for (int64_t k = 0; k < a; ++k) own[a * c + k] = own[k * c + a];
  return !watch.stopped();
}

bool combined_rows(const std::vector<TallRows>& blocks, int64_t n, const double* weights, int64_t n_vectors, const Run& run, int64_t stride,
                   double* out) {
  const int64_t columns = columns_of(blocks), lines = (n_vectors + WIDE - 1) / WIDE, chunks = (n + FEW - 1) / FEW;
  const AlignedBuffer<double> wide(lines * columns * WIDE);
  for (int64_t line = 0; line < lines; ++line)
    for (int64_t a = 0; a < columns; ++a)
      for (int64_t k = 0; k < WIDE; ++k) {
        const int64_t c = line * WIDE + k;
        wide[(line * columns + a) * WIDE + k] = c < n_vectors ? weights[a * n_vectors + c] : 0.0;
      }
  Watch watch(run, chunks);
  return parallel_tasks(watch, team_size(run, chunks, work_of(n, columns, n_vectors)), chunks, [&](int64_t chunk) {
    const int64_t begin = chunk * FEW, rows = std::min(FEW, n - begin);
    WideRows some;
    for (int64_t line = 0; line < lines; ++line) {
      const int64_t first = line * WIDE, count = std::min(WIDE, n_vectors - first);
      combine_rows(blocks.data(), int64_t(blocks.size()), begin, rows, wide.get() + line * columns * WIDE, some);
      for (int64_t i = 0; i < rows; ++i) std::copy_n(some.numbers[i], count, out + (begin + i) * stride + first);
    }
    watch.task_done();
  });
}

int64_t inverse_root(double* rows, int64_t size, int64_t stride) {
  AlignedBuffer<double> spare(stride);  // of rows that a last block does not have
  std::fill_n(spare.get(), stride, 0.0);
  for (int64_t a = 0; a < size; a += TOGETHER) {
    double* at[TOGETHER];
    for (int q = 0; q < TOGETHER; ++q) at[q] = a + q < size ? rows + (a + q) * stride : spare.get();
    eliminate(rows, a, size, stride, at);
    for (int64_t i = a; i < std::min(size, a + TOGETHER); ++i) {
      double* own = rows + i * stride;
      for (int64_t k = a; k < i; ++k) {
        const double* row = rows + k * stride;
        const double weight = row[i];
        for (int64_t j = i; j <= size + k; ++j) own[j] -= weight * row[j];
      }
      if (!(own[i] > 0)) return i;
      const double scale = 1 / std::sqrt(own[i]);
      for (int64_t j = i; j <= size + i; ++j) own[j] *= scale;
    }
  }
  return -1;
}

bool tall_combined(const Tall& tall, const double* weights, int64_t n_vectors, const Run& run, double* out) {
  const int64_t chunks = (tall.n + CHUNK - 1) / CHUNK;
  Watch watch(run, chunks);
  return parallel_tasks(watch, team_size(run, chunks, work_of(tall, n_vectors)), chunks, [&](int64_t chunk) {
    const int64_t begin = chunk * CHUNK, rows = std::min(CHUNK, tall.n - begin);
    Rows some;
    for (int64_t c = 0; c < n_vectors; c += AT_ONCE) {
      const int64_t count = std::min(AT_ONCE, n_vectors - c);
      for (int64_t v = 0; v < count; ++v) std::fill_n(some.numbers[v], rows, 0.0);
      add_combined(tall, begin, rows, weights + c, count, n_vectors, some);
      for (int64_t v = 0; v < count; ++v) std::copy_n(some.numbers[v], rows, out + (c + v) * tall.n + begin);
    }
    watch.task_done();
  });
}

}  // namespace kcalib
