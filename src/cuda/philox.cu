// Random labels on a GPU: the bits of numpy.random.Generator(numpy.random.Philox(...)), and of numpy.cumsum.
//
// kcalib/_backend/random.py compiles this text behind kcalib/philox.h, which has the generator.

namespace kcalib {
namespace {

constexpr int THREADS = KCALIB_THREADS;

__device__ Word word_of(Word key0, Word key1, Word position) {
  Word c[4];
  numpy_words(key0, key1, position / 4, c);
  const int which = int(position % 4);
  return which == 0 ? c[0] : which == 1 ? c[1] : which == 2 ? c[2] : c[3];
}

}  // namespace
}  // namespace kcalib

using namespace kcalib;

// out[k] = the double in [0, 1) that NumPy makes of word position + k.
extern "C" __global__ void kcalib_uniforms(unsigned long long key0, unsigned long long key1, long long position,
                                           long long count, double* out) {
  const long long k = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (k < count) out[k] = unit_real(word_of(key0, key1, Word(position + k)));
}

// out[k] = the integer in [0, high) that NumPy makes of half word 2 * position + k, the lower half of a word first, or -1
// where it takes the next one instead (Lemire: Fast random integer generation in an interval, 2019). high is below 2^32.
extern "C" __global__ void kcalib_integers(unsigned long long key0, unsigned long long key1, long long position,
                                           long long count, unsigned long long high, long long* out) {
  const long long k = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (k >= count) return;
  const Word word = word_of(key0, key1, Word(position + k / 2));
  const Word product = (k % 2 ? word >> 32 : word & 0xffffffff) * high, threshold = ((1ull << 32) - high) % high;
  out[k] = (product & 0xffffffff) < threshold ? -1 : (long long)(product >> 32);
}

// Cumulative sums of the rows of p, shape (n, m), added one by one. A thread has a row.
extern "C" __global__ void kcalib_cumulative(const double* p, long long n, long long m, double* out) {
  const long long row = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (row >= n) return;
  double sum = 0;
  for (long long c = 0; c < m; ++c) {
    sum += p[row * m + c];
    out[row * m + c] = sum;
  }
}

// out[i * draws + d]: how many of the cumulative sums in row rows[i] (i, if there are no `rows`) are at most the share
// uniforms[d * n + i] of the last, which stays below it. A thread has a label; sums never fall, so it halves the row.
extern "C" __global__ void kcalib_labels(const double* cumulative, const long long* rows, const double* uniforms,
                                         long long n, long long m, long long draws, long long* out) {
  const long long k = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (k >= n * draws) return;
  const long long i = k / draws, d = k % draws;
  const double* sums = cumulative + (rows ? rows[i] : i) * m;
  const double total = sums[m - 1], highest = nextafter(total, 0.0), share = uniforms[d * n + i] * total;
  const double at = share < highest ? share : highest;
  long long low = 0, high = m - 1;
  while (low < high) {
    const long long middle = low + (high - low) / 2;
    if (sums[middle] <= at) low = middle + 1;
    else high = middle;
  }
  out[k] = low;
}
