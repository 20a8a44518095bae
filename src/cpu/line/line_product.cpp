// H @ V for points on a line. With A_p(i) = sum_{j<i} v_j D^p exp(-s D), D = x_i - x_j, one step to the
// right of length g is
//
//   A_p(i + 1) = exp(-s g) sum_{l<=p} binomial(p, l) g^{p-l} (A_l(i) + [l = 0] v_i),
//
// and sum_{j<i} k(x_i, x_j) v_j = sum_p c_p A_p(i): O(n) for all i. The same from the right.
// Every term is damped, none is subtracted: nothing cancels that does not cancel in the sum.
//
// Memory is what takes the time, so V is read twice and the product written once, for all terms. A first pass
// gives each strip's sums as if nothing stood before it, these are carried across strips in order, and a second pass
// starts each strip from what was carried to it. Strips depend on n alone.
#include <algorithm>
#include <memory>
#include <new>

#include "cpu/line/line.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

constexpr int64_t LANES_AT_ONCE = 32;  // columns that are read together: 4 lines of the cache of each sample
constexpr int64_t STRIPS = 32;  // of a task

class Buffer {
 public:
  explicit Buffer(int64_t size) : values_(static_cast<double*>(::operator new(sizeof(double) * size, alignment))) {}
  Buffer(const Buffer&) = delete;
  ~Buffer() { ::operator delete(values_, alignment); }
  double* get() const { return values_; }

 private:
  static constexpr std::align_val_t alignment{64};
  double* values_;
};

class Product {
 public:
  Product(const Line& line, const int64_t* positions, const ProductTerm* terms, int n_terms, bool diagonal,
          const Run& run, int64_t most_columns)
      : line_(line), positions_(positions), terms_(terms), n_terms_(n_terms), own_(diagonal),
        functions_(*run.table->line), n_strips_(ceil_divide(line.n, Strip::LENGTH)),
        n_tasks_(ceil_divide(n_strips_, STRIPS)), rows_(rows(terms, n_terms)),
        scratch_size_(2 * functions_.lanes * (highest_degree(terms, n_terms) + 1)),
        most_width_(width(most_columns)), threads_(team_size(run, n_tasks_, work(most_columns))),
        work_size_(scratch_size_ + 2 * Strip::LENGTH * most_width_), from_left_(n_strips_ * rows_ * most_width_),
        from_right_(n_strips_ * rows_ * most_width_), carried_(rows_ * most_width_), work_(threads_ * work_size_) {}

  int64_t n_tasks() const { return 2 * n_tasks_; }

  void operator()(const VectorRows& in, int64_t n_columns, const ProductRows& out, Watch& watch) const {
    const int64_t sums = rows_ * width(n_columns);
    for_each_strip(watch, [&](const Strip& strip, int64_t s, double*, double* v, double*) {
      functions_.gather(strip, in, n_columns, v);
      functions_.strip_sums(strip, terms_, n_terms_, v, width(n_columns), from_left_.get() + s * sums,
                            from_right_.get() + s * sums);
    });
    if (watch.stopped()) return;
    carry(n_columns);
    for_each_strip(watch, [&](const Strip& strip, int64_t s, double* scratch, double* v, double* results) {
      functions_.gather(strip, in, n_columns, v);
      functions_.strip_products(strip, terms_, n_terms_, own_, v, width(n_columns), from_left_.get() + s * sums,
                                from_right_.get() + s * sums, scratch, results);
      functions_.scatter(strip, results, n_columns, out);
    });
  }

 private:
  static int64_t rows(const ProductTerm* terms, int n_terms) {
    int64_t count = 0;
    for (int t = 0; t < n_terms; ++t) count += terms[t].rank * (terms[t].kernel.degree + 1);
    return count;
  }
  static int64_t highest_degree(const ProductTerm* terms, int n_terms) {
    int degree = 0;
    for (int t = 0; t < n_terms; ++t) degree = std::max(degree, terms[t].kernel.degree);
    return degree;
  }
  int64_t width(int64_t n_columns) const { return ceil_divide(n_columns, functions_.lanes) * functions_.lanes; }
  double work(int64_t n_columns) const { return double(line_.n) * double(8 * rows_ * n_columns + 20); }
  int64_t block_of(int64_t i) const { return i / line_.block; }

  Strip strip(int64_t s) const {
    const int64_t n = line_.n, block = line_.block, begin = s * Strip::LENGTH, end = std::min(n, begin + Strip::LENGTH);
    const bool first = begin % block == 0, last = end == n || end % block == 0;
    return {.begin = begin, .length = end - begin, .left = n - begin, .block = block, .places = line_.places + begin,
            .positions = positions_ + begin, .previous = first ? 0 : line_.places[begin - 1],
            .next = last ? 0 : line_.places[end],
            .previous_end = first ? 0 : std::min(end, ceil_divide(begin, block) * block) - begin,
            .next_begin = last ? end - begin : std::max(begin, block_of(end) * block) - begin};
  }

  // f(strip, its number, scratch, a row of columns for each point, and another), in parallel.
  template <class F> void for_each_strip(Watch& watch, const F& f) const {
    parallel_tasks(watch, threads_, n_tasks_, [&](int64_t task) {
      double* scratch = work_.get() + thread_number() * work_size_;
      double* v = scratch + scratch_size_;
      for (int64_t s = task * STRIPS; s < std::min(n_strips_, (task + 1) * STRIPS) && !watch.stopped(); ++s)
        f(strip(s), s, scratch, v, v + Strip::LENGTH * most_width_);
      watch.task_done();
    });
  }

  // Each strip's sums become what the others give to it.
  void carry(int64_t n_columns) const {
    const int64_t n = line_.n, sums = rows_ * width(n_columns);
    const auto move = [&](double distance, double* of_strip) {
      functions_.carry(terms_, n_terms_, distance, width(n_columns), work_.get(), carried_.get(), of_strip);
    };
    std::fill_n(carried_.get(), sums, 0.0);
    for (int64_t s = 0; s < n_strips_; ++s) {
      const int64_t begin = s * Strip::LENGTH, next = begin + Strip::LENGTH;
      const bool same = next < n && block_of(begin) == block_of(next);
      move(same ? line_.places[next] - line_.places[begin] : -1, from_left_.get() + s * sums);
    }
    std::fill_n(carried_.get(), sums, 0.0);
    for (int64_t s = n_strips_ - 1; s >= 0; --s) {
      const int64_t previous = s * Strip::LENGTH - 1, last = std::min(n - 1, previous + Strip::LENGTH);
      const bool same = previous >= 0 && block_of(previous) == block_of(last);
      move(same ? line_.places[last] - line_.places[previous] : -1, from_right_.get() + s * sums);
    }
  }

  const Line& line_;
  const int64_t* positions_;
  const ProductTerm* terms_;
  const int n_terms_;
  const double own_;
  const LineFunctions& functions_;
  const int64_t n_strips_, n_tasks_, rows_, scratch_size_, most_width_;
  const int threads_;
  const int64_t work_size_;
  const Buffer from_left_, from_right_, carried_, work_;
};

}  // namespace

bool line_product(const Line& line, const int64_t* positions, const ProductTerm* terms, int n_terms, bool diagonal,
                  const VectorRows& vectors, int64_t n_vectors, const Run& run, const ProductRows& out) {
  // Groups of columns of equal sizes, in whole cache lines.
  const int64_t groups = ceil_divide(n_vectors, LANES_AT_ONCE), size = ceil_divide(ceil_divide(n_vectors, groups), 8) * 8;
  const Product product(line, positions, terms, n_terms, diagonal, run, std::min(size, n_vectors));
  Watch watch(run, groups * product.n_tasks());
  for (int64_t c = 0; c < n_vectors && !watch.stopped(); c += size) {
    VectorRows in = vectors;
    ProductRows to = out;
    if (in.values) in.values += c;
    to.values += c;
    product(in, std::min(size, n_vectors - c), to, watch);
  }
  return !watch.stopped();
}

}  // namespace kcalib
