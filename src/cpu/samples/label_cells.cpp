#include "cpu/samples/label_cells.h"

#include <vector>

#include "cpu/samples/row_parts.h"
#include "cpu/simd/for_each_level.h"

namespace kcalib {
namespace {

constexpr int64_t STRIP = 1 << 10;  // whose cells and fixed points are made at once

KCALIB_PART void find_cells_of(const double* values, int64_t n, const double* edges, int64_t n_cells, unsigned* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = 0;
  for (unsigned step = unsigned(n_cells) / 2; step; step /= 2)
    for (int64_t i = 0; i < n; ++i) out[i] += edges[out[i] + step - 1] <= values[i] ? step : 0;
}
KCALIB_FOR_EACH_LEVEL(void, find_cells, (const double* values, int64_t n, const double* edges, int64_t n_cells, unsigned* out),
                      (values, n, edges, n_cells, out))

struct Cuts {
  std::vector<double> values;
  std::vector<std::uint64_t> low;
  std::vector<std::int64_t> high;

  explicit Cuts(int64_t n) : values(std::size_t(n)), low(std::size_t(n)), high(std::size_t(n)) {}
  void make(int64_t n) { cut(values.data(), n, low.data(), high.data()); }
  void add_to(Wide& sum, int64_t i) const { sum.add(low[std::size_t(i)], high[std::size_t(i)]); }
};

enum { WEIGHT, HIT, SMALLER, VARIANCE };
struct Cell {
  std::int64_t count = 0, hits = 0;  // of rows without weights
  Wide sums[CELL_SUMS];
};

// The sums of one thread.
class Part {
 public:
  Part(const Predictions& rows, const LabelCells& to)
      : rows_(rows),
        to_(to),
        strip_(std::max<int64_t>(1, STRIP / rows.m)),
        cells_(std::size_t(to.size(rows.m))),
        numbers_(std::size_t(strip_ * rows.m)),
        top_numbers_(std::size_t(strip_)),
        tops_(std::size_t(strip_)),
        highest_(std::size_t(strip_)),
        entries_(strip_ * rows.m),
        variances_(strip_ * rows.m),
        top_entries_(strip_),
        top_variances_(strip_),
        weights_(rows.weight ? strip_ : 0),
        logs_(strip_ * LOG_SUMS),
        scores_(std::size_t(rows.m)) {}

  void add(int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end; first += strip_) add_strip(first, std::min(strip_, end - first));
  }

  void merge_into(const LabelSums& out) const {
    for (int64_t k = 0; k < LOG_SUMS; ++k) out.logs.add(k, sums_[k]);
    for (std::size_t c = 0; c < cells_.size(); ++c) {
      const int64_t at = int64_t(c) * CELL_SUMS;
      for (int64_t k = 0; k < CELL_SUMS; ++k) out.cells.add(at + k, cells_[c].sums[k]);
      out.cells.high[at + WEIGHT] += cells_[c].count << 24;
      out.cells.high[at + HIT] += cells_[c].hits << 24;
    }
    *out.impossible = std::min(*out.impossible, impossible_);
  }

 private:
  void add_strip(int64_t first, int64_t rows) {
    const int64_t m = rows_.m;
    const double* p = rows_.p + first * m;
    find_cells(p, rows * m, to_.edges, to_.n_cells, numbers_.data());
    for (int64_t i = 0; i < rows; ++i) read(p + i * m, first + i, i);
    find_cells(highest_.data(), rows, to_.top_edges, to_.n_top_cells, top_numbers_.data());
    for (Cuts* cuts : {&entries_, &variances_}) cuts->make(rows * m);
    for (Cuts* cuts : {&top_entries_, &top_variances_}) cuts->make(rows);
    logs_.make(rows * LOG_SUMS);
    if (rows_.weight) weights_.make(rows);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t k = 0; k < LOG_SUMS; ++k) logs_.add_to(sums_[k], i * LOG_SUMS + k);
      const int64_t label = rows_.labels[first + i];
      Cell* cells = cells_.data();
      for (int64_t k = 0; k < m; ++k, cells += to_.n_cells)
        add_to(cells[numbers_[std::size_t(i * m + k)]], entries_, variances_, i * m + k, i, k == label);
      add_to(cells[top_numbers_[std::size_t(i)]], top_entries_, top_variances_, i, i, tops_[std::size_t(i)] == label);
    }
  }

  void add_to(Cell& cell, const Cuts& entries, const Cuts& variances, int64_t at, int64_t row, bool is_hit) {
    entries.add_to(cell.sums[SMALLER], at);
    variances.add_to(cell.sums[VARIANCE], at);
    if (rows_.weight) {
      weights_.add_to(cell.sums[WEIGHT], row);
      if (is_hit) weights_.add_to(cell.sums[HIT], row);
    } else {
      ++cell.count;
      cell.hits += is_hit;
    }
  }

  // Row i of the strip, before its numbers are cut.
  void read(const double* p, int64_t row, int64_t i) {
    const int64_t m = rows_.m, label = rows_.labels[row];
    const double weight = rows_.weight ? rows_.weight[row] : 1;
    int64_t top = 0;
    for (int64_t k = 1; k < m; ++k)
      if (p[k] > p[top]) top = k;
    double smaller = p[top], mean = 0, variance = 0;
    if (smaller >= 0.5) {
      smaller = 0;
      for (int64_t k = 0; k < m; ++k) smaller += k == top ? 0 : p[k];
    }
    double *entries = entries_.values.data() + i * m, *variances = variances_.values.data() + i * m;
    for (int64_t k = 0; k < m; ++k) {
      const double side = k == top || p[k] >= 0.5 ? smaller : p[k];
      entries[k] = weight * side;
      variances[k] = weight * entries[k] * (1 - side);
      scores_[std::size_t(k)] = to_.log_score(p[k]);
      mean += p[k] * scores_[std::size_t(k)];
    }
    for (int64_t k = 0; k < m; ++k) {
      const double deviation = scores_[std::size_t(k)] - mean;
      variance += p[k] * (deviation * deviation);
    }
    highest_[std::size_t(i)] = p[top];
    tops_[std::size_t(i)] = top;
    top_entries_.values[std::size_t(i)] = entries[top];
    top_variances_.values[std::size_t(i)] = variances[top];
    if (rows_.weight) weights_.values[std::size_t(i)] = weight;
    const double logs[LOG_SUMS] = {weight * scores_[std::size_t(label)], weight * mean, weight * weight * variance};
    std::copy_n(logs, LOG_SUMS, logs_.values.data() + i * LOG_SUMS);
    if (p[label] == 0 && weight > 0) impossible_ = std::min(impossible_, std::int64_t(row));
  }

  const Predictions& rows_;
  const LabelCells& to_;
  const int64_t strip_;
  Wide sums_[LOG_SUMS];
  std::int64_t impossible_ = INT64_MAX;
  std::vector<Cell> cells_;
  std::vector<unsigned> numbers_, top_numbers_;
  std::vector<int64_t> tops_;
  std::vector<double> highest_;
  Cuts entries_, variances_, top_entries_, top_variances_, weights_, logs_;
  std::vector<double> scores_;
};

}  // namespace

bool sum_label_cells(const Predictions& rows, const LabelCells& cells, const Run& run, const LabelSums& out) {
  // The sums of one more thread are worth it where it has more entries than cells.
  return sum_parts(rows, run, rows.n / cells.n_cells, 60.0 * double(rows.n) * double(rows.m), Part(rows, cells), out);
}

}  // namespace kcalib
