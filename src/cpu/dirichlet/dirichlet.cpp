// Panels of queries, dealt out to threads, past blocks of training samples.
#include "cpu/dirichlet/dirichlet.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "cpu/simd/aligned.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

template <class T> const DirichletFunctions<T>& dirichlet(const Run& run) {
  if constexpr (sizeof(T) == 8) return run.table->dirichlet->float64;
  else return run.table->dirichlet->float32;
}

// Training samples in groups of the rows of a register tile; the last group is filled up with samples that
// are infinitely far.
template <class T> class PackedTraining {
 public:
  PackedTraining(const WeightedClasses<T>& problem, const Run& run)
      : rows_(dirichlet<T>(run).rows),
        n_features_(problem.n_features),
        n_groups_(ceil_divide(problem.n_training, rows_)),
        points_(n_groups_ * rows_ * n_features_),
        offsets_(n_groups_ * rows_),
        labels_(n_groups_ * rows_) {
    const int64_t n = problem.n_training;
    parallel_tasks(team_size(run, blocks(), 4.0 * double(n) * double(n_features_)), blocks(), [&](int64_t b) {
      pack(problem, b);
    });
  }

  // As many groups as a second-level cache holds beside the queries.
  int64_t groups_at_once() const {
    constexpr int64_t ROOM = 1 << 17;  // bytes
    return std::clamp(ROOM / (rows_ * n_features_ * int64_t(sizeof(T))), MOST_GROUPS / 2, MOST_GROUPS);
  }
  int64_t blocks() const { return ceil_divide(n_groups_, groups_at_once()); }
  int64_t begin(int64_t block) const { return block * groups_at_once() * rows_; }  // its first sample

  TrainingBlock<T> operator[](int64_t block) const {
    const int64_t first = block * groups_at_once(), i = first * rows_;
    return {points_.get() + i * n_features_, offsets_.get() + i, labels_.get() + i, std::min(groups_at_once(), n_groups_ - first)};
  }

 private:
  void pack(const WeightedClasses<T>& problem, int64_t block) {
    const int64_t n = problem.n_training, first = begin(block), end = first + (*this)[block].n_groups * rows_;
    T* points = points_.get() + first * n_features_;
    const Parts parts(n_features_);
    for (int64_t part = 0; part < parts.count; ++part)
      for (int64_t g = first; g < end; g += rows_)
        for (int64_t k = parts.begin(part); k < parts.begin(part + 1); ++k)
          for (int64_t i = g; i < g + rows_; ++i) *points++ = i < n ? problem.training[i * n_features_ + k] : T(0);
    for (int64_t i = first; i < end; ++i) {
      offsets_[i] = i < n ? problem.offsets[i] : std::numeric_limits<T>::infinity();
      labels_[i] = problem.labels[std::min(i, n - 1)];
    }
  }

  const int64_t rows_, n_features_, n_groups_;
  const AlignedBuffer<T> points_, offsets_;
  const AlignedBuffer<int> labels_;
};

// A thread's panels of queries.
template <class T> class QueryPanels {
 public:
  QueryPanels(const WeightedClasses<T>& problem, const Run& run, int64_t count)
      : problem_(problem),
        width_(dirichlet<T>(run).width),
        points_(count * problem.n_features * width_),
        floors_(count * width_),
        sums_(count * problem.n_classes * width_) {}

  // So many panels of queries from `first` on.
  void start(int64_t first, int64_t panels) {
    const int64_t m = problem_.n_features;
    for (int64_t p = 0; p < panels; ++p)
      for (int64_t lane = 0; lane < width_; ++lane) {
        const int64_t j = first + p * width_ + lane;
        for (int64_t k = 0; k < m; ++k)
          points_[(p * m + k) * width_ + lane] = j < problem_.n_queries ? problem_.queries[j * m + k] : T(0);
      }
    std::fill_n(floors_.get(), panels * width_, T(HIGHEST_FLOOR));
    std::fill_n(sums_.get(), panels * problem_.n_classes * width_, 0.0);
  }

  QueryPanel<T> operator[](int64_t p) const {
    return {points_.get() + p * problem_.n_features * width_, floors_.get() + p * width_,
            sums_.get() + p * problem_.n_classes * width_};
  }

  void write(int64_t first, int64_t panels, double* shares, double* log_sums) const {
    const int64_t classes = problem_.n_classes, end = std::min(problem_.n_queries, first + panels * width_);
    for (int64_t j = first; j < end; ++j) {
      const int64_t lane = (j - first) % width_;
      const QueryPanel<T> panel = (*this)[(j - first) / width_];
      double total = 0;
      for (int64_t c = 0; c < classes; ++c) total += panel.sums[c * width_ + lane];
      for (int64_t c = 0; c < classes; ++c) shares[j * classes + c] = panel.sums[c * width_ + lane] / total;
      log_sums[j] = std::log(total) - double(panel.floors[lane]);
    }
  }

 private:
  const WeightedClasses<T>& problem_;
  const int64_t width_;
  const AlignedBuffer<T> points_, floors_;
  const AlignedBuffer<double> sums_;
};

}  // namespace

template <class T>
bool class_shares(const WeightedClasses<T>& problem, const Run& run, double* shares, double* log_sums) {
  constexpr int64_t ROOM = 1 << 18, MOST = 16;  // bytes of a second-level cache for the panels that pass over a block; panels
  const DirichletFunctions<T>& kernels = dirichlet<T>(run);
  const int64_t m = problem.n_features, width = kernels.width, panels = ceil_divide(problem.n_queries, width);
  const PackedTraining<T> training(problem, run);
  const double work = double(problem.n_queries) * double(problem.n_training) * (double(m) + 20);
  const int threads = team_size(run, panels, work);
  const int64_t at_once = std::clamp<int64_t>(std::min(ROOM / (m * width * int64_t(sizeof(T))), panels / (4 * threads)), 1, MOST);
  const int64_t tasks = ceil_divide(panels, at_once);
  std::deque<QueryPanels<T>> buffers;
  for (int t = 0; t < threads; ++t) buffers.emplace_back(problem, run, at_once);
  Watch watch(run, tasks * training.blocks());
  return parallel_tasks(watch, threads, tasks, [&](int64_t task) {
    QueryPanels<T>& queries = buffers[thread_number()];
    const int64_t first = task * at_once * width, count = std::min(at_once, panels - task * at_once);
    queries.start(first, count);
    for (int64_t b = 0; b < training.blocks() && !watch.stopped(); ++b) {
      for (int64_t p = 0; p < count; ++p) {
        const int64_t own = problem.leave_one_out ? first + p * width - training.begin(b) : -width;
        kernels.add_weights(training[b], queries[p], m, problem.n_classes, own);
      }
      watch.task_done();
    }
    if (!watch.stopped()) queries.write(first, count, shares, log_sums);
  });
}

bool log_normalisers(const double* x, int64_t n, int64_t m, const Run& run, double* out) {
  constexpr int64_t PART = 1 << 16;  // numbers between two looks at the watch
  const int64_t rows = std::max<int64_t>(1, PART / m), parts = ceil_divide(n, rows);
  const auto sum_log_gamma = run.table->dirichlet->sum_log_gamma;
  Watch watch(run, parts);
  return parallel_tasks(watch, team_size(run, parts, 50.0 * double(n) * double(m)), parts, [&](int64_t part) {
    for (int64_t i = part * rows; i < std::min(n, (part + 1) * rows); ++i) {
      double others = double(m - 1);
      for (int64_t k = 0; k < m; ++k) others += x[i * m + k];
      out[i] = sum_log_gamma(&others, 1) - sum_log_gamma(x + i * m, m);
    }
    watch.task_done();
  });
}

template bool class_shares<double>(const WeightedClasses<double>&, const Run&, double*, double*);
template bool class_shares<float>(const WeightedClasses<float>&, const Run&, double*, double*);

}  // namespace kcalib
