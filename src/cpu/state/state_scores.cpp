#include "cpu/state/state_scores.h"

#include <cmath>
#include <vector>

#include "cpu/samples/row_parts.h"

namespace kcalib {
namespace {

constexpr int64_t STRIP = 1 << 10;  // whose bins and fixed points are made at once

struct Cell {
  std::int64_t count = 0, hits = 0;  // of rows without weights
  Wide sums[STATE_CELLS];
};
enum { WEIGHT, PROBABILITY, HIT, SQUARE, PROBABILITY_HIT };

// Numbers and what they are as `Wide`.
struct Cuts {
  std::vector<double> values;
  std::vector<std::uint64_t> low;
  std::vector<std::int64_t> high;

  explicit Cuts(int64_t n) : values(std::size_t(n)), low(std::size_t(n)), high(std::size_t(n)) {}
  void make(int64_t n) { cut(values.data(), n, low.data(), high.data()); }
  void add_to(Wide& sum, int64_t i) const { sum.add(low[std::size_t(i)], high[std::size_t(i)]); }
};

// What one thread has found.
class Part {
 public:
  Part(const Predictions& rows, int64_t n_bins, double epsilon)
      : rows_(rows),
        n_bins_(n_bins),
        epsilon_(epsilon),
        strip_(std::max<int64_t>(1, STRIP / rows.m)),
        cells_(std::size_t((1 + rows.m) * n_bins)),
        lowest_(std::size_t(n_bins), HUGE_VAL),
        highest_(std::size_t(n_bins), -HUGE_VAL),
        bins_(std::size_t(strip_ * rows.m)),
        top_bins_(std::size_t(strip_)),
        confidence_(std::size_t(strip_)),
        correct_(std::size_t(strip_)),
        entries_(strip_ * rows.m),
        squares_(strip_ * rows.m),
        tops_(strip_),
        top_squares_(strip_),
        weights_(rows.weight ? strip_ : 0),
        scores_(strip_ * STATE_SCORES) {}

  void add(int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += strip_) add_strip(first, std::min(strip_, end - first));
  }

  void merge_into(const StateTally& tally) const {
    for (int64_t k = 0; k < STATE_SCORES; ++k) tally.scores.add(k, sums_[k]);
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      const Cell& cell = cells_[c];
      const int64_t at = int64_t(c) * STATE_CELLS;
      for (int64_t k = 0; k < STATE_CELLS; ++k) tally.cells.add(at + k, cell.sums[k]);
      tally.cells.high[at + WEIGHT] += (rows_.weight ? 0 : cell.count) << 24;
      tally.cells.high[at + HIT] += cell.hits << 24;
    }
    for (int64_t b = 0; b < n_bins_; ++b) {
      tally.counts[b] += cells_[std::size_t(b)].count;
      tally.lowest[b] = std::min(tally.lowest[b], lowest_[std::size_t(b)]);
      tally.highest[b] = std::max(tally.highest[b], highest_[std::size_t(b)]);
    }
  }

 private:
  void add_strip(int64_t first, int64_t rows) {
    const int64_t m = rows_.m;
    const double* p = rows_.p + first * m;
    find_bins(p, rows * m, double(n_bins_), bins_.data());
    for (int64_t i = 0; i < rows; ++i) read(p + i * m, first + i, i);
    find_bins(confidence_.data(), rows, double(n_bins_), top_bins_.data());
    entries_.make(rows * m);
    squares_.make(rows * m);
    tops_.make(rows);
    top_squares_.make(rows);
    scores_.make(rows * STATE_SCORES);
    if (rows_.weight) weights_.make(rows);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t k = 0; k < STATE_SCORES; ++k) scores_.add_to(sums_[k], i * STATE_SCORES + k);
      const int64_t top = top_bins_[std::size_t(i)];
      const double confidence = confidence_[std::size_t(i)];
      lowest_[std::size_t(top)] = std::min(lowest_[std::size_t(top)], confidence);
      highest_[std::size_t(top)] = std::max(highest_[std::size_t(top)], confidence);
      add_to(cells_[std::size_t(top)], tops_, top_squares_, i, i, correct_[std::size_t(i)]);
      const std::int32_t* bins = bins_.data() + i * m;
      Cell* cells = cells_.data() + n_bins_;
      const int64_t label = rows_.labels[first + i];
      for (int64_t k = 0; k < m; ++k, cells += n_bins_) add_to(cells[bins[k]], entries_, squares_, i * m + k, i, k == label);
    }
  }

  void add_to(Cell& cell, const Cuts& entries, const Cuts& squares, int64_t at, int64_t row, bool hit) {
    ++cell.count;
    entries.add_to(cell.sums[PROBABILITY], at);
    squares.add_to(cell.sums[SQUARE], at);
    if (rows_.weight) weights_.add_to(cell.sums[WEIGHT], row);
    if (!hit) return;
    entries.add_to(cell.sums[PROBABILITY_HIT], at);
    if (rows_.weight) weights_.add_to(cell.sums[HIT], row);
    else ++cell.hits;
  }

  // Row i of the strip, before its numbers are cut.
  void read(const double* p, int64_t row, int64_t i) {
    const int64_t m = rows_.m, label = rows_.labels[row];
    const double weight = rows_.weight ? rows_.weight[row] : 1;
    double square = 0, highest = p[0];
    int64_t top = 0;
    double *entries = entries_.values.data() + i * m, *squares = squares_.values.data() + i * m;
    for (int64_t k = 0; k < m; ++k) {
      const double residual = double(k == label) - p[k];
      square += residual * residual;
      if (p[k] > highest) {
        highest = p[k];
        top = k;
      }
      entries[k] = weight * p[k];
      squares[k] = entries[k] * p[k];
    }
    const double of_label = p[label] < epsilon_ ? epsilon_ : p[label] > 1 ? 1 : p[label];
    const double loss = -std::log(of_label), correct = double(top == label);
    confidence_[std::size_t(i)] = highest;
    correct_[std::size_t(i)] = top == label;
    tops_.values[std::size_t(i)] = weight * highest;
    top_squares_.values[std::size_t(i)] = weight * highest * highest;
    if (rows_.weight) weights_.values[std::size_t(i)] = weight;
    const double scores[STATE_SCORES] = {weight,        weight * weight, weight * correct,       weight * highest,
                                         weight * loss, weight * square, weight * (loss * loss), weight * (square * square)};
    std::copy_n(scores, STATE_SCORES, scores_.values.data() + i * STATE_SCORES);
  }

  const Predictions& rows_;
  const int64_t n_bins_;
  const double epsilon_;
  const int64_t strip_;
  Wide sums_[STATE_SCORES];
  std::vector<Cell> cells_;
  std::vector<double> lowest_, highest_;
  std::vector<std::int32_t> bins_, top_bins_;
  std::vector<double> confidence_;
  std::vector<char> correct_;
  Cuts entries_, squares_, tops_, top_squares_, weights_, scores_;
};

}  // namespace

bool state_scores(const Predictions& rows, int64_t n_bins, double epsilon, const Run& run, const StateTally& tally) {
  // The sums of one more thread are worth it where it has more rows than bins.
  return sum_parts(rows, run, rows.n / n_bins, 30.0 * double(rows.n) * double(rows.m), Part(rows, n_bins, epsilon), tally);
}

}  // namespace kcalib
