// Runs CUDA functions on the CPU, for tests: a block's threads are fibres that take turns, from barrier to barrier.
//
// Whose turn it is when, a launch says: in ascending or descending order, or shuffled anew after every barrier. Results
// that depend on it are those of a race. All threads of a block have to be at the same barrier (of the same line), as
// hardware asks for, and what is in shared memory when a block begins are bytes 255: NaN, or -1.
#pragma once

#undef _FORTIFY_SOURCE  // whose longjmp refuses to go to another stack
#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <tuple>
#include <utility>

#define __global__
#define __device__
#define __shared__ static __attribute__((section("kcalib_shared")))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)

struct Index {
  unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

template <class I> I atomicAdd(I* at, I value) {
  const I old = *at;
  *at += value;
  return old;
}

namespace emulation {

// Turns change by _longjmp, which asks nothing of the operating system, as swapcontext does for the mask of signals.
struct Fibre {
  jmp_buf at;         // where it goes on
  ucontext_t origin;  // of its first turn, which makes its stack
  char* stack;
  bool begun;
  Index thread;
  const char* file;  // of the barrier that it waits at
  int line;
  bool done;
};
// Grows, and is never freed. (<vector> and <memory> would take most of the time that a kernel compiles.)
template <class V> struct Array {
  V* at = nullptr;
  size_t length = 0;
  void resize(size_t n) {
    if (n <= length) return;
    at = static_cast<V*>(realloc(static_cast<void*>(at), n * sizeof(V)));
    memset(static_cast<void*>(at + length), 0, (n - length) * sizeof(V));
    length = n;
  }
  V* data() { return at; }
};
constexpr size_t STACK = 1 << 17;
static jmp_buf scheduler;
static Array<Fibre> fibres;  // of this library: as a local of a template, all that are loaded would share it
static Fibre* running;
static Array<char> dynamic_shared;  // what a launch asks for beside the arrays of fixed size
static void (*body)(void*);
static void* argument;

enum Order : unsigned { ASCENDING = 0, DESCENDING = 1 };  // other numbers are seeds of shuffles
static unsigned order;
static Array<unsigned> turns, blocks;
static char fault[400];  // what went wrong; empty: nothing

// Where a linker puts the shared memory's bounds.
extern "C" char __start_kcalib_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_kcalib_shared[] __attribute__((weak, visibility("hidden")));

__noinline__ static void give_turn_back() {
  if (_setjmp(running->at) == 0) _longjmp(scheduler, 1);
}

// A fibre lives on: the thread of the next block, and of the next launch, begins where the last one ended.
static void live() {
  for (;;) {
    body(argument);
    running->done = true;
    give_turn_back();
  }
}

__noinline__ static void give_turn(Fibre& fibre) {
  running = &fibre;
  threadIdx = fibre.thread;
  if (_setjmp(scheduler) != 0) return;
  if (fibre.begun) _longjmp(fibre.at, 1);
  getcontext(&fibre.origin);
  if (!fibre.stack) fibre.stack = static_cast<char*>(malloc(STACK));
  fibre.origin.uc_stack.ss_sp = fibre.stack;
  fibre.origin.uc_stack.ss_size = STACK;
  makecontext(&fibre.origin, live, 0);
  fibre.begun = true;
  setcontext(&fibre.origin);
}

// The numbers below n in the order of turns.
static unsigned* ordered(Array<unsigned>& numbers, unsigned n) {
  static unsigned long long state;
  if (numbers.length < n) numbers.resize(n);
  for (unsigned k = 0; k < n; ++k) numbers.at[k] = order == DESCENDING ? n - 1 - k : k;
  if (order > DESCENDING) {
    state = (state + order) * 0x9E3779B97F4A7C15ull;
    for (unsigned k = n; k > 1; --k) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const unsigned other = unsigned((state >> 33) % k), held = numbers.at[k - 1];
      numbers.at[k - 1] = numbers.at[other];
      numbers.at[other] = held;
    }
  }
  return numbers.at;
}

// All threads of a block; each runs to its next barrier before any runs on.
static void run_block(unsigned threads) {
  if (__start_kcalib_shared) memset(__start_kcalib_shared, 255, size_t(__stop_kcalib_shared - __start_kcalib_shared));
  if (dynamic_shared.length) memset(dynamic_shared.at, 255, dynamic_shared.length);
  for (unsigned t = 0; t < threads; ++t) {
    fibres.at[t].thread = {t, 0, 0};
    fibres.at[t].done = false;
  }
  for (unsigned left = threads; left > 0;) {
    const unsigned* turn = ordered(turns, threads);
    for (unsigned k = 0; k < threads; ++k) give_turn(fibres.at[turn[k]]);
    left = 0;
    for (unsigned t = 0; t < threads; ++t) left += !fibres.at[t].done;
    for (unsigned t = 0; left > 0 && t < threads; ++t) {
      const Fibre &first = fibres.at[0], &other = fibres.at[t];
      if (first.done == other.done && (first.done || (first.line == other.line && first.file == other.file))) continue;
      const Fibre& waits = first.done ? other : first;
      const char* rest = first.done || other.done ? "has returned" : "is at another one";
      snprintf(fault, sizeof fault, "block (%u, %u): thread %u waits at the barrier in %s:%d, thread %u %s", blockIdx.x,
               blockIdx.y, waits.thread.x, waits.file, waits.line, (first.done ? first : other).thread.x, rest);
      for (unsigned k = 0; k < threads; ++k) fibres.at[k].begun = false;  // what they wait for never comes
      return;
    }
  }
}

template <class... A, size_t... I>
void launch(void (*kernel)(A...), Index grid, unsigned threads, void** arguments, std::index_sequence<I...>) {
  using Arguments = std::tuple<void (*)(A...), A...>;
  Arguments all{kernel, *static_cast<A*>(arguments[I])...};
  argument = &all;
  body = [](void* p) {
    std::apply([](auto function, auto... a) { function(a...); }, *static_cast<Arguments*>(p));
  };
  fibres.resize(threads);
  gridDim = grid;
  blockDim = {threads, 1, 1};
  fault[0] = 0;
  const unsigned n = grid.x * grid.y, *block = ordered(blocks, n);
  for (unsigned k = 0; k < n && !fault[0]; ++k) {
    blockIdx = {block[k] % grid.x, block[k] / grid.x, 0};
    run_block(threads);
  }
  argument = nullptr;
}
template <class... A> void launch(void (*kernel)(A...), Index grid, unsigned threads, void** arguments) {
  launch(kernel, grid, threads, arguments, std::index_sequence_for<A...>{});
}

}  // namespace emulation

inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  emulation::running->file = file;
  emulation::running->line = line;
  emulation::give_turn_back();
}

// Whether any thread's predicate is true: all vote, all read, and the first to run on clears the vote.
inline int __syncthreads_or(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  static int votes;
  votes |= predicate != 0;
  __syncthreads(file, line);
  const int any = votes;
  __syncthreads(file, line);
  votes = 0;
  __syncthreads(file, line);
  return any;
}

// A function that launches `name` from Python, and returns what went wrong.
#define EMULATED(name)                                                                                     \
  extern "C" const char* emulated_##name(unsigned x, unsigned y, unsigned threads, unsigned shared, unsigned order, \
                                         void** arguments) {                                               \
    emulation::dynamic_shared.resize(shared);                                                              \
    emulation::order = order;                                                                              \
    emulation::launch(name, Index{x, y, 1}, threads, arguments);                                           \
    return emulation::fault;                                                                               \
  }
