// What a GPU does in a second of one operation alone: bench_gpu.py compiles this behind include/kcalib/math.h.
//
//   PROBE_REAL        double or float
//   PROBE_OPERATION   FMA, EXP (the exponential of the pair engine) or SQRT
//
// Each thread has ELEMENTS independent chains, so that their latency does not count.

#define FMA 0
#define EXP 1
#define SQRT 2

extern "C" __global__ void probe(long long repetitions, PROBE_REAL* out) {
  constexpr int ELEMENTS = 8;
  using T = PROBE_REAL;
  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  T x[ELEMENTS];
  const T a = T(1) - T(1e-6), b = T(thread % 7) * T(1e-6);
  for (int e = 0; e < ELEMENTS; ++e) x[e] = T(e + 1) / T(ELEMENTS + 1);
  for (long long k = 0; k < repetitions; ++k)
#pragma unroll
    for (int e = 0; e < ELEMENTS; ++e) {
#if PROBE_OPERATION == FMA
      x[e] = x[e] * a + b;
#elif PROBE_OPERATION == EXP
      x[e] = kcalib::exp_minus(x[e]);
#else
      x[e] = ::sqrt(x[e] + b);
#endif
    }
  T sum = 0;
  for (int e = 0; e < ELEMENTS; ++e) sum += x[e];
  out[thread] = sum;
}
