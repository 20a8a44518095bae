// The hot loops of the operator for points on a line, for one instruction set.
#include "line_kernels.h"

#include "pack.h"

namespace kcalib {
namespace {

using P = DoublePack;
constexpr long WIDTH = LANES<P>;

void decays(const double* gaps, double rate, long n, double* out) {
  long i = 0;
  for (; i + WIDTH <= n; i += WIDTH) store(out + i, exp_minus(rate * load<P>(gaps + i)));
  if (i == n) return;
  double rest[WIDTH] = {};
  for (long k = i; k < n; ++k) rest[k - i] = gaps[k];
  store(rest, exp_minus(rate * load<P>(rest)));
  for (long k = i; k < n; ++k) out[k] = rest[k - i];
}

// sums[p] of D^p exp(-rate D), seen from `gap` further on: by the binomial theorem, from the highest
// power down. VECTORS sums of each power beside each other.
template <int VECTORS> KCALIB_FN void move(double* sums, int degree, double gap, double decay) {
  for (int p = degree; p > 0; --p) {
    double weight = 1;  // binomial(p, l) gap^(p - l), from l = p down
    for (int l = p - 1; l >= 0; --l) {
      weight *= gap * (l + 1) / (p - l);
      for (int v = 0; v < VECTORS; ++v) sums[p * VECTORS + v] += weight * sums[l * VECTORS + v];
    }
  }
  for (int k = 0; k < (degree + 1) * VECTORS; ++k) sums[k] *= decay;
}

void join(const LineKernel& kernel, Piece* left, const Piece& right) {
  const int degree = kernel.degree;
  const double gap = right.first - left->last, length = right.last - right.first;
  move<2>(left->to_last, degree, gap, exp_minus(kernel.rate * gap));
  for (int v = 0; v < 2; ++v) {
    double across = 0;
    for (int p = 0; p <= degree; ++p) {
      double binomial = 1, power = 0;
      for (int l = 0; l <= p; ++l) {
        power += binomial * left->to_last[l * 2 + v] * right.to_first[(p - l) * 2 + v];
        binomial = binomial * (p - l) / (l + 1);
      }
      across += kernel.coefficients[p] * power;
    }
    left->total[v] += right.total[v] + across;
  }
  move<2>(left->to_last, degree, length, exp_minus(kernel.rate * length));
  for (int k = 0; k < 2 * (degree + 1); ++k) left->to_last[k] += right.to_last[k];
  // The right piece's sums, which are not needed any more, from left's first point.
  const double reach = right.first - left->first;
  move<2>(right.to_first, degree, reach, exp_minus(kernel.rate * reach));
  for (int k = 0; k < 2 * (degree + 1); ++k) left->to_first[k] += right.to_first[k];
  left->last = right.last;
}

constexpr long BLOCK = 512;

// Points of a block, padded to whole packs by points of no weight.
struct Block {
  long length;
  alignas(PACK_BYTES) double place[BLOCK], gap[BLOCK], decay[BLOCK], residual[BLOCK];
};

// Both labels' samples in the order of their places; at the same place label 0 first.
struct Merge {
  const double *zero, *zero_end;  // places ascending
  const double *one, *one_end;  // (one_end, one]: 1 - place, read downwards

  Merge(const Residuals& r, long begin) {
    const double* ones = r.sizes + r.n_zeros;
    const long n_ones = r.n - r.n_zeros;
    long low = begin > n_ones ? begin - n_ones : 0, high = begin < r.n_zeros ? begin : r.n_zeros;
    while (low < high) {  // how many of the first `begin` have label 0
      const long middle = low + (high - low) / 2;
      if (r.sizes[middle] <= 1 - ones[n_ones - (begin - middle)]) low = middle + 1;
      else high = middle;
    }
    zero = r.sizes + low;
    zero_end = ones;
    one = r.sizes + r.n - 1 - (begin - low);
    one_end = ones - 1;
  }

  KCALIB_FN void fill(Block& block) {
    long filled = 0;
    while (filled < block.length && zero < zero_end && one > one_end) {
      const long zeros_left = zero_end - zero, ones_left = one - one_end;
      const long left = zeros_left < ones_left ? zeros_left : ones_left;
      const long stop = block.length - filled < left ? block.length : filled + left;
      for (; filled < stop; ++filled) {
        const double size = *one, place = 1 - size, other = *zero;
        const bool takes_zero = other <= place;
        block.place[filled] = takes_zero ? other : place;
        block.residual[filled] = takes_zero ? -other : size;
        zero += takes_zero;
        one -= !takes_zero;
      }
    }
    for (; filled < block.length && zero < zero_end; ++filled, ++zero) {
      block.place[filled] = *zero;
      block.residual[filled] = -*zero;
    }
    for (; filled < block.length; ++filled, --one) {
      block.place[filled] = 1 - *one;
      block.residual[filled] = *one;
    }
  }
};

template <int DEGREE> void block_piece(Block& block, const LineKernel& kernel, bool squared, Piece* out) {
  const int degree = DEGREE < 0 ? kernel.degree : DEGREE;
  const long whole = (block.length + WIDTH - 1) / WIDTH * WIDTH;
  out->first = block.place[0];
  out->last = block.place[block.length - 1];
  for (long i = block.length; i < whole; ++i) block.place[i] = out->last, block.residual[i] = 0;
  if (squared)
    for (long i = 0; i < whole; ++i) block.residual[i] *= block.residual[i];
  block.gap[0] = 0;
  for (long i = 1; i < whole; ++i) block.gap[i] = block.place[i] - block.place[i - 1];
  decays(block.gap, kernel.rate, whole, block.decay);

  double* sums = out->to_last;
  for (int k = 0; k < 2 * (degree + 1); ++k) sums[k] = out->to_first[k] = 0;
  double total[2] = {};
  for (long i = 0; i < block.length; ++i) {
    move<2>(sums, degree, block.gap[i], block.decay[i]);
    double seen[2] = {};
    for (int p = 0; p <= degree; ++p)
      for (int v = 0; v < 2; ++v) seen[v] += kernel.coefficients[p] * sums[p * 2 + v];
    const double u[2] = {block.residual[i], __builtin_fabs(block.residual[i])};
    for (int v = 0; v < 2; ++v) {
      total[v] += u[v] * seen[v];
      sums[v] += u[v];
    }
  }
  for (int v = 0; v < 2; ++v) out->total[v] = total[v];

  for (int p = 0; p <= degree; ++p) {
    P signed_sum{}, size_sum{};
    for (long i = 0; i < whole; i += WIDTH) {
      const P distance = load<P>(block.place + i) - out->first;
      P weight = exp_minus(kernel.rate * distance);
      for (int k = 0; k < p; ++k) weight *= distance;
      const P u = load<P>(block.residual + i);
      signed_sum += weight * u;
      size_sum += weight * magnitude(u);
    }
    out->to_first[p * 2] = sum_lanes(signed_sum);
    out->to_first[p * 2 + 1] = sum_lanes(size_sum);
  }
}

template <int DEGREE>
void piece_of(const Residuals& residuals, const LineKernel& kernel, bool squared, long begin, long end,
              double* scratch, Piece* out) {
  Merge merge(residuals, begin);
  Block block;
  Piece next{};
  next.to_last = scratch;
  next.to_first = scratch + 2 * (kernel.degree + 1);
  for (long i = begin; i < end; i += BLOCK) {
    block.length = end - i < BLOCK ? end - i : BLOCK;
    merge.fill(block);
    block_piece<DEGREE>(block, kernel, squared, i == begin ? out : &next);
    if (i > begin) join(kernel, out, next);
  }
}

void piece(const Residuals& residuals, const LineKernel& kernel, bool squared, long begin, long end,
           double* scratch, Piece* out) {
  switch (kernel.degree) {
    case 0: return piece_of<0>(residuals, kernel, squared, begin, end, scratch, out);
    case 1: return piece_of<1>(residuals, kernel, squared, begin, end, scratch, out);
    case 2: return piece_of<2>(residuals, kernel, squared, begin, end, scratch, out);
    default: return piece_of<-1>(residuals, kernel, squared, begin, end, scratch, out);
  }
}

}  // namespace

extern const LineFunctions KCALIB_LINE_TABLE;
const LineFunctions KCALIB_LINE_TABLE = {decays, piece, join};

}  // namespace kcalib
