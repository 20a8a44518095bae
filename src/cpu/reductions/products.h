// H times vectors, and of rectangular problems H^T times others.
#pragma once

#include <memory>
#include <vector>

#include "cpu/reductions/reduction.h"

namespace kcalib {

// Row-major vectors and products, `stride` numbers to a row, whose rows are those of the sides' points, whatever their order.
// out (n x count) = H vectors, diagonal included; column_out (n_right x count) = H^T left_vectors of rectangular problems, or null.
// With `is_apart`, for sides without an order, products with each group of the other side by themselves: out[b * n + i] of
// column group b, column_out[a * n_right + j] of row group a.
struct ProductArrays {
  const double *vectors, *left_vectors;
  double *out, *column_out;
  int64_t stride, count;
  bool is_apart;
};

// Numbers are in W's precision but for sums over more than a tile. With `is_rounded` entries are those of `LabelMatches`, in
// float64, of symmetric problems without the diagonal.
template <class W> class Products final : public Reduction {
 public:
  Products(const ProductArrays& arrays, bool is_rounded);
  ~Products() override;
  double work() const override { return 2.0 * double(arrays_.count); }
  void start(const SweepShape& shape) override;
  void start_task(const Task& task) override;
  void add(const Task& task, Block& block) override;
  void finish_task(const Task& task, const Watch& watch) override;
  void finish() override;

 private:
  class State;

  void write_part(int64_t begin, int64_t end, const double* part, const std::vector<double>& scales, double* out) const;

  const ProductArrays arrays_;
  const bool is_rounded_;
  std::unique_ptr<State> state_;
};

}  // namespace kcalib
