// Quadratic forms w^T H w of points on a line, for many vectors w. A task is a range of replicates, whose
// sums follow the line from its first point to its last: nothing depends on how ranges are dealt out.
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "line.h"
#include "team.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace kcalib {
namespace {

constexpr long STRIP = 1L << 14;  // points between two looks at the watch
constexpr long BIT_BYTES = 1L << 31;  // at most, unless a single thread needs more
constexpr int MOST = SampleWeights::MOST;

long ceil_divide(long a, long b) { return (a + b - 1) / b; }

// The bits of all samples in MOST replicates; a sample's are one cache line. They are read in the order
// of the line, which is any: large pages spare a page table walk for each.
class BitLines {
 public:
  using Line = Word[8];
  explicit BitLines(long n) : lines_(static_cast<Line*>(::operator new(sizeof(Line) * padded(n), alignment))) {
#ifdef MADV_HUGEPAGE
    madvise(lines_, sizeof(Line) * padded(n), MADV_HUGEPAGE);  // a wish: the result does not matter
#endif
  }
  BitLines(BitLines&& other) noexcept : lines_(std::exchange(other.lines_, nullptr)) {}
  ~BitLines() { ::operator delete(lines_, alignment); }

  static long padded(long n) { return (n + Rectangle::MOST_ROWS - 1) / Rectangle::MOST_ROWS * Rectangle::MOST_ROWS; }
  Line* get() const { return lines_; }

 private:
  static constexpr std::align_val_t alignment{1 << 21};
  Line* lines_;
};

// Bits of rows [begin, end) in replicates from `first` on.
void fill(const FormWeights& weights, long n_replicates, long first, int count, long begin, long end, const Run& run,
          BitLines::Line* lines) {
  if (weights.labels) {
    for (long row = begin; row < end; ++row) {
      const int* labels = weights.labels + row * n_replicates + first;
      std::fill_n(lines[row], 8, Word(0));
      for (int b = 0; b < count; ++b) lines[row][b % 8] |= Word(labels[b] != 0) << b / 8;
    }
  } else if (weights.draws) {
    run.table->weights->label_lines(*weights.draws, Word(first), count, begin, end, lines + begin);
  } else {
    for (long row = begin; row < end; row += Rectangle::MOST_ROWS)
      run.table->weights->sign_lines(weights.seed, Word(first), count, row / Rectangle::MOST_ROWS, lines + row);
  }
}

struct Task {
  const FormTerm* terms;
  const Steps* steps;
  int n_terms;
  bool diagonal;
  long n;
  const int64_t* positions;

  // Adds the forms of `weights` to out[n_replicates]. state: (highest degree + 2) * MOST.
  void add(const SampleWeights& weights, const Run& run, Watch& watch, double* state, double* out) const {
    const LineFunctions& functions = *run.table->line;
    double *totals = state, *sums = state + MOST;
    for (int t = 0; t < n_terms; ++t) {
      const LineKernel& kernel = terms[t].kernel;
      for (int r = 0; r < terms[t].rank; ++r) {
        const double* factors = terms[t].factors[0] + r * n;
        const double* others = weights.bits ? terms[t].factors[1] + r * n : nullptr;
        const WeightedLine line{steps[t].gap.get(), steps[t].decay.get(), {factors, others}, positions};
        const bool constant = weights.bits && kernel.degree == 0;
        std::fill_n(state, (kernel.degree + 2) * MOST, 0.0);
        for (long begin = 0; begin < n && !watch.stopped(); begin += STRIP) {
          const long end = std::min(n, begin + STRIP);
          if (constant) functions.bit_forms(line, weights, begin, end, n, sums, totals);
          else functions.forms(line, kernel, diagonal ? 0.5 : 0, weights, begin, end, sums, totals);
          watch.task_done();
        }
        double own = 0;
        if (constant && diagonal)
          for (long i = 0; i < n; ++i) own += factors[i] * factors[i];
        const double scale = constant ? kernel.coefficients[0] : 1;
        for (int b = 0; b < weights.n_replicates; ++b) out[b] += scale * (own + 2 * totals[b]);
      }
    }
  }
};

}  // namespace

bool line_forms(const Line& line, const int64_t* positions, const FormTerm* terms, int n_terms, bool diagonal,
                const FormWeights& weights, long n_replicates, const Run& run, double* out) {
  const long n = line.n;
  std::vector<Steps> steps;
  int degree = 0, passes = 0;
  for (int t = 0; t < n_terms; ++t) {
    Line on = line;
    on.kernel = terms[t].kernel;
    steps.emplace_back(on, run);
    degree = std::max(degree, on.kernel.degree);
    passes += terms[t].rank;
  }
  // Tasks of equal sizes, in whole packs; as many at a time as bits fit into memory.
  const long most_threads = weights.values ? run.threads : std::max(1L, BIT_BYTES / long(sizeof(BitLines::Line) * n));
  const long at_once = std::min(long(run.threads), most_threads);
  const long rounds = ceil_divide(n_replicates, MOST * at_once);
  const long size = ceil_divide(ceil_divide(n_replicates, rounds * at_once), 8) * 8;
  const long tasks = ceil_divide(n_replicates, size);
  const long strips = ceil_divide(n, STRIP);
  const int threads = team_size(run, std::min(tasks, at_once), double(n) * double(n_replicates) * passes);
  std::vector<BitLines> lines;
  for (int k = 0; k < (weights.values ? 0 : threads); ++k) lines.emplace_back(n);
  const long state_size = (degree + 2) * MOST;
  std::vector<double> states(threads * state_size);
  std::fill_n(out, n_replicates, 0.0);
  const Task task{terms, steps.data(), n_terms, diagonal, n, positions};
  Watch watch(run, tasks * strips * (passes + 1));
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long k = 0; k < tasks; ++k) {
    const long first = k * size;
    const int count = int(std::min(size, n_replicates - first));
    SampleWeights some{weights.values ? weights.values + first : nullptr, n_replicates, nullptr, count};
    if (!weights.values) {
      BitLines::Line* bits = lines[thread_number()].get();
      for (long begin = 0; begin < n && !watch.stopped(); begin += STRIP) {
        fill(weights, n_replicates, first, count, begin, std::min(n, begin + STRIP), run, bits);
        watch.task_done();
      }
      some.bits = bits;
    }
    task.add(some, run, watch, &states[thread_number() * state_size], out + first);
  }
  return !watch.stopped();
}

}  // namespace kcalib
