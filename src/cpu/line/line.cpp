// Points on a line: residuals, totals, and the order of the samples.
#include "cpu/line/line.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "cpu/simd/aligned.h"
#include "cpu/line/line_residual.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

constexpr int64_t AHEAD = 32;  // points between asking memory for a sample and using it

}  // namespace

bool line_gap(const double* points, int64_t n, const Run& run, double* largest) {
  const Chunks chunks(n);
  std::vector<double> parts(chunks.count, 0.0);
  Watch watch(run, chunks.count);
  parallel_tasks(watch, team_size(run, chunks.count, 2.0 * double(n)), chunks.count, [&](int64_t chunk) {
    const int64_t begin = chunks.begin(chunk);
    parts[chunk] = run.table->line->gap(points + 2 * begin, chunks.end(chunk) - begin);
    watch.task_done();
  });
  *largest = *std::max_element(parts.begin(), parts.end());
  return !watch.stopped();
}

namespace {

// Sums over samples of what a residual is off the line, of its square norm, and the largest share that is off; of each chunk.
struct ResidualSums {
  explicit ResidualSums(const Chunks& chunks) : off(chunks.count), squares(chunks.count), worst(chunks.count) {}
  struct Part {
    double off = 0, squares = 0, worst = 0;
    void add(const Residual& r) {
      const double distance = r.off_line();
      if (distance > worst * std::abs(r.size())) worst = distance / std::abs(r.size());
      off += distance;
      squares += r.square_norm();
    }
  };
  void set(int64_t chunk, const Part& part) { off[chunk] = part.off, squares[chunk] = part.squares, worst[chunk] = part.worst; }
  void write(double* off_line, double* square_norms) const {
    *off_line = std::accumulate(off.begin(), off.end(), 0.0);
    *square_norms = std::accumulate(squares.begin(), squares.end(), 0.0);
  }
  std::vector<double> off, squares, worst;
};

}  // namespace

bool line_residuals(const double* points, int64_t n_coordinates, const int64_t* labels, int64_t n, const Run& run, double* sizes,
                    int64_t* n_zeros, double* off_line, double* square_norms) {
  const Chunks chunks(n);
  const LineFunctions& functions = *run.table->line;
  const int threads = team_size(run, chunks.count, 4.0 * double(n));
  std::vector<int64_t> ones(chunks.count);
  std::vector<double> off(chunks.count), squares(chunks.count);
  Watch watch(run, 2 * chunks.count);
  parallel_tasks(watch, threads, chunks.count, [&](int64_t chunk) {
    const int64_t begin = chunks.begin(chunk);
    ones[chunk] = functions.ones(labels + begin, chunks.end(chunk) - begin);
    watch.task_done();
  });
  if (watch.stopped()) return false;

  *n_zeros = n - std::accumulate(ones.begin(), ones.end(), int64_t(0));
  sizes[*n_zeros] = INFINITY;
  sizes[*n_zeros + 1] = -INFINITY;
  std::exclusive_scan(ones.begin(), ones.end(), ones.begin(), int64_t(0));
  parallel_tasks(watch, threads, chunks.count, [&](int64_t chunk) {
    const int64_t begin = chunks.begin(chunk);
    double sums[2];
    const auto residuals = n_coordinates == 1 ? functions.residuals_of_seconds : functions.residuals;
    residuals(points + n_coordinates * begin, labels + begin, chunks.end(chunk) - begin, sizes + (begin - ones[chunk]),
              sizes + *n_zeros + 2 + ones[chunk], sums);
    off[chunk] = sums[0];
    squares[chunk] = sums[1];
    watch.task_done();
  });
  *off_line = std::accumulate(off.begin(), off.end(), 0.0);
  *square_norms = std::accumulate(squares.begin(), squares.end(), 0.0);
  return !watch.stopped();
}

bool line_total(const Residuals& residuals, const LineKernel& kernel, bool squared, const Run& run, double total[2]) {
  const LineFunctions& functions = *run.table->line;
  const Chunks chunks(residuals.n);
  const int threads = team_size(run, chunks.count, 10.0 * double(residuals.n) * (kernel.degree + 1));
  const int64_t size = 2 * (kernel.degree + 1), scratch_size = LineFunctions::PIECE_SCRATCH * (kernel.degree + 1);
  std::vector<double> sums(chunks.count * 2 * size);
  const AlignedBuffer<double> scratch(threads * scratch_size);
  std::vector<Piece> pieces(chunks.count);
  Watch watch(run, chunks.count);
  parallel_tasks(watch, threads, chunks.count, [&](int64_t chunk) {
    pieces[chunk].to_last = &sums[chunk * 2 * size];
    pieces[chunk].to_first = &sums[chunk * 2 * size + size];
    functions.piece(residuals, kernel, squared, chunks.begin(chunk), chunks.end(chunk),
                    &scratch[thread_number() * scratch_size], &pieces[chunk]);
    watch.task_done();
  });
  if (watch.stopped()) return false;
  for (int64_t chunk = 1; chunk < chunks.count; ++chunk) functions.join(kernel, &pieces[0], pieces[chunk]);
  std::copy_n(pieces[0].total, 2, total);
  return true;
}

namespace {

// The layout of a key: `index` bits below `place` bits below those of the block.
struct KeyLayout {
  KeyLayout(int64_t n, int64_t block)
      : index(std::bit_width(Word(block - 1))), place(64 - index - std::bit_width(Word((n - 1) / block))) {}
  Word rounded_place(Word key) const { return key >> index; }
  int64_t sample(Word key, int64_t position, int64_t block) const {
    return position / block * block + int64_t(key & ((Word(1) << index) - 1));
  }
  int index, place;
};

}  // namespace

bool line_keys(const Samples& samples, const Run& run, Word* keys) {
  const int64_t n = samples.n, block = samples.block;
  const Chunks chunks(n);
  const KeyLayout layout(n, block);
  const int threads = team_size(run, chunks.count, 4.0 * double(n));
  std::vector<double> lows(chunks.count), highs(chunks.count);
  Watch watch(run, 2 * chunks.count);
  parallel_tasks(watch, threads, chunks.count, [&](int64_t chunk) {
    double low = samples.place(chunks.begin(chunk)), high = low;
    for (int64_t i = chunks.begin(chunk); i < chunks.end(chunk); ++i) {
      const double place = samples.place(i);
      low = place < low ? place : low;
      high = place > high ? place : high;
    }
    lows[chunk] = low;
    highs[chunk] = high;
    watch.task_done();
  });
  if (watch.stopped()) return false;
  const double low = *std::min_element(lows.begin(), lows.end());
  const double range = *std::max_element(highs.begin(), highs.end()) - low;
  // A power of two, and below 2^53 in all: the product loses nothing, and rounding down keeps the order.
  const int bits = std::min(layout.place, 52);
  int exponent;
  std::frexp(range, &exponent);
  const double scale = range > 0 ? std::ldexp(1.0, std::min(bits - exponent, 1023)) : 0;
  const double highest = std::ldexp(1.0, bits) - 1;
  return parallel_tasks(watch, threads, chunks.count, [&](int64_t chunk) {
    for (int64_t i = chunks.begin(chunk); i < chunks.end(chunk); ++i) {
      // Places may have changed: a sample must stay in its block.
      const double scaled = (samples.place(i) - low) * scale;
      const Word rounded = scaled > 0 ? Word(std::min(scaled, highest)) : 0;
      const Word in_block = rounded << layout.index | Word(i % block);
      keys[i] = layout.index + layout.place < 64 ? Word(i / block) << (layout.index + layout.place) | in_block : in_block;
    }
    watch.task_done();
  });
}

bool line_order(const Word* keys, const Samples& samples, const Run& run, int64_t* positions, double* places,
                SortedResiduals* sorted) {
  const int64_t n = samples.n, block = samples.block;
  const Chunks chunks(n);
  const KeyLayout layout(n, block);
  ResidualSums sums(chunks);
  Watch watch(run, chunks.count);
  parallel_tasks(watch, team_size(run, chunks.count, 10.0 * double(n)), chunks.count, [&](int64_t chunk) {
    const auto same = [&](int64_t i) { return i > 0 && i < n && layout.rounded_place(keys[i]) == layout.rounded_place(keys[i - 1]); };
    ResidualSums::Part part;
    std::vector<std::pair<double, int64_t>> run_of_equals;
    int64_t begin = chunks.begin(chunk);
    while (same(begin)) ++begin;  // a run of equal keys belongs to the chunk where it starts
    while (begin < chunks.end(chunk)) {
      int64_t end = begin;
      bool ascending = true;
      do {
        const int64_t ahead = std::min(end + AHEAD, n - 1), sample = layout.sample(keys[ahead], ahead, block);
        __builtin_prefetch(samples.points + sample * samples.n_coordinates);
        if (sorted->labels) __builtin_prefetch(sorted->labels + sample);
        positions[end] = layout.sample(keys[end], end, block);
        places[end] = contained(samples.place(positions[end]));
        ascending = ascending && (end == begin || places[end - 1] <= places[end]);
        ++end;
      } while (same(end));
      if (!ascending) {
        run_of_equals.clear();
        for (int64_t i = begin; i < end; ++i) run_of_equals.emplace_back(places[i], positions[i]);
        std::sort(run_of_equals.begin(), run_of_equals.end());
        for (int64_t i = begin; i < end; ++i) std::tie(places[i], positions[i]) = run_of_equals[std::size_t(i - begin)];
      }
      for (int64_t i = begin; sorted->labels && i < end; ++i) {
        const int64_t at = positions[i], label = sorted->labels[at];
        const Residual residual(samples.points + 2 * at, label);
        sorted->values[i] = std::sqrt(2.0) * (label ? residual.size() : -residual.size());
        part.add(residual);
      }
      begin = end;
    }
    sums.set(chunk, part);
    watch.task_done();
  });
  sums.write(&sorted->off_line, &sorted->square_norms);
  sorted->worst = *std::max_element(sums.worst.begin(), sums.worst.end());
  return !watch.stopped();
}

}  // namespace kcalib
