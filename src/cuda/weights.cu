// Resampling weights on a GPU: those of include/kcalib/resampling.h, which the compiled core has too, bit for bit.
//
// kcalib/_pairs/backends/cuda.py compiles this text with KCALIB_REAL (double or float, to which weights are rounded) and fills
// panels of `width` replicates from `first` on: out[row * width + c]. A thread has one weight, so that a warp writes
// numbers beside each other: that it computes two words of 64 signs for one of them is less work than one sum of products.

namespace kcalib {
namespace {
constexpr int THREADS = KCALIB_THREADS;
}  // namespace
}  // namespace kcalib

using namespace kcalib;

// kind: RADEMACHER or GAUSSIAN. Columns from `count` on are 0.
extern "C" __global__ void kcalib_multipliers(long long kind, unsigned long long seed, long long first, long long count,
                                              long long n, long long width, KCALIB_REAL* out) {
  const long long k = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (k >= n * width) return;
  const long long row = k / width, c = k % width;
  double weight = 0;
  if (c < count && kind == (long long)WeightKind::RADEMACHER)
    weight = rademacher<double>(sign_word(seed, Word(first + c), Word(row)), int((first + c) % 64));
  else if (c < count)
    weight = normal_deviate(random_word(seed, WeightKind::GAUSSIAN, Word(first + c), Word(row)));
  out[k] = KCALIB_REAL(weight);
}

// counts[row * width + c] += 1 for each draw of replicate c that falls on the row. Integers: the order does not matter.
extern "C" __global__ void kcalib_draws(unsigned long long seed, long long first, long long count, long long n,
                                        long long width, unsigned* counts) {
  const long long k = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (k >= n * count) return;
  const long long draw = k / count, c = k % count;
  const Word word = random_word(seed, WeightKind::MULTINOMIAL, Word(first + c), Word(draw));
  atomicAdd(counts + drawn_row(word, Word(n)) * Word(width) + Word(c), 1u);
}

extern "C" __global__ void kcalib_as_reals(const unsigned* counts, long long length, KCALIB_REAL* out) {
  const long long k = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (k < length) out[k] = KCALIB_REAL(counts[k]);
}
