// Random labels on a GPU: the bits of numpy.random.Generator(numpy.random.Philox(...)), and of numpy.cumsum.
//
// kcalib/_backend/random.py compiles this text. NumPy's generator is Philox4x64-10 (Salmon, Moraes, Dror, Shaw: Parallel
// random numbers: as easy as 1, 2, 3, SC 2011): word w of its stream is word w mod 4 of the block whose counter is
// w / 4 + 1, so that every thread has its number without those before it.

namespace kcalib {
namespace {

constexpr int THREADS = KCALIB_THREADS;
using Word = unsigned long long;

// The upper 64 bits of a * b.
__device__ Word upper_product(Word a, Word b) {
  const Word a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
  const Word low = a0 * b0, middle = a1 * b0 + (low >> 32), other = a0 * b1 + (middle & 0xffffffff);
  return a1 * b1 + (middle >> 32) + (other >> 32);
}

__device__ Word word_of(Word key0, Word key1, Word position) {
  Word c[4] = {position / 4 + 1, 0, 0, 0};
  for (int round = 0; round < 10; ++round) {
    const Word low0 = 0xD2E7470EE14C6C93ull * c[0], high0 = upper_product(0xD2E7470EE14C6C93ull, c[0]);
    const Word low1 = 0xCA5A826395121157ull * c[2], high1 = upper_product(0xCA5A826395121157ull, c[2]);
    c[0] = high1 ^ c[1] ^ key0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ key1;
    c[3] = low0;
    key0 += 0x9E3779B97F4A7C15ull;
    key1 += 0xBB67AE8584CAA73Bull;
  }
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
  if (k < count) out[k] = double(word_of(key0, key1, Word(position + k)) >> 11) * (1.0 / 9007199254740992.0);
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
