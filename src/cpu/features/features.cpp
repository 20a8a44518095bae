#include "cpu/features/features.h"

#include <memory>
#include <vector>

#include "cpu/features/feature_panels.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

constexpr int64_t TILE = 128;  // rows: a panel of their features stays in the first-level cache

// What a thread makes of a tile of rows: points, target features, one panel of features.
template <class T> class SampleTile {
 public:
  SampleTile(const PackedMap& map, const Run& run, int64_t rank)
      : map_(map.panels()),
        table_(*run.table->features),
        rank_(rank),
        points_(TILE * map_.n_coordinates),
        target_features_(blocks_size(TILE, rank, table_.block_columns)),
        weights_(TILE),
        phi_(TILE * COLUMNS) {}

  void read(const T* points, const T* target_features, int64_t begin, int64_t end) {
    count_ = end - begin;
    rows_ = rounded_up(count_, ROW_STEP);
    widened(points, map_.n_coordinates, begin, end, rows_, points_.get());
    std::fill_n(target_features_.get(), blocks_size(rows_, rank_, table_.block_columns), 0.0);
    for (int64_t i = 0; i < rows_; ++i) {
      weights_[i] = 0;
      if (i >= count_) continue;
      const T* row = target_features + (begin + i) * rank_;
      pack_row(row, i, rows_, rank_, table_.block_columns, target_features_.get());
      for (int64_t j = 0; j < rank_; ++j) weights_[i] += double(row[j]) * double(row[j]);
    }
  }
  const double* make(int64_t panel) {
    table_.features(map_, panel, points_.get(), rows_, phi_.get());
    return phi_.get();
  }
  const double* target_features() const { return target_features_.get(); }
  const double* weights() const { return weights_.get(); }
  int64_t rows() const { return rows_; }
  int64_t count() const { return count_; }

 private:
  const FeaturePanels map_;
  const FeatureTable& table_;
  const int64_t rank_;
  const AlignedBuffer<double> points_, target_features_, weights_, phi_;
  int64_t rows_ = 0, count_ = 0;
};

// What a thread makes of a tile of rows z: panels of features, and of the given columns, once as features lie and once as
// target features do. Products of a panel are made with what is not before it.
class GramTile {
 public:
  GramTile(const PackedMap& map, const Run& run, int64_t n_columns)
      : map_(map.panels()),
        table_(*run.table->features),
        n_columns_(n_columns),
        panels_(map_.n_panels + rounded_up(n_columns, COLUMNS) / COLUMNS),
        points_(TILE * map_.n_coordinates),
        z_(panels_ * TILE * COLUMNS),
        row_(width()),
        target_features_(blocks_size(TILE, width(), table_.block_columns)) {}

  int64_t width() const { return panels_ * COLUMNS; }

  // sums[(panel * width + column) * COLUMNS ...] += the products of rows [begin, end).
  void add(const double* points, const double* columns, int64_t begin, int64_t end, double* sums) {
    const int64_t rows = rounded_up(end - begin, ROW_STEP), size = TILE * COLUMNS;
    widened(points, map_.n_coordinates, begin, end, rows, points_.get());
    std::fill_n(z_.get(), panels_ * size, 0.0);
    for (int64_t p = 0; p < map_.n_panels; ++p) {
      double* z = z_.get() + p * size;
      table_.features(map_, p, points_.get(), rows, z);
      std::fill_n(z + (end - begin) * COLUMNS, (rows - (end - begin)) * COLUMNS, 0.0);
    }
    for (int64_t i = 0; i < end - begin; ++i)
      for (int64_t first = 0; first < n_columns_; first += COLUMNS)
        std::copy_n(columns + (begin + i) * n_columns_ + first, std::min(n_columns_ - first, int64_t(COLUMNS)),
                    z_.get() + (map_.n_panels + first / COLUMNS) * size + i * COLUMNS);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t p = 0; p < panels_; ++p) std::copy_n(z_.get() + p * size + i * COLUMNS, COLUMNS, row_.get() + p * COLUMNS);
      pack_row(row_.get(), i, rows, width(), table_.block_columns, target_features_.get());
    }
    for (int64_t p = 0; p < panels_; ++p) {
      const int64_t first = p * COLUMNS / table_.block_columns * table_.block_columns;
      table_.add_products(z_.get() + p * size, target_features_.get() + first * rows, rows, width() - first,
                          sums + (p * width() + first) * COLUMNS);
    }
  }

  // Such sums as those of z, w x w.
  void write(const double* sums, int64_t n_frequencies, double* out) const {
    const int64_t w = 2 * n_frequencies + n_columns_;
    const auto place = [&](int64_t column) {  // in z; -1: nothing is there
      const int64_t inside = column - map_.n_panels * COLUMNS;
      if (inside >= 0) return inside < n_columns_ ? 2 * n_frequencies + inside : -1;
      const int64_t lane = column % COLUMNS, f = column / COLUMNS * FREQUENCIES + lane % FREQUENCIES;
      return f >= n_frequencies ? -1 : lane < FREQUENCIES ? f : n_frequencies + f;
    };
    for (int64_t p = 0; p < panels_; ++p)
      for (int64_t column = p * COLUMNS; column < width(); ++column)
        for (int64_t lane = 0; lane < COLUMNS; ++lane)
          if (const int64_t a = place(p * COLUMNS + lane), b = place(column); a >= 0 && b >= 0)
            out[a * w + b] = out[b * w + a] = sums[(p * width() + column) * COLUMNS + lane];
  }

 private:
  const FeaturePanels map_;
  const FeatureTable& table_;
  const int64_t n_columns_, panels_;
  const AlignedBuffer<double> points_, z_, row_, target_features_;
};

// Operations of features and of products with target features, about.
double work_of(const PackedMap& map, int64_t n, int64_t rank) {
  const FeaturePanels panels = map.panels();
  const double per_frequency = 60 + 2.0 * double((1 + panels.n_factors) * panels.n_coordinates) + 4.0 * double(rank);
  return double(n) * double(panels.n_panels * FREQUENCIES) * per_frequency;
}

// Rows in parts of which each has its own sums, which are merged in order: how many parts depends on the sizes alone.
int64_t parts_of(int64_t n, int64_t numbers) {
  constexpr int64_t MOST = 64, LEAST_ROWS = 8 * TILE, ROOM = 1 << 23;  // numbers: 64 MB
  return std::clamp<int64_t>(std::min(n / LEAST_ROWS, ROOM / numbers), 1, MOST);
}

}  // namespace

template <class T>
bool sum_products(const FeatureMap& map, const T* points, const T* target_features, int64_t n, int64_t rank, const Run& run, double* sums,
               double* own) {
  const PackedMap packed(map);
  const FeatureTable& table = *run.table->features;
  const int64_t panels = packed.size(), size = panels * rank * COLUMNS, lanes = panels * FREQUENCIES;
  const int64_t parts = parts_of(n, size);
  const int64_t length = rounded_up((n + parts - 1) / parts, TILE);
  const AlignedBuffer<double> part_sums(parts * size), part_squares(parts * lanes), part_weights(parts);
  const int threads = team_size(run, parts, work_of(packed, n, rank));
  std::vector<std::unique_ptr<SampleTile<T>>> tiles(static_cast<std::size_t>(threads));
  for (auto& tile : tiles) tile = std::make_unique<SampleTile<T>>(packed, run, rank);
  Watch watch(run, (n + TILE - 1) / TILE);
  parallel_tasks(watch, threads, parts, [&](int64_t part) {
    SampleTile<T>& tile = *tiles[std::size_t(thread_number())];
    double* to = part_sums.get() + part * size;
    double* squares = part_squares.get() + part * lanes;
    double weight = 0;
    std::fill_n(to, size, 0.0);
    std::fill_n(squares, lanes, 0.0);
    const int64_t last = std::min(n, (part + 1) * length);
    for (int64_t begin = part * length; begin < last && !watch.stopped(); begin += TILE) {
      tile.read(points, target_features, begin, std::min(last, begin + TILE));
      for (int64_t p = 0; p < panels; ++p) {
        const double* phi = tile.make(p);
        table.add_products(phi, tile.target_features(), tile.rows(), rank, to + p * rank * COLUMNS);
        if (map.n_factors) table.add_squares(phi, tile.weights(), tile.rows(), squares + p * FREQUENCIES);
      }
      for (int64_t i = 0; i < tile.count(); ++i) weight += tile.weights()[i];
      watch.task_done();
    }
    part_weights[part] = weight;
  });
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t k = 0; k < size; ++k) part_sums[k] += part_sums[part * size + k];
    for (int64_t k = 0; k < lanes; ++k) part_squares[k] += part_squares[part * lanes + k];
    part_weights[0] += part_weights[part];
  }
  packed.unpack(part_sums.get(), rank, rank, sums);
  for (int64_t f = 0; f < map.n_frequencies; ++f)
    own[f] = map.n_factors ? part_squares[f] : map.amplitudes[f] * map.amplitudes[f] * part_weights[0];
  return !watch.stopped();
}

template <class T>
bool row_forms(const FeatureMap& map, const T* points, const T* target_features, int64_t n, int64_t rank, const double* sums,
               const Run& run, double* forms, double* own) {
  const PackedMap packed(map);
  const FeatureTable& table = *run.table->features;
  const int64_t panels = packed.size(), n_tiles = (n + TILE - 1) / TILE;
  const AlignedBuffer<double> panel_sums(panels * rank * COLUMNS);
  packed.repack(sums, rank, rank, panel_sums.get());
  const double norm = packed.constant_norm();
  const int threads = team_size(run, n_tiles, work_of(packed, n, rank));
  std::vector<std::unique_ptr<SampleTile<T>>> tiles(static_cast<std::size_t>(threads));
  for (auto& tile : tiles) tile = std::make_unique<SampleTile<T>>(packed, run, rank);
  Watch watch(run, n_tiles);
  return parallel_tasks(watch, threads, n_tiles, [&](int64_t t) {
    SampleTile<T>& tile = *tiles[std::size_t(thread_number())];
    alignas(64) double lanes[TILE * FREQUENCIES] = {}, norms[TILE] = {};
    const int64_t begin = t * TILE;
    tile.read(points, target_features, begin, std::min(n, begin + TILE));
    for (int64_t p = 0; p < panels; ++p) {
      const double* phi = tile.make(p);
      table.add_forms(phi, tile.target_features(), tile.rows(), rank, panel_sums.get() + p * rank * COLUMNS, lanes);
      if (map.n_factors) table.add_norms(phi, tile.rows(), norms);
    }
    for (int64_t i = 0; i < tile.count(); ++i) {
      double total = 0;
      for (int lane = 0; lane < FREQUENCIES; ++lane) total += lanes[i * FREQUENCIES + lane];
      forms[begin + i] = total;
      own[begin + i] = (map.n_factors ? norms[i] : norm) * tile.weights()[i];
    }
    watch.task_done();
  });
}

template <class T> bool feature_rows(const FeatureMap& map, const T* points, int64_t n, const Run& run, double* out) {
  const PackedMap packed(map);
  const FeaturePanels panels = packed.panels();
  const int64_t n_tiles = (n + TILE - 1) / TILE, d = map.n_coordinates, half = map.n_frequencies;
  const int threads = team_size(run, n_tiles, work_of(packed, n, 0));
  const AlignedBuffer<double> points_of(threads * TILE * d), phi_of(threads * TILE * COLUMNS);
  Watch watch(run, n_tiles);
  return parallel_tasks(watch, threads, n_tiles, [&](int64_t t) {
    double* x = points_of.get() + thread_number() * TILE * d;
    double* phi = phi_of.get() + thread_number() * TILE * COLUMNS;
    const int64_t begin = t * TILE, count = std::min(n - begin, TILE), rows = rounded_up(count, ROW_STEP);
    widened(points, d, begin, begin + count, rows, x);
    for (int64_t p = 0; p < panels.n_panels; ++p) {
      run.table->features->features(panels, p, x, rows, phi);
      const int64_t first = p * FREQUENCIES, lanes = std::min(half - first, int64_t(FREQUENCIES));
      for (int64_t i = 0; i < count; ++i) {
        double* to = out + (begin + i) * 2 * half + first;
        std::copy_n(phi + i * COLUMNS, lanes, to);
        std::copy_n(phi + i * COLUMNS + FREQUENCIES, lanes, to + half);
      }
    }
    watch.task_done();
  });
}

bool gram_parts(const FeatureMap& map, const double* points, const double* columns, int64_t n, int64_t n_columns, int64_t part_rows,
                const Run& run, double* out) {
  const PackedMap packed(map);
  const int64_t parts = (n + part_rows - 1) / part_rows, w = 2 * map.n_frequencies + n_columns;
  const int threads = team_size(run, parts, work_of(packed, n, w / 2) + double(n) * double(n_columns) * double(w));
  std::vector<std::unique_ptr<GramTile>> tiles(static_cast<std::size_t>(threads));
  for (auto& tile : tiles) tile = std::make_unique<GramTile>(packed, run, n_columns);
  const int64_t width = tiles[0]->width();
  const AlignedBuffer<double> sums(threads * width * width);
  Watch watch(run, (n + TILE - 1) / TILE);
  return parallel_tasks(watch, threads, parts, [&](int64_t part) {
    GramTile& tile = *tiles[std::size_t(thread_number())];
    double* own = sums.get() + thread_number() * width * width;
    std::fill_n(own, width * width, 0.0);
    const int64_t last = std::min(n, (part + 1) * part_rows);
    for (int64_t begin = part * part_rows; begin < last && !watch.stopped(); begin += TILE) {
      tile.add(points, columns, begin, std::min(last, begin + TILE), own);
      watch.task_done();
    }
    tile.write(own, map.n_frequencies, out + part * w * w);
  });
}

#define KCALIB_INSTANTIATE(T)                                                                                              \
  template bool sum_products<T>(const FeatureMap&, const T*, const T*, int64_t, int64_t, const Run&, double*, double*);             \
  template bool row_forms<T>(const FeatureMap&, const T*, const T*, int64_t, int64_t, const double*, const Run&, double*,        \
                             double*);                                                                                     \
  template bool feature_rows<T>(const FeatureMap&, const T*, int64_t, const Run&, double*);
KCALIB_INSTANTIATE(double)
KCALIB_INSTANTIATE(float)

}  // namespace kcalib
