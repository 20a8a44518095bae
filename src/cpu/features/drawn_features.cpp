// Sums of random features over labels that are drawn from predictions, many draws at a time.
//
// A tile of rows at a time: all threads make its features, then each adds them, panel after panel, to the sums of its own
// draws, whose rows are therefore added in order whatever the number of threads. While a tile is added, the next one is
// made. Where a thread has many draws, it makes the features by itself: they take little beside the draws, and no thread
// waits for another that the system has put aside.
//
// A residual is onehot(label) - p. Of a row whose most probable class has at least 1/2 only labels that are another class
// take part, S += phi (x) (delta_label - delta_likely); what all draws share, S0 = sum_i phi(x_i) (x) base_i with
// base = delta_likely - p, is made once. So saturated predictions cost little, and 1 - p, which is exact from 1/2 on,
// keeps its digits. Of other rows the base is -p, and every label takes part: one addition in place of up to two.
// Of two classes the sums are each other's negative, and one addition is enough.
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu/features/feature_panels.h"
#include "cpu/features/features.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

constexpr unsigned NO_CLASS = ~0u;  // is likely
constexpr int64_t WORTH_OWN_FEATURES = 64;  // draws of a thread
constexpr int64_t DRAWS_AT_ONCE = 64;  // whose additions to a tile a thread lists before it makes them

struct Share {
  int64_t begin, end;
};
Share share_of(int64_t count, int64_t k, int64_t shares) {
  return {count * k / shares, count * (k + 1) / shares};
}

// The matrix M = R R^T of the target kernel, (m x m).
std::vector<double> target_matrix(const DrawnLabels& labels, int threads) {
  const int64_t m = labels.root ? labels.m : 0, r = labels.rank;
  std::vector<double> matrix(std::size_t(m * m));
  parallel_tasks(threads, m, [&](int64_t a) {
    for (int64_t b = 0; b < m; ++b) {
      double sum = 0;
      for (int64_t k = 0; k < r; ++k) sum += labels.root[a * r + k] * labels.root[b * r + k];
      matrix[std::size_t(a * m + b)] = sum;
    }
  });
  return matrix;
}

// All that is known of a tile of rows before labels are drawn.
template <class T> class Tile {
 public:
  Tile(const PackedMap& map, const DrawnLabels& labels, const double* matrix, int64_t rows, const Run& run)
      : map_(map.panels()),
        labels_(labels),
        matrix_(matrix),
        table_(*run.table->features),
        stride_(rows),
        norm_(map.constant_norm()),
        phi_(map.size() * (rows + 1) * COLUMNS),
        points_(rows * map_.n_coordinates),
        target_features_(blocks_size(rows, labels.m, table_.block_columns)),
        base_(rows * labels.m),
        cumulative_(rows * labels.m),
        costs_(rows * labels.m),
        totals_(rows),
        highest_(rows),
        norms_(rows),
        base_costs_(rows),
        log_scores_(labels.cells && has_tables() ? rows * labels.m : 0),
        likely_(rows),
        cells_(labels.cells && has_tables() ? rows * labels.m : 0),
        tops_(labels.cells ? rows : 0),
        top_cells_(labels.cells ? rows : 0),
        log_low_(labels.cells && has_tables() ? rows * labels.m : 0),
        log_high_(labels.cells && has_tables() ? rows * labels.m : 0) {
    for (int64_t p = 0; p < map_.n_panels; ++p) std::fill_n(phi(p) + rows * COLUMNS, COLUMNS, 0.0);
  }

  // Rows `share` of groups of ROW_STEP rows from `begin` on.
  void make(const T* points, int64_t begin, Share share) {
    for (int64_t g = share.begin; g < share.end; ++g) {
      const int64_t first = g * ROW_STEP, from = std::min(begin + first, labels_.n);
      const int64_t end = std::min(from + ROW_STEP, labels_.n), d = map_.n_coordinates;
      double* x = points_.get() + first * d;
      widened(points, d, from, end, ROW_STEP, x);
      for (int64_t i = first; i < first + ROW_STEP; ++i) norms_[i] = map_.n_factors ? 0 : norm_;
      for (int64_t p = 0; p < map_.n_panels; ++p) {
        double* rows = phi(p) + first * COLUMNS;
        table_.features(map_, p, x, ROW_STEP, rows);
        if (map_.n_factors) table_.add_norms(rows, ROW_STEP, norms_.get() + first);
      }
      if (labels_.weights)
        for (int64_t i = first; i < first + end - from; ++i) scale(i, labels_.weights[begin + i]);
      for (int64_t i = first; i < first + ROW_STEP; ++i) read(i, begin + i);
      for (int64_t i = first + end - from; i < first + ROW_STEP; ++i) norms_[i] = 0;
      if (matrix_) weigh(first);
      for (int64_t i = first; i < first + ROW_STEP; ++i)
        for (int64_t k = 0; k < labels_.m; ++k) costs_[i * labels_.m + k] *= norms_[i];
    }
  }

  // S0 += the base residuals' products, for a share of the panels.
  void add_base(Share panels, double* sums) const {
    for (int64_t p = panels.begin; p < panels.end; ++p)
      table_.add_products(panel(p), target_features_.get(), stride_, labels_.m, sums + p * labels_.m * COLUMNS);
  }
  double base_cost(int64_t rows) const {
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += norms_[i] * base_costs_[i];
    return sum;
  }

  // A panel of features; behind the last row is one of zeros.
  const double* panel(int64_t p) const { return phi(p); }
  LabelRows label_rows(int64_t rows) const {
    return {rounded_up(rows, ROW_STEP), labels_.m, cumulative_.get(), totals_.get(), highest_.get(), likely_.get()};
  }
  unsigned likely(int64_t row) const { return likely_[row]; }
  const unsigned* likely() const { return likely_.get(); }
  // The sum of |phi|^2 (|R^T e|^2 - |R^T base|^2) over the rows, whose labels go on to a multiple of ROW_STEP.
  double cost_of(const unsigned* labels, int64_t rows) const {
    double sums[4] = {};
    const double* row = costs_.get();
    for (int64_t i = 0; i < rows; i += 4)
      for (int64_t k = 0; k < 4; ++k, row += labels_.m) sums[k] += row[labels[i + k]];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  // Count the labels of the rows from `begin` on in the cells of a draw, and add their probabilities' logarithms.
  void count(const unsigned* labels, int64_t begin, int64_t rows, int64_t draw) const {
    const DrawnCells& to = *labels_.cells;
    const int64_t base = draw * to.cells.size(labels_.m);
    const double* p = labels_.probabilities + begin * labels_.m;
    Wide sum;
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t entry = i * labels_.m + labels[i];
      const double weight = weight_of(begin + i);
      if (has_tables()) {
        to.add(base + cells_[entry], weight);
        sum.add(log_low_[entry], log_high_[entry]);
      } else {
        std::uint64_t low;
        std::int64_t high;
        const double score = weight * to.cells.log_score(p[entry]);
        cut(&score, 1, &low, &high);
        to.add(base + labels[i] * to.cells.n_cells + to.cells.cell(p[entry]), weight);
        sum.add(low, high);
      }
      to.add(base + top_cells_[i], labels[i] == tops_[i] ? weight : 0);
    }
    to.log_scores.add(draw, sum);
  }

 private:
  double* phi(int64_t p) const { return phi_.get() + p * (stride_ + 1) * COLUMNS; }

  // Row i of the tile is row `row` of the predictions, or none, which draws label 0 and is left out later.
  void read(int64_t i, int64_t row) {
    const int64_t m = labels_.m, at_once = table_.block_columns;
    double* base = base_.get() + i * m;
    const bool lanes = m <= LANE_CLASSES;
    double* sums = cumulative_.get() + (lanes ? i / 8 * m * 8 + i % 8 : i * m);
    const int64_t step = lanes ? 8 : 1;
    if (row >= labels_.n) {
      for (int64_t k = 0; k < m; ++k) sums[k * step] = base[k] = costs_[i * m + k] = 0;
      totals_[i] = highest_[i] = base_costs_[i] = 0;
      likely_[i] = NO_CLASS;
    } else {
      const double* p = labels_.probabilities + row * m;
      double total = 0;
      int64_t top = 0;
      for (int64_t k = 0; k < m; ++k) {
        total += p[k];
        sums[k * step] = total;
        if (p[k] > p[top]) top = k;
      }
      totals_[i] = total;
      highest_[i] = std::nextafter(total, 0.0);
      if (labels_.cells) find_cells(i, row, p, top);
      const bool likely = p[top] >= 0.5 || m == 2;
      likely_[i] = likely ? unsigned(top) : NO_CLASS;
      for (int64_t k = 0; k < m; ++k) base[k] = -p[k];
      if (likely) base[top] = 1 - p[top];
      if (!matrix_) {
        double cost = 0;
        for (int64_t k = 0; k < m; ++k) cost += base[k] * base[k];
        base_costs_[i] = cost;
        // |delta_label - p|^2 - |delta_top - p|^2 = 2 (p_top - p_label), and 1 - 2 p_label if the base is -p.
        const double offset = likely ? 2 * p[top] : 1;
        for (int64_t k = 0; k < m; ++k) costs_[i * m + k] = offset - 2 * p[k];
      }
    }
    pack_row(base, i, stride_, m, int(at_once), target_features_.get());
  }

  bool has_tables() const { return labels_.m <= LANE_CLASSES / 2; }  // of more classes few entries are drawn
  double weight_of(int64_t row) const { return labels_.weights ? labels_.weights[row] : 1; }
  void scale(int64_t i, double weight) {
    norms_[i] *= weight * weight;
    for (int64_t p = 0; p < map_.n_panels; ++p)
      for (int c = 0; c < COLUMNS; ++c) phi(p)[i * COLUMNS + c] *= weight;
  }
  void find_cells(int64_t i, int64_t row, const double* p, int64_t top) {
    const LabelCells& to = labels_.cells->cells;
    const int64_t m = labels_.m;
    if (has_tables()) {
      double* scores = log_scores_.get() + i * m;
      for (int64_t k = 0; k < m; ++k) {
        cells_[i * m + k] = unsigned(k * to.n_cells) + to.cell(p[k]);
        scores[k] = weight_of(row) * to.log_score(p[k]);
      }
      cut(scores, m, log_low_.get() + i * m, log_high_.get() + i * m);
    }
    tops_[i] = unsigned(top);
    top_cells_[i] = unsigned(m * to.n_cells) + to.top_cell(p[top]);
  }

  // costs and base costs of ROW_STEP rows for a matrix M: with d = delta_label - delta_likely, or delta_label,
  // |R^T (base + d)|^2 - |R^T base|^2 = 2 <M base, d> + <d, M d>.
  void weigh(int64_t first) {
    const int64_t m = labels_.m;
    double* costs = costs_.get() + first * m;
    table_.multiply(base_.get() + first * m, ROW_STEP, matrix_, m, costs);
    for (int64_t i = 0; i < ROW_STEP; ++i, costs += m) {
      const double* base = base_.get() + (first + i) * m;
      const unsigned top = likely_[first + i];
      double cost = 0;
      for (int64_t k = 0; k < m; ++k) cost += base[k] * costs[k];
      base_costs_[first + i] = cost;
      const double* row = top == NO_CLASS ? nullptr : matrix_ + int64_t(top) * m;
      const double offset = row ? row[top] - 2 * costs[top] : 0;
      for (int64_t k = 0; k < m; ++k) {
        const double cross = row ? -2 * row[k] : 0;
        costs[k] = 2 * costs[k] + matrix_[k * m + k] + cross + offset;
      }
      if (row) costs[top] = 0;
    }
  }

  const FeaturePanels map_;
  const DrawnLabels& labels_;
  const double* matrix_;
  const FeatureTable& table_;
  const int64_t stride_;
  const double norm_;
  const AlignedBuffer<double> phi_, points_, target_features_, base_, cumulative_, costs_, totals_, highest_, norms_, base_costs_, log_scores_;
  const AlignedBuffer<unsigned> likely_, cells_, tops_, top_cells_;
  const AlignedBuffer<std::uint64_t> log_low_;
  const AlignedBuffer<std::int64_t> log_high_;
};

// Rows of a tile by their class, as the kernels add them, for each of some draws.
class RowsByClass {
 public:
  RowsByClass(int64_t rows, int64_t n_classes)
      : near_(n_classes <= NEAR_CLASSES),
        n_classes_(n_classes),
        zeros_(rows),
        room_(near_ ? rows + 4 * n_classes : rows + LOOK_AHEAD),
        rows_(DRAWS_AT_ONCE * room_),
        classes_(near_ ? 0 : DRAWS_AT_ONCE * room_),
        runs_(near_ ? DRAWS_AT_ONCE * n_classes : 0),
        buckets_(near_ ? n_classes * (rows + 4) : 0) {}

  // So many rows, of which row i has the class classes[i].
  void list(const unsigned short* rows, int64_t count, const unsigned* classes, int64_t place) {
    if (near_) list_runs(rows, count, classes, place);
    else list_singles(rows, count, classes, place);
  }

  template <bool ADD> void merge(const FeatureTable& table, const double* phi, int64_t place, double* sums) const {
    const unsigned short* rows = rows_.get() + place * room_;
    if (near_) {
      const Runs list{rows, runs_.get() + place * n_classes_, counts_[place]};
      (ADD ? table.add_runs : table.subtract_runs)(phi, list, sums);
    } else {
      const Singles list{rows, classes_.get() + place * room_, counts_[place]};
      (ADD ? table.add_singles : table.subtract_singles)(phi, list, sums);
    }
  }

 private:
  void list_singles(const unsigned short* rows, int64_t count, const unsigned* classes, int64_t place) {
    unsigned short* to = rows_.get() + place * room_;
    unsigned* of = classes_.get() + place * room_;
    for (int64_t i = 0; i < count; ++i) {
      to[i] = static_cast<unsigned short>(rows[i] * COLUMNS);
      of[i] = classes[rows[i]];
    }
    std::fill_n(of + count, LOOK_AHEAD, 0u);
    counts_[place] = count;
  }

  void list_runs(const unsigned short* rows, int64_t count, const unsigned* classes, int64_t place) {
    unsigned short* ends[NEAR_CLASSES];
    const int64_t size = zeros_ + 4;
    for (int64_t c = 0; c < n_classes_; ++c) ends[c] = buckets_.get() + c * size;
    for (int64_t i = 0; i < count; ++i) *ends[classes[rows[i]]]++ = static_cast<unsigned short>(rows[i] * COLUMNS);
    unsigned short* to = rows_.get() + place * room_;
    Run4* runs = runs_.get() + place * n_classes_;
    int64_t n_runs = 0;
    for (int64_t c = 0; c < n_classes_; ++c) {
      const unsigned short* from = buckets_.get() + c * size;
      const int64_t fours = (ends[c] - from + 3) / 4;
      std::fill_n(ends[c], 3, static_cast<unsigned short>(zeros_ * COLUMNS));
      std::memcpy(to, from, std::size_t(fours) * 4 * sizeof *from);
      to += 4 * fours;
      runs[n_runs] = {unsigned(c), unsigned(fours)};
      n_runs += fours > 0;
    }
    counts_[place] = n_runs;
  }

  const bool near_;
  const int64_t n_classes_, zeros_, room_;
  const AlignedBuffer<unsigned short> rows_;
  const AlignedBuffer<unsigned> classes_;
  const AlignedBuffer<Run4> runs_;
  const AlignedBuffer<unsigned short> buckets_;
  int64_t counts_[DRAWS_AT_ONCE];
};

// The additions of some draws to a tile, which a thread lists.
class Additions {
 public:
  Additions(int64_t rows, int64_t n_classes)
      : added_(rows, n_classes),
        taken_(rows, n_classes),
        uniform_(rows),
        labels_(rows),
        all_(rows),
        likely_(rows),
        chosen_(rows + 1) {
    for (int64_t i = 0; i < rows; ++i) all_[i] = static_cast<unsigned short>(i);
  }

  template <class T> void start(const Tile<T>& tile, int64_t rows) {
    n_likely_ = 0;
    for (int64_t i = 0; i < rows; ++i)
      if (tile.likely(i) != NO_CLASS) likely_[n_likely_++] = static_cast<unsigned short>(i);
  }

  // Draws the labels of rows [begin, begin + rows), which are those of the tile; returns their cost.
  template <class T>
  double list(const FeatureTable& table, const Tile<T>& tile, const DrawnLabels& from, Word draw, int64_t begin, int64_t rows,
              int64_t place) {
    table.uniforms(from.seed, draw, int64_t(from.first_row) + begin, rounded_up(rows, ROW_STEP), uniform_.get());
    table.labels(tile.label_rows(rows), uniform_.get(), labels_.get());
    if (n_likely_ == 0) {
      added_.list(all_.get(), rows, labels_.get(), place);
    } else {
      added_.list(chosen_.get(), others(tile, all_.get(), rows), labels_.get(), place);
      if (takes(from)) taken_.list(chosen_.get(), others(tile, likely_.get(), n_likely_), tile.likely(), place);
    }
    return tile.cost_of(labels_.get(), rows);
  }
  const unsigned* labels() const { return labels_.get(); }
  void add(const FeatureTable& table, const DrawnLabels& from, const double* phi, int64_t place, double* sums) const {
    added_.merge<true>(table, phi, place, sums);
    if (takes(from)) taken_.merge<false>(table, phi, place, sums);
  }

 private:
  bool takes(const DrawnLabels& from) const { return n_likely_ > 0 && from.m > 2; }

  // Those of the rows whose label is not the likely one.
  template <class T> int64_t others(const Tile<T>& tile, const unsigned short* rows, int64_t count) {
    int64_t n = 0;
    for (int64_t i = 0; i < count; ++i) {
      chosen_[n] = rows[i];
      n += labels_[rows[i]] != tile.likely(rows[i]);
    }
    return n;
  }

  RowsByClass added_, taken_;
  const AlignedBuffer<double> uniform_;
  const AlignedBuffer<unsigned> labels_;
  const AlignedBuffer<unsigned short> all_, likely_, chosen_;
  int64_t n_likely_ = 0;
};

// How rows and draws are cut.
struct Sizes {
  int64_t rows, draws;
  Sizes(const PackedMap& map, const DrawnLabels& labels, int threads) {
    // A map of no columns is for what is counted alone.
    const int64_t columns = std::max<int64_t>(map.size(), 1) * COLUMNS, sums = columns * labels.m;
    // Of a tile the features stay in a second-level cache. Of many classes the rows of a tile have few in common.
    constexpr int64_t TILE_NUMBERS = 1 << 16;
    rows = std::clamp<int64_t>(TILE_NUMBERS / columns / ROW_STEP * ROW_STEP, 32, labels.m > 128 ? 64 : MOST_ROWS);
    rows = std::min(rows, rounded_up(labels.n, ROW_STEP));
    // Sums of draws take at most 64 MB; less, if features need not be made again often, for the caches.
    constexpr int64_t MOST_NUMBERS = 1 << 23, CACHED = 1 << 19, WORTH_A_TILE = 128, MOST_DRAWS = 4096;
    const int64_t most = std::clamp<int64_t>(MOST_NUMBERS / sums, 1, MOST_DRAWS);
    const int64_t at_once = std::min(most, std::max(WORTH_A_TILE, CACHED * threads / sums));
    const int64_t batches = (labels.n_draws + at_once - 1) / at_once;
    draws = (labels.n_draws + batches - 1) / batches;
  }
};

int threads_of(const PackedMap& map, const DrawnLabels& labels, const Run& run) {
  const double columns = double(std::max<int64_t>(map.size(), 1) * COLUMNS);
  const double work = double(labels.n) * columns * (30.0 + double(labels.n_draws) + double(labels.m));
  return team_size(run, std::max(labels.n_draws, map.size()), work);
}

// What `sum_draws` counts on its watch.
int64_t tasks_of(const PackedMap& map, const DrawnLabels& labels, const Run& run) {
  const int threads = threads_of(map, labels, run);
  const Sizes sizes(map, labels, threads);
  return threads * ((labels.n + sizes.rows - 1) / sizes.rows * ((labels.n_draws + sizes.draws - 1) / sizes.draws));
}

// Adds all rows to the sums of all draws, a batch of draws at a time. Of each draw `finish` is called once by the thread
// that has it, with the sums of its changes and those of the base, panel by panel of m * COLUMNS numbers, and its costs.
template <class T, class Finish>
bool sum_draws(const PackedMap& packed, const T* points, const DrawnLabels& labels, const Run& run, Watch& watch,
               const Finish& finish) {
  const FeatureTable& table = *run.table->features;
  const int64_t panels = packed.size(), m = labels.m, n = labels.n, sums_size = m * COLUMNS;
  const int threads = threads_of(packed, labels, run);
  const Sizes sizes(packed, labels, threads);
  const int64_t n_tiles = (n + sizes.rows - 1) / sizes.rows, batches = (labels.n_draws + sizes.draws - 1) / sizes.draws;
  const std::vector<double> matrix = target_matrix(labels, threads);
  const double* of_labels = labels.root ? matrix.data() : nullptr;

  const AlignedBuffer<double> base_sums(panels * sums_size), sums(panels * sizes.draws * sums_size), costs(sizes.draws);
  const auto sums_of = [&](int64_t panel, int64_t draw) { return sums.get() + (panel * sizes.draws + draw) * sums_size; };
  std::fill_n(base_sums.get(), panels * sums_size, 0.0);
  double base_cost = 0;
  const int64_t groups = sizes.rows / ROW_STEP;
  const bool apart = sizes.draws >= WORTH_OWN_FEATURES * threads;
  std::vector<std::unique_ptr<Tile<T>>> tiles(std::size_t(apart ? threads : 2));
  for (auto& tile : tiles) tile = std::make_unique<Tile<T>>(packed, labels, of_labels, sizes.rows, run);
  std::vector<std::unique_ptr<Additions>> additions(static_cast<std::size_t>(threads));
  for (auto& list : additions) list = std::make_unique<Additions>(sizes.rows, m);

  for (int64_t batch = 0; batch < batches; ++batch) {
    const int64_t first = batch * sizes.draws, draws = std::min(sizes.draws, labels.n_draws - first);
    const auto add_tile = [&](const Tile<T>& tile, int64_t t, int64_t share) {
      Additions& list = *additions[std::size_t(share)];
      const Share own = share_of(draws, share, threads);
      const int64_t begin = t * sizes.rows, rows = std::min(n - begin, sizes.rows);
      if (t == 0) {
        for (int64_t p = 0; p < panels; ++p) std::fill(sums_of(p, own.begin), sums_of(p, own.end), 0.0);
        std::fill(costs.get() + own.begin, costs.get() + own.end, 0.0);
      }
      list.start(tile, rows);
      if (batch == 0) tile.add_base(share_of(panels, share, threads), base_sums.get());
      if (batch == 0 && share == 0) base_cost += tile.base_cost(rows);
      for (int64_t d = own.begin; d < own.end; d += DRAWS_AT_ONCE) {
        const int64_t end = std::min(own.end, d + DRAWS_AT_ONCE);
        for (int64_t k = d; k < end; ++k) {
          const Word draw = labels.first + Word(first + k);
          costs[k] += list.list(table, tile, labels, draw, begin, rows, k - d);
          if (labels.cells) tile.count(list.labels(), begin, rows, first + k);
        }
        for (int64_t p = 0; p < panels; ++p)
          for (int64_t k = d; k < end; ++k) list.add(table, labels, tile.panel(p), k - d, sums_of(p, k));
      }
      watch.task_done();
    };
    if (apart) {
      parallel_tasks(watch, threads, threads, [&](int64_t share) {
        Tile<T>& tile = *tiles[std::size_t(share)];
        for (int64_t t = 0; t < n_tiles && !watch.stopped(); ++t) {
          tile.make(points, t * sizes.rows, {0, groups});
          add_tile(tile, t, share);
        }
      });
    } else {
      for (int64_t t = -1; t < n_tiles && !watch.stopped(); ++t)  // adds a tile while the next one is made
        parallel_tasks(watch, threads, threads, [&](int64_t share) {
          if (t + 1 < n_tiles) tiles[std::size_t((t + 1) % 2)]->make(points, (t + 1) * sizes.rows, share_of(groups, share, threads));
          if (t >= 0) add_tile(*tiles[std::size_t(t % 2)], t, share);
        });
    }
    if (watch.stopped()) return false;
    parallel_tasks(threads, threads, [&](int64_t share) {
      const Share own = share_of(draws, share, threads);
      for (int64_t k = own.begin; k < own.end; ++k) {
        if (m == 2)
          for (int64_t p = 0; p < panels; ++p) {
            double* of = sums_of(p, k);
            for (int c = 0; c < COLUMNS; ++c) {
              const double towards = of[COLUMNS + c] - of[c];
              of[COLUMNS + c] = towards;
              of[c] = -towards;
            }
          }
        finish(first + k, [&](int64_t p) { return sums_of(p, k); }, base_sums.get(), base_cost, costs[k]);
      }
    });
  }
  return true;
}

}  // namespace

template <class T>
bool drawn_label_totals(const FeatureMap& map, const T* points, const DrawnLabels& labels, const Run& run, double* out) {
  const PackedMap packed(map);
  const FeatureTable& table = *run.table->features;
  const int64_t panels = packed.size(), m = labels.m, rank = labels.rank, sums_size = m * COLUMNS;
  const int64_t n_roots = labels.root ? threads_of(packed, labels, run) : 0;
  const AlignedBuffer<double> packed_root(labels.root ? blocks_size(m, rank, table.block_columns) : 0);
  const AlignedBuffer<double> rooted(n_roots * rank * COLUMNS);
  if (labels.root)
    for (int64_t k = 0; k < m; ++k) pack_row(labels.root + k * rank, k, m, rank, table.block_columns, packed_root.get());
  const auto finish = [&](int64_t draw, const auto& changes, const double* base, double base_cost, double cost) {
    double total = 0;
    for (int64_t p = 0; p < panels; ++p) {
      double* of = changes(p);
      const double squares = table.square_of_sums(of, base + p * sums_size, sums_size);
      if (!labels.root) {
        total += squares;
        continue;
      }
      double* product = rooted.get() + thread_number() * rank * COLUMNS;
      std::fill_n(product, rank * COLUMNS, 0.0);
      table.add_products(of, packed_root.get(), m, rank, product);
      for (int64_t c = 0; c < rank * COLUMNS; ++c) total += product[c] * product[c];
    }
    out[draw] = total - (base_cost + cost);
  };
  Watch watch(run, tasks_of(packed, labels, run));
  return sum_draws(packed, points, labels, run, watch, finish);
}

bool drawn_block_sums(const FeatureMap& map, DrawnLabels labels, const std::int64_t* first_rows, int64_t n_blocks,
                      const Run& run, const DrawnSums& out) {
  const PackedMap packed(map);
  const int64_t panels = packed.size(), m = labels.m, size = 2 * map.n_frequencies * m;
  // Of sums in panels those of the columns (2F x m).
  const auto add = [&](const double* panel, int64_t p, const ExactSums& to) {
    std::uint64_t low[COLUMNS];
    std::int64_t high[COLUMNS];
    const int64_t lanes = std::min(map.n_frequencies - p * FREQUENCIES, int64_t(FREQUENCIES));
    for (int64_t k = 0; k < m; ++k) {
      cut(panel + k * COLUMNS, COLUMNS, low, high);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        const int64_t column = p * FREQUENCIES + lane;
        to.add(column * m + k, Wide{low[lane], high[lane]});
        to.add((map.n_frequencies + column) * m + k, Wide{low[FREQUENCIES + lane], high[FREQUENCIES + lane]});
      }
    }
  };
  const double *p = labels.probabilities, *weights = labels.weights;
  // Of all blocks: one takes less time than a watch lets go by before it asks for the first time.
  Watch watch(run, n_blocks * tasks_of(packed, labels, run));
  for (int64_t b = 0; b < n_blocks; ++b) {
    labels.probabilities = p + b * labels.n * m;
    if (weights) labels.weights = weights + b * labels.n;
    labels.first_row = Word(first_rows[b]);
    const auto finish = [&](int64_t draw, const auto& changes, const double* base, double base_cost, double cost) {
      for (int64_t panel = 0; panel < panels; ++panel)
        add(changes(panel), panel, {out.changes.high + draw * size, out.changes.low + draw * size});
      add_exactly(&cost, 1, {out.changes_own.high + draw, out.changes_own.low + draw});
      if (draw) return;
      for (int64_t panel = 0; panel < panels; ++panel) add(base + panel * m * COLUMNS, panel, out.base);
      add_exactly(&base_cost, 1, out.base_own);
    };
    if (!sum_draws(packed, labels.probabilities, labels, run, watch, finish)) return false;
  }
  return true;
}

template bool drawn_label_totals<double>(const FeatureMap&, const double*, const DrawnLabels&, const Run&, double*);
template bool drawn_label_totals<float>(const FeatureMap&, const float*, const DrawnLabels&, const Run&, double*);

}  // namespace kcalib
