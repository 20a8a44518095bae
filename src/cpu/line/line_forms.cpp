// Quadratic forms w^T H w of points on a line, for many vectors w. A task is a range of replicates, whose
// sums follow the line from its first point to its last: nothing depends on how ranges are dealt out.
#include <algorithm>
#include <functional>
#include <numeric>

#include "cpu/simd/aligned.h"
#include "cpu/line/line.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

constexpr int64_t STRIP = 256;  // points at a time, whose bits stay in the first-level cache; a multiple of 64
constexpr int64_t PART = 1 << 14;  // draws of labels between two looks at the watch
constexpr int64_t AHEAD = 32;  // points between asking memory for a sample's labels and using them
constexpr int64_t BIT_BYTES = int64_t(1) << 31;  // of labels, at most, unless a single thread needs more
constexpr int MOST = SampleWeights::MOST;

// Labels of all samples in MOST draws; a sample's are one cache line. Numbers come draw by draw, and are read in the
// order of the line, which is any.
using BitLine = Word[8];

int64_t padded(int64_t n) { return ceil_divide(n, Rectangle::MOST_ROWS) * Rectangle::MOST_ROWS; }

// Bits of a strip of points in `count` replicates from `first` on; `drawn`: labels of all samples, where they are drawn.
void fill(const FormWeights& weights, const int64_t* positions, int64_t begin, int64_t end, int64_t n, int64_t n_replicates, int64_t first,
          int count, const BitLine* drawn, const Run& run, BitLine* lines) {
  if (drawn) {
    for (int64_t i = begin; i < end; ++i) {
      __builtin_prefetch(drawn[positions[std::min(i + AHEAD, n - 1)]]);
      std::copy_n(drawn[positions[i]], 8, lines[i - begin]);
    }
  } else if (weights.labels) {
    for (int64_t i = begin; i < end; ++i) {
      const int* labels = weights.labels + positions[i] * n_replicates + first;
      Word* line = lines[i - begin];
      std::fill_n(line, 8, Word(0));
      for (int b = 0; b < count; ++b) line[b / 64] |= Word(labels[b] != 0) << b % 64;
    }
  } else {
    run.table->weights->sign_lines(weights.seed, Word(first), int(ceil_divide(count, 64)), positions + begin, end - begin, lines);
  }
}

// The points of a strip as the kernels take them.
struct StripOfLine {
  // Of consecutive points, which begin with `begin`; what comes after the last sees nothing.
  void set_decays(const double* places, double rate, int64_t begin, int64_t length, int64_t n, const LineFunctions& functions) {
    const int64_t seen = std::min(length + 1, n - begin);
    for (int64_t i = 0; i < seen; ++i) gap[i] = begin + i > 0 ? places[begin + i] - places[begin + i - 1] : 0.0;
    functions.decays(gap, rate, seen, decay);
    if (begin == 0) decay[0] = 0;
    std::fill(gap + seen, gap + STRIP + 1, 0.0);
    std::fill(decay + seen, decay + STRIP + 1, 0.0);
  }
  // Those of bit 1 are the negatives of the others if they are null.
  void set_factors(const double* of_zero, const double* of_one, int64_t length) {
    std::fill(std::copy_n(of_zero, length, factors[0]), factors[0] + STRIP, 0.0);
    if (of_one) std::fill(std::copy_n(of_one, length, factors[1]), factors[1] + STRIP, 0.0);
    else std::transform(factors[0], factors[0] + STRIP, factors[1], std::negate<>());
  }
  alignas(64) double gap[STRIP + 1], decay[STRIP + 1], factors[2][STRIP];
};

double sum_of_squares(const double* x, int64_t n) {
  constexpr int64_t SUMS = 8;  // which do not wait for each other
  double sums[SUMS] = {};
  int64_t i = 0;
  for (; i + SUMS <= n; i += SUMS)
    for (int64_t k = 0; k < SUMS; ++k) sums[k] += x[i + k] * x[i + k];
  for (; i < n; ++i) sums[i % SUMS] += x[i] * x[i];
  return std::accumulate(sums, sums + SUMS, 0.0);
}

// The sums of a task: of each factor of each term its totals[MOST], and sums over earlier points as `forms` has them.
struct Task {
  const FormTerm* terms;
  int n_terms;
  bool diagonal;
  const Line* line;
  const int64_t* positions;

  static int64_t state_size(const LineKernel& kernel) { return (kernel.degree + 2) * MOST; }

  // Adds the points of a strip.
  void add(const SampleWeights& weights, int64_t begin, int64_t length, const Run& run, double* state) const {
    const LineFunctions& functions = *run.table->line;
    StripOfLine strip;
    for (int t = 0; t < n_terms; ++t) {
      const LineKernel& kernel = terms[t].kernel;
      strip.set_decays(line->places, kernel.rate, begin, length, line->n, functions);
      for (int r = 0; r < terms[t].rank; ++r, state += state_size(kernel)) {
        const int64_t at = r * line->n + begin;
        strip.set_factors(terms[t].factors[0] + at, terms[t].factors[1] ? terms[t].factors[1] + at : nullptr, length);
        const WeightedLine points{strip.gap, strip.decay, {strip.factors[0], strip.factors[1]}, positions + begin};
        double *totals = state, *sums = state + MOST;
        if (constant(weights, kernel)) functions.bit_forms(points, weights, length, sums, totals);
        else functions.forms(points, kernel, diagonal ? 0.5 : 0, weights, length, sums, totals);
      }
    }
  }

  // The forms: out[n_replicates].
  void finish(const SampleWeights& weights, const double* state, double* out) const {
    for (int t = 0; t < n_terms; ++t) {
      const LineKernel& kernel = terms[t].kernel;
      for (int r = 0; r < terms[t].rank; ++r, state += state_size(kernel)) {
        const bool own_apart = constant(weights, kernel) && diagonal;
        const double own = own_apart ? sum_of_squares(terms[t].factors[0] + r * line->n, line->n) : 0;
        const double scale = constant(weights, kernel) ? kernel.coefficients[0] : 1;
        for (int b = 0; b < weights.n_replicates; ++b) out[b] += scale * (own + 2 * state[weights.place(b)]);
      }
    }
  }

  static bool constant(const SampleWeights& weights, const LineKernel& kernel) { return weights.bits && kernel.degree == 0; }
};

}  // namespace

bool line_forms(const Line& line, const int64_t* positions, const FormTerm* terms, int n_terms, bool diagonal,
                const FormWeights& weights, int64_t n_replicates, const Run& run, double* out) {
  const int64_t n = line.n;
  int64_t state_size = 0, passes = 0;
  for (int t = 0; t < n_terms; ++t) {
    passes += terms[t].rank;
    state_size += terms[t].rank * Task::state_size(terms[t].kernel);
  }
  // Tasks of equal sizes, in whole words of signs; as many at a time as drawn labels fit into memory.
  const int64_t most_threads = weights.draws ? std::max<int64_t>(1, BIT_BYTES / int64_t(sizeof(BitLine) * n)) : run.threads;
  const int64_t at_once = std::min(int64_t(run.threads), most_threads);
  const int64_t rounds = ceil_divide(n_replicates, MOST * at_once);
  const int64_t size = ceil_divide(ceil_divide(n_replicates, rounds * at_once), 64) * 64;
  const int64_t tasks = ceil_divide(n_replicates, size);
  const int64_t strips = ceil_divide(n, STRIP);
  const int threads = team_size(run, std::min(tasks, at_once), double(n) * double(n_replicates) * double(passes));
  const AlignedBuffer<BitLine> drawn(weights.draws ? threads * padded(n) : 0);
  const AlignedBuffer<double> states(threads * state_size);
  std::fill_n(out, n_replicates, 0.0);
  const Task task{terms, n_terms, diagonal, &line, positions};
  Watch watch(run, tasks * (strips + (weights.draws ? ceil_divide(n, PART) : 0)));
  return parallel_tasks(watch, threads, tasks, [&](int64_t k) {
    const int64_t first = k * size;
    const int count = int(std::min(size, n_replicates - first));
    BitLine* labels = weights.draws ? drawn.get() + thread_number() * padded(n) : nullptr;
    for (int64_t begin = 0; labels && begin < n && !watch.stopped(); begin += PART) {
      run.table->weights->label_lines(*weights.draws, Word(first), count, begin, std::min(n, begin + PART), labels + begin);
      watch.task_done();
    }
    alignas(64) BitLine lines[STRIP];
    const SampleWeights some{weights.values ? weights.values + first : nullptr, n_replicates, weights.values ? nullptr : lines, count};
    double* state = states.get() + thread_number() * state_size;
    std::fill_n(state, state_size, 0.0);
    for (int64_t begin = 0; begin < n && !watch.stopped(); begin += STRIP) {
      const int64_t end = std::min(n, begin + STRIP);
      if (some.bits) fill(weights, positions, begin, end, n, n_replicates, first, count, labels, run, lines);
      task.add(some, begin, end - begin, run, state);
      watch.task_done();
    }
    task.finish(some, state, out + first);
  });
}

}  // namespace kcalib
