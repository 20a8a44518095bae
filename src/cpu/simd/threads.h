// Threads: how many a call takes, how tasks are dealt out to them, and whether to go on.
// Included by the files with parallel loops.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

// Operations; some 20 microseconds with AVX-512, as waking a thread. Builds with sanitizers have 1 here, so that few
// samples are shared out, too.
#ifndef KCALIB_WORTH_A_THREAD
#define KCALIB_WORTH_A_THREAD 5e5
#endif

namespace kcalib {

struct TileTable;

// How to run a sweep. `poll` is called by the calling thread about ten times a second
// with the share of the work done; the sweep stops soon after it returns non-zero.
struct Run {
  const TileTable* table;
  int threads;
  int (*poll)(void* context, double done);
  void* context;
  // Of a rectangle of a larger problem: the blocks of that one (see `Groups`), by which sums have its order; 0: its own.
  int64_t block = 0, per_group = 0;
};

const char* thread_library();  // "openmp" or "std"
// OMP_NUM_THREADS, or the processors of this machine; 1 in a forked child and inside a parallel region.
int max_threads();
int count_running_sweeps();  // in this process, by all its threads
void register_fork_handler();

inline int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The number of the thread that runs a task, below `threads` of `parallel_tasks`: 0 is the calling thread.
int thread_number();

// Threads for `tasks` tasks of `work` operations in all: no more than have something to do.
int team_size(const Run& run, int64_t tasks, double work);

// Lives as long as a sweep. Counts finished tasks; the calling thread reports and asks whether to go on.
class Watch {
 public:
  Watch(const Run& run, int64_t tasks);
  ~Watch();

  bool stopped() const { return stop_.load(std::memory_order_relaxed); }
  void stop() { stop_.store(true); }
  void task_done();

 private:
  using Clock = std::chrono::steady_clock;

  const Run& run_;
  const double tasks_;
  Clock::time_point last_;  // of the calling thread only
  std::atomic<int64_t> done_{0};
  std::atomic<bool> stop_{false};
};

void run_tasks(int threads, int64_t n_tasks, void (*call)(const void* body, int64_t task), const void* body);

// Calls body(task) for each task below n_tasks. Threads take the next task in order, whenever they are free. What a task
// throws is thrown here, once all threads have ended; tasks that have not begun by then are left out.
template <class Body> void parallel_tasks(int threads, int64_t n_tasks, const Body& body) {
  run_tasks(threads, n_tasks, [](const void* any, int64_t task) { (*static_cast<const Body*>(any))(task); }, &body);
}

// The same until `watch` is stopped; false if it is.
template <class Body> bool parallel_tasks(Watch& watch, int threads, int64_t n_tasks, const Body& body) {
  parallel_tasks(threads, n_tasks, [&](int64_t task) {
    if (watch.stopped()) return;
    try {
      body(task);
    } catch (...) {
      watch.stop();  // others may wait for this task
      throw;
    }
  });
  return !watch.stopped();
}

}  // namespace kcalib
