#include "cpu/state/state_sums.h"

#include <memory>
#include <vector>

#include "cpu/features/feature_panels.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

// What one thread makes of tiles of rows, and its sums.
class Tiles {
 public:
  Tiles(const PackedMap& map, const FeatureMap& of, const StateRows& rows, const Run& run)
      : map_(map.panels()),
        of_(of),
        rows_(rows),
        table_(*run.table->features),
        norm_(map.constant_norm()),
        size_(rows.rank * COLUMNS),
        points_(STATE_TILE * rows.m),
        target_features_(blocks_size(STATE_TILE, rows.rank, table_.block_columns)),
        residual_(rows.m),
        feature_(rows.rank),
        mean_(rows.rank),
        squares_(STATE_TILE),
        lengths_(STATE_TILE),
        phi_(STATE_TILE * COLUMNS),
        panel_(size_),
        own_(map.size() * FREQUENCIES),
        words_(2 * (map.size() * size_ + map.size() * FREQUENCIES + 1), 0) {
    std::int64_t* word = words_.data();
    for (auto [sums, n] : {std::pair{&found_.sums, map.size() * size_}, {&found_.own, map.size() * FREQUENCIES},
                           {&found_.null_own, int64_t(1)}}) {
      *sums = {word, word + n};
      word += 2 * n;
    }
  }

  void add(int64_t begin, int64_t end) {
    const int64_t rows = rounded_up(end - begin, ROW_STEP);
    widened(rows_.p, rows_.m, begin, end, rows, points_.get());
    std::fill_n(target_features_.get(), blocks_size(rows, rows_.rank, table_.block_columns), 0.0);
    std::fill_n(squares_.get(), rows, 0.0);
    std::fill_n(lengths_.get(), rows, 0.0);
    for (int64_t i = 0; begin + i < end; ++i) read(begin + i, i, rows);
    double null_own = 0;
    for (int64_t p = 0; p < map_.n_panels; ++p) {
      table_.features(map_, p, points_.get(), rows, phi_.get());
      std::fill_n(panel_.get(), size_, 0.0);
      table_.add_products(phi_.get(), target_features_.get(), rows, rows_.rank, panel_.get());
      add_exactly(panel_.get(), size_, {found_.sums.high + p * size_, found_.sums.low + p * size_});
      if (!map_.n_factors) continue;
      double lanes[FREQUENCIES] = {}, null_lanes[FREQUENCIES] = {};
      table_.add_squares(phi_.get(), squares_.get(), rows, lanes);
      table_.add_squares(phi_.get(), lengths_.get(), rows, null_lanes);
      std::copy_n(lanes, FREQUENCIES, own_.get() + p * FREQUENCIES);
      for (double lane : null_lanes) null_own += lane;
    }
    if (!map_.n_factors) {
      double square = 0;
      for (int64_t i = 0; i < end - begin; ++i) square += squares_[i], null_own += norm_ * lengths_[i];
      std::fill_n(own_.get(), map_.n_panels * FREQUENCIES, 0.0);
      for (int64_t f = 0; f < of_.n_frequencies; ++f) own_[f] = of_.amplitudes[f] * of_.amplitudes[f] * square;
    }
    add_exactly(own_.get(), map_.n_panels * FREQUENCIES, found_.own);
    add_exactly(&null_own, 1, found_.null_own);
  }

  // Sums of panels in the order of the columns.
  void merge_into(const StateSums& out) const {
    const int64_t rank = rows_.rank, half = of_.n_frequencies;
    const auto move = [](const ExactSums& from, int64_t inside, const ExactSums& to, int64_t at) {
      to.add(at, from.high[inside], std::uint64_t(from.low[inside]));
    };
    for (int64_t f = 0; f < half; ++f) {
      for (int64_t r = 0; r < rank; ++r) {
        const int64_t inside = (f / FREQUENCIES * rank + r) * COLUMNS + f % FREQUENCIES;
        move(found_.sums, inside, out.sums, f * rank + r);
        move(found_.sums, inside + FREQUENCIES, out.sums, (half + f) * rank + r);
      }
      move(found_.own, f, out.own, f);
    }
    move(found_.null_own, 0, out.null_own, 0);
  }

 private:
  // Target features of row i of the tile, of `rows` rows.
  void read(int64_t row, int64_t i, int64_t rows) {
    const int64_t m = rows_.m, rank = rows_.rank, label = rows_.labels[row];
    const double *p = rows_.p + row * m, *root = rows_.root;
    const double weight = rows_.weights[row];
    int64_t top = 0;
    for (int64_t k = 0; k < m; ++k) {
      residual_[k] = double(k == label) - p[k];
      if (p[k] > p[top]) top = k;
    }
    double* feature = root ? feature_.get() : residual_.get();
    if (root) combine(residual_.get(), feature);
    double square = 0;
    for (int64_t r = 0; r < rank; ++r) {
      feature[r] *= weight;
      square += feature[r] * feature[r];
    }
    squares_[i] = square;
    pack_row(feature, i, rows, rank, table_.block_columns, target_features_.get());
    lengths_[i] = weight * weight * expected_length(p, top);
  }

  void combine(const double* coefficients, double* out) const {
    std::fill_n(out, rows_.rank, 0.0);
    for (int64_t k = 0; k < rows_.m; ++k) {
      const double* row = rows_.root + k * rows_.rank;
      for (int64_t r = 0; r < rows_.rank; ++r) out[r] += coefficients[k] * row[r];
    }
  }

  // E |R^T e|^2 of a drawn label: with d_k = R_k - R_top, sum_k p_k |d_k|^2 - |sum_k p_k d_k|^2. Of a confident prediction
  // the second is small beside the first.
  double expected_length(const double* p, int64_t top) {
    const int64_t m = rows_.m, rank = rows_.rank;
    double first = 0, second = 0;
    if (!rows_.root) {
      double rest = 0;
      for (int64_t k = 0; k < m; ++k)
        if (k != top && p[k] > 0) rest += p[k], second += p[k] * p[k];
      return 2 * rest - (second + rest * rest);
    }
    const double* at = rows_.root + top * rank;
    std::fill_n(mean_.get(), rank, 0.0);
    for (int64_t k = 0; k < m; ++k) {
      if (k == top || !(p[k] > 0)) continue;
      const double* row = rows_.root + k * rank;
      double square = 0;
      for (int64_t r = 0; r < rank; ++r) {
        const double d = row[r] - at[r];
        square += d * d;
        mean_[r] += p[k] * d;
      }
      first += p[k] * square;
    }
    for (int64_t r = 0; r < rank; ++r) second += mean_[r] * mean_[r];
    return first - second;
  }

  const FeaturePanels map_;
  const FeatureMap& of_;
  const StateRows& rows_;
  const FeatureTable& table_;
  const double norm_;
  const int64_t size_;  // numbers of a panel's sums
  const AlignedBuffer<double> points_, target_features_, residual_, feature_, mean_, squares_, lengths_, phi_, panel_, own_;
  std::vector<std::int64_t> words_;
  StateSums found_;
};

}  // namespace

bool state_sums(const FeatureMap& map, const StateRows& rows, const std::int64_t* ends, int64_t n_tiles, const Run& run,
                const StateSums& out) {
  const PackedMap packed(map);
  const double work = double(ends[n_tiles - 1]) * double(packed.size() * COLUMNS) * (30.0 + 2.0 * double(rows.m + rows.rank));
  const int threads = team_size(run, n_tiles, work);
  std::vector<std::unique_ptr<Tiles>> teams(static_cast<std::size_t>(threads));
  for (auto& one : teams) one = std::make_unique<Tiles>(packed, map, rows, run);
  Watch watch(run, n_tiles);
  parallel_tasks(watch, threads, n_tiles, [&](int64_t t) {
    teams[std::size_t(thread_number())]->add(t ? int64_t(ends[t - 1]) : 0, int64_t(ends[t]));
    watch.task_done();
  });
  for (const auto& one : teams) one->merge_into(out);
  return !watch.stopped();
}

}  // namespace kcalib
