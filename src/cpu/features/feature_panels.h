// Feature maps, points and target features packed as feature_kernels.h takes them. Included by features.cpp and drawn_features.cpp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/simd/aligned.h"
#include "cpu/features/feature_kernels.h"
#include "cpu/features/features.h"

namespace kcalib {

inline int64_t rounded_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

class PackedMap {
 public:
  explicit PackedMap(const FeatureMap& map)
      : map_(map),
        n_panels_(rounded_up(map.n_frequencies, FREQUENCIES) / FREQUENCIES),
        frequencies_(n_panels_ * FREQUENCIES * map.n_coordinates),
        amplitudes_(n_panels_ * FREQUENCIES),
        projections_(map.n_factors * n_panels_ * FREQUENCIES * map.n_coordinates),
        offsets_(map.n_factors * n_panels_ * FREQUENCIES) {
    pack(map.frequencies, map.n_coordinates, frequencies_.get());
    pack(map.amplitudes, 1, amplitudes_.get());
    const int64_t padded = n_panels_ * FREQUENCIES;
    for (int64_t l = 0; l < map.n_factors; ++l) {
      pack(map.projections + l * map.n_frequencies * map.n_coordinates, map.n_coordinates,
           projections_.get() + l * padded * map.n_coordinates);
      pack(map.offsets + l * map.n_frequencies, 1, offsets_.get() + l * padded);
    }
  }

  FeaturePanels panels() const {
    return {n_panels_,         map_.n_coordinates,    map_.n_factors, frequencies_.get(),
            amplitudes_.get(), projections_.get(), offsets_.get()};
  }
  int64_t size() const { return n_panels_; }

  // Of |phi(x)|^2 where there are no factors: it is the same for all x.
  double constant_norm() const {
    double sum = 0;
    for (int64_t f = 0; f < map_.n_frequencies; ++f) sum += map_.amplitudes[f] * map_.amplitudes[f];
    return sum;
  }

  // Columns of panels, from[(panel * n + row) * COLUMNS + column], as those of phi: to[column * stride + row].
  void unpack(const double* from, int64_t n, int64_t stride, double* to) const {
    each_column(n, [=](int64_t inside, int64_t column, int64_t row) { to[column * stride + row] = from[inside]; });
  }
  void repack(const double* from, int64_t n, int64_t stride, double* to) const {
    std::fill_n(to, n_panels_ * n * COLUMNS, 0.0);
    each_column(n, [=](int64_t inside, int64_t column, int64_t row) { to[inside] = from[column * stride + row]; });
  }

 private:
  template <class Work> void each_column(int64_t n, Work work) const {
    for (int64_t f = 0; f < map_.n_frequencies; ++f)
      for (int64_t row = 0; row < n; ++row) {
        const int64_t inside = (f / FREQUENCIES * n + row) * COLUMNS + f % FREQUENCIES;
        work(inside, f, row);
        work(inside + FREQUENCIES, map_.n_frequencies + f, row);
      }
  }

  void pack(const double* values, int64_t width, double* out) const {
    std::fill_n(out, n_panels_ * FREQUENCIES * width, 0.0);
    for (int64_t f = 0; f < map_.n_frequencies; ++f)
      for (int64_t k = 0; k < width; ++k)
        out[(f / FREQUENCIES * width + k) * FREQUENCIES + f % FREQUENCIES] = values[f * width + k];
  }

  const FeatureMap map_;
  const int64_t n_panels_;
  const AlignedBuffer<double> frequencies_, amplitudes_, projections_, offsets_;
};

// Rows [begin, end) in float64, with zeros up to `rows` rows.
template <class T> void widened(const T* values, int64_t width, int64_t begin, int64_t end, int64_t rows, double* out) {
  std::copy_n(values + begin * width, (end - begin) * width, out);
  std::fill_n(out + (end - begin) * width, (rows - (end - begin)) * width, 0.0);
}

// Target features of a tile of so many rows, and the size of the buffer they take.
inline int64_t blocks_size(int64_t rows, int64_t rank, int at_once) { return rows * rounded_up(rank, at_once); }
template <class T> void pack_row(const T* target_features, int64_t row, int64_t rows, int64_t rank, int at_once, double* out) {
  for (int64_t first = 0; first < rank; first += at_once) {
    double* to = out + first * rows + row * at_once;
    const int64_t count = std::min(rank - first, int64_t(at_once));
    std::copy_n(target_features + first, count, to);
    std::fill_n(to + count, at_once - count, 0.0);
  }
}

}  // namespace kcalib
