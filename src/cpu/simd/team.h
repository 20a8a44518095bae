// What every sweep needs to know of threads: how many, which one, and whether to go on.
// Included by the files with parallel loops.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "cpu/pairs/sweep.h"

// Operations; some 20 microseconds with AVX-512, as waking a thread. Builds with sanitizers have 1 here, so that few
// samples are shared out, too.
#ifndef KCALIB_WORTH_A_THREAD
#define KCALIB_WORTH_A_THREAD 5e5
#endif

namespace kcalib {

// An OpenMP runtime does not survive fork(): its child would wait for threads that no
// longer exist. A forked child therefore computes on the thread that calls.
inline std::atomic<bool> forked{false};

// Sweeps that are running in this process, one for each Python thread that waits for one.
inline std::atomic<int> running_sweeps{0};

inline int thread_number() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}

// Threads for `tasks` tasks of `work` operations in all: no more than have something to do.
inline int team_size(const Run& run, int64_t tasks, double work) {
#ifdef _OPENMP
  if (forked.load() || omp_in_parallel()) return 1;
#endif
  const double useful = std::min(double(tasks), work / (KCALIB_WORTH_A_THREAD));
  return int(std::max(1.0, std::min(double(run.threads), useful)));
}

// Lives as long as a sweep. Counts finished tasks; thread 0, which is the calling thread, reports and asks
// whether to go on.
class Watch {
 public:
  Watch(const Run& run, int64_t tasks) : run_(run), tasks_(double(std::max(tasks, 1L))), last_(now()) { ++running_sweeps; }
  ~Watch() { --running_sweeps; }

  bool stopped() const { return stop_.load(std::memory_order_relaxed); }

  void task_done() {
    const int64_t done = 1 + done_.fetch_add(1, std::memory_order_relaxed);
    if (thread_number() != 0 || !run_.poll || now() - last_ < std::chrono::milliseconds(100)) return;
    last_ = now();
    if (run_.poll(run_.context, double(done) / tasks_)) stop_.store(true);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static Clock::time_point now() { return Clock::now(); }

  const Run& run_;
  const double tasks_;
  Clock::time_point last_;  // thread 0 only
  std::atomic<int64_t> done_{0};
  std::atomic<bool> stop_{false};
};

}  // namespace kcalib
