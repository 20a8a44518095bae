#include "cpu/pairs/pair_laws.h"

#include <algorithm>

#include "cpu/simd/aligned.h"
#include "cpu/simd/for_each_level.h"
#include "cpu/simd/threads.h"

namespace kcalib {
namespace {

using Pack = double __attribute__((vector_size(64), may_alias));
constexpr int64_t LANES = 8;
constexpr int PACKS = 4;  // whose sums stay in registers
constexpr int64_t SAMPLES = PACKS * LANES;

// Samples j of one block, of which each class has a line; zeros where there are no more.
struct Block {
  const double* d;  // m x SAMPLES
  int64_t begin, count;
};

using Numbers = double __attribute__((vector_size(64), aligned(8), may_alias));

inline const Numbers& pack_of(const double* at) { return *reinterpret_cast<const Numbers*>(at); }

// (own - other)^2 traces + 2 other^2 forms, all of SAMPLES numbers, added up.
KCALIB_PART double weighted_of(const double* own, const double* other, const double* traces, const Pack* forms) {
  Pack sum = {};
  for (int k = 0; k < PACKS; ++k) {
    const Pack w = pack_of(other + k * LANES), change = pack_of(own + k * LANES) - w;
    sum += change * change * pack_of(traces + k * LANES) + 2.0 * (w * w * forms[k]);
  }
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}
KCALIB_FOR_EACH_LEVEL(double, weighted, (const double* own, const double* other, const double* traces, const Pack* forms),
                      (own, other, traces, forms))

// d_j^T V d_j of the block's samples j, with the law V of one sample: the variance of d_j, taken beside its value at the most
// probable class, so that terms are as small as the other classes are rare.
KCALIB_PART void compute_forms_of(const double* d, int64_t m, const double* unlikely, int64_t top, Pack* forms) {
  Pack at_top[PACKS], mean[PACKS] = {}, square[PACKS] = {};
  for (int k = 0; k < PACKS; ++k) at_top[k] = pack_of(d + top * SAMPLES + k * LANES);
  for (int64_t c = 0; c < m; ++c)
    for (int k = 0; k < PACKS; ++k) {
      const Pack x = pack_of(d + c * SAMPLES + k * LANES) - at_top[k], part = unlikely[c] * x;
      mean[k] += part;
      square[k] += part * x;
    }
  for (int k = 0; k < PACKS; ++k) {
    const Pack form = square[k] - mean[k] * mean[k];
    forms[k] = form < 0.0 ? Pack{} : form;  // NaN stays
  }
}
KCALIB_FOR_EACH_LEVEL(void, compute_forms, (const double* d, int64_t m, const double* unlikely, int64_t top, Pack* forms),
                      (d, m, unlikely, top, forms))

double sum_of_row(const PairLaws& laws, int64_t i, const Block& block) {
  const int64_t m = laws.m, at = i * laws.n + block.begin;
  Pack forms[PACKS];
  compute_forms(block.d, m, laws.unlikely + i * m, int64_t(laws.top[i]), forms);
  if (block.count == SAMPLES) return weighted(laws.own + at, laws.other + at, laws.traces + at, forms);
  double own[SAMPLES] = {}, other[SAMPLES] = {}, traces[SAMPLES] = {};
  std::copy_n(laws.own + at, block.count, own);
  std::copy_n(laws.other + at, block.count, other);
  std::copy_n(laws.traces + at, block.count, traces);
  return weighted(own, other, traces, forms);
}

}  // namespace

bool pair_law_sums(const PairLaws& laws, const Run& run, double* sums) {
  const int64_t m = laws.m, blocks = (laws.n + SAMPLES - 1) / SAMPLES;
  const double work = double(laws.rows) * double(laws.n) * double(m + 2) / 2;
  const int threads = team_size(run, blocks, work);
  const AlignedBuffer<double> lines(m * SAMPLES * threads), parts(blocks * laws.rows);
  Watch watch(run, blocks);
  parallel_tasks(watch, threads, blocks, [&](int64_t b) {
    double* d = lines.get() + m * SAMPLES * thread_number();
    const Block block{d, b * SAMPLES, std::min(SAMPLES, laws.n - b * SAMPLES)};
    for (int64_t c = 0; c < m; ++c)
      for (int64_t j = 0; j < SAMPLES; ++j) d[c * SAMPLES + j] = j < block.count ? laws.d[(block.begin + j) * m + c] : 0.0;
    for (int64_t i = 0; i < laws.rows; ++i) parts[b * laws.rows + i] = sum_of_row(laws, i, block);
    watch.task_done();
  });
  std::fill_n(sums, laws.rows, 0.0);
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < laws.rows; ++i) sums[i] += parts[b * laws.rows + i];
  return !watch.stopped();
}

}  // namespace kcalib
