#include "rough_sweep.h"

#include <cmath>
#include <vector>

#include "blocks.h"

namespace kcalib {
namespace {

constexpr long SAMPLES = RoughProducts::SAMPLES;

// Vectors in units of their own, block by block, and how whole numbers become products with them.
struct RoughVectors {
  const long count, length;  // of vectors; of the samples of a block, filled up
  std::vector<double> units, sums;
  const AlignedBuffer<unsigned char> bytes;

  RoughVectors(long count, long length, long blocks)
      : count(count), length(length), units(count), sums(count), bytes(blocks * count * length) {}

  const unsigned char* of_block(long b) const { return bytes.get() + b * count * length; }

  // False if a number is not finite, or the vectors have too little of what is not their largest numbers.
  template <class T> bool round(const Run& run, const Side<T>& side, long block, const double* vectors, double spread) {
    const RoughProducts& rough = *run.table->rough_products;
    const long blocks = ceil_divide(side.n, block);
    const int threads = team_size(run, blocks, 4.0 * double(side.n) * double(count));
    std::vector<double> most(blocks * count), squares(blocks * count), factors(count);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long b = 0; b < blocks; ++b)
      rough.look_at(vectors + b * block * count, std::min(block, side.n - b * block), count, &most[b * count], &squares[b * count]);
    double all = 0, largest = 0;
    for (long v = 0; v < count; ++v) {
      double size = 0;
      for (long b = 0; b < blocks; ++b) {
        const double own = most[b * count + v];
        size = std::max(size, own);
        all += squares[b * count + v];
      }
      largest += size * size;
      const bool usual = size >= SMALLEST;
      units[v] = usual ? size / double(RoughProducts::NUMBERS) : 0;
      factors[v] = usual ? double(RoughProducts::NUMBERS) / size : 0;
    }
    if (!std::isfinite(all) || all < spread * largest) return false;
    std::vector<int> found(blocks * count);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long b = 0; b < blocks; ++b) {
      const double* from = side.order ? vectors : vectors + b * block * count;
      const int64_t* order = side.order ? side.order + b * block : nullptr;
      rough.round(from, order, std::min(block, side.n - b * block), count, factors.data(), length, unsigned(b),
                  bytes.get() + b * count * length, &found[b * count]);
    }
    for (long b = 0; b < blocks; ++b)
      for (long v = 0; v < count; ++v) sums[v] += found[b * count + v];
    return true;
  }

 private:
  static constexpr double SMALLEST = 1e-290;  // smaller numbers have reciprocals that are none
};

// Blocks of entries of some rows of blocks i in [first, end), those of j >= i.
struct RoughRows {
  long first, end, blocks, size;
  unsigned char* bytes;

  static long pairs_before(long blocks, long i) { return i * blocks - i * (i - 1) / 2; }
  long pairs() const { return pairs_before(blocks, end) - pairs_before(blocks, first); }
  unsigned char* at(long i, long j) const { return bytes + (pairs_before(blocks, i) - pairs_before(blocks, first) + j - i) * size; }
};

// Rounds the entries of these rows. False if some have no room in bytes, or the sweep was stopped.
template <class T>
bool make(const Blocks<T>& blocks, const Run& run, const RoughRange& range, const RoughRows& rows, Watch& watch) {
  const RoughProducts& rough = *run.table->rough_products;
  const long length = RoughProducts::padded(blocks.block), stride = blocks.block + MAX_ROWS_AT_ONCE, room = stride * length;
  const int threads = std::min(blocks.threads(), int(rows.pairs()));
  const AlignedBuffer<float> panels(room * threads);
  const float factor = float(double(range.with_signs ? RoughProducts::SIGNED_ENTRIES : RoughProducts::ENTRIES) / range.largest);
  std::atomic<bool> in_bytes{true};
  std::vector<std::pair<long, long>> pairs;
  for (long i = rows.first; i < rows.end; ++i)
    for (long j = i; j < rows.blocks; ++j) pairs.emplace_back(i, j);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (std::size_t k = 0; k < pairs.size(); ++k) {
    if (watch.stopped() || !in_bytes.load(std::memory_order_relaxed)) continue;
    const auto [i, j] = pairs[k];
    const BlockOfPairs<T> block = blocks.pairs_and_diagonal(i, j);
    const long n_rows = block.row_end - block.row_begin, n_columns = block.column_end - block.column_begin;
    float* h = panels.get() + room * thread_number();
    blocks.tile.panels_single(block, h, stride);
    if (i == j)
      for (long r = 0; r < n_rows; ++r) h[(r / SAMPLES * stride + r) * SAMPLES + r % SAMPLES] = 0;
    const unsigned seed = unsigned(i * rows.blocks + j);
    if (!rough.round_entries(h, stride, n_rows, n_columns, factor, range.with_signs, length, seed, rows.at(i, j)))
      in_bytes.store(false);
    watch.task_done();
  }
  return in_bytes.load() && !watch.stopped();
}

// Adds to `out` what these rows of entries, and they as columns, contribute.
template <class T>
void multiply(const Side<T>& side, long block, const Run& run, const RoughRows& rows, const RoughVectors& vectors,
              const std::vector<double>& factors, const std::vector<double>& offsets, double* out, Watch& watch) {
  constexpr long MOST_SAMPLES = (long(1) << 31) / (255 * 127);  // whose products' sum is less than 2^31
  const RoughProducts& rough = *run.table->rough_products;
  const long length = vectors.length, per_block = length / SAMPLES, count = vectors.count, sums_size = count * SAMPLES;
  const long tasks = (rows.blocks - rows.first) * per_block;
  const double work = double(rows.pairs()) * double(length) * double(length) * double(count) / 16;
  const int threads = team_size(run, tasks, work);
  const AlignedBuffer<int> all_sums(sums_size * threads);
  const AlignedBuffer<unsigned char> turned(RoughProducts::columns_size(length) * threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long task = 0; task < tasks; ++task) {
    const long o = rows.first + task / per_block, lane = task % per_block * SAMPLES;
    const long begin = o * block + lane, lanes = std::min({SAMPLES, block - lane, side.n - begin});
    if (lanes <= 0 || watch.stopped()) continue;
    int* sums = all_sums.get() + sums_size * thread_number();
    unsigned char* strip = turned.get() + RoughProducts::columns_size(length) * thread_number();
    const int64_t* order = side.order ? side.order + begin : nullptr;
    double* at = side.order ? out : out + begin * count;
    long summed = 0;
    bool written = rows.first > 0;
    const auto flush = [&] {
      rough.write(sums, order, lanes, count, factors.data(), written ? nullptr : offsets.data(), at);
      written = true;
      summed = 0;
    };
    for (long b = rows.first; b < (o < rows.end ? rows.blocks : rows.end); ++b) {
      const long samples = std::min(block, side.n - b * block);
      if (summed == 0) std::fill_n(sums, sums_size, 0);
      if (b >= o) rough.turn(rows.at(o, b), lane, samples, length, strip);
      rough.multiply(b < o ? rows.at(b, o) + lane * length : strip, samples, vectors.of_block(b), count, length, sums);
      summed += samples;
      if (summed + block > MOST_SAMPLES) flush();
    }
    if (summed) flush();
    watch.task_done();
  }
}

}  // namespace

template <class T>
RoughResult rough_products(const PairProblem<T>& problem, const Run& run, const RoughRange& range, const double* vectors,
                           long n_vectors, RoughEntries& entries, double* out) {
  constexpr long KEPT = 1 << 26, AT_ONCE = 1 << 24;        // bytes of entries that are kept, or made at a time
  constexpr double SMALLEST = 0x1p-80, LARGEST = 0x1p80;  // entries, in float32
  const RoughProducts* rough = run.table->rough_products;
  if (!rough || n_vectors < RoughProducts::FEWEST || !(range.largest >= SMALLEST && range.largest <= LARGEST))
    return RoughResult::NOT_IN_BYTES;
  const Side<T>& side = problem.left;
  const long block = groups_of(problem, run).block, n_blocks = ceil_divide(side.n, block);
  const long length = RoughProducts::padded(block), size = RoughProducts::entries_size(length);
  RoughVectors rounded(n_vectors, length, n_blocks);
  if (!rounded.round(run, side, block, vectors, range.spread)) return RoughResult::NOT_IN_BYTES;
  const double unit = range.largest / double(range.with_signs ? RoughProducts::SIGNED_ENTRIES : RoughProducts::ENTRIES);
  std::vector<double> factors, offsets;
  for (long v = 0; v < n_vectors; ++v) {
    factors.push_back(unit * rounded.units[v]);
    offsets.push_back(range.with_signs ? -double(RoughProducts::ZERO) * rounded.sums[v] * factors[v] : 0.0);
  }

  const long all = RoughRows::pairs_before(n_blocks, n_blocks);
  const long most = all * size <= KEPT ? all : std::max(n_blocks, AT_ONCE / size);
  std::vector<RoughRows> parts;
  for (long i = 0; i < n_blocks;) {
    RoughRows rows{i, i, n_blocks, size, nullptr};
    do ++rows.end;
    while (rows.end < n_blocks && RoughRows::pairs_before(n_blocks, rows.end + 1) - RoughRows::pairs_before(n_blocks, i) <= most);
    parts.push_back(rows);
    i = rows.end;
  }
  const bool made = entries.bytes != nullptr;
  std::unique_ptr<AlignedBuffer<unsigned char>> bytes;
  std::optional<Blocks<T>> blocks;
  if (!made) {
    bytes = std::make_unique<AlignedBuffer<unsigned char>>(std::min(all, most) * size);
    blocks.emplace(problem, run);
    bytes->take_pages(blocks->threads());
  }
  Watch watch(run, (made ? 0 : all) + n_blocks * (length / SAMPLES) * long(parts.size()));
  for (RoughRows& rows : parts) {
    rows.bytes = made ? entries.bytes->get() : bytes->get();
    if (!made && !make(*blocks, run, range, rows, watch))
      return watch.stopped() ? RoughResult::STOPPED : RoughResult::NOT_IN_BYTES;
    multiply(side, block, run, rows, rounded, factors, offsets, out, watch);
    if (watch.stopped()) return RoughResult::STOPPED;
  }
  if (!made && parts.size() == 1) entries.bytes = std::move(bytes);
  return RoughResult::DONE;
}

template RoughResult rough_products<double>(
    const PairProblem<double>&, const Run&, const RoughRange&, const double*, long, RoughEntries&, double*);
template RoughResult rough_products<float>(
    const PairProblem<float>&, const Run&, const RoughRange&, const double*, long, RoughEntries&, double*);

}  // namespace kcalib
