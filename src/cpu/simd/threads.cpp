#include "cpu/simd/threads.h"

#include <exception>

#ifdef _OPENMP
#include <omp.h>
#else
#include <cstdlib>
#include <thread>
#include <vector>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace kcalib {
namespace {

// An OpenMP runtime does not survive fork(): its child would wait for threads that no
// longer exist. A forked child therefore computes on the thread that calls.
std::atomic<bool> forked{false};

// Sweeps that are running in this process, one for each Python thread that waits for one.
std::atomic<int> running_sweeps{0};

thread_local int own_number = 0;
thread_local bool is_in_team = false;

bool is_alone() {
#ifdef _OPENMP
  if (omp_in_parallel()) return true;
#endif
  return is_in_team || forked.load();
}

// The tasks of one call, which its threads take in turns.
class Team {
 public:
  const int threads;

  Team(int most_threads, int64_t n_tasks, void (*call)(const void*, int64_t), const void* body)
      : threads(int(std::min(int64_t(most_threads), n_tasks))), n_tasks_(n_tasks), call_(call), body_(body) {}

  void work(int number) noexcept {
    const int number_before = own_number;
    const bool before = is_in_team;
    own_number = number;
    is_in_team = before || threads > 1;
    try {
      for (int64_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < n_tasks_;) call_(body_, task);
    } catch (...) {
      next_.store(n_tasks_);
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
    own_number = number_before;
    is_in_team = before;
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const int64_t n_tasks_;
  void (*const call_)(const void*, int64_t);
  const void* const body_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
};

#ifdef _OPENMP
void start(Team& team) {
#pragma omp parallel num_threads(team.threads)
  team.work(omp_get_thread_num());
}
#else
// Joins its threads at its end.
class Threads {
 public:
  Threads(Team& team, int count) {
    try {
      threads_.reserve(std::size_t(count));
      for (int number = 1; number <= count; ++number) threads_.emplace_back([&team, number] { team.work(number); });
    } catch (const std::exception&) {  // the system has no more: those that there are do all tasks
    }
  }
  ~Threads() {
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::thread> threads_;
};

void start(Team& team) {
  const Threads others(team, team.threads - 1);
  team.work(0);
}
#endif

}  // namespace

const char* thread_library() {
#ifdef _OPENMP
  return "openmp";
#else
  return "std";
#endif
}

int max_threads() {
  if (is_alone()) return 1;
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  // As OpenMP's runtimes do, which read it once.
  static const int count = [] {
    const char* text = std::getenv("OMP_NUM_THREADS");
    const int wanted = text ? std::atoi(text) : 0;
    return wanted > 0 ? wanted : std::max(1, int(std::thread::hardware_concurrency()));
  }();
  return count;
#endif
}

int count_running_sweeps() { return running_sweeps.load(); }

void register_fork_handler() {
#if defined(__unix__) || defined(__APPLE__)
  pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
#endif
}

int thread_number() { return std::max(own_number, 0); }

int team_size(const Run& run, int64_t tasks, double work) {
  if (is_alone()) return 1;
  const double useful = std::min(double(tasks), work / (KCALIB_WORTH_A_THREAD));
  return int(std::max(1.0, std::min(double(run.threads), useful)));
}

Watch::Watch(const Run& run, int64_t tasks)
    : run_(run), tasks_(double(std::max<int64_t>(tasks, 1))), last_(Clock::now()) {
  ++running_sweeps;
}
Watch::~Watch() { --running_sweeps; }

void Watch::task_done() {
  const int64_t done = 1 + done_.fetch_add(1, std::memory_order_relaxed);
  if (thread_number() != 0 || !run_.poll || Clock::now() - last_ < std::chrono::milliseconds(100)) return;
  last_ = Clock::now();
  if (run_.poll(run_.context, double(done) / tasks_)) stop();
}

void run_tasks(int threads, int64_t n_tasks, void (*call)(const void*, int64_t), const void* body) {
  Team team(threads, n_tasks, call, body);
  if (team.threads > 1) start(team);
  else team.work(0);
  team.rethrow();
}

}  // namespace kcalib
