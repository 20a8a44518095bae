// Products of H with vectors.
#include <atomic>
#include <thread>
#include <vector>

#include "cpu/pairs/blocks.h"

namespace kcalib {
namespace {

// All pairs of groups of rows and columns, in the order in which their products are added to the results: a group of
// results is added to once in every turn, and pairs that follow each other belong to different groups.
class GroupOrder {
 public:
  struct Pair {
    int64_t rows, columns, turn;
  };

  GroupOrder(bool symmetric, int64_t row_groups, int64_t column_groups)
      : symmetric_(symmetric), turns_(column_groups), slots_(symmetric ? row_groups / 2 + 1 : row_groups) {}

  int64_t places() const { return turns_ * slots_; }
  int64_t last_turn() const { return turns_ - 1; }  // of each group of rows

  // Symmetric problems: the pairs i <= j with i + j = turn (modulo the number of groups); nothing where there is none.
  std::optional<Pair> operator[](int64_t place) const {
    const int64_t turn = place / slots_, slot = place % slots_;
    if (!symmetric_) return Pair{slot, turn, turn};
    const bool below = slot <= turn / 2;
    const int64_t i = below ? slot : turn - turn / 2 + slot;
    const int64_t j = below ? turn - i : turn + turns_ - i;
    return i <= j ? std::optional<Pair>(Pair{i, j, turn}) : std::nullopt;
  }

 private:
  bool symmetric_;
  int64_t turns_, slots_;
};

// Whose turn it is to add to each block of results: the order of summation is fixed, and no thread has results of its own.
class Turns {
 public:
  explicit Turns(int64_t blocks) : next_(blocks) {}
  // Until the turns before have passed. False if the sweep was stopped. Threads take pairs in order, so the
  // earliest that is not done waits for none.
  bool wait_for(int64_t block, int64_t turn, const Watch& watch) const {
    while (next_[block].load(std::memory_order_acquire) != turn) {
      if (watch.stopped()) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void pass(int64_t block, int64_t turn) { next_[block].store(turn + 1, std::memory_order_release); }

 private:
  std::vector<std::atomic<int64_t>> next_;
};

// Columns of row-major matrices with `stride` numbers in a row.
struct Columns {
  int64_t stride, count;
};

// Numbers for each sample of a side and each of some columns: block by block, a column after the other, `length`
// numbers for the samples of a block.
template <class W> class BlockColumns {
 public:
  const int64_t length;

  BlockColumns(int64_t n, int64_t block, int64_t length, int64_t columns)
      : length(length), n_(n), block_(block), columns_(columns), numbers_(ceil_divide(n, block) * length * columns) {}
  W* operator[](int64_t b) const { return numbers_.get() + b * length * columns_; }

  // visit(i, c, number) for sample i and column c, and for the numbers of no sample, with i = -1.
  template <class Visit> void for_each(const Run& run, Visit&& visit) const {
    const int64_t blocks = ceil_divide(n_, block_);
    const int threads = team_size(run, blocks, 4.0 * double(n_) * double(columns_));
    parallel_tasks(threads, blocks, [&](int64_t b) {
      for (int64_t k = 0; k < length; ++k) {
        const bool inside = k < block_ && b * block_ + k < n_;
        for (int64_t c = 0; c < columns_; ++c) visit(inside ? b * block_ + k : -1, c, (*this)[b][c * length + k]);
      }
    });
  }

 private:
  const int64_t n_, block_, columns_;
  const AlignedBuffer<W> numbers_;
};

// Powers of two that bring the columns of v into the range of float32.
std::vector<double> scales_of(const double* v, int64_t n, Columns columns) {
  std::vector<double> scales(columns.count, 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t c = 0; c < columns.count; ++c) scales[c] = std::max(scales[c], std::abs(v[i * columns.stride + c]));
  for (double& scale : scales) {
    const bool usual = scale > 0 && std::isfinite(scale);
    scale = usual ? std::ldexp(1.0, std::clamp(std::ilogb(scale), -1000, 1000)) : 1.0;
  }
  return scales;
}

// H times some vectors, in W's precision but for sums over more than a tile (float32 with many vectors: than a block); of rectangular problems on request also
// H^T times others, of the same entries.
//
// A task is a pair of groups of blocks. Its products are added up in the thread's own memory, and then to the results,
// group by group in the order that `GroupOrder` gives.
template <class T, class W> class Product {
 public:
  // Without `left_vectors` (null) there are no sums over rows, but those of symmetric problems.
  Product(const Blocks<T>& blocks, const Run& run, const double* vectors, const double* left_vectors, Columns columns,
          Entries as)
      : blocks_(blocks),
        run_(run),
        columns_(columns),
        as_(as),
        length_(round_up(blocks.block, run.table->float32.weights_at_once)),  // to the widest panels
        size_(length_ * columns.count),
        per_group_(blocks_in_a_group(std::max(blocks.row_blocks, blocks.column_blocks), size_)),
        row_groups_(ceil_divide(blocks.row_blocks, per_group_)),
        order_(blocks.problem.symmetric, row_groups_, ceil_divide(blocks.column_blocks, per_group_)),
        right_(blocks.problem.right, blocks.block, length_, columns, vectors, run),
        sums_(blocks, run, blocks.n, length_, columns.count) {
    if (left_vectors) {
      left_.emplace(blocks.problem.left, blocks.block, length_, columns, left_vectors, run);
      column_sums_.emplace(blocks, run, blocks.n_right, length_, columns.count);
    }
  }

  void sweep(Watch& watch) {
    const int threads = int(std::min(int64_t(blocks_.threads(2.0 * double(columns_.count))), order_.places()));
    const int64_t part_size = per_group_ * size_, room = rows_of_entries() * length_;
    const AlignedBuffer<double> parts(2 * part_size * threads);
    const AlignedBuffer<W> entries(room * threads);
    std::fill_n(entries.get(), room * threads, W(0));
    Turns turns(row_groups_), column_turns(ceil_divide(blocks_.column_blocks, per_group_));
    // Places are taken in order: a task waits only for those that have begun.
    parallel_tasks(watch, threads, order_.places(), [&](int64_t place) {
      double* rows = parts.get() + 2 * part_size * thread_number();
      W* h = entries.get() + room * thread_number();
      const auto pair = order_[place];
      if (!pair) return;
      const bool own = blocks_.problem.symmetric && pair->rows == pair->columns;
      double* columns = own ? rows : rows + part_size;
      std::fill_n(rows, 2 * part_size, 0.0);
      multiply(*pair, h, rows, columns, watch);
      const int64_t last = order_.last_turn();
      add(sums_, blocks_.row_blocks, pair->rows, pair->turn, last, rows, turns, watch);
      if (blocks_.problem.symmetric && !own)
        add(sums_, blocks_.row_blocks, pair->columns, pair->turn, last, columns, turns, watch);
      if (left_)
        add(*column_sums_, blocks_.column_blocks, pair->columns, pair->rows, row_groups_ - 1, columns, column_turns, watch);
    });
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

    Vectors(const Side<T>& side, int64_t block, int64_t length, Columns columns, const double* values, const Run& run)
        : scales(sizeof(W) == sizeof(float) ? scales_of(values, side.n, columns) : std::vector<double>(columns.count, 1.0)),
          numbers(side.n, block, length, columns.count) {
      std::vector<double> factors;
      for (double scale : scales) factors.push_back(1 / scale);
      numbers.for_each(run, [&](int64_t i, int64_t c, W& number) {
        number = i < 0 ? W(0) : W(values[side.row(i) * columns.stride + c] * factors[c]);
      });
    }
  };

  // What tasks add up to, and what its roundings have lost. Of few samples these are few, and of entries in float32 nobody
  // sees them: there holding on to them would take some percent of the time for nothing. Rectangles of a larger problem do.
  struct Sums {
    static constexpr int64_t FEW = 4096;
    const BlockColumns<double> numbers;
    std::optional<BlockColumns<double>> lost;

    Sums(const Blocks<T>& blocks, const Run& run, int64_t n, int64_t length, int64_t columns) : numbers(n, blocks.block, length, columns) {
      if (sizeof(W) == sizeof(double) && (run.block || std::max(blocks.n, blocks.n_right) >= FEW)) lost.emplace(n, blocks.block, length, columns);
    }
  };

  void write(const Sums& sums, const Side<T>& side, const Vectors& of, double* out) const {
    sums.numbers.for_each(run_, [&](int64_t i, int64_t c, double sum) {
      if (i >= 0) out[side.row(i) * columns_.stride + c] = sum * of.scales[c];
    });
  }

  // As many as there is room for in a second-level cache, 4 at most, and few enough to leave work for many threads.
  // Depends on the problem's sizes alone: it decides the order of summation.
  static int64_t blocks_in_a_group(int64_t blocks, int64_t size) {
    constexpr int64_t ROOM = 1 << 16, GROUPS = 12;  // numbers in the sums of a task; groups at least
    return std::max<int64_t>(1, std::min<int64_t>({4, blocks / GROUPS, ROOM / (2 * size)}));
  }

  int64_t rows_of_entries() const { return blocks_.block + MAX_ROWS_AT_ONCE; }  // the last rows of a tile may be beyond the block's

  // Adds the products of a pair of groups: H V to `rows` and, of a symmetric problem or with vectors on the left, H^T
  // times these to `columns`.
  void multiply(const GroupOrder::Pair& pair, W* h, double* rows, double* columns, Watch& watch) const {
    const TileFunctions<W>& weighted = functions<W>(*run_.table);
    const bool symmetric = blocks_.problem.symmetric;
    const auto left = [&](int64_t i, int64_t j) -> const W* {
      return left_ ? left_->numbers[i] : symmetric && i != j ? right_.numbers[i] : nullptr;
    };
    const int64_t i_begin = pair.rows * per_group_, i_end = std::min(blocks_.row_blocks, i_begin + per_group_);
    const int64_t j_begin = pair.columns * per_group_, j_end = std::min(blocks_.column_blocks, j_begin + per_group_);
    for (int64_t i = i_begin; i < i_end; ++i)
      for (int64_t j = symmetric ? std::max(i, j_begin) : j_begin; j < j_end && !watch.stopped(); ++j) {
        const BlockOfPairs<T> pairs = blocks_.pairs_and_diagonal(i, j);
        const int64_t n_rows = pairs.row_end - pairs.row_begin, n_columns = pairs.column_end - pairs.column_begin;
        if constexpr (sizeof(W) == sizeof(double)) {
          blocks_.tile.panels(pairs, h, rows_of_entries());
          if (as_ == Entries::IN_UNITS) run_.table->round_panels(h, rows_of_entries(), n_rows, n_columns, symmetric && i == j);
        } else {
          blocks_.tile.panels_single(pairs, h, rows_of_entries());
        }
        const BlockProduct<W> product{h, rows_of_entries(), n_rows, n_columns, columns_.count, length_, right_.numbers[j], left(i, j),
                                      rows + (i - i_begin) * size_, columns + (j - j_begin) * size_};
        weighted.multiply(product);
        watch.task_done();
      }
  }

  // Adds a task's sums to those of a group when it is their turn, of which there are some up to the `last`.
  void add(const Sums& sums, int64_t blocks, int64_t group, int64_t turn, int64_t last, const double* part, Turns& turns,
           const Watch& watch) const {
    if (!turns.wait_for(group, turn, watch)) return;
    const int64_t begin = group * per_group_, size = std::min(per_group_, blocks - begin) * size_;
    double* own = sums.numbers[begin];
    double* lost = sums.lost ? (*sums.lost)[begin] : nullptr;
    if (turn == 0) {
      std::copy_n(part, size, own);
      if (lost) std::fill_n(lost, size, 0.0);
    } else if (lost) {
      run_.table->add_compensated(part, size, own, lost);
      if (turn == last) settle(own, lost, size);
    } else {
      run_.table->add(part, size, own);
    }
    turns.pass(group, turn);
  }

  const Blocks<T>& blocks_;
  const Run& run_;
  const Columns columns_;
  const Entries as_;
  const int64_t length_, size_;  // of a block's numbers in a column, and in all columns
  const int64_t per_group_, row_groups_;
  const GroupOrder order_;
  const Vectors right_;
  std::optional<Vectors> left_;
  const Sums sums_;
  std::optional<Sums> column_sums_;
};

// out = H vectors, and column_out = H^T left_vectors unless null, for the given columns of all. False if stopped.
template <class T, class W>
bool multiply(const Blocks<T>& blocks, const Run& run, Watch& watch, const double* vectors, const double* left_vectors,
              Columns columns, Entries as, double* out, double* column_out) {
  Product<T, W> product(blocks, run, vectors, left_vectors, columns, as);
  product.sweep(watch);
  if (!watch.stopped()) product.write(out, column_out);
  return !watch.stopped();
}

}  // namespace

template <class T>
bool matmul(const PairProblem<T>& problem, const Run& run, const double* vectors, const double* left_vectors,
            int64_t n_vectors, Entries entries, double* out, double* column_out) {
  constexpr int64_t AT_ONCE = 256;  // vectors of one sweep: bounds what each thread adds up
  const Blocks<T> blocks(problem, run);
  Watch watch(run, blocks.pairs_of_blocks() * ceil_divide(n_vectors, AT_ONCE));
  bool finished = true;
  for (int64_t c = 0; c < n_vectors && finished; c += AT_ONCE) {
    const Columns columns{n_vectors, std::min(AT_ONCE, n_vectors - c)};
    const double* left = left_vectors ? left_vectors + c : nullptr;
    double* column = column_out ? column_out + c : nullptr;
    finished = (entries == Entries::SINGLE ? multiply<T, float> : multiply<T, double>)(
        blocks, run, watch, vectors + c, left, columns, entries, out + c, column);
  }
  return finished;
}

template bool matmul<double>(
    const PairProblem<double>&, const Run&, const double*, const double*, int64_t, Entries, double*, double*);
template bool matmul<float>(
    const PairProblem<float>&, const Run&, const double*, const double*, int64_t, Entries, double*, double*);

}  // namespace kcalib
