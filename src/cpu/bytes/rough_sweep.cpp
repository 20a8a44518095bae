#include "cpu/bytes/rough_sweep.h"

#include <atomic>
#include <cmath>
#include <vector>

#include "cpu/pairs/task_sums.h"

namespace kcalib {
namespace {

constexpr int64_t SAMPLES = RoughProducts::SAMPLES;

// The samples of a problem, in blocks; `order` as a side has it.
struct Samples {
  int64_t n, block;
  const int64_t* order;

  int64_t blocks() const { return ceil_divide(n, block); }
  int64_t of_block(int64_t b) const { return std::min(block, n - b * block); }
  int64_t length() const { return RoughProducts::padded(block); }
};

double unit_of(const EntryRange& range) {
  return range.largest / double(range.with_signs ? RoughProducts::SIGNED_ENTRIES : RoughProducts::ENTRIES);
}

// Vectors in units of their own, block by block, and how whole numbers become products with them.
struct RoughVectors {
  const int64_t count, length;  // of vectors; of the samples of a block, filled up
  std::vector<double> units, sums;
  const AlignedBuffer<unsigned char> bytes;

  RoughVectors(int64_t count, int64_t length, int64_t blocks)
      : count(count), length(length), units(count), sums(count), bytes(blocks * count * length) {}

  const unsigned char* of_block(int64_t b) const { return bytes.get() + b * count * length; }

  // False if a number is not finite, or the vectors have too little of what is not their largest numbers.
  bool round(const Run& run, const Samples& samples, const double* vectors, double spread) {
    const RoughProducts& rough = *run.table->rough_products;
    const int64_t blocks = samples.blocks(), block = samples.block;
    const int threads = team_size(run, blocks, 4.0 * double(samples.n) * double(count));
    std::vector<double> most(blocks * count), squares(blocks * count), factors(count);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t b = 0; b < blocks; ++b)
      rough.look_at(vectors + b * block * count, samples.of_block(b), count, &most[b * count], &squares[b * count]);
    double all = 0, largest = 0;
    for (int64_t v = 0; v < count; ++v) {
      double size = 0;
      for (int64_t b = 0; b < blocks; ++b) {
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
    for (int64_t b = 0; b < blocks; ++b) {
      const double* from = samples.order ? vectors : vectors + b * block * count;
      const int64_t* order = samples.order ? samples.order + b * block : nullptr;
      rough.round(from, order, samples.of_block(b), count, factors.data(), length, unsigned(b), bytes.get() + b * count * length,
                  &found[b * count]);
    }
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t v = 0; v < count; ++v) sums[v] += found[b * count + v];
    return true;
  }

 private:
  static constexpr double SMALLEST = 1e-290;  // smaller numbers have reciprocals that are none
};

// Blocks of entries of some rows of blocks i in [first, end), those of j >= i.
struct RoughRows {
  int64_t first, end, blocks, size;
  unsigned char* bytes;

  static int64_t pairs_before(int64_t blocks, int64_t i) { return i * blocks - i * (i - 1) / 2; }
  int64_t pairs() const { return pairs_before(blocks, end) - pairs_before(blocks, first); }
  unsigned char* at(int64_t i, int64_t j) const { return bytes + (pairs_before(blocks, i) - pairs_before(blocks, first) + j - i) * size; }
};

// Rounds blocks of entries that the threads of a sweep have written to panels of their own.
class Rounding {
 public:
  const int64_t stride;  // of a panel's rows

  Rounding(const Run& run, const EntryRange& range, int64_t block, int threads)
      : stride(block + MAX_ROWS_AT_ONCE), rough_(*run.table->rough_products), with_signs_(range.with_signs),
        factor_(float(1 / unit_of(range))), length_(RoughProducts::padded(block)), room_(stride * length_), panels_(room_ * threads) {}

  float* panels() const { return panels_.get() + room_ * thread_number(); }
  template <class T> void round(const BlockOfPairs<T>& pairs, unsigned seed, unsigned char* out) {
    const int64_t rows = pairs.row_end - pairs.row_begin, columns = pairs.column_end - pairs.column_begin;
    float* const h = panels();
    if (pairs.row_begin == pairs.column_begin)
      for (int64_t r = 0; r < rows; ++r) h[(r / SAMPLES * stride + r) * SAMPLES + r % SAMPLES] = 0;
    if (!rough_.round_entries(h, stride, rows, columns, factor_, with_signs_, length_, seed, out)) in_bytes_.store(false);
  }
  bool in_bytes() const { return in_bytes_.load(std::memory_order_relaxed); }  // whether all entries had room there

 private:
  const RoughProducts& rough_;
  const bool with_signs_;
  const float factor_;
  const int64_t length_, room_;
  const AlignedBuffer<float> panels_;
  std::atomic<bool> in_bytes_{true};
};

// Rounds the entries of these rows. False if some have no room in bytes, or the sweep was stopped.
template <class T>
bool make(const Blocks<T>& blocks, const Run& run, const EntryRange& range, const RoughRows& rows, Watch& watch) {
  const int threads = std::min(blocks.threads(), int(rows.pairs()));
  Rounding rounding(run, range, blocks.block, threads);
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int64_t i = rows.first; i < rows.end; ++i)
    for (int64_t j = i; j < rows.blocks; ++j) pairs.emplace_back(i, j);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (std::size_t k = 0; k < pairs.size(); ++k) {
    if (watch.stopped() || !rounding.in_bytes()) continue;
    const auto [i, j] = pairs[k];
    const BlockOfPairs<T> block = blocks.pairs_and_diagonal(i, j);
    blocks.tile.panels_single(block, rounding.panels(), rounding.stride);
    rounding.round(block, unsigned(i * rows.blocks + j), rows.at(i, j));
    watch.task_done();
  }
  return rounding.in_bytes() && !watch.stopped();
}

// Adds to `out` what these rows of entries, and they as columns, contribute.
void multiply(const Samples& samples, const Run& run, const RoughRows& rows, const RoughVectors& vectors,
              const std::vector<double>& factors, const std::vector<double>& offsets, double* out, Watch& watch) {
  constexpr int64_t MOST_SAMPLES = (int64_t(1) << 31) / (255 * 127);  // whose products' sum is less than 2^31
  const RoughProducts& rough = *run.table->rough_products;
  const int64_t block = samples.block, length = vectors.length, per_block = length / SAMPLES, count = vectors.count, sums_size = count * SAMPLES;
  const int64_t tasks = (rows.blocks - rows.first) * per_block;
  const double work = double(rows.pairs()) * double(length) * double(length) * double(count) / 16;
  const int threads = team_size(run, tasks, work);
  const AlignedBuffer<int> all_sums(sums_size * threads);
  const AlignedBuffer<unsigned char> turned(RoughProducts::columns_size(length) * threads);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t o = rows.first + task / per_block, lane = task % per_block * SAMPLES;
    const int64_t begin = o * block + lane, lanes = std::min({SAMPLES, block - lane, samples.n - begin});
    if (lanes <= 0 || watch.stopped()) continue;
    int* sums = all_sums.get() + sums_size * thread_number();
    unsigned char* strip = turned.get() + RoughProducts::columns_size(length) * thread_number();
    const int64_t* order = samples.order ? samples.order + begin : nullptr;
    double* at = samples.order ? out : out + begin * count;
    int64_t summed = 0;
    bool written = rows.first > 0;
    const auto flush = [&] {
      rough.write(sums, order, lanes, count, factors.data(), written ? nullptr : offsets.data(), at);
      written = true;
      summed = 0;
    };
    for (int64_t b = rows.first; b < (o < rows.end ? rows.blocks : rows.end); ++b) {
      const int64_t others = samples.of_block(b);
      if (summed == 0) std::fill_n(sums, sums_size, 0);
      if (b >= o) rough.turn(rows.at(o, b), lane, others, length, strip);
      rough.multiply(b < o ? rows.at(b, o) + lane * length : strip, others, vectors.of_block(b), count, length, sums);
      summed += others;
      if (summed + block > MOST_SAMPLES) flush();
    }
    if (summed) flush();
    watch.task_done();
  }
}

// Entries of a range in units, times vectors in units of their own.
class Products {
 public:
  Products(const Samples& samples, const Run& run, const EntryRange& range, int64_t n_vectors)
      : samples_(samples), run_(run), range_(range), vectors_(n_vectors, samples.length(), samples.blocks()) {}

  // False if the vectors have no room in bytes.
  bool round(const double* vectors, double spread) {
    if (vectors_.count < RoughProducts::FEWEST || !vectors_.round(run_, samples_, vectors, spread)) return false;
    for (int64_t v = 0; v < vectors_.count; ++v) {
      factors_.push_back(unit_of(range_) * vectors_.units[v]);
      offsets_.push_back(range_.with_signs ? -double(RoughProducts::ZERO) * vectors_.sums[v] * factors_[v] : 0.0);
    }
    return true;
  }
  int64_t tasks() const { return samples_.blocks() * (samples_.length() / SAMPLES); }  // for each part of the rows
  void add(const RoughRows& rows, double* out, Watch& watch) const { multiply(samples_, run_, rows, vectors_, factors_, offsets_, out, watch); }

 private:
  const Samples samples_;
  const Run& run_;
  const EntryRange range_;
  RoughVectors vectors_;
  std::vector<double> factors_, offsets_;
};

constexpr int64_t KEPT = 1 << 26, AT_ONCE = 1 << 24;  // bytes of entries that are kept, or made at a time

bool have_bytes(const Run& run, const EntryRange& range) {
  constexpr double SMALLEST = 0x1p-80, LARGEST = 0x1p80;  // entries, in float32
  return run.table->rough_products && range.largest >= SMALLEST && range.largest <= LARGEST;
}

// All entries, whose bytes these are or will be.
RoughRows all_rows(const Samples& samples, unsigned char* bytes) {
  return {0, samples.blocks(), samples.blocks(), RoughProducts::entries_size(samples.length()), bytes};
}

int64_t all_bytes(const RoughRows& rows) { return rows.pairs() * rows.size; }

void keep(std::unique_ptr<AlignedBuffer<unsigned char>> bytes, const EntryRange& range, const Samples& samples, RoughEntries& entries) {
  entries.bytes = std::move(bytes);
  entries.range = range;
  entries.n = samples.n;
  entries.block = samples.block;
  entries.order.assign(samples.order, samples.order + (samples.order ? samples.n : 0));
}

template <class T> Samples samples_of(const PairProblem<T>& problem, const Run& run) {
  return {problem.left.n, groups_of(problem, run).block, problem.left.order};
}

}  // namespace

template <class T>
RoughResult rough_products(const PairProblem<T>& problem, const Run& run, const EntryRange& range, const double* vectors,
                           int64_t n_vectors, double spread, RoughEntries& entries, double* out) {
  if (!have_bytes(run, range)) return RoughResult::NOT_IN_BYTES;
  const Samples samples = samples_of(problem, run);
  Products products(samples, run, range, n_vectors);
  if (!products.round(vectors, spread)) return RoughResult::NOT_IN_BYTES;

  const RoughRows all = all_rows(samples, nullptr);
  const int64_t n_blocks = all.blocks, most = all_bytes(all) <= KEPT ? all.pairs() : std::max(n_blocks, AT_ONCE / all.size);
  std::vector<RoughRows> parts;
  for (int64_t i = 0; i < n_blocks;) {
    RoughRows rows{i, i, n_blocks, all.size, nullptr};
    do ++rows.end;
    while (rows.end < n_blocks && RoughRows::pairs_before(n_blocks, rows.end + 1) - RoughRows::pairs_before(n_blocks, i) <= most);
    parts.push_back(rows);
    i = rows.end;
  }
  auto bytes = std::make_unique<AlignedBuffer<unsigned char>>(std::min(all.pairs(), most) * all.size);
  const Blocks<T> blocks(problem, run);
  bytes->take_pages(blocks.threads());
  Watch watch(run, all.pairs() + products.tasks() * int64_t(parts.size()));
  for (RoughRows& rows : parts) {
    rows.bytes = bytes->get();
    if (!make(blocks, run, range, rows, watch)) return watch.stopped() ? RoughResult::STOPPED : RoughResult::NOT_IN_BYTES;
    products.add(rows, out, watch);
    if (watch.stopped()) return RoughResult::STOPPED;
  }
  if (parts.size() == 1) keep(std::move(bytes), range, samples, entries);
  return RoughResult::DONE;
}

RoughResult rough_products(const RoughEntries& entries, const Run& run, const double* vectors, int64_t n_vectors, double spread,
                           double* out) {
  if (!have_bytes(run, entries.range)) return RoughResult::NOT_IN_BYTES;
  const Samples samples{entries.n, entries.block, entries.order.empty() ? nullptr : entries.order.data()};
  Products products(samples, run, entries.range, n_vectors);
  if (!products.round(vectors, spread)) return RoughResult::NOT_IN_BYTES;
  Watch watch(run, products.tasks());
  products.add(all_rows(samples, entries.bytes->get()), out, watch);
  return watch.stopped() ? RoughResult::STOPPED : RoughResult::DONE;
}

bool moments_and_rough_entries(const PairProblem<double>& problem, const Run& run, const EntryRange& range, RoughEntries& entries,
                               double* total, double* row_sums, double* squares, double* expected) {
  const Samples samples = samples_of(problem, run);
  RoughRows rows = all_rows(samples, nullptr);
  if (!have_bytes(run, range) || all_bytes(rows) > KEPT) return moments(problem, run, total, row_sums, nullptr, squares, expected);
  auto bytes = std::make_unique<AlignedBuffer<unsigned char>>(all_bytes(rows), Begin::LINE);
  const Blocks<double> blocks(problem, run);
  const int threads = blocks.threads();
  bytes->take_pages(threads);
  rows.bytes = bytes->get();
  const MergedMoments<double> merged(problem, run, true, true, true);
  MomentSums<double> sums(blocks, run, threads, merged.parts());
  Rounding rounding(run, range, blocks.block, threads);
  const bool finished = blocks.for_each(
      threads, [&](int64_t task) { sums.start(task); },
      [&](int64_t, int64_t i, int64_t j) {
        float* const h = rounding.panels();
        sums.add_and_write(
            i, j, [&](const auto& pairs, BlockSums& found) { run.table->sums_and_panels_single(pairs, found, h, rounding.stride); },
            [&](const auto& pairs) { blocks.tile.panels_single(pairs, h, rounding.stride); });
        rounding.round(blocks.pairs(i, j), unsigned(i * rows.blocks + j), rows.at(i, j));
      },
      [&](int64_t task, auto of_rows, auto of_columns) { sums.finish(task, of_rows, of_columns); });
  if (!finished) return false;
  merged.write(total, row_sums, nullptr, squares, expected);
  if (rounding.in_bytes()) keep(std::move(bytes), range, samples, entries);
  return true;
}

template RoughResult rough_products<double>(
    const PairProblem<double>&, const Run&, const EntryRange&, const double*, int64_t, double, RoughEntries&, double*);
template RoughResult rough_products<float>(
    const PairProblem<float>&, const Run&, const EntryRange&, const double*, int64_t, double, RoughEntries&, double*);

}  // namespace kcalib
