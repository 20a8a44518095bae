// Products of uniform bins: which rows are in the same one, and their gaps.
#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "cpu/simd/aligned.h"
#include "cpu/samples/bins.h"
#include "cpu/simd/for_each_level.h"
#include "cpu/samples/row_parts.h"

namespace kcalib {
namespace {

uint64_t mixed(uint64_t x) {  // splitmix64's last step
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Hash {
  uint64_t first, second;
  bool operator==(const Hash&) const = default;
};

KCALIB_PART Hash hash_bins_of(const int32_t* bins, const uint64_t* factors, int64_t m) {
  uint64_t first = 0, second = 0;
  for (int64_t j = 0; j < m; ++j) {
    first += uint64_t(bins[j]) * factors[j];
    second += uint64_t(bins[j]) * factors[m + j];
  }
  return {mixed(first), second};
}
KCALIB_FOR_EACH_LEVEL(Hash, hash_bins, (const int32_t* bins, const uint64_t* factors, int64_t m), (bins, factors, m))

// gap += the weighted (prediction - one-hot label) of these rows; returns their weight. Rows that are read later are asked for in time: they may be anywhere.
KCALIB_PART double add_residuals_of(const Predictions& data, const int32_t* rows, int64_t count, double* gap) {
  const int64_t ahead = std::clamp<int64_t>(1024 / data.m, 1, 32);
  double weight = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t later = rows[std::min(i + ahead, count - 1)];
    fetch(data.p + later * data.m, data.m);
    __builtin_prefetch(data.labels + later);
    const double w = weight_of(data, rows[i]);
    const double* row = data.p + rows[i] * data.m;
    for (int64_t j = 0; j < data.m; ++j) gap[j] += w * row[j];
    gap[data.labels[rows[i]]] -= w;
    weight += w;
  }
  return weight;
}
KCALIB_FOR_EACH_LEVEL(double, add_residuals, (const Predictions& data, const int32_t* rows, int64_t count, double* gap),
                      (data, rows, count, gap))

void hash_rows(const Predictions& data, int64_t n_bins, int threads, Hash* hashes) {
  const int64_t n = data.n, m = data.m;
  std::vector<uint64_t> factors(std::size_t(2 * m));
  for (std::size_t j = 0; j < factors.size(); ++j) factors[j] = mixed((j + 1) * 0x9e3779b97f4a7c15u);
  for_parts(n, rows_in_part(m), 6.0 * double(n) * double(m), threads, [&](int64_t begin, int64_t end, int64_t) {
    const int64_t strip = std::max<int64_t>(1, 2048 / m);  // of rows whose bins stay in the first-level cache
    std::vector<int32_t> bins(std::size_t(strip * m));
    for (int64_t first = begin; first < end; first += strip) {
      const int64_t rows = std::min(strip, end - first);
      find_bins(data.p + first * m, rows * m, double(n_bins), bins.data());
      for (int64_t r = 0; r < rows; ++r) hashes[first + r] = hash_bins(bins.data() + r * m, factors.data(), m);
    }
  });
}

// group[i] = the number of the hash of row i, counted from 0 in the order of first rows. Returns how many there are.
int64_t number_hashes(const Hash* hashes, int64_t n, int64_t* group) {
  const std::size_t mask = std::bit_ceil(std::size_t(2 * n)) - 1;
  std::vector<int32_t> slots(mask + 1, -1);  // the first row of a hash
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    constexpr int64_t AHEAD = 16;
    __builtin_prefetch(&slots[hashes[std::min(i + AHEAD, n - 1)].first & mask]);
    std::size_t at = hashes[i].first & mask;
    while (slots[at] >= 0 && hashes[slots[at]] != hashes[i]) at = (at + 1) & mask;
    if (slots[at] < 0) slots[at] = int32_t(i);
    group[i] = slots[at] == i ? count++ : group[slots[at]];
  }
  return count;
}

}  // namespace

int64_t uniform_cells(const Predictions& data, int64_t n_bins, GapNorm norm, int threads, int64_t* group, double* weight,
                      double* gap) {
  const int64_t n = data.n, m = data.m;
  int64_t count = 0;
  {
    const AlignedBuffer<Hash> hashes(n);
    hash_rows(data, n_bins, threads, hashes.get());
    count = number_hashes(hashes.get(), n, group);
  }
  // Rows in the order of their cells, ends[g] of them up to cell g.
  std::vector<int32_t> ends(std::size_t(count), 0), rows(std::size_t(n), 0);
  for (int64_t i = 0; i < n; ++i) ++ends[std::size_t(group[i])];
  std::exclusive_scan(ends.begin(), ends.end(), ends.begin(), 0);
  for (int64_t i = 0; i < n; ++i) rows[std::size_t(ends[std::size_t(group[i])]++)] = int32_t(i);
  // The residuals of a cell are added up in parts, and these in order: small errors, and the same bits for any threads.
  const int64_t part = rows_in_part(m), length = ceil_divide(count, 256);
  for_parts(count, length, 4.0 * double(n) * double(m), threads, [&](int64_t begin, int64_t end, int64_t) {
    std::vector<double> sum(std::size_t(m), 0.0), total(std::size_t(m), 0.0);
    for (int64_t g = begin; g < end; ++g) {
      const int64_t last = ends[std::size_t(g)];
      std::fill(total.begin(), total.end(), 0.0);
      weight[g] = 0;
      for (int64_t first = g > 0 ? ends[std::size_t(g - 1)] : 0; first < last; first += part) {
        std::fill(sum.begin(), sum.end(), 0.0);
        weight[g] += add_residuals(data, rows.data() + first, std::min(part, last - first), sum.data());
        for (std::size_t j = 0; j < total.size(); ++j) total[j] += sum[j];
      }
      gap[g] = weight[g] > 0 ? norm_of_row(total.data(), m, norm) / weight[g] : 0.0;
    }
  });
  return count;
}

}  // namespace kcalib
