// Sums over the pairs of a chunk of sorted residuals. A chunk is cut into RUNS runs of consecutive samples, which are
// merged and summed side by side, each in a lane of packs. Included by line_kernels.cpp, once per instruction set.
#pragma once

#include <cstdint>

#include "cpu/line/line_kernels.h"
#include "cpu/line/line_scan.h"

namespace kcalib {
namespace {

// sums[p] of D^p exp(-rate D), seen from `gap` further on: by the binomial theorem, from the highest power down. Two sums
// of each power beside each other, of X: doubles or packs.
template <class X> KCALIB_FN void move(X* sums, int degree, X gap, X decay) {
  for (int p = degree; p > 0; --p) {
    X weight = splat<X>(1);  // binomial(p, l) gap^(p - l), from l = p down
    for (int l = p - 1; l >= 0; --l) {
      weight *= gap * (double(l + 1) / (p - l));
      for (int v = 0; v < 2; ++v) sums[p * 2 + v] += weight * sums[l * 2 + v];
    }
  }
  for (int k = 0; k < (degree + 1) * 2; ++k) sums[k] *= decay;
}

// `right` becomes part of `left`, which ends where it starts; its sums are not needed any more.
template <class X> KCALIB_FN void join_pieces(const LineKernel& kernel, PieceOf<X>* left, const PieceOf<X>& right) {
  const int degree = kernel.degree;
  const X gap = right.first - left->last, length = right.last - right.first;
  move<X>(left->to_last, degree, gap, exp_minus(kernel.rate * gap));
  for (int v = 0; v < 2; ++v) {
    X across{};
    for (int p = 0; p <= degree; ++p) {
      X power{};
      double binomial = 1;
      for (int l = 0; l <= p; ++l) {
        power += binomial * left->to_last[l * 2 + v] * right.to_first[(p - l) * 2 + v];
        binomial = binomial * (p - l) / (l + 1);
      }
      across += kernel.coefficients[p] * power;
    }
    left->total[v] += right.total[v] + across;
  }
  move<X>(left->to_last, degree, length, exp_minus(kernel.rate * length));
  for (int k = 0; k < 2 * (degree + 1); ++k) left->to_last[k] += right.to_last[k];
  const X reach = right.first - left->first;
  move<X>(right.to_first, degree, reach, exp_minus(kernel.rate * reach));
  for (int k = 0; k < 2 * (degree + 1); ++k) left->to_first[k] += right.to_first[k];
  left->last = right.last;
}

void join(const LineKernel& kernel, Piece* left, const Piece& right) { join_pieces(kernel, left, right); }

constexpr int RUNS = 8;

// So many steps of all runs: sample i of run r at i * RUNS + r.
struct Block {
  static constexpr int64_t STEPS = 64;
  int64_t steps = 0;
  alignas(PACK_BYTES) double place[STEPS * RUNS], residual[STEPS * RUNS];
};

// Both labels' samples in the order of their places, at the same place label 0 first: the samples [begin, end), in runs
// whose lengths differ by one at most.
class Merge {
 public:
  Merge(const Residuals& r, int64_t begin, int64_t end) : common_length_((end - begin) / RUNS) {
    const double* last_one = r.sizes + r.n + 1;
    int64_t zeros = 0, high = r.n_zeros;  // of a run's start; of the next one as many, and up to a run's length more
    for (int run = 0; run < RUNS; ++run) {
      const int64_t start = begin + (end - begin) * run / RUNS, next = begin + (end - begin) * (run + 1) / RUNS;
      zeros = zeros_before(r, start, zeros, high);
      high = r.n_zeros < zeros + next - start ? r.n_zeros : zeros + next - start;
      zero_[run] = r.sizes + zeros;
      one_[run] = last_one - (start - zeros);
      length_[run] = next - start;
    }
  }

  int64_t common_length() const { return common_length_; }
  int64_t length(int run) const { return length_[run]; }

  // The next block.steps samples of every run, by merges that do not wait for each other.
  KCALIB_FN void fill(Block& block) {
    const double* zero[RUNS];
    int64_t offset[RUNS];  // of the first sample of label 1 that is left from that of label 0
    for (int run = 0; run < RUNS; ++run) zero[run] = zero_[run], offset[run] = one_[run] - zero_[run];
    for (int64_t i = 0; i < block.steps; ++i)
#pragma GCC unroll 8
      for (int run = 0; run < RUNS; ++run) {
        // Without a branch: labels are what nobody can predict. A label that has no more has infinity here.
        const double size = *(zero[run] + offset[run] - i), other = *zero[run];
        block.place[i * RUNS + run] = other;
        block.residual[i * RUNS + run] = size;
        zero[run] += other <= 1 - size;
      }
    for (int run = 0; run < RUNS; ++run) one_[run] = zero[run] + offset[run] - block.steps, zero_[run] = zero[run];
    for (int64_t i = 0; i < block.steps * RUNS; i += WIDTH) {
      const P other = load<P>(block.place + i), size = load<P>(block.residual + i), place = 1 - size;
      store(block.place + i, other < place ? other : place);
      store(block.residual + i, other <= place ? -other : size);
    }
  }

  // The last sample of runs that have one more than the others; where there is none, one without weight at the place before.
  void fill_rest(Block& block) {
    for (int run = 0; run < RUNS; ++run) {
      const double before = common_length_ ? block.place[(block.steps - 1) * RUNS + run] : 0;
      const double size = *one_[run], other = *zero_[run];
      const bool is_there = length_[run] > common_length_, is_zero = other <= 1 - size;
      block.place[run] = !is_there ? before : is_zero ? other : 1 - size;
      block.residual[run] = !is_there ? 0 : is_zero ? -other : size;
    }
    block.steps = 1;
  }

 private:
  // How many of the first `count` samples have label 0: from `low` to `high`.
  static int64_t zeros_before(const Residuals& r, int64_t count, int64_t low, int64_t high) {
    const int64_t n_ones = r.n - r.n_zeros;
    if (low < count - n_ones) low = count - n_ones;
    if (high > count) high = count;
    const double* last_one = r.sizes + r.n + 1;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (r.sizes[middle] <= 1 - last_one[middle + 1 - count]) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  const int64_t common_length_;
  int64_t length_[RUNS];
  const double *zero_[RUNS], *one_[RUNS];  // what each run takes next
};

// The runs from `first_run` on that fill a pack, over a block.
template <int DEGREE>
KCALIB_FN void block_piece(const Block& block, int first_run, const LineKernel& of_kernel, PieceOf<P>* out) {
  const LineKernel kernel = of_kernel;  // which no store can change
  const int degree = DEGREE < 0 ? kernel.degree : DEGREE;
  const double* coefficients = kernel.coefficients;
  P *sums = out->to_last, *to_first = out->to_first, total[2] = {};
  for (int k = 0; k < 2 * (degree + 1); ++k) sums[k] = to_first[k] = P{};
  const P first = load<P>(block.place + first_run);
  P last = first, from_first = splat<P>(1);
  for (int64_t i = 0; i < block.steps; ++i) {
    const P place = load<P>(block.place + i * RUNS + first_run), residual = load<P>(block.residual + i * RUNS + first_run);
    const P gap = place - last, decay = exp_minus(kernel.rate * gap), u[2] = {residual, magnitude(residual)};
    last = place;
    from_first *= decay;
    for (int v = 0; v < 2; ++v) to_first[v] += from_first * u[v];
    P power = from_first;
    for (int p = 1; p <= degree; ++p) {
      power *= place - first;
      for (int v = 0; v < 2; ++v) to_first[p * 2 + v] += power * u[v];
    }
    if constexpr (DEGREE == 0) {  // as below; the next sum waits for one fused operation only
      for (int v = 0; v < 2; ++v) {
        total[v] += u[v] * (decay * sums[v]);
        sums[v] = sums[v] * decay + u[v];
      }
      continue;
    }
    move<P>(sums, degree, gap, decay);
    for (int v = 0; v < 2; ++v) {
      P seen{};
      for (int p = 0; p <= degree; ++p) seen += coefficients[p] * sums[p * 2 + v];
      total[v] += u[v] * seen;
      sums[v] += u[v];
    }
  }
  out->first = first;
  out->last = last;
  for (int v = 0; v < 2; ++v) out->total[v] = DEGREE == 0 ? coefficients[0] * total[v] : total[v];
}

KCALIB_FN void square(Block& block) {
  for (int64_t i = 0; i < block.steps * RUNS; ++i) block.residual[i] *= block.residual[i];
}

// The piece of one run, as doubles.
KCALIB_FN void lane(const PieceOf<P>& piece, int degree, int run, Piece* out) {
  out->first = piece.first[run];
  out->last = piece.last[run];
  for (int v = 0; v < 2; ++v) out->total[v] = piece.total[v][run];
  for (int k = 0; k < 2 * (degree + 1); ++k) {
    out->to_last[k] = piece.to_last[k][run];
    out->to_first[k] = piece.to_first[k][run];
  }
}

template <int DEGREE>
void piece_of(const Residuals& residuals, const LineKernel& kernel, bool squared, int64_t begin, int64_t end, double* scratch,
              Piece* out) {
  constexpr int PACKS = RUNS / WIDTH;
  const int64_t size = 2 * (kernel.degree + 1);
  P* room = reinterpret_cast<P*>(scratch);
  const auto piece = [&](int k) { return PieceOf<P>{{}, {}, {}, room + 2 * k * size, room + (2 * k + 1) * size}; };
  PieceOf<P> runs[PACKS], next = piece(PACKS);
  for (int k = 0; k < PACKS; ++k) runs[k] = piece(k);
  Merge merge(residuals, begin, end);
  Block block;
  bool is_first = true;
  const auto add = [&] {
    if (squared) square(block);
    for (int k = 0; k < PACKS; ++k) {
      block_piece<DEGREE>(block, k * WIDTH, kernel, is_first ? &runs[k] : &next);
      if (!is_first) join_pieces(kernel, &runs[k], next);
    }
    is_first = false;
  };
  for (int64_t i = 0; i < merge.common_length(); i += Block::STEPS) {
    block.steps = merge.common_length() - i < Block::STEPS ? merge.common_length() - i : Block::STEPS;
    merge.fill(block);
    add();
  }
  if ((end - begin) % RUNS) {
    merge.fill_rest(block);
    add();
  }

  double* rest = scratch + 2 * (PACKS + 1) * size * WIDTH;
  Piece right{0, 0, {}, rest, rest + size};
  bool none = true;
  for (int run = 0; run < RUNS; ++run) {
    if (merge.length(run) == 0) continue;
    lane(runs[run / WIDTH], kernel.degree, run % WIDTH, none ? out : &right);
    if (!none) join(kernel, out, right);
    none = false;
  }
}

void piece(const Residuals& residuals, const LineKernel& kernel, bool squared, int64_t begin, int64_t end, double* scratch,
           Piece* out) {
  switch (kernel.degree) {
    case 0: return piece_of<0>(residuals, kernel, squared, begin, end, scratch, out);
    case 1: return piece_of<1>(residuals, kernel, squared, begin, end, scratch, out);
    case 2: return piece_of<2>(residuals, kernel, squared, begin, end, scratch, out);
    default: return piece_of<-1>(residuals, kernel, squared, begin, end, scratch, out);
  }
}

}  // namespace
}  // namespace kcalib
