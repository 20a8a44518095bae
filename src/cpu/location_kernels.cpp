// Values of samples at a few test locations, a strip of samples at a time that stays in the cache: distances by
// differences, the kernel, and the sums that are made of it.
//
// Compiled once per instruction set, as tile.cpp is and with the same rule (no std:: code).
#include "location_kernels.h"

#include "kernel_tile.h"

namespace kcalib {
namespace {

using V = DoublePack;
constexpr int L = LANES<V>;
constexpr int PACKS = TILE / 2, SAMPLES = PACKS * L;  // of a strip: two locations make a register tile
constexpr long FEATURES = 64;                         // that are at hand at a time
constexpr int ABREAST = 4;                            // products that share an operand

// The quantities of a register tile for `kernel_values`, all made before.
struct Made {
  const V *squares, *distances, *products;
  bool divider;
  KCALIB_FN const V* squared(int) const { return squares; }
  KCALIB_FN const V* distance(int) const { return distances; }
  KCALIB_FN const V* dot() const { return products; }
  KCALIB_FN bool bounded() const { return false; }
  KCALIB_FN bool roots_by_divider() const { return divider; }
};

// sums[v] = sum_k step(point[k], x[k][v]), or that and what is there.
template <class Step> KCALIB_FN void make_terms(const V* x, const double* point, long length, bool more, V* sums) {
  V sum[PACKS] = {};
  if (more)
    for (int v = 0; v < PACKS; ++v) sum[v] = sums[v];
#pragma GCC unroll 1
  for (long k = 0; k < length; ++k, x += PACKS) {
    const double at = point[k];
#pragma GCC unroll 12
    for (int v = 0; v < PACKS; ++v) sum[v] = Step::template step<V>(sum[v], at, x[v]);
  }
  for (int v = 0; v < PACKS; ++v) sums[v] = sum[v];
}

// Rows and columns of a square of H in each bit of their numbers change places: after all bits they are transposed.
template <int H, bool SECOND, int... I> KCALIB_FN V mixed(V a, V b, Lanes<I...>) {
  return __builtin_shufflevector(a, b, ((I & H ? L + I - H : I) + (SECOND ? H : 0))...);
}
template <int H> KCALIB_FN void exchange(V* rows) {
  using All = typename LanesUpTo<L>::type;
#pragma GCC unroll 8
  for (int i = 0; i < L; ++i)
    if (!(i & H)) {
      const V a = rows[i], b = rows[i + H];
      rows[i] = mixed<H, false>(a, b, All());
      rows[i + H] = mixed<H, true>(a, b, All());
    }
}
KCALIB_FN void transpose_square(V* rows) {
  exchange<1>(rows);
  if constexpr (L > 2) exchange<2>(rows);
  if constexpr (L > 4) exchange<4>(rows);
}

long padded(long n_locations) { return (n_locations + 1) / 2 * 2; }

// A strip of samples in lanes, location after location: k_j, p_{c_j}, and what belongs to the samples alone.
class Strip {
 public:
  static long size(const TestLocations& at) {
    return (FEATURES * PACKS + 4 * PACKS + padded(at.n_locations) * (7 * PACKS) + at.n_locations * (at.n_locations + 2)) * L;
  }

  Strip(const TestLocations& at, double* memory) : at_(at), places_(padded(at.n_locations)) {
    V* next = reinterpret_cast<V*>(memory);
    const auto take = [&](long count) {
      V* found = next;
      next += count;
      return found;
    };
    x_ = take(FEATURES * PACKS);
    highest_ = take(PACKS), others_ = take(PACKS), total_ = take(PACKS);
    labels_ = reinterpret_cast<Bits<V>*>(take(PACKS));
    for (V*& each : quantities_) each = take(places_ * PACKS);
    kernel_ = take(places_ * PACKS), share_ = take(places_ * PACKS);
    first_ = take(places_ * PACKS), second_ = take(places_ * PACKS);
    sums_ = take(at.n_locations * (at.n_locations + 1)), largest_ = take(at.n_locations);
    for (long i = at.n_locations * PACKS; i < places_ * PACKS; ++i)  // of the place that fills up the last register tile
      for (V* each : quantities_) each[i] = V{};
    for (int t = 0; t < at.kernel.n_terms; ++t)
      for (int f = 0; f < at.kernel.terms[t].n_factors; ++f)
        wanted_[at.kernel.factors[at.kernel.terms[t].first_factor + f].metric] = true;
  }

  // `sums`: also what `add_covariances` and `fourth` need.
  void read(const double* p, long count, bool sums) {
    const long m = at_.m;
    for (int v = 0; v < PACKS; ++v) highest_[v] = others_[v] = V{};
    for (long first = 0; first < m; first += FEATURES) {
      const long length = m - first < FEATURES ? m - first : FEATURES;
      transpose(p + first, count, length);
      for (long k = 0; sums && k < length; ++k)
        for (int v = 0; v < PACKS; ++v) {
          const V x = x_[k * PACKS + v];
          others_[v] += x < highest_[v] ? x : highest_[v];
          highest_[v] = x < highest_[v] ? highest_[v] : x;
        }
      // The next strip: while distances and kernels are made nothing else is read.
      const Prefetch ahead(p + count * m, m <= FEATURES ? SAMPLES * m * long(sizeof(double)) : 0, at_.n_locations);
      for (long j = 0; j < at_.n_locations; ++j) {
        ahead.step(j);
        const double* point = at_.points + j * m + first;
        if (wanted_[EUCLIDEAN]) make_terms<SquaredDifference>(x_, point, length, first > 0, quantities_[0] + j * PACKS);
        if (wanted_[CITYBLOCK]) make_terms<AbsoluteDifference>(x_, point, length, first > 0, quantities_[1] + j * PACKS);
        if (wanted_[DOT]) make_terms<Product>(x_, point, length, first > 0, quantities_[2] + j * PACKS);
        const long k = long(at_.classes[j]) - first;
        if (k >= 0 && k < length)
          for (int v = 0; v < PACKS; ++v) share_[j * PACKS + v] = x_[k * PACKS + v];
      }
    }
    for (long i = 0; i < places_ * PACKS; i += TILE) {
      Made made{quantities_[0] + i, quantities_[1] + i, quantities_[2] + i, at_.roots_by_divider};
      kernel_values<V>(at_.kernel, made, kernel_ + i);
    }
    if (count < SAMPLES)
      for (long j = 0; j < at_.n_locations; ++j)
        for (long s = count; s < SAMPLES; ++s) kernel_[j * PACKS + s / L][s % L] = 0;
    // What rounding left of a row's sum belongs to a class of its own.
    for (int v = 0; sums && v < PACKS; ++v) {
      const V left = 1.0 - (highest_[v] + others_[v]);
      others_[v] += left > 0.0 ? left : V{};
      total_[v] = highest_[v] + others_[v];
    }
  }

  void clear_sums() {
    for (long i = 0; i < at_.n_locations * (at_.n_locations + 1); ++i) sums_[i] = V{};
    for (long j = 0; j < at_.n_locations; ++j) largest_[j] = V{};
  }

  void add_differences(const int64_t* labels, long count) {
    for (long s = 0; s < SAMPLES; ++s) labels_[s / L][s % L] = s < count ? labels[s] : -1;
    for (long j = 0; j < at_.n_locations; ++j) {
      V sum = sums_[j];
      for (int v = 0; v < PACKS; ++v) {
        const V p = share_[j * PACKS + v];
        sum += kernel_[j * PACKS + v] * (labels_[v] == at_.classes[j] ? 1.0 - p : -p);
      }
      sums_[j] = sum;
    }
  }

  // With p_j = p_{c_j} the covariance of [y = c_j] and [y = c_l] is p_j (sum of the other p) of one class, and -p_j p_l
  // otherwise; with the sum s of a row that is not 1, p_j ((1 - p_j)^2 + p_j (s - p_j)) and p_j p_l (s - 2).
  void add_covariances() {
    V *same = second_, *other = quantities_[0];
    for (long j = 0; j < at_.n_locations; ++j)
      for (int v = 0; v < PACKS; ++v) {
        const long i = j * PACKS + v;
        const V k = kernel_[i], p = share_[i], rest = p == highest_[v] ? others_[v] : total_[v] - p;
        first_[i] = k * p;
        same[i] = k * ((1.0 - p) * (1.0 - p) + p * rest);
        other[i] = (total_[v] - 2.0) * first_[i];
      }
    for (long j = 0; j < at_.n_locations; ++j) {
      V* sums = sums_ + at_.n_locations * (j + 1);
      for (long l = j; l < at_.n_locations; l += ABREAST) {
        const V* with[ABREAST];
        for (int i = 0; i < ABREAST; ++i) {
          const long at = l + i < at_.n_locations ? l + i : j;
          with[i] = (at_.classes[at] == at_.classes[j] ? same : other) + at * PACKS;
        }
        V sum[ABREAST] = {};
        for (int v = 0; v < PACKS; ++v)
#pragma GCC unroll 4
          for (int i = 0; i < ABREAST; ++i) sum[i] += first_[j * PACKS + v] * with[i][v];
        for (int i = 0; i < ABREAST && l + i < at_.n_locations; ++i) sums[l + i] += sum[i];
      }
    }
  }

  void write_sums(const LocationSums& out) const {
    const long count = at_.n_locations;
    for (long j = 0; j < count; ++j) {
      out.differences[j] += sum_lanes(sums_[j]);
      if (!out.covariance) continue;
      for (long l = j; l < count; ++l) out.covariance[j * count + l] += sum_lanes(sums_[count * (j + 1) + l]);
      for (int l = 0; l < L; ++l) out.largest[j] = largest_[j][l] > out.largest[j] ? largest_[j][l] : out.largest[j];
    }
  }

  void find_largest() {
    for (long j = 0; j < at_.n_locations; ++j)
      for (int v = 0; v < PACKS; ++v) {
        const V size = magnitude(kernel_[j * PACKS + v]);
        largest_[j] = size > largest_[j] ? size : largest_[j];
      }
  }

  // A label of group g has the values v_g - w, v_g those of its members k_j and else 0, w the values k_j p_j: their form
  // is |v_g|^2 - 2 <v_g, w> + |w|^2. Where these cancel it is of no account.
  double fourth(const double* gram) const {
    const long count = at_.n_locations;
    V sum{};
    for (int v = 0; v < PACKS; ++v) {
      for (long j = 0; j < count; ++j) first_[j] = kernel_[j * PACKS + v] * share_[j * PACKS + v];
      V whole{}, left = total_[v];
      for (long j = 0; j < count; ++j) {
        V turned{};
        for (long l = 0; l < count; ++l) turned += gram[j * count + l] * first_[l];
        whole += turned * first_[j];
        second_[j] = turned;
      }
      for (long g = 0; g < at_.n_groups; ++g) {
        V form = whole;
        for (long a = at_.starts[g]; a < at_.starts[g + 1]; ++a) {
          const long j = at_.members[a];
          V product = -2.0 * second_[j];
          for (long b = at_.starts[g]; b < at_.starts[g + 1]; ++b)
            product += gram[j * count + at_.members[b]] * kernel_[at_.members[b] * PACKS + v];
          form += kernel_[j * PACKS + v] * product;
        }
        const V p = share_[at_.members[at_.starts[g]] * PACKS + v];
        sum += p * (form * form);
        left -= p;
      }
      sum += (left > 0.0 ? left : V{}) * (whole * whole);
    }
    return sum_lanes(sum);
  }

 private:
  // Lanes beyond the last sample have its numbers.
  void transpose(const double* p, long count, long length) {
    double* x = reinterpret_cast<double*>(x_);
    for (long s = 0; s < SAMPLES; s += L) {
      const double* rows[L];
      for (int l = 0; l < L; ++l) rows[l] = p + (s + l < count ? s + l : count - 1) * at_.m;
      for (long k = 0; length >= L && k < length; k += L) {
        const long first = k + L <= length ? k : length - L;
        V square[L];
#pragma GCC unroll 8
        for (int l = 0; l < L; ++l) square[l] = load<V>(rows[l] + first);
        transpose_square(square);
#pragma GCC unroll 8
        for (int l = 0; l < L; ++l) store<V>(x + (first + l) * SAMPLES + s, square[l]);
      }
      for (long k = 0; length < L && k < length; ++k)
        for (int l = 0; l < L; ++l) x[k * SAMPLES + s + l] = rows[l][k];
    }
  }

  const TestLocations& at_;
  const long places_;
  bool wanted_[TABLE + 1] = {};
  V *x_, *highest_, *others_, *total_, *quantities_[3], *kernel_, *share_, *first_, *second_, *sums_, *largest_;
  Bits<V>* labels_;
};

long memory(const TestLocations& locations) { return Strip::size(locations); }

void add(const TestLocations& locations, const double* p, const int64_t* labels, long rows, double* memory,
         const LocationSums& sums) {
  Strip strip(locations, memory);
  strip.clear_sums();
  for (long i = 0; i < rows; i += SAMPLES) {
    const long count = rows - i < SAMPLES ? rows - i : SAMPLES;
    strip.read(p + i * locations.m, count, sums.covariance);
    strip.add_differences(labels + i, count);
    if (!sums.covariance) continue;
    strip.find_largest();
    strip.add_covariances();
  }
  strip.write_sums(sums);
}

double fourth(const TestLocations& locations, const double* p, long rows, const double* gram, double* memory) {
  Strip strip(locations, memory);
  double sum = 0;
  for (long i = 0; i < rows; i += SAMPLES) {
    strip.read(p + i * locations.m, rows - i < SAMPLES ? rows - i : SAMPLES, true);
    sum += strip.fourth(gram);
  }
  return sum;
}

}  // namespace

extern const LocationFunctions KCALIB_LOCATIONS;
const LocationFunctions KCALIB_LOCATIONS = {memory, add, fourth};

}  // namespace kcalib
