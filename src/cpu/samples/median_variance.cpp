// Median-variance bins of whole predictions, and their gaps.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/simd/aligned.h"
#include "cpu/samples/bins.h"
#include "cpu/simd/for_each_level.h"
#include "cpu/samples/row_parts.h"

namespace kcalib {
namespace {

constexpr int64_t MOST_PARTS = 256;  // of a sum

// sums[0..m) += x - shift, sums[m..2m) += (x - shift)^2, sums[2m..3m) += x - one-hot label of these rows x.
KCALIB_PART void add_differences_of(const Predictions& data, const int64_t* rows, int64_t count, const double* shift,
                                    double* sums) {
  constexpr int64_t AHEAD = 8;
  const int64_t m = data.m;
  double *const first = sums, *const second = sums + m, *const residual = sums + 2 * m;
  for (int64_t i = 0; i < count; ++i) {
    fetch(data.p + rows[std::min(i + AHEAD, count - 1)] * m, m);
    const double* const row = data.p + rows[i] * m;
    for (int64_t j = 0; j < m; ++j) {
      const double difference = row[j] - shift[j];
      first[j] += difference;
      second[j] += difference * difference;
      residual[j] += row[j];
    }
    residual[data.labels[rows[i]]] -= 1;
  }
}
KCALIB_FOR_EACH_LEVEL(void, add_differences,
                      (const Predictions& data, const int64_t* rows, int64_t count, const double* shift, double* sums),
                      (data, rows, count, shift, sums))

struct Cell {
  int64_t begin, end;  // of the rows in the splitter's order
  int64_t number;      // in the order in which cells are made
  double gap;
  double variance;  // the largest of an entry
  int64_t column;   // of that entry

  int64_t size() const { return end - begin; }
};

// The largest variance first, of equal ones the older cell.
bool comes_later(const Cell& a, const Cell& b) {
  return a.variance < b.variance || (a.variance == b.variance && a.number > b.number);
}

class Splitter {
 public:
  Splitter(const Predictions& data, GapNorm norm, int threads)
      : data_(data), norm_(norm), threads_(threads),
        most_parts_(std::min(MOST_PARTS, std::max<int64_t>(1, data.n / 24))),  // whose sums take an eighth of the predictions
        rows_(data.n), spare_(data.n), values_(data.n), selected_(data.n) {
    std::iota(rows_.get(), rows_.get() + data.n, 0);
  }

  const int64_t* rows() const { return rows_.get(); }

  Cell make_cell(int64_t begin, int64_t end) {
    const std::vector<double> sums = compute_sums(begin, end), variances = compute_variances(sums, end - begin);
    const auto largest = std::max_element(variances.begin(), variances.end());
    const double gap = norm_of_row(sums.data() + 2 * data_.m, data_.m, norm_) / double(end - begin);
    return {begin, end, n_cells_++, gap, *largest, largest - variances.begin()};
  }

  // Where the second of the two cells begins that this one is split into; its begin, if no column parts it so that both
  // have `min_size` rows.
  int64_t split(const Cell& cell, int64_t min_size) {
    if (const int64_t middle = split(cell, min_size, cell.column); middle > cell.begin) return middle;
    std::vector<int64_t> columns(std::size_t(data_.m), 0);
    std::iota(columns.begin(), columns.end(), 0);
    const std::vector<double> variances = compute_variances(compute_sums(cell.begin, cell.end), cell.size());
    const auto variance = [&](int64_t column) { return variances[std::size_t(column)]; };
    std::stable_sort(columns.begin(), columns.end(), [&](int64_t a, int64_t b) { return variance(a) > variance(b); });
    for (const int64_t column : columns) {
      if (!(variance(column) > 0)) break;
      if (column == cell.column) continue;
      if (const int64_t middle = split(cell, min_size, column); middle > cell.begin) return middle;
    }
    return cell.begin;
  }

 private:
  // The sums of rows [begin, end), made of parts whose number depends on the sizes alone.
  std::vector<double> compute_sums(int64_t begin, int64_t end) const {
    const int64_t m = data_.m, size = end - begin;
    const int64_t length = std::max(rows_in_part(m), ceil_divide(size, most_parts_)), parts = ceil_divide(size, length);
    const double* const shift = data_.p + rows_[begin] * m;
    std::vector<double> sums(std::size_t(parts * 3 * m), 0.0);
    for_parts(size, length, 6.0 * double(size) * double(m), threads_, [&](int64_t first, int64_t last, int64_t part) {
      add_differences(data_, rows_.get() + begin + first, last - first, shift, sums.data() + part * 3 * m);
    });
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t j = 0; j < 3 * m; ++j) sums[std::size_t(j)] += sums[std::size_t(part * 3 * m + j)];
    sums.resize(std::size_t(3 * m));
    return sums;
  }

  std::vector<double> compute_variances(const std::vector<double>& sums, int64_t size) const {
    const double n = double(size);
    std::vector<double> variances(std::size_t(data_.m), 0.0);
    for (std::size_t j = 0; j < variances.size(); ++j) {
      const double total = sums[j], squares = sums[variances.size() + j];
      variances[j] = std::max(0.0, (squares - total * total / n) / (n - 1));
    }
    return variances;
  }

  // Puts the rows below the median of a column first, or, if that leaves too few, those that are not above it, and returns
  // where the others begin. Any other split leaves fewer. The cell's begin, and the order as it was, if both leave too few.
  int64_t split(const Cell& cell, int64_t min_size, int64_t column) {
    const int64_t size = cell.size();
    double *const values = values_.get(), *const selected = selected_.get();
    for (int64_t i = 0; i < size; ++i) {
      const double value = data_.p[rows_[cell.begin + i] * data_.m + column];
      selected[i] = values[i] = value == value ? value : 0.0;  // a NaN has no place
    }
    std::nth_element(selected, selected + size / 2, selected + size);
    const double median = selected[size / 2];
    const auto try_split = [&](auto is_first) {
      const int64_t count = std::count_if(values, values + size, is_first);
      if (count < min_size || size - count < min_size) return cell.begin;
      int64_t *const rows = rows_.get() + cell.begin, first = 0, second = count;
      for (int64_t i = 0; i < size; ++i) spare_[is_first(values[i]) ? first++ : second++] = rows[i];
      std::copy_n(spare_.get(), size, rows);
      return cell.begin + count;
    };
    const int64_t middle = try_split([median](double x) { return x < median; });
    return middle > cell.begin ? middle : try_split([median](double x) { return x <= median; });
  }

  const Predictions& data_;
  const GapNorm norm_;
  const int threads_;
  const int64_t most_parts_;
  const AlignedBuffer<int64_t> rows_, spare_;  // those of a cell are in ascending order
  const AlignedBuffer<double> values_, selected_;
  int64_t n_cells_ = 0;
};

}  // namespace

int64_t median_variance_cells(const Predictions& data, int64_t max_bins, int64_t min_size, GapNorm norm, int threads,
                              int64_t* group, double* weight, double* gap) {
  Splitter splitter(data, norm, threads);
  std::vector<Cell> queue, done;
  const auto add = [&](const Cell& cell) {
    if (cell.size() < 2 * min_size) return done.push_back(cell);
    queue.push_back(cell);
    std::push_heap(queue.begin(), queue.end(), comes_later);
  };
  add(splitter.make_cell(0, data.n));
  while (int64_t(queue.size() + done.size()) < max_bins && !queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), comes_later);
    const Cell cell = queue.back();
    queue.pop_back();
    const int64_t middle = splitter.split(cell, min_size);
    if (middle == cell.begin) {
      done.push_back(cell);
      continue;
    }
    add(splitter.make_cell(cell.begin, middle));
    add(splitter.make_cell(middle, cell.end));
  }
  done.insert(done.end(), queue.begin(), queue.end());
  const int64_t* rows = splitter.rows();
  std::sort(done.begin(), done.end(), [&](const Cell& a, const Cell& b) { return rows[a.begin] < rows[b.begin]; });
  for (std::size_t k = 0; k < done.size(); ++k) {
    const Cell& cell = done[k];
    for (int64_t i = cell.begin; i < cell.end; ++i) group[rows[i]] = int64_t(k);
    weight[k] = double(cell.size());
    gap[k] = cell.gap;
  }
  return int64_t(done.size());
}

}  // namespace kcalib
