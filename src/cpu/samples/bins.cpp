#include "cpu/samples/bins.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <vector>

#include "cpu/simd/for_each_level.h"
#include "cpu/samples/row_parts.h"

#ifdef KCALIB_X86_LEVELS
#include <immintrin.h>
#endif

namespace kcalib {
namespace {

// In eight sums, so that additions need not wait for each other.
KCALIB_PART double norm_of_row_of(const double* gap, int64_t m, GapNorm norm) {
  double lanes[8] = {};
  int64_t j = 0;
  if (norm == GapNorm::CITYBLOCK)
    for (; j + 8 <= m; j += 8)
      for (int64_t k = 0; k < 8; ++k) lanes[k] += std::abs(gap[j + k]);
  else
    for (; j + 8 <= m; j += 8)
      for (int64_t k = 0; k < 8; ++k) lanes[k] += gap[j + k] * gap[j + k];
  double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  for (; j < m; ++j) sum += norm == GapNorm::CITYBLOCK ? std::abs(gap[j]) : gap[j] * gap[j];
  return norm == GapNorm::CITYBLOCK ? sum : std::sqrt(sum);
}

// Edge k is k / n_bins, whose result is the nearest double. The edge that is nearest to a value is the only one that it
// must be compared with. What is no number comes into the first bin.
KCALIB_PART void find_bins_of(const double* x, int64_t count, double n_bins, std::int32_t* out) {
  constexpr double INTEGERS = 0x1.8p52;  // doubles of this size are integers: adding it rounds
  const double last = n_bins - 1;
  for (int64_t i = 0; i < count; ++i) {
    const double edge = x[i] * n_bins + INTEGERS - INTEGERS;
    double bin = x[i] <= edge / n_bins ? edge - 1 : edge;
    bin = bin > 0 ? bin : 0;
    out[i] = std::int32_t(bin < last ? bin : last);
  }
}

}  // namespace

KCALIB_FOR_EACH_LEVEL(double, norm_of_row, (const double* gap, int64_t m, GapNorm norm), (gap, m, norm))
KCALIB_FOR_EACH_LEVEL(void, find_bins, (const double* x, int64_t count, double n_bins, std::int32_t* out), (x, count, n_bins, out))

namespace {

constexpr int64_t STRIP = 2048;  // numbers that the first-level cache holds beside others
constexpr int64_t LANES = 8;     // numbers that are looked at together
[[maybe_unused]] constexpr int64_t AHEAD = STRIP;  // numbers that are asked for in time: memory sends more than it does unasked
constexpr int64_t MOST_PARTIALS = 64;     // copies of all sums, merged at the end
constexpr int64_t PARTIAL_BYTES = 1L << 26;  // of all copies, unless one takes more

// Of each row the largest number, and whether its first place is the label: 1 or 0.
KCALIB_PART void find_tops_of(const double* x, const std::int64_t* labels, int64_t rows, int64_t m, double* highest,
                              double* is_top) {
  for (int64_t i = 0; i < rows; ++i, x += m) {
    double lanes[LANES];
    for (double& lane : lanes) lane = x[0];
    int64_t k = 0;
    for (; k + LANES <= m; k += LANES)
      for (int64_t l = 0; l < LANES; ++l) lanes[l] = x[k + l] > lanes[l] ? x[k + l] : lanes[l];
    double largest = x[0];
    for (const double lane : lanes) largest = lane > largest ? lane : largest;
    for (; k < m; ++k) largest = x[k] > largest ? x[k] : largest;
    int64_t places = 0;  // of the largest number, up to the label
    if (x[labels[i]] == largest)
      for (k = 0; k <= labels[i]; ++k) places += x[k] == largest;
    highest[i] = largest;
    is_top[i] = places == 1;
  }
}
KCALIB_FOR_EACH_LEVEL(void, find_tops,
                      (const double* x, const std::int64_t* labels, int64_t rows, int64_t m, double* highest, double* is_top),
                      (x, labels, rows, m, highest, is_top))

// Rows whose bins are found at once, a few numbers or a single row.
int64_t rows_in_strip(int64_t m) { return std::max<int64_t>(1, STRIP / m); }

// Memory for one strip.
struct Strip {
  std::vector<std::int32_t> bins, places;
  std::vector<double> values;
  explicit Strip(int64_t m) : bins(std::size_t(rows_in_strip(m) * m + LANES)), places(bins.size()), values(bins.size()) {}
};

// Sums of some of the rows, each at bin * m + column. Without sample weights these are small integers, which
// are counted faster than doubles are added; then the first bin has its entries in `low`, and what the other bins leave
// of the rows for its weights.
template <class Weight> struct ColumnSums {
  std::vector<double> entries, hits;
  std::vector<Weight> weights;
  std::vector<double> low;
  ColumnSums(int64_t size, int64_t period) : entries(std::size_t(size)), hits(entries), weights(entries.size()), low(std::size_t(period)) {}
};

// Whole packs of whole rows, and the column of each entry of these. They are many enough that a sum has been written when it
// is read again.
struct Period {
  static constexpr int64_t WORD = 64;  // entries that are looked at together
  explicit Period(int64_t m) {
    int64_t rows = 1;
    while (rows * m % LANES || rows * m < WORD) rows *= 2;
    size = rows * m;
    for (int64_t k = 0; k < size; ++k) columns.push_back(std::int32_t(k % m));
  }
  int64_t size;
  std::vector<std::int32_t> columns;
};

// sums[k] += x[k], of those from `k` on that are not above the edge; which ones are is said by bits. At most 64 numbers.
KCALIB_PART std::uint64_t add_low_from(int64_t k, const double* x, int64_t count, double edge, double* sums) {
  std::uint64_t above = 0;
  for (; k < count; ++k) {
    sums[k] += x[k] > edge ? 0.0 : x[k];
    above |= std::uint64_t(x[k] > edge) << k;
  }
  return above;
}
#ifdef KCALIB_X86_LEVELS
KCALIB_V4 std::uint64_t add_low_v4(const double* x, int64_t count, double edge, double* sums) {
  const __m512d highest = _mm512_set1_pd(edge);
  std::uint64_t above = 0;
  int64_t k = 0;
  for (; k + LANES <= count; k += LANES) {
    __builtin_prefetch(x + k + AHEAD);
    const __m512d given = _mm512_loadu_pd(x + k), sum = _mm512_loadu_pd(sums + k);
    const __mmask8 is_low = _mm512_cmp_pd_mask(given, highest, _CMP_NGT_UQ);
    _mm512_storeu_pd(sums + k, _mm512_mask_add_pd(sum, is_low, sum, given));
    above |= std::uint64_t(__mmask8(~is_low)) << k;
  }
  return above | add_low_from(k, x, count, edge, sums);
}
KCALIB_V3 std::uint64_t add_low_v3(const double* x, int64_t count, double edge, double* sums) {
  const __m256d highest = _mm256_set1_pd(edge);
  std::uint64_t above = 0;
  int64_t k = 0;
  for (; k + 4 <= count; k += 4) {
    const __m256d given = _mm256_loadu_pd(x + k), is_low = _mm256_cmp_pd(given, highest, _CMP_NGT_UQ);
    _mm256_storeu_pd(sums + k, _mm256_add_pd(_mm256_loadu_pd(sums + k), _mm256_and_pd(is_low, given)));
    above |= std::uint64_t(~_mm256_movemask_pd(is_low) & 15) << k;
  }
  return above | add_low_from(k, x, count, edge, sums);
}
#endif
std::uint64_t add_low_of(const double* x, int64_t count, double edge, double* sums) {
  return add_low_from(0, x, count, edge, sums);
}
KCALIB_CHOOSE_LEVEL(std::uint64_t, add_low, (const double* x, int64_t count, double edge, double* sums), (x, count, edge, sums))

// low[k % period] += the entries x[k] that are not above the edge. The others, in order, go to `above` and their columns to
// `of_above`; returns how many these are.
int64_t split_at(const double* x, int64_t count, double edge, const Period& period, double* low, double* above, std::int32_t* of_above) {
  int64_t found = 0;
  for (int64_t begin = 0; begin < count; begin += period.size) {
    const int64_t here = std::min(period.size, count - begin);
    for (int64_t k = 0; k < here; k += Period::WORD) {
      std::uint64_t bits = add_low(x + begin + k, std::min(Period::WORD, here - k), edge, low + k);
      for (; bits; bits &= bits - 1) {
        const int64_t at = k + std::countr_zero(bits);
        above[found] = x[begin + at];
        of_above[found++] = period.columns[std::size_t(at)];
      }
    }
  }
  return found;
}

template <class Weight>
void add_rows(const Predictions& data, int64_t n_bins, int64_t begin, int64_t end, const Period& period, Strip& strip,
              ColumnSums<Weight>& out) {
  const int64_t m = data.m, length = rows_in_strip(m);
  double* const entries = out.entries.data();
  Weight* const weights = out.weights.data();
  double* const values = strip.values.data();
  std::int32_t* const bins = strip.bins.data();
  for (int64_t first = begin; first < end; first += length) {
    const int64_t rows = std::min(length, end - first);
    const double* const x = data.p + first * m;
    if constexpr (std::is_same_v<Weight, double>) {
      find_bins(x, rows * m, double(n_bins), bins);
      for (int64_t r = 0; r < rows; ++r) {
        const double weight = data.weight[first + r];
        for (int64_t j = 0, k = r * m; j < m; ++j, ++k) {
          entries[bins[k] * m + j] += weight * x[k];
          weights[bins[k] * m + j] += weight;
        }
      }
    } else {
      const std::int32_t* const of_values = strip.places.data();
      const int64_t found = split_at(x, rows * m, 1 / double(n_bins), period, out.low.data(), values, strip.places.data());
      const int64_t whole = ceil_divide(found, LANES) * LANES;  // a few numbers take longer one by one
      std::fill(values + found, values + whole, 0.0);
      find_bins(values, whole, double(n_bins), bins);
      for (int64_t t = 0; t < found; ++t) {
        entries[bins[t] * m + of_values[t]] += values[t];
        weights[bins[t] * m + of_values[t]] += 1;
      }
    }
    const auto is_column = [&](int64_t r) { return data.labels[first + r] >= 0 && data.labels[first + r] < m; };
    const int64_t whole = ceil_divide(rows, LANES) * LANES;
    for (int64_t r = 0; r < whole; ++r) values[r] = r < rows && is_column(r) ? x[r * m + int64_t(data.labels[first + r])] : 0;
    find_bins(values, whole, double(n_bins), bins);
    for (int64_t r = 0; r < rows; ++r)
      if (is_column(r)) out.hits[std::size_t(bins[r] * m + int64_t(data.labels[first + r]))] += weight_of(data, first + r);
  }
}

template <class Weight>
void add_columns(const Predictions& data, int64_t n_bins, int threads, double* sums) {
  const int64_t m = data.m, size = m * n_bins;
  const Period period(m);
  const int64_t room = std::max<int64_t>(1, PARTIAL_BYTES / ((3 * size + period.size) * 8));
  const int64_t parts = std::min({ceil_divide(data.n, rows_in_part(m)), MOST_PARTIALS, room});
  const ColumnSums<Weight> zeros(size, period.size);
  std::vector<ColumnSums<Weight>> found(std::size_t(parts), zeros);
  const Strip empty(m);
  std::vector<Strip> strips(std::size_t(parts), empty);
  for_parts(data.n, ceil_divide(data.n, parts), 4.0 * double(data.n) * double(m), threads,
            [&](int64_t begin, int64_t end, int64_t part) {
              add_rows(data, n_bins, begin, end, period, strips[std::size_t(part)], found[std::size_t(part)]);
            });
  std::fill_n(sums, 3 * size, 0.0);
  for (const ColumnSums<Weight>& part : found) {
    for (int64_t k = 0; k < period.size; ++k) sums[period.columns[std::size_t(k)] * n_bins] += part.low[std::size_t(k)];
    for (int64_t j = 0; j < m; ++j)
      for (int64_t bin = 0; bin < n_bins; ++bin) {
        const int64_t to = j * n_bins + bin;
        const auto from = std::size_t(bin * m + j);
        sums[to] += part.entries[from];
        sums[size + to] += double(part.weights[from]);
        sums[2 * size + to] += part.hits[from];
      }
  }
  if (!data.weight)
    for (int64_t j = 0; j < m; ++j) {
      double* const counts = sums + size + j * n_bins;
      counts[0] = double(data.n) - std::accumulate(counts + 1, counts + n_bins, 0.0);
    }
}

}  // namespace

void top_labels(const Predictions& data, int threads, double* confidence, double* correct) {
  const int64_t m = data.m;
  for_parts(data.n, rows_in_part(m), 4.0 * double(data.n) * double(m), threads, [&](int64_t begin, int64_t end, int64_t) {
    find_tops(data.p + begin * m, data.labels + begin, end - begin, m, confidence + begin, correct + begin);
  });
}

void uniform_bins(const Predictions& data, int64_t n_bins, int threads, double* sums) {
  if (data.weight) add_columns<double>(data, n_bins, threads, sums);
  else add_columns<std::uint32_t>(data, n_bins, threads, sums);
}

}  // namespace kcalib
