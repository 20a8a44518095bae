// Values of samples at a few test locations, a strip of samples at a time that stays in the cache: distances by
// differences, the kernel, and the sums that are made of it.
//
// Compiled once per instruction set, as tile.cpp is and with the same rule (no std:: code).
#include "cpu/locations/location_kernels.h"

#include "cpu/pairs/kernel_tile.h"

namespace kcalib {
namespace {

using V = DoublePack;
constexpr int L = LANES<V>;
constexpr int PACKS = TILE / 2, SAMPLES = PACKS * L;  // of a strip: two locations make a register tile
constexpr int HALF = PACKS / 2;
constexpr int64_t FEATURES = 64;  // that are at hand at a time
constexpr int ABREAST = 4;     // products that share an operand
constexpr int CHAINS = 3;      // of additions, which wait for one another
static_assert(PACKS % 2 == 0 && PACKS % CHAINS == 0);

// The quantities of a register tile for `kernel_values`, all made before. Squares are 2 at most: points are probabilities (what
// is made of rows that are none is not used).
struct Made {
  const V *squares, *distances, *products;
  bool no_zeros;
  KCALIB_FN const V* squared(int) const { return squares; }
  KCALIB_FN const V* distance(int) const { return distances; }
  KCALIB_FN const V* dot() const { return products; }
  KCALIB_FN bool bounded() const { return no_zeros; }
};

template <int VALUE> struct Integer { static constexpr int value = VALUE; };

// sums[i * PACKS + v] = start + sum_k step(points[i][k], x[k][v]) for two points and HALF of the packs, or that sum and what is
// there. What is loaded serves both points: loads take as long as the rest.
template <class Step>
KCALIB_FN void make_terms(const V* x, const double* const* points, int64_t length, bool more, V* sums, double start = 0) {
  V first[HALF], second[HALF];
  for (int v = 0; v < HALF; ++v) first[v] = second[v] = splat<V>(start);
  if (more)
    for (int v = 0; v < HALF; ++v) first[v] = sums[v], second[v] = sums[PACKS + v];
#pragma GCC unroll 1
  for (int64_t k = 0; k < length; ++k, x += PACKS) {
    const double a = points[0][k], b = points[1][k];
#pragma GCC unroll 6
    for (int v = 0; v < HALF; ++v) {
      const V loaded = rounded(x[v]);  // kept in a register: the compiler would load it twice
      first[v] = Step::template step<V>(first[v], a, loaded);
      second[v] = Step::template step<V>(second[v], b, loaded);
    }
  }
  for (int v = 0; v < HALF; ++v) sums[v] = first[v], sums[PACKS + v] = second[v];
}

template <int COUNT> struct Few;  // numbers, as many as a pack has or a part of it
template <> struct Few<1> { using Pack = double __attribute__((vector_size(8))); };
template <> struct Few<2> { using Pack = double __attribute__((vector_size(16))); };
template <> struct Few<4> { using Pack = double __attribute__((vector_size(32))); };
template <> struct Few<8> { using Pack = double __attribute__((vector_size(64))); };
template <int COUNT, int... I> KCALIB_FN auto joined(typename Few<COUNT>::Pack a, typename Few<COUNT>::Pack b, Lanes<I...>) {
  return __builtin_shufflevector(a, b, I...);
}
// COUNT numbers: WIDTH of row 0 from `first` on, WIDTH of row STEP, ..
template <int WIDTH, int STEP, int COUNT = L> KCALIB_FN typename Few<COUNT>::Pack joined_rows(const double* const* rows, int64_t first) {
  if constexpr (COUNT == WIDTH) {
    typename Few<COUNT>::Pack found;
    __builtin_memcpy(&found, *rows + first, sizeof found);
    return found;
  } else {
    constexpr int LESS = COUNT / 2;
    return joined<LESS>(joined_rows<WIDTH, STEP, LESS>(rows, first), joined_rows<WIDTH, STEP, LESS>(rows + LESS / WIDTH * STEP, first),
                        typename LanesUpTo<COUNT>::type());
  }
}

// The first (PLACE 0) or second of every two numbers, or of every two pairs of numbers: of a and b by turns, or all of a and
// then those of b.
template <int PLACE, int... I> KCALIB_FN V by_turns(V a, V b, Lanes<I...>) {
  return __builtin_shufflevector(a, b, (I / 2 * 2 + PLACE + I % 2 * L)...);
}
template <int PLACE, int... I> KCALIB_FN V pairs_of(V a, V b, Lanes<I...>) {
  return __builtin_shufflevector(a, b, (I / 2 * 4 + 2 * PLACE + I % 2)...);
}

// x[k * SAMPLES + l] = rows[l][k] for WIDTH columns k from `first` on. Rows are joined as they are loaded, and such that what is
// left to do takes the cheapest of the instructions that move numbers about.
template <int WIDTH> KCALIB_FN void transpose_columns(const double* const* rows, int64_t first, double* x) {
  using All = typename LanesUpTo<L>::type;
  x += first * SAMPLES;
  if constexpr (WIDTH == 1) {
    store<V>(x, joined_rows<1, 1>(rows, first));
  } else if constexpr (WIDTH == 2) {
    const V even = joined_rows<2, 2>(rows, first), odd = joined_rows<2, 2>(rows + 1, first);
    store<V>(x, by_turns<0>(even, odd, All()));
    store<V>(x + SAMPLES, by_turns<1>(even, odd, All()));
  } else {
    static_assert(WIDTH == 4 && L == 8);
    V low[2], high[2];  // of the rows 0 to 3 and of those after them, columns 0 and 2, 1 and 3
    const auto deal = [&](const double* const* from, V* to) KCALIB_INLINE {
      const V even = joined_rows<4, 2>(from, first), odd = joined_rows<4, 2>(from + 1, first);
      to[0] = by_turns<0>(even, odd, All()), to[1] = by_turns<1>(even, odd, All());
    };
    deal(rows, low), deal(rows + 4, high);
    for (int i = 0; i < 2; ++i) {
      store<V>(x + i * SAMPLES, pairs_of<0>(low[i], high[i], All()));
      store<V>(x + (i + 2) * SAMPLES, pairs_of<1>(low[i], high[i], All()));
    }
  }
}

int64_t padded(int64_t n_locations) { return (n_locations + 1) / 2 * 2; }

// A strip of samples in lanes, location after location: k_j, p_{c_j}, and what belongs to the samples alone.
class Strip {
 public:
  static int64_t size(const TestLocations& at) {
    return (FEATURES * PACKS + 4 * PACKS + padded(at.n_locations) * (7 * PACKS) + at.n_locations * (at.n_locations + 2)) * L;
  }

  Strip(const TestLocations& at, double* memory) : at_(at), places_(padded(at.n_locations)) {
    V* next = reinterpret_cast<V*>(memory);
    const auto take = [&](int64_t count) {
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
    for (int t = 0; t < at.kernel.n_terms; ++t)
      for (int f = 0; f < at.kernel.terms[t].n_factors; ++f)
        wanted_[at.kernel.factors[at.kernel.terms[t].first_factor + f].metric] = true;
    if (is_one_decay(at.kernel)) smallest_ = 0x1p-1000;
  }

  // `sums`: also what `add_covariances` and `fourth` need.
  void read(const double* p, int64_t count, bool sums) {
    const int64_t m = at_.m;
    for (int v = 0; sums && v < PACKS; ++v) highest_[v] = others_[v] = V{};
    for (int64_t first = 0; first < m; first += FEATURES) {
      const int64_t length = m - first < FEATURES ? m - first : FEATURES;
      transpose(p + first, count, length);
      for (int64_t k = 0; sums && k < length; ++k)
        for (int v = 0; v < PACKS; ++v) {
          const V x = x_[k * PACKS + v];
          others_[v] += x < highest_[v] ? x : highest_[v];
          highest_[v] = x < highest_[v] ? highest_[v] : x;
        }
      // The next strip: while distances and kernels are made nothing else is read.
      const Prefetch ahead(p + count * m, m <= FEATURES ? SAMPLES * m * int64_t(sizeof(double)) : 0, places_ / 2 * 3);
      for (int64_t two = 0; 2 * two < at_.n_locations; ++two) {
        for (int half = 0; half < 2; ++half) {
          ahead.step(3 * two + half);
          add_terms(two, half * HALF, first, length);
        }
        ahead.step(3 * two + 2);
        if (first + length == m) make_kernels(two);
      }
      for (int64_t j = 0; m > FEATURES && j < at_.n_locations; ++j) {
        const int64_t k = int64_t(at_.classes[j]) - first;
        if (k >= 0 && k < length)
          for (int v = 0; v < PACKS; ++v) share_[j * PACKS + v] = x_[k * PACKS + v];
      }
    }
    if (count < SAMPLES)
      for (int64_t j = 0; j < at_.n_locations; ++j)
        for (int64_t s = count; s < SAMPLES; ++s) kernel_[j * PACKS + s / L][s % L] = 0;
    // What rounding left of a row's sum belongs to a class of its own.
    for (int v = 0; sums && v < PACKS; ++v) {
      const V left = 1.0 - (highest_[v] + others_[v]);
      others_[v] += left > 0.0 ? left : V{};
      total_[v] = highest_[v] + others_[v];
    }
  }

  void clear_sums() {
    for (int64_t i = 0; i < at_.n_locations * (at_.n_locations + 1); ++i) sums_[i] = V{};
    for (int64_t j = 0; j < at_.n_locations; ++j) largest_[j] = V{};
  }

  void add_differences(const int64_t* labels, int64_t count) {
    if (count == SAMPLES)
      __builtin_memcpy(labels_, labels, SAMPLES * sizeof *labels);
    else  // kernels are 0 there
      for (int64_t s = 0; s < SAMPLES; ++s) labels_[s / L][s % L] = s < count ? labels[s] : 0;
    const Prefetch ahead(labels + count, SAMPLES * int64_t(sizeof *labels), at_.n_locations);
    for (int64_t j = 0; j < at_.n_locations; ++j) {
      ahead.step(j);
      const V* share = share_of(j);
      V sum[CHAINS] = {};
      for (int v = 0; v < PACKS; v += CHAINS)
#pragma GCC unroll 3
        for (int c = 0; c < CHAINS; ++c) {
          const V residual = (labels_[v + c] == at_.classes[j] ? splat<V>(1.0) : V{}) - share[v + c];
          sum[c] += kernel_[j * PACKS + v + c] * residual;
        }
      sums_[j] += sum[0] + sum[1] + sum[2];
    }
  }

  // With p_j = p_{c_j} the covariance of [y = c_j] and [y = c_l] is p_j (sum of the other p) of one class, and -p_j p_l
  // otherwise; with the sum s of a row that is not 1, p_j ((1 - p_j)^2 + p_j (s - p_j)) and p_j p_l (s - 2).
  void add_covariances() {
    V *same = second_, *other = quantities_[0];
    for (int64_t j = 0; j < at_.n_locations; ++j) {
      const V* share = share_of(j);
      for (int v = 0; v < PACKS; ++v) {
        const int64_t i = j * PACKS + v;
        const V k = kernel_[i], p = share[v], rest = p == highest_[v] ? others_[v] : total_[v] - p;
        first_[i] = k * p;
        same[i] = k * ((1.0 - p) * (1.0 - p) + p * rest);
        other[i] = (total_[v] - 2.0) * first_[i];
      }
    }
    for (int64_t j = 0; j < at_.n_locations; ++j) {
      V* sums = sums_ + at_.n_locations * (j + 1);
      for (int64_t l = j; l < at_.n_locations; l += ABREAST) {
        const V* with[ABREAST];
        for (int i = 0; i < ABREAST; ++i) {
          const int64_t at = l + i < at_.n_locations ? l + i : j;
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
    const int64_t count = at_.n_locations;
    for (int64_t j = 0; j < count; ++j) {
      out.differences[j] += sum_lanes(sums_[j]);
      if (!out.covariance) continue;
      for (int64_t l = j; l < count; ++l) out.covariance[j * count + l] += sum_lanes(sums_[count * (j + 1) + l]);
      for (int l = 0; l < L; ++l) out.largest[j] = largest_[j][l] > out.largest[j] ? largest_[j][l] : out.largest[j];
    }
  }

  void find_largest() {
    for (int64_t j = 0; j < at_.n_locations; ++j)
      for (int v = 0; v < PACKS; ++v) {
        const V size = magnitude(kernel_[j * PACKS + v]);
        largest_[j] = size > largest_[j] ? size : largest_[j];
      }
  }

  // A label of group g has the values v_g - w, v_g those of its members k_j and else 0, w the values k_j p_j: their form
  // is |v_g|^2 - 2 <v_g, w> + |w|^2. Where these cancel it is of no account.
  double fourth(const double* gram) const {
    const int64_t count = at_.n_locations;
    V sum{};
    for (int v = 0; v < PACKS; ++v) {
      for (int64_t j = 0; j < count; ++j) first_[j] = kernel_[j * PACKS + v] * share_of(j)[v];
      V whole{}, left = total_[v];
      for (int64_t j = 0; j < count; ++j) {
        V turned{};
        for (int64_t l = 0; l < count; ++l) turned += gram[j * count + l] * first_[l];
        whole += turned * first_[j];
        second_[j] = turned;
      }
      for (int64_t g = 0; g < at_.n_groups; ++g) {
        V form = whole;
        for (int64_t a = at_.starts[g]; a < at_.starts[g + 1]; ++a) {
          const int64_t j = at_.members[a];
          V product = -2.0 * second_[j];
          for (int64_t b = at_.starts[g]; b < at_.starts[g + 1]; ++b)
            product += gram[j * count + at_.members[b]] * kernel_[at_.members[b] * PACKS + v];
          form += kernel_[j * PACKS + v] * product;
        }
        const V p = share_of(at_.members[at_.starts[g]])[v];
        sum += p * (form * form);
        left -= p;
      }
      sum += (left > 0.0 ? left : V{}) * (whole * whole);
    }
    return sum_lanes(sum);
  }

 private:
  // Where the quantities of two places stand: while these are made of all numbers at once, only two are at hand.
  KCALIB_FN int64_t at_hand(int64_t two) const { return at_.m > FEATURES ? two * TILE : 0; }
  // The place that fills up the last register tile has the numbers of the last location.
  KCALIB_FN void add_terms(int64_t two, int64_t half, int64_t first, int64_t length) {
    const double* point = at_.points + 2 * two * at_.m + first;
    const double* const points[] = {point, 2 * two + 1 < at_.n_locations ? point + at_.m : point};
    const int64_t to = at_hand(two) + half;
    const V* x = x_ + half;
    if (wanted_[EUCLIDEAN]) make_terms<SquaredDifference>(x, points, length, first > 0, quantities_[0] + to, smallest_);
    if (wanted_[CITYBLOCK]) make_terms<AbsoluteDifference>(x, points, length, first > 0, quantities_[1] + to);
    if (wanted_[DOT]) make_terms<Product>(x, points, length, first > 0, quantities_[2] + to);
  }
  KCALIB_FN void make_kernels(int64_t two) {
    const int64_t from = at_hand(two);
    Made made{quantities_[0] + from, quantities_[1] + from, quantities_[2] + from, smallest_ > 0};
    kernel_values<V>(at_.kernel, made, kernel_ + two * TILE);
  }

  // p_{c_j}
  KCALIB_FN const V* share_of(int64_t j) const { return at_.m > FEATURES ? share_ + j * PACKS : x_ + at_.classes[j] * PACKS; }

  // Lanes beyond the last sample have its numbers. Some of the last columns may be done twice.
  void transpose(const double* p, int64_t count, int64_t length) {
    double* x = reinterpret_cast<double*>(x_);
    for (int64_t s = 0; s < SAMPLES; s += L) {
      const double* rows[L];
      for (int l = 0; l < L; ++l) rows[l] = p + (s + l < count ? s + l : count - 1) * at_.m;
      for (int64_t k = 0; k < length;) {
        const int64_t left = length - k;
        const auto take = [&](auto width) KCALIB_INLINE {
          constexpr int WIDTH = decltype(width)::value;
          const int64_t first = left < WIDTH ? length - WIDTH : k;
          transpose_columns<WIDTH>(rows, first, x + s);
          k = first + WIDTH;
        };
        if (L == 8 && left > 2 && length >= 4) take(Integer<L == 8 ? 4 : 1>());  // 4 is for packs of 8 alone
        else if (length >= 2) take(Integer<2>());
        else take(Integer<1>());
      }
    }
  }

  const TestLocations& at_;
  const int64_t places_;
  bool wanted_[TABLE + 1] = {};
  double smallest_ = 0;  // that squares start with: a root of it needs no care, and its decay is that of 0
  V *x_, *highest_, *others_, *total_, *quantities_[3], *kernel_, *share_, *first_, *second_, *sums_, *largest_;
  Bits<V>* labels_;
};

int64_t memory(const TestLocations& locations) { return Strip::size(locations); }

void add(const TestLocations& locations, const double* p, const int64_t* labels, int64_t rows, double* memory,
         const LocationSums& sums) {
  Strip strip(locations, memory);
  strip.clear_sums();
  for (int64_t i = 0; i < rows; i += SAMPLES) {
    const int64_t count = rows - i < SAMPLES ? rows - i : SAMPLES;
    strip.read(p + i * locations.m, count, sums.covariance);
    strip.add_differences(labels + i, count);
    if (!sums.covariance) continue;
    strip.find_largest();
    strip.add_covariances();
  }
  strip.write_sums(sums);
}

double fourth(const TestLocations& locations, const double* p, int64_t rows, const double* gram, double* memory) {
  Strip strip(locations, memory);
  double sum = 0;
  for (int64_t i = 0; i < rows; i += SAMPLES) {
    strip.read(p + i * locations.m, rows - i < SAMPLES ? rows - i : SAMPLES, true);
    sum += strip.fourth(gram);
  }
  return sum;
}

}  // namespace

extern const LocationFunctions KCALIB_LOCATIONS;
const LocationFunctions KCALIB_LOCATIONS = {memory, add, fourth};

}  // namespace kcalib
