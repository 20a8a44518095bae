// Runs CUDA functions on the CPU, for tests: a block's threads are fibres that take turns, from barrier to barrier.
#pragma once

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
#define __shared__ static
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

struct Fibre {
  ucontext_t context;
  char* stack;
  Index thread;
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
static ucontext_t scheduler;
static Fibre* running;
static Array<char> dynamic_shared;  // what a launch asks for beside the arrays of fixed size
static void (*body)(void*);
static void* argument;

static void enter() {
  body(argument);
  running->done = true;
  swapcontext(&running->context, &scheduler);
}

// All threads of a block; each runs to its next barrier before any runs on.
static void run_block(unsigned threads, Fibre* fibres) {
  for (unsigned t = 0; t < threads; ++t) {
    Fibre& fibre = fibres[t];
    getcontext(&fibre.context);
    if (!fibre.stack) fibre.stack = static_cast<char*>(malloc(STACK));
    fibre.context.uc_stack.ss_sp = fibre.stack;
    fibre.context.uc_stack.ss_size = STACK;
    fibre.thread = {t, 0, 0};
    fibre.done = false;
    makecontext(&fibre.context, enter, 0);
  }
  for (unsigned left = threads; left > 0;) {
    left = 0;
    for (unsigned t = 0; t < threads; ++t) {
      if (fibres[t].done) continue;
      running = &fibres[t];
      threadIdx = running->thread;
      swapcontext(&scheduler, &running->context);
      left += !running->done;
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
  static Array<Fibre> fibres;
  fibres.resize(threads);
  gridDim = grid;
  blockDim = {threads, 1, 1};
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      blockIdx = {x, y, 0};
      run_block(threads, fibres.data());
    }
  argument = nullptr;
}
template <class... A> void launch(void (*kernel)(A...), Index grid, unsigned threads, void** arguments) {
  launch(kernel, grid, threads, arguments, std::index_sequence_for<A...>{});
}

}  // namespace emulation

inline void __syncthreads() { swapcontext(&emulation::running->context, &emulation::scheduler); }

// Whether any thread's predicate is true: all vote, all read, and the first to run on clears the vote.
inline int __syncthreads_or(int predicate) {
  static int votes;
  votes |= predicate != 0;
  __syncthreads();
  const int any = votes;
  __syncthreads();
  votes = 0;
  __syncthreads();
  return any;
}

// A function that launches `name` from Python.
#define EMULATED(name)                                                                                     \
  extern "C" void emulated_##name(unsigned x, unsigned y, unsigned threads, unsigned shared, void** arguments) { \
    emulation::dynamic_shared.resize(shared);                                                              \
    emulation::launch(name, Index{x, y, 1}, threads, arguments);                                           \
  }
