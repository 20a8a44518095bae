#include "bins.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "clones.h"
#include "strips.h"

#ifdef KCALIB_CLONES_BY_HAND
#include <immintrin.h>
#endif

namespace kcalib {
// In eight sums, so that additions need not wait for each other.
KCALIB_CLONES double norm_of_row(const double* gap, long m, GapNorm norm) {
  double lanes[8] = {};
  long j = 0;
  if (norm == GapNorm::CITYBLOCK)
    for (; j + 8 <= m; j += 8)
      for (long k = 0; k < 8; ++k) lanes[k] += std::abs(gap[j + k]);
  else
    for (; j + 8 <= m; j += 8)
      for (long k = 0; k < 8; ++k) lanes[k] += gap[j + k] * gap[j + k];
  double sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  for (; j < m; ++j) sum += norm == GapNorm::CITYBLOCK ? std::abs(gap[j]) : gap[j] * gap[j];
  return norm == GapNorm::CITYBLOCK ? sum : std::sqrt(sum);
}

// Edge k is k / n_bins, whose result is the nearest double. The edge that is nearest to a value is the only one that it
// must be compared with. What is no number comes into the first bin.
KCALIB_CLONES void bins_of(const double* x, long count, double n_bins, std::int32_t* out) {
  constexpr double INTEGERS = 0x1.8p52;  // doubles of this size are integers: adding it rounds
  const double last = n_bins - 1, reciprocal = 1 / n_bins;
  for (long i = 0; i < count; ++i) {
    const double edge = x[i] * n_bins + INTEGERS - INTEGERS;
#ifdef KCALIB_FUSED
    // A quotient that is off by a unit at most is made the nearest by a reciprocal that is (Markstein 1990).
    const double near = edge * reciprocal, quotient = __builtin_fma(__builtin_fma(-near, n_bins, edge), reciprocal, near);
#else
    const double quotient = edge / n_bins;
#endif
    double bin = x[i] <= quotient ? edge - 1 : edge;
    bin = bin > 0 ? bin : 0;
    out[i] = std::int32_t(bin < last ? bin : last);
  }
}

namespace {

// Where entries are above the edge, in order; `places` has room for `count` and LANES more. Returns how many are.
#ifdef KCALIB_CLONES_BY_HAND
__attribute__((target("arch=x86-64-v4"))) long places_above(const double* x, long count, double edge, std::int32_t* places) {
  const __m512d lowest = _mm512_set1_pd(edge);
  __m256i here = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  long found = 0;
  for (long k = 0; k < count; k += LANES) {
    const __mmask8 valid = __mmask8(count - k < LANES ? (1 << (count - k)) - 1 : 255);
    const __mmask8 above = _mm512_mask_cmp_pd_mask(valid, _mm512_maskz_loadu_pd(valid, x + k), lowest, _CMP_GT_OQ);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(places + found), _mm256_maskz_compress_epi32(above, here));
    found += __builtin_popcount(above);
    here = _mm256_add_epi32(here, _mm256_set1_epi32(LANES));
  }
  return found;
}
__attribute__((target("default")))
#endif
long places_above(const double* x, long count, double edge, std::int32_t* places) {
  long found = 0;
  for (long k = 0; k < count; ++k) {
    places[found] = std::int32_t(k);
    found += x[k] > edge;
  }
  return found;
}

}  // namespace

long StripOfRows::find(const double* x, long count, double n_bins, bool may_be_sparse) {
  const long found = may_be_sparse ? places_above(x, count, 1 / n_bins, places.data()) : count;
  sparse = found * LANES <= count;
  if (!sparse) {
    bins_of(x, count, n_bins, bins.data());
    return found;
  }
  for (long t = 0; t < found; ++t) values[std::size_t(t)] = x[places[std::size_t(t)]];
  const long whole = (found + LANES - 1) / LANES * LANES;  // a few numbers take longer one by one
  std::fill(values.begin() + found, values.begin() + whole, 0.0);
  bins_of(values.data(), whole, n_bins, bins.data());
  return found;
}

namespace {

constexpr long MOST_PARTIALS = 64;     // copies of all sums, merged at the end
constexpr long PARTIAL_BYTES = 1L << 26;  // of all copies, unless one takes more

// The largest of `count` numbers, at least WIDTH: in so many lanes, the last of which look at some numbers twice.
template <long WIDTH> __attribute__((always_inline)) inline double highest_of(const double* x, long count) {
  double lanes[WIDTH];
  for (long k = 0; k < WIDTH; ++k) lanes[k] = x[k];
  const auto look_at = [&](const double* at) __attribute__((always_inline)) {
    for (long k = 0; k < WIDTH; ++k) lanes[k] = at[k] > lanes[k] ? at[k] : lanes[k];
  };
  for (long i = WIDTH; i + WIDTH <= count; i += WIDTH) look_at(x + i);
  if (count % WIDTH) look_at(x + count - WIDTH);
  for (long half = WIDTH / 2; half > 0; half /= 2)
    for (long k = 0; k < half; ++k) lanes[k] = lanes[half + k] > lanes[k] ? lanes[half + k] : lanes[k];
  return lanes[0];
}

// Of each row the largest number, and whether its first place is the label: 1 or 0.
KCALIB_CLONES void top_of_rows(const double* x, const std::int64_t* labels, long rows, long m, double* highest, double* is_top) {
  for (long i = 0; i < rows; ++i, x += m) {
    const double value = m >= 32 ? highest_of<32>(x, m) : highest_of<1>(x, m);
    const long label = long(labels[i]);
    long before = 0;
    if (x[label] == value)
      for (long k = 0; k < label; ++k) before += x[k] == value;
    highest[i] = value;
    is_top[i] = x[label] == value && before == 0;
  }
}

// -- Bins of equal width ----------------------------------------------------------------------

// Sums of some of the rows, each at bin * m + column. Without sample weights these are small integers, which
// are counted faster than doubles are added.
template <class Weight> struct ColumnSums {
  std::vector<double> entries, hits;
  std::vector<Weight> weights;
  explicit ColumnSums(long size) : entries(std::size_t(size)), hits(std::size_t(size)), weights(std::size_t(size)) {}
};

// sums[j] += the entries of column j that are not above the edge
KCALIB_CLONES void add_low(const double* x, long rows, long m, double edge, double* sums) {
  for (long r = 0; r < rows; ++r)
    for (long j = 0; j < m; ++j) sums[j] += x[r * m + j] > edge ? 0.0 : x[r * m + j];
}

template <class Weight>
void add_rows(const Predictions& data, long n_bins, long begin, long end, StripOfRows& strip, ColumnSums<Weight>& out) {
  constexpr bool WEIGHTED = std::is_same_v<Weight, double>;
  const long m = data.m, length = rows_in_strip(m);
  double* const entries = out.entries.data();
  Weight* const weights = out.weights.data();
  std::int32_t* const bins = strip.bins.data();
  long sparse_rows = 0;
  for (long first = begin; first < end; first += length) {
    const long rows = std::min(length, end - first);
    const double* const x = data.p + first * m;
    const long found = strip.find(x, rows * m, double(n_bins), !WEIGHTED);
    if (strip.sparse) {
      add_low(x, rows, m, 1 / double(n_bins), entries);
      sparse_rows += rows;
      for (long r = 0, t = 0; r < rows; ++r) {
        fetch(x + (length + r) * m, m);
        for (; t < found && strip.places[std::size_t(t)] < (r + 1) * m; ++t) {
          const long j = strip.places[std::size_t(t)] - r * m;
          entries[bins[t] * m + j] += strip.values[std::size_t(t)];
          weights[bins[t] * m + j] += 1;
          weights[j] -= 1;
        }
      }
    } else {
      for (long r = 0; r < rows; ++r) {
        const Weight weight = WEIGHTED ? Weight(data.weight[first + r]) : Weight(1);
        for (long j = 0, k = r * m; j < m; ++j, ++k) {
          entries[bins[k] * m + j] += WEIGHTED ? double(weight) * x[k] : x[k];
          weights[bins[k] * m + j] += weight;
        }
      }
    }
    const auto is_column = [&](long r) { return data.labels[first + r] >= 0 && data.labels[first + r] < m; };
    const long whole = ceil_divide(rows, LANES) * LANES;
    for (long r = 0; r < whole; ++r)
      strip.values[std::size_t(r)] = r < rows && is_column(r) ? x[r * m + long(data.labels[first + r])] : 0;
    bins_of(strip.values.data(), whole, double(n_bins), bins);
    for (long r = 0; r < rows; ++r)
      if (is_column(r)) out.hits[std::size_t(bins[r] * m + long(data.labels[first + r]))] += weight_of(data, first + r);
  }
  for (long j = 0; j < m; ++j) weights[j] += Weight(sparse_rows);
}

template <class Weight> void add_columns(const Predictions& data, long n_bins, int threads, double* sums) {
  const long m = data.m, size = m * n_bins;
  const long room = std::max(1L, PARTIAL_BYTES / (size * 24));
  const long parts = std::min({ceil_divide(data.n, rows_in_part(m)), MOST_PARTIALS, room});
  const ColumnSums<Weight> zeros(size);
  std::vector<ColumnSums<Weight>> found(std::size_t(parts), zeros);
  const StripOfRows unknown(m);
  std::vector<StripOfRows> strips(std::size_t(parts), unknown);
  for_parts(data.n, ceil_divide(data.n, parts), 4.0 * double(data.n) * double(m), threads,
            [&](long begin, long end, long part) {
              add_rows(data, n_bins, begin, end, strips[std::size_t(part)], found[std::size_t(part)]);
            });
  std::fill_n(sums, 3 * size, 0.0);
  for (const ColumnSums<Weight>& part : found)
    for (long j = 0; j < m; ++j)
      for (long bin = 0; bin < n_bins; ++bin) {
        const long to = j * n_bins + bin;
        const auto from = std::size_t(bin * m + j);
        sums[to] += part.entries[from];
        sums[size + to] += double(part.weights[from]);
        sums[2 * size + to] += part.hits[from];
      }
}

}  // namespace

void top_labels(const Predictions& data, int threads, double* confidence, double* correct) {
  const long m = data.m;
  for_parts(data.n, rows_in_part(m), 4.0 * double(data.n) * double(m), threads, [&](long begin, long end, long) {
    top_of_rows(data.p + begin * m, data.labels + begin, end - begin, m, confidence + begin, correct + begin);
  });
}

void uniform_bins(const Predictions& data, long n_bins, int threads, double* sums) {
  if (data.weight) add_columns<double>(data, n_bins, threads, sums);
  else add_columns<std::uint32_t>(data, n_bins, threads, sums);
}

}  // namespace kcalib
