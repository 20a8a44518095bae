// Median-variance bins of whole predictions, and their gaps. Only rows of the smaller of two new cells are read: sums of
// the other are those of the cell that was split less these, as long as rounding cannot decide what is split next.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "cpu/simd/aligned.h"
#include "cpu/samples/bins.h"
#include "cpu/simd/clones.h"
#include "cpu/samples/row_parts.h"

namespace kcalib {
namespace {

constexpr int64_t MOST_PARTS = 256;  // of a sum
constexpr int64_t MOST_DIFFERENCES = 64;  // of sums, one of the other
constexpr int64_t SOME = PART / 8;  // rows of which one entry each is looked at

// What `add_differences` adds in columns j..j+W of some rows, while the caches hold them and are asked for others.
template <int64_t W>
__attribute__((always_inline)) inline void add_columns(const double* const* some, const double* const* next, int64_t count,
                                                       const double* shift, double* sums, int64_t m, int64_t j) {
  double from[W], first[W], second[W], plain[W];
  for (int64_t k = 0; k < W; ++k) {
    from[k] = shift[j + k];
    first[k] = sums[j + k];
    second[k] = sums[m + j + k];
    plain[k] = sums[2 * m + j + k];
  }
  for (int64_t i = 0; i < count; ++i) {
    const double* row = some[i] + j;
    for (int64_t k = 0; k < W; k += 8) __builtin_prefetch(next[i] + j + k);
    for (int64_t k = 0; k < W; ++k) {
      const double d = row[k] - from[k];
      first[k] += d;
      second[k] += d * d;
      plain[k] += row[k];
    }
  }
  for (int64_t k = 0; k < W; ++k) {
    sums[j + k] = first[k];
    sums[m + j + k] = second[k];
    sums[2 * m + j + k] = plain[k];
  }
}

// sums[0..m) += x - shift, sums[m..2m) += (x - shift)^2, sums[2m..3m) += x - one-hot label of these rows x.
KCALIB_CLONES void add_differences(const Predictions& data, const std::int64_t* rows, int64_t count, const double* shift,
                                   double* sums) {
  // As many as the first-level cache holds; few of a class, so that sums stay small until the labels are taken off.
  constexpr int64_t MOST = 64;
  const int64_t m = data.m, strip = std::clamp<int64_t>(std::min(4 * m, 2048 / m), 1, MOST);
  const double *some[MOST], *next[MOST];
  for (int64_t begin = 0; begin < count; begin += strip) {
    const int64_t size = std::min(strip, count - begin);
    for (int64_t i = 0; i < size; ++i) {
      some[i] = data.p + rows[begin + i] * m;
      next[i] = data.p + rows[std::min(begin + strip + i, count - 1)] * m;
    }
    int64_t j = 0;
    for (; j + 16 <= m; j += 16) add_columns<16>(some, next, size, shift, sums, m, j);
    for (; j + 4 <= m; j += 4) add_columns<4>(some, next, size, shift, sums, m, j);
    for (; j < m; ++j) add_columns<1>(some, next, size, shift, sums, m, j);
    for (int64_t i = 0; i < size; ++i) sums[2 * m + data.labels[rows[begin + i]]] -= 1;
  }
}

// How differences are made of a row, and the sums of squares that bound the errors of all variances found of them.
struct Origin {
  std::vector<double> shift, squares;
};

struct Cell {
  int64_t begin = 0, end = 0;  // of the rows in the splitter's order
  int64_t number = 0;          // in the order in which cells were made
  double gap = 0;
  double variance = 0, error = 0;  // the largest of an entry, and how far it is from that of sums made of the rows
  int64_t column = 0;                 // that entry
  bool apart = false;              // of the variances of all others by more than errors
  int64_t differences = 0;            // that its sums are of
  std::vector<double> sums;        // of `add_differences`; those of few rows are not kept
  std::shared_ptr<const Origin> origin;

  int64_t size() const { return end - begin; }
};

double most_of(const Cell& cell) { return cell.variance + cell.error; }

// The largest variance first that a cell may have, of equal ones the older cell.
bool comes_later(const Cell& a, const Cell& b) {
  return most_of(a) < most_of(b) || (most_of(a) == most_of(b) && a.number > b.number);
}

class Splitter {
 public:
  Splitter(const Predictions& data, GapNorm norm, int threads)
      : data_(data), norm_(norm), threads_(threads),
        most_parts_(std::min(MOST_PARTS, std::max<int64_t>(1, data.n / 24))),  // whose sums take an eighth of the predictions
        rows_(data.n), spare_(data.n), values_(data.n), selected_(data.n),
        counts_(std::size_t(ceil_divide(data.n, SOME))) {
    std::iota(rows_.get(), rows_.get() + data.n, 0);
  }

  const std::int64_t* rows() const { return rows_.get(); }

  Cell whole() { return of_rows(0, data_.n, made_++); }

  // The same cell, with sums of its rows.
  Cell exact(const Cell& cell) { return of_rows(cell.begin, cell.end, cell.number); }

  // The two cells that begin where this one does, and at `middle`.
  std::pair<Cell, Cell> parted(const Cell& cell, int64_t middle) {
    const int64_t number = made_;
    made_ += 2;
    if (!cell.apart || cell.sums.empty() || cell.differences == MOST_DIFFERENCES)
      return {of_rows(cell.begin, middle, number), of_rows(middle, cell.end, number + 1)};
    std::pair<Cell, Cell> two;
    for (const bool first : {true, false}) {
      Cell& one = first ? two.first : two.second;
      one.begin = first ? cell.begin : middle;
      one.end = first ? middle : cell.end;
      one.number = first ? number : number + 1;
      one.origin = cell.origin;
      one.differences = cell.differences + 1;
    }
    const bool first_is_smaller = two.first.size() <= two.second.size();
    Cell &smaller = first_is_smaller ? two.first : two.second, &larger = first_is_smaller ? two.second : two.first;
    smaller.sums = sums_of(smaller.begin, smaller.end, cell.origin->shift.data());
    larger.sums.resize(cell.sums.size());
    for (std::size_t k = 0; k < cell.sums.size(); ++k) larger.sums[k] = cell.sums[k] - smaller.sums[k];
    for (Cell* one : {&two.first, &two.second}) {
      judge(*one, false);
      if (!one->apart) *one = exact(*one);
    }
    return two;
  }

  // Where the second of the two cells begins that this one is split into; its begin, if no column parts it so that both
  // have `min_size` rows.
  int64_t split(const Cell& cell, int64_t min_size) {
    if (const int64_t middle = split(cell, min_size, cell.column); middle > cell.begin) return middle;
    std::vector<int64_t> columns(std::size_t(data_.m), 0);
    std::iota(columns.begin(), columns.end(), 0);
    const std::vector<double> shift = shift_of(cell.begin);
    const std::vector<double> all = variances(sums_of(cell.begin, cell.end, shift.data()), cell.size());
    std::stable_sort(columns.begin(), columns.end(), [&](int64_t a, int64_t b) { return all[std::size_t(a)] > all[std::size_t(b)]; });
    for (const int64_t column : columns) {
      if (!(all[std::size_t(column)] > 0)) break;
      if (column == cell.column) continue;
      if (const int64_t middle = split(cell, min_size, column); middle > cell.begin) return middle;
    }
    return cell.begin;
  }

 private:
  std::vector<double> shift_of(int64_t begin) const {
    const double* row = data_.p + rows_[begin] * data_.m;
    return {row, row + data_.m};
  }

  Cell of_rows(int64_t begin, int64_t end, int64_t number) {
    Cell cell;
    cell.begin = begin, cell.end = end, cell.number = number;
    std::vector<double> shift = shift_of(begin);
    cell.sums = sums_of(begin, end, shift.data());
    const auto squares = cell.sums.begin() + data_.m;
    cell.origin = std::make_shared<const Origin>(Origin{std::move(shift), {squares, squares + data_.m}});
    judge(cell, true);
    return cell;
  }

  // The sums of rows [begin, end), made of parts whose number depends on the sizes alone.
  std::vector<double> sums_of(int64_t begin, int64_t end, const double* shift) {
    const int64_t m = data_.m, size = end - begin;
    const int64_t length = std::max(rows_in_part(m), ceil_divide(size, most_parts_)), parts = ceil_divide(size, length);
    std::vector<double> sums(std::size_t(parts * 3 * m), 0.0);
    for_parts(size, length, 6.0 * double(size) * double(m), threads_, [&](int64_t first, int64_t last, int64_t part) {
      add_differences(data_, rows_.get() + begin + first, last - first, shift, sums.data() + part * 3 * m);
    });
    for (int64_t part = 1; part < parts; ++part)
      for (int64_t j = 0; j < 3 * m; ++j) sums[std::size_t(j)] += sums[std::size_t(part * 3 * m + j)];
    sums.resize(std::size_t(3 * m));
    return sums;
  }

  std::vector<double> variances(const std::vector<double>& sums, int64_t size) const {
    const int64_t m = data_.m;
    const double n = double(size);
    std::vector<double> found(std::size_t(m), 0.0);
    for (int64_t j = 0; j < m; ++j) {
      const double total = sums[std::size_t(j)], squares = sums[std::size_t(m + j)];
      found[std::size_t(j)] = std::max(0.0, (squares - total * total / n) / (n - 1));
    }
    return found;
  }

  // Fills in the gap and the largest variance of a cell whose sums are known; `exact` if they are of its own rows.
  void judge(Cell& cell, bool exact) {
    const int64_t m = data_.m;
    const double n = double(cell.size());
    cell.gap = norm_of_row(cell.sums.data() + 2 * m, m, norm_) / n;
    const std::vector<double> all = variances(cell.sums, cell.size());
    // A sum of k terms in a row is off by k units of its terms at most; twice the sum of d is in a variance, and two
    // ways to find one are compared.
    const double terms = double(std::max(rows_in_part(m), ceil_divide(data_.n, most_parts_)) + MOST_PARTS + MOST_DIFFERENCES);
    const double unit = 8 * std::numeric_limits<double>::epsilon() * terms / (n - 1);
    const auto highest = std::max_element(all.begin(), all.end());
    cell.column = highest - all.begin();
    cell.variance = *highest;
    const auto error = [&](int64_t j) { return unit * cell.origin->squares[std::size_t(j)]; };
    cell.error = exact ? 0 : error(cell.column);
    cell.apart = true;
    for (int64_t j = 0; j < m; ++j)
      cell.apart &= j == cell.column || all[std::size_t(j)] + error(j) < cell.variance - error(cell.column);
    if (cell.size() < 8 * m) cell.sums = {}, cell.origin = nullptr;  // those of all cells take less than the order of rows
  }

  // Puts the rows below the median of a column first, or, if that leaves too few, those that are not above it, and returns
  // where the others begin. Any other split leaves fewer. The cell's begin, and the order as it was, if both leave too few.
  int64_t split(const Cell& cell, int64_t min_size, int64_t of_column) {
    const int64_t m = data_.m, size = cell.size();
    const double* column = data_.p + of_column;
    const std::int64_t* rows = rows_.get() + cell.begin;
    for_parts(size, SOME, 8.0 * double(size), threads_, [&](int64_t first, int64_t last, int64_t) {
      constexpr int64_t AHEAD = 32;
      for (int64_t i = first; i < last; ++i) {
        __builtin_prefetch(column + rows[std::min(i + AHEAD, last - 1)] * m);
        const double value = column[rows[i] * m];
        values_[i] = value == value ? value : 0.0;  // a NaN has no place
      }
    });
    const double median = value_at(size, size / 2);
    const auto [below, to_median] = counts(size, [median](double x) { return x < median; }, [median](double x) { return x <= median; });
    if (below >= min_size && size - below >= min_size)
      return partition(cell, 0, [median](double x) { return x < median; });
    if (to_median >= min_size && size - to_median >= min_size)
      return partition(cell, 1, [median](double x) { return x <= median; });
    return cell.begin;
  }

  // How many of the values are so, and so; `counts_` has the numbers of each part.
  template <class First, class Second> std::array<int64_t, 2> counts(int64_t size, First first_holds, Second second_holds) {
    for_parts(size, SOME, 4.0 * double(size), threads_, [&](int64_t first, int64_t last, int64_t part) {
      int64_t one = 0, other = 0;
      for (int64_t i = first; i < last; ++i) {
        one += first_holds(values_[i]);
        other += second_holds(values_[i]);
      }
      counts_[std::size_t(part)] = {one, other};
    });
    std::array<int64_t, 2> all{};
    for (int64_t part = 0; part < ceil_divide(size, SOME); ++part)
      for (std::size_t k = 0; k < 2; ++k) all[k] += counts_[std::size_t(part)][k];
    return all;
  }

  // The value of this rank: that of the few between two of a sample, if these are on either side of it.
  double value_at(int64_t size, int64_t rank) {
    constexpr int64_t SAMPLE = 2048, MARGIN = 70;  // three standard deviations of a rank in the sample
    double* const begin = selected_.get();
    if (size > 8 * SAMPLE) {
      std::vector<double> sample(std::size_t(SAMPLE), 0.0);
      for (int64_t k = 0; k < SAMPLE; ++k) sample[std::size_t(k)] = values_[k * (size / SAMPLE)];
      std::sort(sample.begin(), sample.end());
      const int64_t at = rank * SAMPLE / size;
      const double low = sample[std::size_t(std::max<int64_t>(0, at - MARGIN))];
      const double high = sample[std::size_t(std::min(SAMPLE - 1, at + MARGIN))];
      for_parts(size, SOME, 4.0 * double(size), threads_, [&](int64_t first, int64_t last, int64_t part) {
        int64_t below = 0, between = 0;
        for (int64_t i = first; i < last; ++i) {
          const double value = values_[i];
          selected_[first + between] = value;
          below += value < low;
          between += (value >= low) & (value <= high);
        }
        counts_[std::size_t(part)] = {below, between};
      });
      int64_t below = 0, between = 0;
      for (int64_t part = 0; part < ceil_divide(size, SOME); ++part) {
        const auto [less, some] = counts_[std::size_t(part)];
        std::copy_n(begin + part * SOME, some, begin + between);
        below += less;
        between += some;
      }
      if (below <= rank && rank < below + between) {
        std::nth_element(begin, begin + (rank - below), begin + between);
        return selected_[rank - below];
      }
    }
    std::copy_n(values_.get(), size, begin);
    std::nth_element(begin, begin + rank, begin + size);
    return selected_[rank];
  }

  // Puts the rows first whose values are so, as many as the counts of this number say; rows stay in order.
  template <class Is> int64_t partition(const Cell& cell, std::size_t counted, Is is_first) {
    const int64_t size = cell.size();
    int64_t all = 0;
    for (int64_t part = 0; part < ceil_divide(size, SOME); ++part) {
      int64_t& count = counts_[std::size_t(part)][counted];
      all += std::exchange(count, all);
    }
    std::int64_t *rows = rows_.get() + cell.begin, *to = spare_.get();
    for_parts(size, SOME, 4.0 * double(size), threads_, [&](int64_t first, int64_t last, int64_t part) {
      int64_t ahead = counts_[std::size_t(part)][counted], behind = all + first - ahead;
      for (int64_t i = first; i < last; ++i) {
        const bool is = is_first(values_[i]);
        to[is ? ahead : behind] = rows[i];
        ahead += is;
        behind += !is;
      }
    });
    for_parts(size, SOME, 4.0 * double(size), threads_,
              [&](int64_t first, int64_t last, int64_t) { std::copy(to + first, to + last, rows + first); });
    return cell.begin + all;
  }

  const Predictions& data_;
  const GapNorm norm_;
  const int threads_;
  const int64_t most_parts_;
  const AlignedBuffer<std::int64_t> rows_, spare_;  // those of a cell are in ascending order
  const AlignedBuffer<double> values_, selected_;
  std::vector<std::array<int64_t, 2>> counts_;
  int64_t made_ = 0;
};

}  // namespace

int64_t median_variance_cells(const Predictions& data, int64_t max_bins, int64_t min_size, GapNorm norm, int threads,
                           std::int64_t* group, double* weight, double* gap) {
  Splitter splitter(data, norm, threads);
  std::vector<Cell> queue, done;
  int64_t cells = 1;
  const auto add = [&](Cell&& cell) {
    const bool stays = cells == max_bins || cell.size() < 2 * min_size;
    if (stays) cell.sums = {}, cell.origin = nullptr;
    (stays ? done : queue).push_back(std::move(cell));
    if (!stays) std::push_heap(queue.begin(), queue.end(), comes_later);
  };
  add(splitter.whole());
  while (cells < max_bins && !queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), comes_later);
    Cell cell = std::move(queue.back());
    queue.pop_back();
    const bool unclear = cell.error > 0 && !queue.empty() && most_of(queue.front()) >= cell.variance - cell.error;
    if (unclear) {
      add(splitter.exact(cell));
      continue;
    }
    const int64_t middle = splitter.split(cell, min_size);
    if (middle == cell.begin) {
      cell.sums = {};
      done.push_back(std::move(cell));
      continue;
    }
    auto [first, second] = splitter.parted(cell, middle);
    ++cells;
    add(std::move(first));
    add(std::move(second));
  }
  done.insert(done.end(), std::make_move_iterator(queue.begin()), std::make_move_iterator(queue.end()));
  const std::int64_t* rows = splitter.rows();
  std::sort(done.begin(), done.end(),
            [&](const Cell& a, const Cell& b) { return rows[a.begin] < rows[b.begin]; });
  const int64_t count = int64_t(done.size());
  const int team = team_of(threads, count, 4.0 * double(data.n));
  parallel_tasks(team, count, [&](int64_t k) {
    const Cell& cell = done[std::size_t(k)];
    for (int64_t i = cell.begin; i < cell.end; ++i) group[rows[i]] = k;
    weight[k] = double(cell.size());
    gap[k] = cell.gap;
  });
  return count;
}

}  // namespace kcalib
