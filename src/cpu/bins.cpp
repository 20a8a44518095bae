#include "bins.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <queue>
#include <type_traits>
#include <vector>

#include "aligned.h"
#include "clones.h"
#include "row_parts.h"

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

constexpr long MOST_PARTIALS = 64;     // copies of all sums, merged at the end
constexpr long PARTIAL_BYTES = 1L << 26;  // of all copies, unless one takes more
constexpr long AHEAD = 16;             // hashes looked up while memory answers

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

// Rows of which bins are found at once.
long rows_in_strip(long m) { return std::max(1L, 2048 / m); }

constexpr long LANES = 8;  // numbers that are looked at together

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

// What is known of some rows, as many as are looked at twice while they are in the first-level cache. Where nearly all
// entries are in the first bin, as those of many classes are, the bins of the others alone are found.
struct StripOfRows {
  std::vector<std::int32_t> bins, places;
  std::vector<double> values;
  bool sparse = false;

  explicit StripOfRows(long m)
      : bins(std::size_t(rows_in_strip(m) * m + LANES)), places(bins.size()), values(bins.size()) {}

  // The bins of all entries; or, if these are `sparse`, of those that are not in the first bin, `values` at `places`, of
  // which the number is returned.
  long find(const double* x, long count, double n_bins, bool may_be_sparse) {
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
};

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

// -- Groups of rows -----------------------------------------------------------------------------

std::uint64_t mixed(std::uint64_t x) {  // splitmix64's last step
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Hash {
  std::uint64_t first, second;
  bool operator==(const Hash& other) const { return (first == other.first) & (second == other.second); }
};

KCALIB_CLONES void hash_of(const std::int32_t* bins, const std::uint64_t* factors, long m, Hash* out) {
  std::uint64_t first = 0, second = 0;
  for (long j = 0; j < m; ++j) {
    first += std::uint64_t(bins[j]) * factors[j];
    second += std::uint64_t(bins[j]) * factors[m + j];
  }
  *out = {first, second};
}

// Numbers of rows with different hashes, in the order in which these are first seen.
class Numbers {
 public:
  // `numbers` is where the numbers of rows are kept that have one.
  Numbers(const Hash* hashes, long n, const std::int64_t* numbers)
      : hashes_(hashes), numbers_(numbers), mask_(slots_for(n) - 1), slots_(long(mask_) + 1) {
    std::fill_n(slots_.get(), mask_ + 1, Slot{});
  }

  // What `of` will read: far more than the caches hold, unless it is asked for in time.
  void prefetch(long row) const { __builtin_prefetch(&slots_[long(mixed(hashes_[row].first) & mask_)], 1); }

  std::int64_t of(long row) {
    const std::uint64_t place = mixed(hashes_[row].first);
    const auto tag = std::uint32_t(place >> 40);
    std::size_t at = place & mask_;
    for (; slots_[long(at)].has_row; at = (at + 1) & mask_) {
      const Slot slot = slots_[long(at)];
      if (slot.tag == tag && hashes_[long(slot.row)] == hashes_[row]) return numbers_[slot.row];
    }
    slots_[long(at)] = {tag, 1, std::uint64_t(row)};
    return count_++;
  }

  long count() const { return count_; }

 private:
  struct Slot {
    std::uint64_t tag : 24;  // of most other hashes another one, which spares a look at the whole
    std::uint64_t has_row : 1;
    std::uint64_t row : 39;  // the first one with its hash
  };
  static std::size_t slots_for(long most) {
    std::size_t size = 16;
    while (size < 2 * std::size_t(most)) size *= 2;
    return size;
  }

  const Hash* const hashes_;
  const std::int64_t* const numbers_;
  const std::size_t mask_;
  const AlignedBuffer<Slot> slots_;
  long count_ = 0;
};

// Samples in the order of their groups, and where each group begins.
struct Grouped {
  std::vector<std::int64_t> rows, begins;

  Grouped(const std::int64_t* group, long n, long n_groups) : rows(std::size_t(n)), begins(std::size_t(n_groups) + 1) {
    for (long i = 0; i < n; ++i) ++begins[std::size_t(group[i]) + 1];
    std::partial_sum(begins.begin(), begins.end(), begins.begin());
    std::vector<std::int64_t> next(begins.begin(), begins.end() - 1);
    for (long i = 0; i < n; ++i) rows[std::size_t(next[std::size_t(group[i])]++)] = i;
  }
};

// gap[0..m) = sum of the weighted (prediction - one-hot label) of rows[begin..end), not empty; returns their weight.
KCALIB_CLONES double sum_residuals(const Predictions& data, const std::int64_t* rows, long begin, long end, double* gap) {
  double weight = 0;
  for (long i = begin; i < end; ++i) {
    const double w = weight_of(data, rows[i]);
    const double* row = data.p + rows[i] * data.m;
    if (i == begin)
      for (long j = 0; j < data.m; ++j) gap[j] = w * row[j];
    else
      for (long j = 0; j < data.m; ++j) gap[j] += w * row[j];
    gap[data.labels[rows[i]]] -= w;
    weight += w;
  }
  return weight;
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

long uniform_cells(const Predictions& data, long n_bins, GapNorm norm, int threads, std::int64_t* group, double* row_gap) {
  const long m = data.m, length = rows_in_part(m);
  std::vector<std::uint64_t> factors(std::size_t(2 * m));
  for (std::size_t j = 0; j < factors.size(); ++j) factors[j] = mixed((j + 1) * 0x9e3779b97f4a7c15u);
  const AlignedBuffer<Hash> hashes(data.n);
  const int team = team_of(threads, ceil_divide(data.n, length), 6.0 * double(data.n) * double(m));
  const long strip = rows_in_strip(m);
  const StripOfRows unknown(m);
  std::vector<StripOfRows> strips(std::size_t(team), unknown);
  for_parts(data.n, length, 6.0 * double(data.n) * double(m), team, [&](long begin, long end, long) {
    StripOfRows& own = strips[std::size_t(thread_number())];
    for (long first = begin; first < end; first += strip) {
      const long rows = std::min(strip, end - first);
      const double* const x = data.p + first * m;
      const long found = own.find(x, rows * m, double(n_bins), true);
      const std::int32_t* const bins = own.bins.data();
      for (long r = 0, t = 0; r < rows; ++r) {
        Hash& hash = hashes[first + r];
        if (own.sparse) {  // the number of the first bin is 0
          hash = {0, 0};
          for (; t < found && own.places[std::size_t(t)] < (r + 1) * m; ++t) {
            const long j = own.places[std::size_t(t)] - r * m;
            hash.first += std::uint64_t(bins[t]) * factors[std::size_t(j)];
            hash.second += std::uint64_t(bins[t]) * factors[std::size_t(m + j)];
          }
        } else {
          hash_of(bins + r * m, factors.data(), m, &hash);
        }
      }
      double* const residuals = own.values.data();
      std::copy_n(x, rows * m, residuals);
      for (long r = 0; r < rows; ++r) residuals[r * m + long(data.labels[first + r])] -= 1;
      for (long r = 0; r < rows; ++r) {
        fetch(x + (strip + r) * m, m);
        row_gap[first + r] = norm_of_row(residuals + r * m, m, norm);
      }
    }
  });
  Numbers numbers(hashes.get(), data.n, group);
  for (long i = 0; i < data.n; ++i) {
    if (i + AHEAD < data.n) numbers.prefetch(i + AHEAD);
    group[i] = numbers.of(i);
  }
  return numbers.count();
}

void group_gaps(const Predictions& data, const std::int64_t* group, long n_groups, const double* row_gap, GapNorm norm,
                int threads, double* weight, double* gap) {
  struct Segment {
    long group, begin, end, partial;  // partial: where its sums go if the group has several, else -1
  };
  const long m = data.m, length = 4 * rows_in_part(m);
  const Grouped grouped(group, data.n, n_groups);
  std::vector<Segment> segments;
  long partials = 0;
  for (long g = 0; g < n_groups; ++g) {
    const long first = grouped.begins[std::size_t(g)], last = grouped.begins[std::size_t(g) + 1];
    if (row_gap && last - first == 1) {
      const std::int64_t row = grouped.rows[std::size_t(first)];
      weight[g] = weight_of(data, row);
      gap[g] = weight[g] > 0 ? row_gap[row] : 0.0;
      continue;
    }
    const bool whole = last - first <= length;
    for (long begin = first; begin < last; begin += length)
      segments.push_back({g, begin, std::min(last, begin + length), whole ? -1 : partials++});
  }
  const double work = 4.0 * double(data.n) * double(m);
  const long tasks = long(segments.size());
  const int team = team_of(threads, tasks, work);
  std::vector<double> buffers(std::size_t(team * m)), sums(std::size_t(partials * m)), weights(std::size_t(partials), 0.0);
#pragma omp parallel for schedule(dynamic, 16) num_threads(team)
  for (long s = 0; s < tasks; ++s) {
    const Segment& at = segments[std::size_t(s)];
    double* own = at.partial < 0 ? buffers.data() + thread_number() * m : sums.data() + at.partial * m;
    const double total = sum_residuals(data, grouped.rows.data(), at.begin, at.end, own);
    if (at.partial < 0) {
      weight[at.group] = total;
      gap[at.group] = total > 0 ? norm_of_row(own, m, norm) / total : 0.0;
    } else {
      weights[std::size_t(at.partial)] = total;
    }
  }
  for (long s = 0; s < tasks;) {
    const Segment& first = segments[std::size_t(s)];
    if (first.partial < 0) {
      ++s;
      continue;
    }
    double* own = sums.data() + first.partial * m;
    double total = weights[std::size_t(first.partial)];
    for (++s; s < tasks && segments[std::size_t(s)].group == first.group; ++s) {
      const long partial = segments[std::size_t(s)].partial;
      for (long j = 0; j < m; ++j) own[j] += sums[std::size_t(partial * m + j)];
      total += weights[std::size_t(partial)];
    }
    weight[first.group] = total;
    gap[first.group] = total > 0 ? norm_of_row(own, m, norm) / total : 0.0;
  }
}

}  // namespace kcalib
