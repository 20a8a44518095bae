#include "sweep.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <thread>
#include <vector>

#include "aligned.h"
#include "team.h"

namespace kcalib {
namespace {

// Operations that the parts of a pair of measures take.
double mixture_work(const Mixtures* m) {
  if (!m) return 0;
  const double parts = m->n_components + 1, d = m->n_dims;
  return m->n_terms * parts * parts * (20 + 6 * d + (m->family == NORMAL_FULL ? d * d * d / 3 : 0));
}

// Operations that a pair takes, about.
template <class T> double pair_work(const PairProblem<T>& problem) {
  const double vectors = problem.left.n_features + problem.left.n_marks + 20.0;
  return vectors + mixture_work(problem.program.target) + mixture_work(problem.program.predicted);
}

// Rows (and columns) of a block: whole panels of columns on every instruction set, and no more than a
// second-level cache holds of the products' rows, which pass by once for each panel, or than takes some tenths of a second,
// for which Ctrl-C waits. Depends on the problem's sizes alone: it decides the order of summation.
template <class T> long block_rows(const PairProblem<T>& problem, long n) {
  constexpr long SECOND_LEVEL = 1 << 20;  // bytes of it for rows
  constexpr double LONG = 2e4;            // operations of a pair: microseconds
  const bool few = n < 2048 || 192 * problem.left.n_marks * long(sizeof(T)) > SECOND_LEVEL;
  return few || pair_work(problem) > LONG ? 96 : 192;
}

constexpr long MAX_ROWS_AT_ONCE = 8;  // rows of a register tile, on any instruction set

long ceil_divide(long a, long b) { return (a + b - 1) / b; }
long round_up(long a, long b) { return ceil_divide(a, b) * b; }

// One side, packed block by block: all of them, or, if each is used once, by the thread that uses it.
template <class T> class PackedSide {
 public:
  PackedSide(const Side<T>& side, const Run& run, long block, bool used_once)
      : side_(side),
        pack_(functions<T>(*run.table).pack),
        block_(block),
        used_once_(used_once),
        stride_(functions<T>(*run.table).packed_size(side, block)),
        buffer_(stride_ * (used_once ? run.threads : ceil_divide(side.n, block))) {
    if (used_once) return;
    const long blocks = ceil_divide(side.n, block);
    const int threads = team_size(run, blocks, 4.0 * double(side.n) * double(side.n_features + side.n_marks));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long j = 0; j < blocks; ++j) pack(j, buffer_.get() + j * stride_);
  }

  // Until the same thread asks for the next one.
  const T* operator[](long j) const {
    if (!used_once_) return buffer_.get() + j * stride_;
    T* packed = buffer_.get() + thread_number() * stride_;
    pack(j, packed);
    return packed;
  }

 private:
  void pack(long j, T* packed) const { pack_(side_, j * block_, std::min(side_.n, (j + 1) * block_), packed); }

  const Side<T>& side_;
  const decltype(TileFunctions<T>::pack) pack_;
  const long block_;
  const bool used_once_;
  const long stride_;
  const AlignedBuffer<T> buffer_;
};

// All pairs of a problem, cut into blocks, and both sides packed by them.
//
// A task is a pair of groups of blocks (`Groups`) and has sums of its own, which are merged in order at the end. So no
// task waits for another, which keeps a thread that loses its core from holding up the rest, and the order of summation
// is fixed, for MAX_GROUPS * 8 bytes a sample.
template <class T> class Blocks {
 public:
  const PairProblem<T>& problem;
  const TileFunctions<T>& tile;
  const long n, n_right;

 private:
  const Run& run_;
  const Groups groups_;
  const PackedSide<T> columns_;
  const std::optional<PackedSide<T>> rows_;  // of rectangular problems; otherwise the columns are the rows

 public:
  const long block, row_blocks, column_blocks, row_groups, column_groups;

  Blocks(const PairProblem<T>& pairs, const Run& run)
      : problem(pairs),
        tile(functions<T>(*run.table)),
        n(pairs.left.n),
        n_right(pairs.right.n),
        run_(run),
        groups_(groups_of(pairs, run)),
        columns_(pairs.right, run, groups_.block, !pairs.symmetric && pairs.left.n <= groups_.block),
        rows_(pairs.symmetric ? std::nullopt
                              : std::optional<PackedSide<T>>(std::in_place, pairs.left, run, groups_.block, false)),
        block(groups_.block),
        row_blocks(ceil_divide(n, block)),
        column_blocks(ceil_divide(n_right, block)),
        row_groups(groups_.rows),
        column_groups(groups_.columns) {}

  long tasks() const { return row_groups * column_groups; }

  // Symmetric problems: i <= j.
  long pairs_of_blocks() const { return problem.symmetric ? row_blocks * (row_blocks + 1) / 2 : row_blocks * column_blocks; }

  // Threads for a sweep that does `work` operations a pair besides the kernel's.
  int threads(double work = 0) const {
    const double pairs = double(n) * double(n_right) / (problem.symmetric ? 2 : 1);
    return team_size(run_, tasks(), pairs * (pair_work(problem) + work));
  }

  // Rows [i * block, ...) against columns [j * block, ...).
  BlockOfPairs<T> pairs(long i, long j) const {
    return {&problem.program, &problem.left,  i * block, std::min(n, (i + 1) * block),       (rows_ ? *rows_ : columns_)[i],
            &problem.right,  j * block,      std::min(n_right, (j + 1) * block), columns_[j], problem.symmetric && i == j};
  }

  BlockOfPairs<T> pairs_and_diagonal(long i, long j) const {
    BlockOfPairs<T> block = pairs(i, j);
    block.on_diagonal = false;
    return block;
  }

  // Calls visit(i, j) for all blocks, those of a row of blocks in order on one thread. False if stopped.
  template <class Visit> bool for_each_row(int threads, Visit&& visit) const {
    Watch watch(run_, row_blocks * column_blocks);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (long i = 0; i < row_blocks; ++i)
      for (long j = 0; j < column_blocks && !watch.stopped(); ++j) {
        visit(i, j);
        watch.task_done();
      }
    return !watch.stopped();
  }

  // Calls start(task, rows, columns) and then visit(task, i, j) for the blocks of each task, symmetric problems: i <= j.
  // False if stopped.
  template <class Start, class Visit> bool for_each(int threads, Start&& start, Visit&& visit) const {
    const bool symmetric = problem.symmetric;
    Watch watch(run_, pairs_of_blocks());
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (long task = 0; task < tasks(); ++task) {
      const long a = task / column_groups, b = task % column_groups;
      if (symmetric && b < a) continue;
      const long i_begin = a * groups_.per_group, i_end = std::min(row_blocks, i_begin + groups_.per_group);
      const long j_begin = b * groups_.per_group, j_end = std::min(column_blocks, j_begin + groups_.per_group);
      start(task, Range{i_begin * block, std::min(n, i_end * block)}, Range{j_begin * block, std::min(n_right, j_end * block)});
      for (long i = i_begin; i < i_end; ++i)
        for (long j = symmetric ? std::max(i, j_begin) : j_begin; j < j_end && !watch.stopped(); ++j) {
          visit(task, i, j);
          watch.task_done();
        }
    }
    return !watch.stopped();
  }

  struct Range {
    long begin, end;
  };
};

// out[k] = sum of parts[g * length + k] over g < count, in order.
template <class S> void merge(const AlignedBuffer<S>& parts, long count, long length, S* out) {
  for (long k = 0; k < length; ++k) {
    out[k] = parts[k];
    for (long g = 1; g < count; ++g) out[k] += parts[g * length + k];
  }
}

// All pairs of groups of rows and columns, in the order in which their products are added to the results: a group of
// results is added to once in every turn, and pairs that follow each other belong to different groups.
class GroupOrder {
 public:
  struct Pair {
    long rows, columns, turn;
  };

  GroupOrder(bool symmetric, long row_groups, long column_groups)
      : symmetric_(symmetric), turns_(column_groups), slots_(symmetric ? row_groups / 2 + 1 : row_groups) {}

  long places() const { return turns_ * slots_; }

  // Symmetric problems: the pairs i <= j with i + j = turn (modulo the number of groups); nothing where there is none.
  std::optional<Pair> operator[](long place) const {
    const long turn = place / slots_, slot = place % slots_;
    if (!symmetric_) return Pair{slot, turn, turn};
    const bool below = slot <= turn / 2;
    const long i = below ? slot : turn - turn / 2 + slot;
    const long j = below ? turn - i : turn + turns_ - i;
    return i <= j ? std::optional<Pair>(Pair{i, j, turn}) : std::nullopt;
  }

 private:
  bool symmetric_;
  long turns_, slots_;
};

// Whose turn it is to add to each block of results: the order of summation is fixed, and no thread has results of its own.
class Turns {
 public:
  explicit Turns(long blocks) : next_(blocks) {}
  // Until the turns before have passed. False if the sweep was stopped. Threads take pairs in order, so the
  // earliest that is not done waits for none.
  bool wait_for(long block, long turn, const Watch& watch) const {
    while (next_[block].load(std::memory_order_acquire) != turn) {
      if (watch.stopped()) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void pass(long block, long turn) { next_[block].store(turn + 1, std::memory_order_release); }

 private:
  std::vector<std::atomic<long>> next_;
};

// Columns of row-major matrices with `stride` numbers in a row.
struct Columns {
  long stride, count;
};

// Numbers for each sample of a side and each of some columns: block by block, a column after the other, `length`
// numbers for the samples of a block.
template <class W> class BlockColumns {
 public:
  const long length;

  BlockColumns(long n, long block, long length, long columns)
      : length(length), n_(n), block_(block), columns_(columns), numbers_(ceil_divide(n, block) * length * columns) {}
  W* operator[](long b) const { return numbers_.get() + b * length * columns_; }

  // visit(i, c, number) for sample i and column c, and for the numbers of no sample, with i = -1.
  template <class Visit> void for_each(const Run& run, Visit&& visit) const {
    const long blocks = ceil_divide(n_, block_);
    const int threads = team_size(run, blocks, 4.0 * double(n_) * double(columns_));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (long b = 0; b < blocks; ++b)
      for (long k = 0; k < length; ++k) {
        const bool inside = k < block_ && b * block_ + k < n_;
        for (long c = 0; c < columns_; ++c) visit(inside ? b * block_ + k : -1, c, (*this)[b][c * length + k]);
      }
  }

 private:
  const long n_, block_, columns_;
  const AlignedBuffer<W> numbers_;
};

// Powers of two that bring the columns of v into the range of float32.
std::vector<double> scales_of(const double* v, long n, Columns columns) {
  std::vector<double> scales(columns.count, 0.0);
  for (long i = 0; i < n; ++i)
    for (long c = 0; c < columns.count; ++c) scales[c] = std::max(scales[c], std::abs(v[i * columns.stride + c]));
  for (double& scale : scales) {
    const bool usual = scale > 0 && std::isfinite(scale);
    scale = usual ? std::ldexp(1.0, std::clamp(std::ilogb(scale), -1000, 1000)) : 1.0;
  }
  return scales;
}

// H times some vectors, in W's precision but for sums over more than a tile; of rectangular problems on request also
// H^T times others, of the same entries.
//
// A task is a pair of groups of blocks. Its products are added up in the thread's own memory, and then to the results,
// group by group in the order that `GroupOrder` gives.
template <class T, class W> class Product {
 public:
  // Without `left_vectors` (null) there are no sums over rows, but those of symmetric problems.
  Product(const Blocks<T>& blocks, const Run& run, const double* vectors, const double* left_vectors, Columns columns,
          bool in_units)
      : blocks_(blocks),
        run_(run),
        columns_(columns),
        in_units_(in_units),
        length_(round_up(blocks.block, run.table->float32.weights_at_once)),  // to the widest panels
        size_(length_ * columns.count),
        per_group_(blocks_in_a_group(std::max(blocks.row_blocks, blocks.column_blocks), size_)),
        row_groups_(ceil_divide(blocks.row_blocks, per_group_)),
        order_(blocks.problem.symmetric, row_groups_, ceil_divide(blocks.column_blocks, per_group_)),
        right_(blocks.problem.right, blocks.block, length_, columns, vectors, run),
        sums_(blocks.n, blocks.block, length_, columns.count) {
    if (!left_vectors) return;
    left_.emplace(blocks.problem.left, blocks.block, length_, columns, left_vectors, run);
    column_sums_.emplace(blocks.n_right, blocks.block, length_, columns.count);
  }

  void sweep(Watch& watch) {
    const int threads = int(std::min(long(blocks_.threads(2.0 * double(columns_.count))), order_.places()));
    const long part_size = per_group_ * size_, room = rows_of_entries() * length_;
    const AlignedBuffer<double> parts(2 * part_size * threads);
    const AlignedBuffer<W> entries(room * threads);
    std::fill_n(entries.get(), room * threads, W(0));
    Turns turns(row_groups_), column_turns(ceil_divide(blocks_.column_blocks, per_group_));
    std::atomic<long> place{0};
#pragma omp parallel num_threads(threads)
    {
      double* rows = parts.get() + 2 * part_size * thread_number();
      W* h = entries.get() + room * thread_number();
      for (long next; (next = place.fetch_add(1)) < order_.places() && !watch.stopped();)
        if (const auto pair = order_[next]) {
          const bool own = blocks_.problem.symmetric && pair->rows == pair->columns;
          double* columns = own ? rows : rows + part_size;
          std::fill_n(rows, 2 * part_size, 0.0);
          multiply(*pair, h, rows, columns, watch);
          add(sums_, blocks_.row_blocks, pair->rows, pair->turn, rows, turns, watch);
          if (blocks_.problem.symmetric && !own)
            add(sums_, blocks_.row_blocks, pair->columns, pair->turn, columns, turns, watch);
          if (left_) add(*column_sums_, blocks_.column_blocks, pair->columns, pair->rows, columns, column_turns, watch);
        }
    }
  }

  void write(double* out, double* column_out) const {
    write(sums_, blocks_.problem.left, right_, out);
    if (left_) write(*column_sums_, blocks_.problem.right, *left_, column_out);
  }

 private:
  // Vectors with a number for each sample of a side, in blocks, and brought into W's range by powers of two.
  struct Vectors {
    const std::vector<double> scales;
    const BlockColumns<W> numbers;

    Vectors(const Side<T>& side, long block, long length, Columns columns, const double* values, const Run& run)
        : scales(sizeof(W) == sizeof(float) ? scales_of(values, side.n, columns) : std::vector<double>(columns.count, 1.0)),
          numbers(side.n, block, length, columns.count) {
      std::vector<double> factors;
      for (double scale : scales) factors.push_back(1 / scale);
      numbers.for_each(run, [&](long i, long c, W& number) {
        number = i < 0 ? W(0) : W(values[side.row(i) * columns.stride + c] * factors[c]);
      });
    }
  };

  void write(const BlockColumns<double>& sums, const Side<T>& side, const Vectors& of, double* out) const {
    sums.for_each(run_, [&](long i, long c, double sum) {
      if (i >= 0) out[side.row(i) * columns_.stride + c] = sum * of.scales[c];
    });
  }

  // As many as there is room for in a second-level cache, 4 at most, and few enough to leave work for many threads.
  // Depends on the problem's sizes alone: it decides the order of summation.
  static long blocks_in_a_group(long blocks, long size) {
    constexpr long ROOM = 1 << 16, GROUPS = 12;  // numbers in the sums of a task; groups at least
    return std::max(1L, std::min({4L, blocks / GROUPS, ROOM / (2 * size)}));
  }

  long rows_of_entries() const { return blocks_.block + MAX_ROWS_AT_ONCE; }  // the last rows of a tile may be beyond the block's

  // Adds the products of a pair of groups: H V to `rows` and, of a symmetric problem or with vectors on the left, H^T
  // times these to `columns`.
  void multiply(const GroupOrder::Pair& pair, W* h, double* rows, double* columns, Watch& watch) const {
    const TileFunctions<W>& weighted = functions<W>(*run_.table);
    const bool symmetric = blocks_.problem.symmetric;
    const auto left = [&](long i, long j) -> const W* {
      return left_ ? left_->numbers[i] : symmetric && i != j ? right_.numbers[i] : nullptr;
    };
    const long i_begin = pair.rows * per_group_, i_end = std::min(blocks_.row_blocks, i_begin + per_group_);
    const long j_begin = pair.columns * per_group_, j_end = std::min(blocks_.column_blocks, j_begin + per_group_);
    for (long i = i_begin; i < i_end; ++i)
      for (long j = symmetric ? std::max(i, j_begin) : j_begin; j < j_end && !watch.stopped(); ++j) {
        const BlockOfPairs<T> pairs = blocks_.pairs_and_diagonal(i, j);
        const long n_rows = pairs.row_end - pairs.row_begin, n_columns = pairs.column_end - pairs.column_begin;
        if constexpr (sizeof(W) == sizeof(double)) {
          blocks_.tile.panels(pairs, h, rows_of_entries());
          if (in_units_) run_.table->round_panels(h, rows_of_entries(), n_rows, n_columns, symmetric && i == j);
        } else {
          blocks_.tile.panels_single(pairs, h, rows_of_entries());
        }
        weighted.multiply({h, rows_of_entries(), n_rows, n_columns, columns_.count, length_, right_.numbers[j], left(i, j),
                           rows + (i - i_begin) * size_, columns + (j - j_begin) * size_});
        watch.task_done();
      }
  }

  // Adds a task's sums to those of a group when it is their turn.
  void add(const BlockColumns<double>& sums, long blocks, long group, long turn, const double* part, Turns& turns,
           const Watch& watch) const {
    if (!turns.wait_for(group, turn, watch)) return;
    const long begin = group * per_group_, size = std::min(per_group_, blocks - begin) * size_;
    if (turn == 0)
      std::copy_n(part, size, sums[begin]);
    else
      run_.table->add(part, size, sums[begin]);
    turns.pass(group, turn);
  }

  const Blocks<T>& blocks_;
  const Run& run_;
  const Columns columns_;
  const bool in_units_;  // the entries are rounded as those of `matches`
  const long length_, size_;  // of a block's numbers in a column, and in all columns
  const long per_group_, row_groups_;
  const GroupOrder order_;
  Vectors right_;
  std::optional<Vectors> left_;
  const BlockColumns<double> sums_;
  std::optional<BlockColumns<double>> column_sums_;
};

// out = H vectors, and column_out = H^T left_vectors unless null, for the given columns of all. False if stopped.
template <class T, class W>
bool multiply(const Blocks<T>& blocks, const Run& run, Watch& watch, const double* vectors, const double* left_vectors,
              Columns columns, bool in_units, double* out, double* column_out) {
  Product<T, W> product(blocks, run, vectors, left_vectors, columns, in_units);
  product.sweep(watch);
  if (!watch.stopped()) product.write(out, column_out);
  return !watch.stopped();
}

}  // namespace

template <class T> Groups groups_of(const PairProblem<T>& problem, const Run& run) {
  constexpr long MAX_GROUPS = 32;
  const long n = problem.left.n, n_right = problem.right.n, largest = std::max(n, n_right);
  const long block = run.block ? run.block : block_rows(problem, largest);
  const long per_group = run.block ? run.per_group : ceil_divide(ceil_divide(largest, block), MAX_GROUPS);
  return {block, per_group, ceil_divide(n, block * per_group), ceil_divide(n_right, block * per_group)};
}

template <class T>
bool moment_parts(const PairProblem<T>& problem, const Run& run, double* totals, double* row_parts, double* column_parts,
                  double* squares) {
  const Blocks<T> blocks(problem, run);
  const bool symmetric = problem.symmetric, with_rows = row_parts;
  const long n = blocks.n, n_right = blocks.n_right, block = blocks.block;
  std::fill_n(totals, blocks.tasks(), 0.0);
  if (squares) std::fill_n(squares, blocks.tasks(), 0.0);
  const auto rows_of = [&](long task) { return row_parts + task % blocks.column_groups * n; };
  const auto columns_of = [&](long task) {
    const long group = task / blocks.column_groups;
    return symmetric ? row_parts + group * n : column_parts + group * n_right;
  };
  return blocks.for_each(
      blocks.threads(),
      [&](long task, auto rows, auto columns) {
        if (!with_rows) return;
        std::fill(rows_of(task) + rows.begin, rows_of(task) + rows.end, 0.0);
        std::fill(columns_of(task) + columns.begin, columns_of(task) + columns.end, 0.0);
      },
      [&](long task, long i, long j) {
        const BlockOfPairs<T> pairs = blocks.pairs(i, j);
        BlockSums sums{};
        sums.second = squares;
        if (with_rows) sums.rows = rows_of(task) + i * block;
        if (with_rows && !pairs.on_diagonal) sums.columns = columns_of(task) + j * block;
        blocks.tile.sums(pairs, sums);
        const double twice = symmetric && !pairs.on_diagonal ? 2 : 1;
        totals[task] += twice * sums.total;
        if (squares) squares[task] += twice * sums.squares;
      });
}

template <class T>
bool moments(const PairProblem<T>& problem, const Run& run, double* total, double* row_sums, double* column_sums,
             double* squares) {
  const Groups groups = groups_of(problem, run);
  const bool symmetric = problem.symmetric, with_rows = row_sums;
  const long n = problem.left.n, n_right = problem.right.n, tasks = groups.rows * groups.columns;
  const AlignedBuffer<double> row_parts(with_rows ? groups.columns * n : 0);
  const AlignedBuffer<double> column_parts(with_rows && !symmetric ? groups.rows * n_right : 0);
  const AlignedBuffer<double> totals(tasks), square_parts(squares ? tasks : 0);
  if (!moment_parts(problem, run, totals.get(), with_rows ? row_parts.get() : nullptr, column_parts.get(),
                    squares ? square_parts.get() : nullptr))
    return false;
  merge(totals, tasks, 1, total);
  if (squares) merge(square_parts, tasks, 1, squares);
  if (with_rows) merge(row_parts, groups.columns, n, row_sums);
  if (with_rows && !symmetric) merge(column_parts, groups.rows, n_right, column_sums);
  return true;
}

template <class T, class W>
bool quadratic_forms(const PairProblem<T>& problem, const Run& run, const W* const* panels, long n_panels, double* out) {
  const Blocks<T> blocks(problem, run);
  const TileFunctions<W>& weighted = functions<W>(*run.table);
  const long length = n_panels * weighted.weights_at_once, block = blocks.block;
  const int threads = blocks.threads(double(length));
  const AlignedBuffer<double> parts(blocks.tasks() * length), sums(length * threads);
  std::fill_n(parts.get(), blocks.tasks() * length, 0.0);
  const long padded = block + MAX_ROWS_AT_ONCE;  // the last rows of a tile may be beyond the block's
  const AlignedBuffer<W> buffer(padded * block * threads);
  std::fill_n(buffer.get(), padded * block * threads, W(0));
  const bool finished = blocks.for_each(
      threads, [](long, auto, auto) {},
      [&](long task, long i, long j) {
        const BlockOfPairs<T> pairs = blocks.pairs_and_diagonal(i, j);
        W* h = buffer.get() + padded * block * thread_number();
        if constexpr (sizeof(W) == sizeof(double))
          blocks.tile.entries(pairs, h, block);
        else
          blocks.tile.entries_single(pairs, h, block);
        double* sum = &sums[length * thread_number()];
        std::fill_n(sum, length, 0.0);
        weighted.quadratic(h, block, pairs.row_begin, pairs.row_end - pairs.row_begin, pairs.column_begin,
                           pairs.column_end - pairs.column_begin, panels, n_panels, sum);
        for (long c = 0; c < length; ++c) parts[task * length + c] += (i == j ? 1 : 2) * sum[c];
      });
  if (finished) merge(parts, blocks.tasks(), length, out);
  return finished;
}

template <class T>
bool matches(const PairProblem<T>& problem, const Run& run, const int* const* panels, long n_panels, double* out) {
  const Blocks<T> blocks(problem, run);
  const TileTable& table = *run.table;
  const long length = n_panels * table.labels_at_once, block = blocks.block, room = (block + MAX_MATCH_ROWS) * block;
  const int threads = blocks.threads(2.0 * double(length));
  const AlignedBuffer<double> parts(blocks.tasks() * length), entries(room * threads);
  const AlignedBuffer<int> units(room * threads);
  std::fill_n(parts.get(), blocks.tasks() * length, 0.0);
  std::fill_n(entries.get(), room * threads, 0.0);
  const bool finished = blocks.for_each(
      threads, [](long, auto, auto) {},
      [&](long task, long i, long j) {
        const BlockOfPairs<T> pairs = blocks.pairs_and_diagonal(i, j);
        const MatchBlock of{pairs.row_begin, pairs.row_end - pairs.row_begin, pairs.column_begin,
                            pairs.column_end - pairs.column_begin, i == j};
        double* h = entries.get() + room * thread_number();
        int* whole = units.get() + room * thread_number();
        blocks.tile.entries(pairs, h, block);
        const double unit = table.in_units(h, block, of.rows, of.columns, of.on_diagonal, whole);
        table.matches(whole, block, of, panels, n_panels, 2 * unit, &parts[task * length]);
      });
  if (finished) merge(parts, blocks.tasks(), length, out);
  return finished;
}

long weights_at_once(const TileTable& table, bool single) {
  return single ? table.float32.weights_at_once : table.float64.weights_at_once;
}

template <class T>
bool counts(const PairProblem<T>& problem, const Run& run, const double* thresholds, int64_t* counts) {
  const Blocks<T> blocks(problem, run);
  const AlignedBuffer<int64_t> parts(blocks.tasks() * THRESHOLDS);
  std::fill_n(parts.get(), blocks.tasks() * THRESHOLDS, int64_t(0));
  const bool finished = blocks.for_each(
      blocks.threads(), [](long, auto, auto) {},
      [&](long task, long i, long j) { blocks.tile.counts(blocks.pairs(i, j), thresholds, &parts[task * THRESHOLDS]); });
  merge(parts, blocks.tasks(), THRESHOLDS, counts);
  return finished;
}

template <class T>
bool between(const PairProblem<T>& problem, const Run& run, double low, double high, double* out, long capacity,
             long* found) {
  const Blocks<T> blocks(problem, run);
  const int threads = blocks.threads();
  const long room = blocks.block * blocks.block;
  const AlignedBuffer<double> buffer(room * threads);
  std::atomic<long> filled{0};
  const bool finished = blocks.for_each(
      threads, [](long, auto, auto) {},
      [&](long, long i, long j) {
        double* block = buffer.get() + room * thread_number();
        const long count = blocks.tile.between(blocks.pairs(i, j), low, high, block, room);
        const long begin = filled.fetch_add(count);
        if (begin < capacity) std::copy_n(block, std::min(count, capacity - begin), out + begin);
      });
  *found = filled.load();
  return finished;
}

template <class T> bool block_sums(const PairProblem<T>& problem, const Run& run, long size, double* out) {
  // A task is a strip of rows of one block against the columns from its own on: large
  // blocks are shared between threads, small ones are dealt out in runs.
  const long n_blocks = problem.left.n / size, step = block_rows(problem, size);
  const long strips = ceil_divide(size, step), tasks = n_blocks * strips;
  const TileFunctions<T>& tile = functions<T>(*run.table);
  const long packed_size = tile.packed_size(problem.left, std::min(step, size));
  const int threads = team_size(run, tasks, pair_work(problem) * double(problem.left.n) * double(size) / 2);
  const AlignedBuffer<T> packed(2 * packed_size * threads);
  const AlignedBuffer<double> parts(tasks);
  Watch watch(run, tasks);
  const int run_length = int(std::clamp(step / size, 1L, 64L));

#pragma omp parallel for schedule(dynamic, run_length) num_threads(threads)
  for (long task = 0; task < tasks; ++task) {
    if (watch.stopped()) continue;
    T* rows = packed.get() + 2 * packed_size * thread_number();
    const long begin = task / strips * size, end = begin + size;
    const long row_begin = begin + task % strips * step, row_end = std::min(end, row_begin + step);
    tile.pack(problem.left, row_begin, row_end, rows);
    BlockSums diagonal{}, others{};
    for (long j = row_begin; j < end; j += step) {
      const long j_end = std::min(end, j + step);
      const bool on_diagonal = j == row_begin;
      T* columns = on_diagonal ? rows : rows + packed_size;
      if (!on_diagonal) tile.pack(problem.right, j, j_end, columns);
      tile.sums({&problem.program, &problem.left, row_begin, row_end, rows, &problem.right, j, j_end, columns, on_diagonal},
                on_diagonal ? diagonal : others);
    }
    parts[task] = diagonal.total + 2 * others.total;
    watch.task_done();
  }

  if (watch.stopped()) return false;
  for (long b = 0; b < n_blocks; ++b) {
    out[b] = 0;
    for (long s = 0; s < strips; ++s) out[b] += parts[b * strips + s];
  }
  return true;
}

template <class T>
bool matmul(const PairProblem<T>& problem, const Run& run, const double* vectors, const double* left_vectors,
            long n_vectors, Entries entries, double* out, double* column_out) {
  constexpr long AT_ONCE = 256;  // vectors of one sweep: bounds what each thread adds up
  const Blocks<T> blocks(problem, run);
  Watch watch(run, blocks.pairs_of_blocks() * ceil_divide(n_vectors, AT_ONCE));
  bool finished = true;
  for (long c = 0; c < n_vectors && finished; c += AT_ONCE) {
    const Columns columns{n_vectors, std::min(AT_ONCE, n_vectors - c)};
    const double* left = left_vectors ? left_vectors + c : nullptr;
    double* column = column_out ? column_out + c : nullptr;
    finished = (entries == Entries::SINGLE ? multiply<T, float> : multiply<T, double>)(
        blocks, run, watch, vectors + c, left, columns, entries == Entries::IN_UNITS, out + c, column);
  }
  return finished;
}

template <class T> bool entries(const PairProblem<T>& problem, const Run& run, double* out) {
  const Blocks<T> blocks(problem, run);
  return blocks.for_each_row(blocks.threads(), [&](long i, long j) {
    const BlockOfPairs<T> pairs = blocks.pairs_and_diagonal(i, j);
    blocks.tile.entries(pairs, out + pairs.row_begin * blocks.n_right + pairs.column_begin, blocks.n_right);
  });
}

template <class T> bool own_products(const PairProblem<T>& problem, const Run& run, T* out) {
  const TileFunctions<T>& tile = functions<T>(*run.table);
  const Side<T>& side = problem.left;
  const long step = 96, tasks = ceil_divide(side.n, step), packed_size = tile.packed_size(side, std::min(step, side.n));
  const Mixtures& mixtures = *problem.program.predicted;
  constexpr double LANES_OF_A_TILE = 32;  // of which one is wanted
  const int threads = team_size(run, tasks, double(side.n) * LANES_OF_A_TILE * mixture_work(&mixtures));
  const AlignedBuffer<T> packed(packed_size * threads);
  Watch watch(run, tasks);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (long task = 0; task < tasks; ++task) {
    if (watch.stopped()) continue;
    const long begin = task * step, end = std::min(side.n, begin + step);
    T* samples = packed.get() + packed_size * thread_number();
    tile.pack(side, begin, end, samples);
    tile.own_products(mixtures, side, end - begin, samples, out + begin);
    watch.task_done();
  }
  return !watch.stopped();
}

template <class T> double probe(const Run& run, Probe what, long repetitions) {
  const auto once = functions<T>(*run.table).probe;
  double elements = 0;
#pragma omp parallel num_threads(team_size(run, run.threads, double(repetitions) * 100)) reduction(+ : elements)
  {
    T sink;
    elements += once(what, repetitions, &sink);
  }
  return elements;
}

template <class T> void evaluate(const Run& run, ScalarFunction f, const T* x, double a, long n, T* out) {
  functions<T>(*run.table).evaluate(f, x, T(a), n, out);
}

#define KCALIB_INSTANTIATE(T)                                                                        \
  template Groups groups_of<T>(const PairProblem<T>&, const Run&);                                   \
  template bool moments<T>(const PairProblem<T>&, const Run&, double*, double*, double*, double*);   \
  template bool moment_parts<T>(const PairProblem<T>&, const Run&, double*, double*, double*, double*); \
  template bool block_sums<T>(const PairProblem<T>&, const Run&, long, double*);                     \
  template bool matmul<T>(                                                                           \
      const PairProblem<T>&, const Run&, const double*, const double*, long, Entries, double*, double*); \
  template bool quadratic_forms<T>(const PairProblem<T>&, const Run&, const double* const*, long, double*); \
  template bool quadratic_forms<T>(const PairProblem<T>&, const Run&, const float* const*, long, double*); \
  template bool matches<T>(const PairProblem<T>&, const Run&, const int* const*, long, double*);      \
  template bool counts<T>(const PairProblem<T>&, const Run&, const double*, int64_t*);                \
  template bool between<T>(const PairProblem<T>&, const Run&, double, double, double*, long, long*); \
  template bool entries<T>(const PairProblem<T>&, const Run&, double*);                              \
  template bool own_products<T>(const PairProblem<T>&, const Run&, T*);                              \
  template double probe<T>(const Run&, Probe, long); \
  template void evaluate<T>(const Run&, ScalarFunction, const T*, double, long, T*);
KCALIB_INSTANTIATE(double)
KCALIB_INSTANTIATE(float)

}  // namespace kcalib
