// What Python asks of OpenMP, and of the sweeps that are running.
#include "cpu/simd/team.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

namespace kcalib {

bool compiled_with_openmp() {
#ifdef _OPENMP
  return true;
#else
  return false;
#endif
}

int openmp_max_threads() {
#ifdef _OPENMP
  return forked.load() || omp_in_parallel() ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

int count_running_sweeps() { return running_sweeps.load(); }

void register_fork_handler() {
#if defined(__unix__) || defined(__APPLE__)
  pthread_atfork(nullptr, nullptr, [] { forked.store(true); });
#endif
}

}  // namespace kcalib
