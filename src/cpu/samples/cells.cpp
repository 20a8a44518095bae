// Products of uniform bins: which rows are in the same one, and their gaps. Rows of equal hashes are found in parts of all
// hashes that a cache holds, by as many threads as there are; sums are made there, too, while the rows of a cell are known.
#include <algorithm>
#include <bit>
#include <vector>

#include "cpu/simd/aligned.h"
#include "cpu/simd/clones.h"
#include "cpu/samples/strips.h"

namespace kcalib {
namespace {

std::uint64_t mixed(std::uint64_t x) {  // splitmix64's last step
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

struct Hash {
  std::uint64_t first, second;
};

KCALIB_CLONES void hash_of(const std::int32_t* bins, const std::uint64_t* factors, int64_t m, Hash* out) {
  std::uint64_t first = 0, second = 0;
  for (int64_t j = 0; j < m; ++j) {
    first += std::uint64_t(bins[j]) * factors[j];
    second += std::uint64_t(bins[j]) * factors[m + j];
  }
  *out = {first, second};
}

struct Gap {
  double weight, gap;
};

Gap gap_of(double weight, double norm) { return {weight, weight > 0 ? norm / weight : 0.0}; }

// gap[0..m) = sum of the weighted (prediction - one-hot label) of these rows, at least one; returns their weight. `known` of
// the rows at this place, those of this sum and of the next, are asked for in time: they may be anywhere.
KCALIB_CLONES double sum_residuals(const Predictions& data, const std::int32_t* rows, int64_t count, int64_t known, double* gap) {
  const int64_t ahead = std::clamp<int64_t>(1024 / data.m, 1, 32);
  double weight = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::int32_t later = rows[std::min(i + ahead, known - 1)];
    fetch(data.p + later * data.m, data.m);
    __builtin_prefetch(data.labels + later);
    const double w = weight_of(data, rows[i]);
    const double* row = data.p + rows[i] * data.m;
    if (i == 0)
      for (int64_t j = 0; j < data.m; ++j) gap[j] = w * row[j];
    else
      for (int64_t j = 0; j < data.m; ++j) gap[j] += w * row[j];
    gap[data.labels[rows[i]]] -= w;
    weight += w;
  }
  return weight;
}

// The rows of a cell of many, whose sum is made of parts.
struct LargeCell {
  std::int32_t leader;
  const std::int32_t* rows;
  int64_t size;
};

class Cells {
 public:
  Cells(const Predictions& data, GapNorm norm, int threads)
      : data_(data), norm_(norm), threads_(threads), n_(data.n),
        block_(std::max<int64_t>(8192, ceil_divide(n_, 256))), blocks_(ceil_divide(n_, block_)), leader_(n_), gap_(n_) {}

  int64_t find(double n_bins, std::int64_t* group, double* weight, double* gap) {
    group_rows(n_bins);
    return number(group, weight, gap);
  }

 private:
  struct Entry {
    Hash hash;
    std::int32_t row;
    std::int32_t leader;  // the entry of the first row with this hash
  };

  // Rows with some of the hashes, in ascending order.
  struct Bucket {
    Entry* entries;
    int64_t count;
    std::int32_t* table;  // 4 for each row; finds leaders, and has those of cells of several rows afterwards
    std::int32_t* ends;   // of each entry: how many have it for a leader; later, of leaders, where these end in `order`
    std::int32_t* order;  // rows of cells of several
    int64_t cells = 0;       // of several rows
    bool has_large = false;
  };

  static constexpr int64_t BUCKET = 2048;  // rows, on average
  static constexpr int64_t MOST_BUCKETS = 4096;

  // Of every row its hash, and as its gap that of a cell of its own.
  void hash_rows(double n_bins, Hash* hashes) const {
    const int64_t m = data_.m, length = rows_in_part(m), strip = rows_in_strip(m);
    const double work = 6.0 * double(n_) * double(m);
    std::vector<std::uint64_t> factors(std::size_t(2 * m));
    for (std::size_t j = 0; j < factors.size(); ++j) factors[j] = mixed((j + 1) * 0x9e3779b97f4a7c15u);
    const int team = team_of(threads_, ceil_divide(n_, length), work);
    const StripOfRows unknown(m);
    std::vector<StripOfRows> strips(std::size_t(team), unknown);
    for_parts(n_, length, work, team, [&](int64_t begin, int64_t end, int64_t) {
      StripOfRows& own = strips[std::size_t(thread_number())];
      for (int64_t first = begin; first < end; first += strip) {
        const int64_t rows = std::min(strip, end - first);
        const double* const x = data_.p + first * m;
        const int64_t found = own.find(x, rows * m, n_bins);
        const std::int32_t* const bins = own.bins.data();
        for (int64_t r = 0, t = 0; r < rows; ++r) {
          Hash hash{0, 0};
          if (own.sparse) {  // the number of the first bin is 0
            for (; t < found && own.places[std::size_t(t)] < (r + 1) * m; ++t) {
              const int64_t j = own.places[std::size_t(t)] - r * m;
              hash.first += std::uint64_t(bins[t]) * factors[std::size_t(j)];
              hash.second += std::uint64_t(bins[t]) * factors[std::size_t(m + j)];
            }
          } else {
            hash_of(bins + r * m, factors.data(), m, &hash);
          }
          hashes[first + r] = {mixed(hash.first), hash.second};
        }
        double* const residuals = own.values.data();
        std::copy_n(x, rows * m, residuals);
        for (int64_t r = 0; r < rows; ++r) residuals[r * m + int64_t(data_.labels[first + r])] -= 1;
        for (int64_t r = 0; r < rows; ++r) {
          fetch(x + (strip + r) * m, m);
          const double w = weight_of(data_, first + r), norm = norm_of_row(residuals + r * m, m, norm_);
          gap_[first + r] = {w, w > 0 ? norm : 0.0};
        }
      }
    });
  }

  // Fills in leader_, and the gaps of leaders.
  void group_rows(double n_bins) {
    AlignedBuffer<Hash> hashes(n_);
    hash_rows(n_bins, hashes.get());
    int bits = 0;
    while ((BUCKET << bits) < n_ && (int64_t(1) << bits) < MOST_BUCKETS) ++bits;
    const int64_t buckets = int64_t(1) << bits;
    const auto bucket_of = [&](int64_t i) { return int64_t((hashes[i].first >> 1) >> (63 - bits)); };
    std::vector<std::int32_t> counts(std::size_t(blocks_ * buckets), 0);
    for_parts(n_, block_, 8.0 * double(n_), threads_, [&](int64_t begin, int64_t end, int64_t block) {
      for (int64_t i = begin; i < end; ++i) ++counts[std::size_t(block * buckets + bucket_of(i))];
    });
    std::vector<int64_t> begins(std::size_t(buckets + 1), 0);
    for (int64_t bucket = 0, all = 0; bucket < buckets; ++bucket) {
      for (int64_t block = 0; block < blocks_; ++block) {
        std::int32_t& count = counts[std::size_t(block * buckets + bucket)];
        const int64_t before = all;
        all += count;
        count = std::int32_t(before);
      }
      begins[std::size_t(bucket + 1)] = all;
    }
    const AlignedBuffer<Entry> entries(n_);
    for_parts(n_, block_, 8.0 * double(n_), threads_, [&](int64_t begin, int64_t end, int64_t block) {
      for (int64_t i = begin; i < end; ++i)
        entries[counts[std::size_t(block * buckets + bucket_of(i))]++] = {hashes[i], std::int32_t(i), 0};
    });
    // The hashes make room for the tables that find leaders.
    auto* const tables = reinterpret_cast<std::int32_t*>(hashes.get());
    const AlignedBuffer<std::int32_t> ends(n_), order(n_);
    const double work = 4.0 * double(n_) * double(data_.m);
    const int team = team_of(threads_, buckets, work);
    std::vector<double> sums(std::size_t(team * data_.m));
    std::vector<Bucket> all;
    for (int64_t b = 0; b < buckets; ++b) {
      const int64_t begin = begins[std::size_t(b)], count = begins[std::size_t(b + 1)] - begin;
      if (count > 0) all.push_back({entries.get() + begin, count, tables + 4 * begin, ends.get() + begin, order.get() + begin});
    }
    for_parts(int64_t(all.size()), 1, work, team, [&](int64_t begin, int64_t, int64_t) {
      Bucket& bucket = all[std::size_t(begin)];
      find_leaders(bucket);
      order_rows(bucket);
      sum_cells(bucket, sums.data() + thread_number() * data_.m);
    });
    std::vector<LargeCell> large;
    for (const Bucket& bucket : all) {
      if (!bucket.has_large) continue;
      for_cells(bucket, [&](std::int32_t leader, int64_t first, int64_t size) {
        if (size > length_of_sum()) large.push_back({leader, bucket.order + first, size});
      });
    }
    sum_large_cells(large);
  }

  // Of each entry the first one with its hash, and of that one how many there are.
  static void find_leaders(Bucket& bucket) {
    Entry* const entries = bucket.entries;
    const int64_t count = bucket.count;
    std::int32_t *const slots = bucket.table, *const sizes = bucket.ends;
    const std::size_t mask = std::bit_floor(std::size_t(4 * count)) - 1;
    std::fill_n(slots, mask + 1, 0);
    for (int64_t k = 0; k < count; ++k) {
      const Hash hash = entries[k].hash;
      const auto differs = [&](const Hash& other) { return (other.first != hash.first) | (other.second != hash.second); };
      std::size_t at = hash.first & mask;
      while (slots[at] && differs(entries[slots[at] - 1].hash)) at = (at + 1) & mask;
      if (slots[at]) {
        entries[k].leader = slots[at] - 1;
        ++sizes[slots[at] - 1];
        sizes[k] = 0;
        continue;
      }
      slots[at] = std::int32_t(k + 1);
      entries[k].leader = std::int32_t(k);
      sizes[k] = 1;
    }
  }

  // Puts the rows of each cell of several after each other. Nothing branches: who is alone cannot be foretold.
  void order_rows(Bucket& bucket) const {
    const Entry* const entries = bucket.entries;
    const int64_t count = bucket.count;
    std::int32_t *const ends = bucket.ends, *const order = bucket.order;
    const auto none = std::int32_t(count);
    std::int32_t all = 0;
    for (int64_t k = 0; k < count; ++k) {
      leader_[entries[k].row] = entries[entries[k].leader].row;
      const std::int32_t size = ends[k];
      bucket.table[bucket.cells] = std::int32_t(k);
      bucket.cells += size > 1;
      ends[k] = size == 1 ? none : all;
      all += size > 1 ? size : 0;
    }
    for (int64_t k = 0; k < count; ++k) {
      std::int32_t& end = ends[entries[k].leader];
      const bool alone = end == none;
      order[alone ? none - 1 : end] = entries[k].row;  // a place that is left over if some row is alone
      end += !alone;
    }
  }

  // each(leader, first, size) for the cells of several rows, which are order[first..first + size).
  template <class Each> static void for_cells(const Bucket& bucket, Each each) {
    int64_t first = 0;
    for (int64_t c = 0; c < bucket.cells; ++c) {
      const std::int32_t leader = bucket.table[c];
      each(bucket.entries[leader].row, first, bucket.ends[leader] - first);
      first = bucket.ends[leader];
    }
  }

  void sum_cells(Bucket& bucket, double* sum) const {
    const int64_t known = bucket.cells ? bucket.ends[bucket.table[bucket.cells - 1]] : 0;
    for_cells(bucket, [&](std::int32_t leader, int64_t first, int64_t size) {
      if (size > length_of_sum()) {
        bucket.has_large = true;
        return;
      }
      const double total = sum_residuals(data_, bucket.order + first, size, known - first, sum);
      gap_[leader] = gap_of(total, norm_of_row(sum, data_.m, norm_));
    });
  }

  // Rows whose sum is made in one go.
  int64_t length_of_sum() const { return 4 * rows_in_part(data_.m); }

  void sum_large_cells(const std::vector<LargeCell>& cells) const {
    struct Segment {
      const std::int32_t* rows;
      int64_t size;
    };
    const int64_t m = data_.m, length = length_of_sum();
    std::vector<Segment> segments;
    for (const LargeCell& cell : cells)
      for (int64_t first = 0; first < cell.size; first += length)
        segments.push_back({cell.rows + first, std::min(length, cell.size - first)});
    const int64_t count = int64_t(segments.size());
    std::vector<double> sums(std::size_t(count * m)), weights(std::size_t(count), 0.0);
    for_parts(count, 1, 4.0 * double(count * length) * double(m), threads_, [&](int64_t s, int64_t, int64_t) {
      const Segment& at = segments[std::size_t(s)];
      weights[std::size_t(s)] = sum_residuals(data_, at.rows, at.size, at.size, sums.data() + s * m);
    });
    int64_t s = 0;
    for (const LargeCell& cell : cells) {
      double* const sum = sums.data() + s * m;
      double total = weights[std::size_t(s++)];
      for (int64_t first = length; first < cell.size; first += length, ++s) {
        for (int64_t j = 0; j < m; ++j) sum[j] += sums[std::size_t(s * m + j)];
        total += weights[std::size_t(s)];
      }
      gap_[cell.leader] = gap_of(total, norm_of_row(sum, m, norm_));
    }
  }

  // Numbers cells in the order of their leaders.
  int64_t number(std::int64_t* group, double* weight, double* gap) const {
    std::vector<int64_t> before(std::size_t(blocks_ + 1), 0);
    const double work = 8.0 * double(n_);
    for_parts(n_, block_, work, threads_, [&](int64_t begin, int64_t end, int64_t block) {
      int64_t leaders = 0;
      for (int64_t i = begin; i < end; ++i) leaders += leader_[i] == i;
      before[std::size_t(block + 1)] = leaders;
    });
    for (int64_t block = 0; block < blocks_; ++block) before[std::size_t(block + 1)] += before[std::size_t(block)];
    for_parts(n_, block_, work, threads_, [&](int64_t begin, int64_t end, int64_t block) {
      int64_t next = before[std::size_t(block)];
      for (int64_t i = begin; i < end; ++i) {
        if (leader_[i] != i) continue;
        weight[next] = gap_[i].weight;
        gap[next] = gap_[i].gap;
        group[i] = next++;
      }
    });
    for_parts(n_, block_, work, threads_, [&](int64_t begin, int64_t end, int64_t) {
      for (int64_t i = begin; i < end; ++i)
        if (leader_[i] != i) group[i] = group[leader_[i]];
    });
    return before.back();
  }

  const Predictions& data_;
  const GapNorm norm_;
  const int threads_;
  const int64_t n_, block_, blocks_;
  const AlignedBuffer<std::int32_t> leader_;  // of each row the first one in its cell
  const AlignedBuffer<Gap> gap_;              // of the cell of each leader
};

}  // namespace

int64_t uniform_cells(const Predictions& data, int64_t n_bins, GapNorm norm, int threads, std::int64_t* group, double* weight,
                   double* gap) {
  return Cells(data, norm, threads).find(double(n_bins), group, weight, gap);
}

}  // namespace kcalib
