// Panels of random features, and the sums that are made of them while they stay in the cache.
//
// Compiled once per instruction set, as tile.cpp is and with the same rule (no std:: code).
#include "cpu/features/feature_kernels.h"

#include "cpu/simd/pack.h"

namespace kcalib {
namespace {

using V = DoublePack;
constexpr int L = LANES<V>;
constexpr int PACKS = FREQUENCIES / L;       // of a panel's cosines
constexpr int PHASES = PACKS > 8 ? PACKS : 8;  // packs at a time
constexpr int PHASE_ROWS = PHASES / PACKS;

// Products of target features are made for so many at a time with two packs of columns: what the registers hold.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int BLOCK_COLUMNS = 10, FORM_ROWS = 8;
#elif defined(__AVX2__)
constexpr int BLOCK_COLUMNS = 6, FORM_ROWS = 4;
#else
constexpr int BLOCK_COLUMNS = 4, FORM_ROWS = 4;
#endif
constexpr int STEP = 2 * L;  // columns of two packs

// <point, direction> for PHASE_ROWS points and the directions of a panel.
KCALIB_FN void inner_products(const double* points, int64_t n_coordinates, const double* directions, V* out) {
  for (int i = 0; i < PHASES; ++i) out[i] = V{};
  for (int64_t k = 0; k < n_coordinates; ++k) {
    V w[PACKS];
    for (int p = 0; p < PACKS; ++p) w[p] = load<V>(directions + k * FREQUENCIES + p * L);
#pragma GCC unroll 8
    for (int i = 0; i < PHASES; ++i) out[i] += points[i / PACKS * n_coordinates + k] * w[i % PACKS];
  }
}

void features(const FeaturePanels& map, int64_t panel, const double* points, int64_t rows, double* out) {
  const int64_t d = map.n_coordinates, size = d * FREQUENCIES;
  for (int64_t row = 0; row < rows; row += PHASE_ROWS) {
    V phases[PHASES], sizes[PHASES];
    inner_products(points + row * d, d, map.frequencies + panel * size, phases);
    for (int i = 0; i < PHASES; ++i) sizes[i] = load<V>(map.amplitudes + panel * FREQUENCIES + i % PACKS * L);
    for (int64_t l = 0; l < map.n_factors; ++l) {
      V factors[PHASES];
      const int64_t at = l * map.n_panels + panel;
      inner_products(points + row * d, d, map.projections + at * size, factors);
      for (int i = 0; i < PHASES; ++i) sizes[i] *= factors[i] + load<V>(map.offsets + at * FREQUENCIES + i % PACKS * L);
    }
#pragma GCC unroll 8
    for (int i = 0; i < PHASES; ++i) {
      const SinCos<V> of = sin_cos(phases[i]);
      double* to = out + (row + i / PACKS) * COLUMNS + i % PACKS * L;
      store<V>(to, sizes[i] * of.cosine);
      store<V>(to + FREQUENCIES, sizes[i] * of.sine);
    }
  }
}

template <int COUNT> void products(const double* phi, const double* target_features, int64_t rows, double* sums) {
  for (int c = 0; c < COLUMNS; c += STEP) {
    V total[2 * COUNT] = {};
    for (int64_t row = 0; row < rows; ++row) {
      const V a = load<V>(phi + row * COLUMNS + c), b = load<V>(phi + row * COLUMNS + c + L);
#pragma GCC unroll 10
      for (int j = 0; j < COUNT; ++j) {
        const double target = target_features[row * BLOCK_COLUMNS + j];
        total[2 * j] += target * a;
        total[2 * j + 1] += target * b;
      }
    }
#pragma GCC unroll 10
    for (int j = 0; j < COUNT; ++j) {
      double* to = sums + j * COLUMNS + c;
      store<V>(to, load<V>(to) + total[2 * j]);
      store<V>(to + L, load<V>(to + L) + total[2 * j + 1]);
    }
  }
}

template <int COUNT = BLOCK_COLUMNS>
KCALIB_FN void last_products(int64_t count, const double* phi, const double* target_features, int64_t rows, double* sums) {
  if (count == COUNT) return products<COUNT>(phi, target_features, rows, sums);
  if constexpr (COUNT > 1) last_products<COUNT - 1>(count, phi, target_features, rows, sums);
}

void add_products(const double* phi, const double* target_features, int64_t rows, int64_t rank, double* sums) {
  for (; rank > BLOCK_COLUMNS; rank -= BLOCK_COLUMNS, target_features += rows * BLOCK_COLUMNS, sums += BLOCK_COLUMNS * COLUMNS)
    products<BLOCK_COLUMNS>(phi, target_features, rows, sums);
  last_products(rank, phi, target_features, rows, sums);
}

void add_forms(const double* phi, const double* target_features, int64_t rows, int64_t rank, const double* sums, double* forms) {
  for (int64_t row = 0; row < rows; row += FORM_ROWS)
    for (int c = 0; c < COLUMNS; c += STEP) {
      V total[2 * FORM_ROWS] = {};
      for (int64_t first = 0; first < rank; first += BLOCK_COLUMNS) {
        const double* block = target_features + (first * rows + row * BLOCK_COLUMNS);
        const int64_t count = rank - first < BLOCK_COLUMNS ? rank - first : BLOCK_COLUMNS;
        for (int64_t j = 0; j < count; ++j) {
          const double* of = sums + (first + j) * COLUMNS + c;
          const V a = load<V>(of), b = load<V>(of + L);
#pragma GCC unroll 8
          for (int i = 0; i < FORM_ROWS; ++i) {
            total[2 * i] += block[i * BLOCK_COLUMNS + j] * a;
            total[2 * i + 1] += block[i * BLOCK_COLUMNS + j] * b;
          }
        }
      }
      for (int i = 0; i < FORM_ROWS; ++i) {
        const double* of = phi + (row + i) * COLUMNS + c;
        double* to = forms + (row + i) * FREQUENCIES;
        store<V>(to, load<V>(to) + (total[2 * i] * load<V>(of) + total[2 * i + 1] * load<V>(of + L)));
      }
    }
}

void add_squares(const double* phi, const double* weights, int64_t rows, double* squares) {
  for (int p = 0; p < PACKS; ++p) {
    V total = {};
    for (int64_t row = 0; row < rows; ++row) {
      const V c = load<V>(phi + row * COLUMNS + p * L), s = load<V>(phi + row * COLUMNS + FREQUENCIES + p * L);
      total += weights[row] * (c * c + s * s);
    }
    store<V>(squares + p * L, load<V>(squares + p * L) + total);
  }
}

void add_norms(const double* phi, int64_t rows, double* norms) {
  for (int64_t row = 0; row < rows; ++row) {
    V total = {};
    for (int c = 0; c < COLUMNS; c += L) {
      const V x = load<V>(phi + row * COLUMNS + c);
      total += x * x;
    }
    norms[row] += sum_lanes(total);
  }
}

void uniforms(Word seed, Word draw, int64_t begin, int64_t count, double* out) {
  for (int64_t k = 0; k < count; k += 4) {
    Word words[4];
    numpy_words(seed, draw, Word(begin + k) / 4, words);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) out[k + i] = unit_real(words[i]);
  }
}

KCALIB_FN double share_of(const LabelRows& rows, const double* uniform, int64_t row) {
  const double share = uniform[row] * rows.totals[row];
  return share < rows.highest[row] ? share : rows.highest[row];
}

// A label for each lane.
void lane_labels(const LabelRows& rows, const double* uniform, unsigned* out) {
  const int64_t m = rows.n_classes;
  for (int64_t row = 0; row < rows.rows; row += L) {
    const V share = lower(load<V>(uniform + row) * load<V>(rows.totals + row), load<V>(rows.highest + row));
    const double* sums = rows.cumulative + row / 8 * m * 8 + row % 8;
    LongPack count = {};
    for (int64_t k = 0; k + 1 < m; ++k) count -= load<V>(sums + k * 8) <= share;
    for (int lane = 0; lane < L; ++lane) out[row + lane] = unsigned(count[lane]);
  }
}

// The likely one, or by halving: cumulative sums never fall.
void searched_labels(const LabelRows& rows, const double* uniform, unsigned* out) {
  const int64_t m = rows.n_classes;
  for (int64_t row = 0; row < rows.rows; ++row) {
    const double share = share_of(rows, uniform, row);
    const double* sums = rows.cumulative + row * m;
    const unsigned likely = rows.likely[row];
    if (likely < m && share < sums[likely] && (likely == 0 || sums[likely - 1] <= share)) {
      out[row] = likely;
      continue;
    }
    int64_t low = 0, count = m - 1;
    while (count > 0) {
      const int64_t half = count / 2;
      const bool above = sums[low + half] <= share;
      low = above ? low + half + 1 : low;
      count = above ? count - half - 1 : half;
    }
    out[row] = unsigned(low);
  }
}

void labels(const LabelRows& rows, const double* uniform, unsigned* out) {
  if (rows.n_classes <= LANE_CLASSES) lane_labels(rows, uniform, out);
  else searched_labels(rows, uniform, out);
}

// Two packs of columns of a run at a time, and four rows, for enough additions that do not wait for each other.
template <bool ADD> void merge_runs(const double* phi, const Runs& list, double* sums) {
  const unsigned short* rows = list.rows;
  for (int64_t r = 0; r < list.count; ++r) {
    const int64_t fours = list.runs[r].fours;
    double* to = sums + int64_t(list.runs[r].label) * COLUMNS;
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; c += STEP) {
      V total[4] = {};
      for (int64_t i = 0; i < fours; ++i) {
        const unsigned short* four = rows + 4 * i;
        const double *x0 = phi + four[0] + c, *x1 = phi + four[1] + c, *x2 = phi + four[2] + c, *x3 = phi + four[3] + c;
        total[0] += load<V>(x0) + load<V>(x1);
        total[1] += load<V>(x0 + L) + load<V>(x1 + L);
        total[2] += load<V>(x2) + load<V>(x3);
        total[3] += load<V>(x2 + L) + load<V>(x3 + L);
      }
      for (int k = 0; k < 2; ++k) {
        const V sum = total[k] + total[k + 2], y = load<V>(to + c + k * L);
        store<V>(to + c + k * L, ADD ? y + sum : y - sum);
      }
    }
    rows += 4 * fours;
  }
}

// The sums of many classes are far from each other, and the processor does not guess where the next are.
template <bool ADD> void merge_singles(const double* phi, const Singles& list, double* sums) {
  for (int64_t i = 0; i < list.count; ++i) {
    const double* from = phi + list.rows[i];
    double* to = sums + int64_t(list.classes[i]) * COLUMNS;
    const double* next = sums + int64_t(list.classes[i + LOOK_AHEAD]) * COLUMNS;
    __builtin_prefetch(next, 1);
    __builtin_prefetch(next + COLUMNS / 2, 1);
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; c += L) {
      const V x = load<V>(from + c), y = load<V>(to + c);
      store<V>(to + c, ADD ? y + x : y - x);
    }
  }
}

void multiply(const double* x, int64_t rows, const double* matrix, int64_t n, double* out) {
  constexpr int AT_ONCE = 4;
  for (int64_t first = 0; first < rows; first += AT_ONCE) {
    const double* from = x + first * n;
    double* to = out + first * n;
    for (int64_t j = 0; j < AT_ONCE * n; ++j) to[j] = 0;
    for (int64_t k = 0; k < n; ++k) {
      const double* of = matrix + k * n;
      const double a = from[k], b = from[n + k], c = from[2 * n + k], d = from[3 * n + k];
      for (int64_t j = 0; j < n; ++j) {
        to[j] += a * of[j];
        to[n + j] += b * of[j];
        to[2 * n + j] += c * of[j];
        to[3 * n + j] += d * of[j];
      }
    }
  }
}

double square_of_sums(double* x, const double* y, int64_t n) {
  constexpr int CHAINS = 8 / L > 4 ? 8 / L : 4;
  V total[CHAINS] = {};
  int chain = 0;
  for (int64_t i = 0; i < n; i += L) {
    const V sum = load<V>(x + i) + load<V>(y + i);
    store<V>(x + i, sum);
    total[chain] += sum * sum;
    chain = (chain + 1) % CHAINS;
  }
  double all = 0;
  for (int c = 0; c < CHAINS; ++c) all += sum_lanes(total[c]);
  return all;
}

}  // namespace

extern const FeatureTable KCALIB_FEATURES;
const FeatureTable KCALIB_FEATURES = {
    BLOCK_COLUMNS, features, add_products, add_forms, add_squares, add_norms, uniforms, labels,
    merge_runs<true>, merge_runs<false>, merge_singles<true>, merge_singles<false>, multiply, square_of_sums,
};

}  // namespace kcalib
