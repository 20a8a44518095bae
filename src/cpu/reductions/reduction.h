// What a sweep over all pairs keeps of H. A sweep shows every block of H to each of its reductions once.
//
// A task is a pair of groups of blocks (`Groups`). The sums of each task have a place of their own and are merged in order:
// the same bits for any number of threads, and for any rectangles of whole groups into which a problem is cut.
#pragma once

#include <cstdint>

#include "cpu/pairs/sweep.h"

namespace kcalib {

class Watch;

// How a sweep cuts its problem, and by how many threads it passes.
struct SweepShape {
  const Run* run;
  int threads;
  int64_t n, n_right;               // samples
  const int64_t *order, *right_order;  // of the samples, see `Side`
  bool symmetric;
  int64_t block, group;             // samples of a block, of a group
  int64_t stride;                   // of rows of entries
  int64_t row_groups, column_groups;

  int64_t tasks() const { return row_groups * column_groups; }
};

struct Task {
  int64_t number;  // row_group * column_groups + column_group
  int64_t row_group, column_group;
  int64_t row_begin, row_end, column_begin, column_end;  // samples
  int thread;
};

// Of a sweep's blocks the one that a thread is at. Rows of entries are `stride` apart.
class Block {
 public:
  int64_t row_begin, row_end, column_begin, column_end;
  bool on_diagonal;  // of a symmetric problem, whose other blocks stand for two
  int64_t stride;

  int64_t rows() const { return row_end - row_begin; }
  int64_t columns() const { return column_end - column_begin; }

  // Adds sums of the entries, which stay in registers; on the diagonal of pairs i < j.
  virtual void add_sums(BlockSums& sums) const = 0;
  // The entries, diagonal included, in rows `stride` apart: written when a reduction first asks for them, and kept for the others.
  virtual double* entries() = 0;
  virtual float* entries_single() = 0;
  // Copies them to panels, see `TileFunctions`.
  virtual void write_panels(double* out, int64_t panel_stride) = 0;
  virtual void write_panels(float* out, int64_t panel_stride) = 0;
  // See `TileFunctions`; on the diagonal of pairs i < j.
  virtual void add_counts(const double* thresholds, int64_t* counts) = 0;
  virtual int64_t write_between(double low, double high, double* out, int64_t* below) = 0;

 protected:
  ~Block() = default;
};

// What a reduction reads of a block: entries in the type of the problem's numbers, in another one; or neither.
enum Needs : unsigned { NOTHING = 0, ENTRIES = 1, DOUBLE_ENTRIES = 2, SINGLE_ENTRIES = 4, NULL_VARIANCE = 8 };

class Reduction {
 public:
  virtual ~Reduction() = default;
  virtual Needs needs() const { return ENTRIES; }
  virtual double work() const { return 0; }  // operations a pair, besides the entry's
  virtual void start(const SweepShape& shape) = 0;
  virtual void start_task(const Task&) {}
  virtual void add(const Task& task, Block& block) = 0;
  virtual void finish_task(const Task&, const Watch&) {}
  virtual void finish() {}
};

}  // namespace kcalib
