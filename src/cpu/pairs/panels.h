// Samples as a register tile reads them: packed side by side into the lanes of panels, feature after feature.
// Included by tile.cpp, once per instruction set.
#pragma once

#include <cstdint>

#include "cpu/simd/register_tile.h"
#include "cpu/pairs/tile.h"

namespace kcalib {
namespace {

// WIDTH samples, one in each lane: points (not with labels: see `repair`), features, |x|^2 and,
// with labels, |e|^2 and the labels (as integers of the lane's size). With a centre c the points x about it are in the
// place of the features, and behind the labels is what x lacks of a target factor: see `both_from`. Of a side that is `expecting`
// |x|^2 / 2, and x, x / 2 - x^2 and x once more come last.
template <class T> struct Panel {
  const T* points;
  const T* features;
  const T* point_norms;
  const T* feature_norms;
  const T* labels;
  const T* offsets;
  const T *half_norms, *squares;
  int64_t n_coordinates, n_features;

  Panel(const Side<T>& side, const T* packed)
      : points(packed),
        features(packed + (side.labels ? 0 : side.n_coordinates * WIDTH<T>)),
        point_norms(features + side.n_features * WIDTH<T>),
        feature_norms(point_norms + WIDTH<T>),
        labels(feature_norms + WIDTH<T>),
        offsets(labels + WIDTH<T>),
        half_norms(packed + size_without_squares(side)),
        squares(half_norms + WIDTH<T>),
        n_coordinates(side.n_coordinates),
        n_features(side.n_features) {}
  static int64_t size_without_squares(const Side<T>& side) {
    return (side.labels ? side.n_features + (side.centre ? 4 : 3) : side.n_coordinates + side.n_features + 1) * WIDTH<T>;
  }
  static int64_t size(const Side<T>& side) {
    return size_without_squares(side) + (side.expecting ? (1 + 3 * side.n_coordinates) * WIDTH<T> : 0);
  }
};

// ROWS lanes of panels that follow each other, from lane `first` on.
template <class T> struct RowGroup {
  const T *points[ROWS], *features[ROWS], *squares[ROWS];
  T point_norms[ROWS], feature_norms[ROWS], offsets[ROWS], half_norms[ROWS];  // offsets: with a centre only
  T least_feature_norm;
  int64_t labels[ROWS], common_label;  // -1 if they differ

  void look_at(const Side<T>& side, const T* packed, int64_t first) {
    Panel<T> panel(side, packed + first / WIDTH<T> * Panel<T>::size(side));
    int64_t lane = first % WIDTH<T>;
    common_label = -1;
    for (int r = 0; r < ROWS; ++r, ++lane) {
      if (lane == WIDTH<T>) {
        panel = Panel<T>(side, packed + (first + r) / WIDTH<T> * Panel<T>::size(side));
        lane = 0;
      }
      points[r] = panel.points + lane;
      features[r] = panel.features + lane;
      squares[r] = panel.squares + lane;
      point_norms[r] = panel.point_norms[lane];
      feature_norms[r] = side.labels ? panel.feature_norms[lane] : T(0);
      offsets[r] = side.centre ? panel.offsets[lane] : T(0);
      half_norms[r] = side.expecting ? panel.half_norms[lane] : T(0);
      labels[r] = side.labels ? __builtin_bit_cast(typename Lane<T>::bits, panel.labels[lane]) : 0;
      least_feature_norm = r && least_feature_norm < feature_norms[r] ? least_feature_norm : feature_norms[r];
      common_label = r == 0 || labels[r] == common_label ? labels[r] : -1;
    }
  }
};

// A pack of T from float64 numbers.
template <class V> KCALIB_FN V load_as(const double* x) {
  V v;
  for (int l = 0; l < LANES<V>; ++l) v[l] = Real<V>(x[l]);
  return v;
}
template <> KCALIB_FN DoublePack load_as(const double* x) { return load<DoublePack>(x); }

template <class T> T square_norm(const T* x, int64_t length) {
  using V = Pack<T>;
  constexpr int CHAINS = 4, STEP = CHAINS * LANES<V>;
  V sum[CHAINS] = {};
  int64_t k = 0;
  for (; k + STEP <= length; k += STEP)
    for (int c = 0; c < CHAINS; ++c) {
      const V part = load<V>(x + k + c * LANES<V>);
      sum[c] += part * part;
    }
  const V total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  T norm = 0;
  for (int lane = 0; lane < LANES<V>; ++lane) norm += total[lane];
  for (; k < length; ++k) norm += x[k] * x[k];
  return norm;
}

// sum_k f(x_k, c_k) for two functions f at once: |x - c|^2 and <c, x - c / 2>.
template <class T> struct AboutCentre {
  T square_norm, product;

  AboutCentre(const T* x, const double* centre, int64_t length) {
    using V = Pack<T>;
    constexpr int CHAINS = 4, STEP = CHAINS * LANES<V>;
    V squares[CHAINS] = {}, products[CHAINS] = {};
    int64_t k = 0;
    for (; k + STEP <= length; k += STEP)
      for (int chain = 0; chain < CHAINS; ++chain) {
        const int64_t at = k + chain * LANES<V>;
        const V c = load_as<V>(centre + at), d = load<V>(x + at) - c;
        squares[chain] += d * d;
        products[chain] += c * (d + T(0.5) * c);
      }
    const V square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
    const V dot = (products[0] + products[1]) + (products[2] + products[3]);
    square_norm = product = 0;
    for (int lane = 0; lane < LANES<V>; ++lane) square_norm += square[lane], product += dot[lane];
    for (; k < length; ++k) {
      const T c = T(centre[k]), d = x[k] - c;
      square_norm += d * d;
      product += c * (d + T(0.5) * c);
    }
  }
};

// Panels for `samples` samples, as columns or in groups of ROWS rows.
template <class T> int64_t panels_of(int64_t samples) { return ((samples + ROWS - 1) / ROWS * ROWS + WIDTH<T> - 1) / WIDTH<T>; }

template <class T> int64_t packed_size(const Side<T>& side, int64_t samples) { return panels_of<T>(samples) * Panel<T>::size(side); }

// packed[k * WIDTH + j] = value(source[row of sample first + j][k], k), by squares of packs.
template <class T, class Value>
KCALIB_FN void pack_rows(const Side<T>& side, int64_t first, int64_t valid, const T* source, int64_t length, T* packed, Value&& value) {
  using V = Pack<T>;
  constexpr int L = LANES<V>;
  for (int j = 0; j < WIDTH<T>; j += L) {
    const T* rows[L];
    for (int i = 0; i < L; ++i) rows[i] = j + i < valid ? source + side.row(first + j + i) * length : nullptr;
    const auto square = [&](int64_t k, int count) KCALIB_INLINE {
      V numbers[L];
      for (int i = 0; i < L; ++i) {
        numbers[i] = V{};
        if (!rows[i]) continue;
        if (count == L) numbers[i] = value(load<V>(rows[i] + k), k);
        else for (int l = 0; l < count; ++l) numbers[i][l] = value(rows[i][k + l], k + l);
      }
      transpose(numbers);
      for (int l = 0; l < L && l < count; ++l) store<V>(packed + (k + l) * WIDTH<T> + j, numbers[l]);
    };
    int64_t k = 0;
    for (; k + L <= length; k += L) square(k, L);
    if (k < length && length >= L) square(length - L, L);  // some numbers once more: faster than one by one
    else if (k < length) square(k, int(length - k));
  }
}

// Lanes beyond the last sample are zeros: their features make every entry zero.
template <class T> void pack(const Side<T>& side, int64_t begin, int64_t end, T* packed) {
  const auto same = [](auto x, int64_t) { return x; };
  const auto about_centre = [&](auto x, int64_t k) KCALIB_INLINE {
    if constexpr (sizeof x == sizeof(T)) return x - T(side.centre[k]);
    else return x - load_as<Pack<T>>(side.centre + k);
  };
  for (int64_t p = 0; p < panels_of<T>(end - begin); ++p) {
    const int64_t first = begin + p * WIDTH<T>, valid = end - first < WIDTH<T> ? end - first : WIDTH<T>;
    if (!side.labels) {
      pack_rows(side, first, valid, side.points, side.n_coordinates, packed, same);
      packed += side.n_coordinates * WIDTH<T>;
    }
    T* features = packed;
    packed += side.n_features * WIDTH<T>;
    if (side.centre)
      pack_rows(side, first, valid, side.points, side.n_coordinates, features, about_centre);
    else if (side.features)
      pack_rows(side, first, valid, side.features, side.n_features, features, same);
    else
      pack_rows(side, first, valid, side.points, side.n_coordinates, features, [](auto x, int64_t) { return -x; });
    T *point_norms = packed, *feature_norms = packed + WIDTH<T>, *labels = packed + 2 * WIDTH<T>, *offsets = packed + 3 * WIDTH<T>;
    packed += (!side.labels ? 1 : side.centre ? 4 : 3) * WIDTH<T>;
    for (T* number = point_norms; number < packed; ++number) *number = T(0);
    if (side.expecting) {
      const int64_t size = side.n_coordinates * WIDTH<T>;
      for (int64_t j = 0; j < WIDTH<T>; ++j)
        packed[j] = j < valid ? T(0.5) * square_norm(side.points + side.row(first + j) * side.n_coordinates, side.n_coordinates) : T(0);
      packed += WIDTH<T>;
      pack_rows(side, first, valid, side.points, side.n_coordinates, packed, same);
      pack_rows(side, first, valid, side.points, side.n_coordinates, packed + size, [](auto x, int64_t) { return T(0.5) * x - x * x; });
      __builtin_memcpy(packed + 2 * size, packed, size * sizeof(T));
      packed += 3 * size;
    }
    for (int64_t j = 0; j < valid; ++j) {
      const int64_t row = side.row(first + j);
      const T* point = side.points + row * side.n_coordinates;
      if (!side.labels) {
        point_norms[j] = square_norm(point, side.n_coordinates);
        if (side.classes) features[side.classes[row] * WIDTH<T> + j] = T(1) - point[side.classes[row]];
        continue;
      }
      const int label = side.labels[row];
      T own, others;
      if (side.features) {
        const T* residual = side.features + row * side.n_features;
        own = residual[label];
        others = square_norm(residual, label) + square_norm(residual + label + 1, side.n_features - label - 1);
      } else {
        own = T(1) - point[label];
        others = square_norm(point, label) + square_norm(point + label + 1, side.n_coordinates - label - 1);
        if (!side.centre) features[label * WIDTH<T> + j] = own;
      }
      if (side.centre) {
        const AboutCentre<T> about(point, side.centre, side.n_coordinates);
        point_norms[j] = about.square_norm;
        offsets[j] = about.product - T(side.centre[label]);
      } else {
        point_norms[j] = others + (T(1) - own) * (T(1) - own);
      }
      feature_norms[j] = others + own * own;
      labels[j] = __builtin_bit_cast(T, typename Lane<T>::bits(label));
    }
  }
}

}  // namespace
}  // namespace kcalib
