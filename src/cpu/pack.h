// SIMD packs of the instruction set this translation unit is compiled for.
//
// Included by what is compiled once per instruction set (src/meson.build). ROWS x VECTORS packs make
// the register tile: they fill the registers and leave room for the operands.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kcalib/math.h"

namespace kcalib {
namespace {

#if defined(__AVX512F__)
constexpr int PACK_BYTES = 64, ROWS = 6, VECTORS = 4;
#elif defined(__AVX2__)
constexpr int PACK_BYTES = 32, ROWS = 4, VECTORS = 3;
#elif defined(__aarch64__)
constexpr int PACK_BYTES = 16, ROWS = 6, VECTORS = 4;
#else
constexpr int PACK_BYTES = 16, ROWS = 4, VECTORS = 3;
#endif

using DoublePack = double __attribute__((vector_size(PACK_BYTES)));
using FloatPack = float __attribute__((vector_size(PACK_BYTES)));
using HalfFloatPack = float __attribute__((vector_size(PACK_BYTES / 2)));
using LongPack = long long __attribute__((vector_size(PACK_BYTES)));
using IntPack = int __attribute__((vector_size(PACK_BYTES)));

template <> struct Lane<DoublePack> { using real = double; using bits = LongPack; };
template <> struct Lane<FloatPack> { using real = float; using bits = IntPack; };

template <class T> struct PackOf;
template <> struct PackOf<double> { using type = DoublePack; };
template <> struct PackOf<float> { using type = FloatPack; };
template <class T> using Pack = typename PackOf<T>::type;

// The operand that may be NaN comes second: these instructions return that one then.
#if defined(__AVX512F__)
template <> KCALIB_FN DoublePack at_least(DoublePack x, double low) {
  return DoublePack(_mm512_maskz_max_pd(0xff, _mm512_set1_pd(low), __m512d(x)));
}
template <> KCALIB_FN DoublePack at_most(DoublePack x, double high) {
  return DoublePack(_mm512_maskz_min_pd(0xff, _mm512_set1_pd(high), __m512d(x)));
}
template <> KCALIB_FN FloatPack at_least(FloatPack x, float low) {
  return FloatPack(_mm512_maskz_max_ps(0xffff, _mm512_set1_ps(low), __m512(x)));
}
template <> KCALIB_FN FloatPack at_most(FloatPack x, float high) {
  return FloatPack(_mm512_maskz_min_ps(0xffff, _mm512_set1_ps(high), __m512(x)));
}
#elif defined(__AVX2__)
template <> KCALIB_FN DoublePack at_least(DoublePack x, double low) {
  return DoublePack(_mm256_max_pd(_mm256_set1_pd(low), __m256d(x)));
}
template <> KCALIB_FN DoublePack at_most(DoublePack x, double high) {
  return DoublePack(_mm256_min_pd(_mm256_set1_pd(high), __m256d(x)));
}
template <> KCALIB_FN FloatPack at_least(FloatPack x, float low) {
  return FloatPack(_mm256_max_ps(_mm256_set1_ps(low), __m256(x)));
}
template <> KCALIB_FN FloatPack at_most(FloatPack x, float high) {
  return FloatPack(_mm256_min_ps(_mm256_set1_ps(high), __m256(x)));
}
#endif

template <class V> constexpr int LANES = PACK_BYTES / int(sizeof(Real<V>));

template <int... LANE> struct Lanes {};
template <int COUNT, int... LANE> struct LanesUpTo : LanesUpTo<COUNT - 1, COUNT - 1, LANE...> {};
template <int... LANE> struct LanesUpTo<0, LANE...> { using type = Lanes<LANE...>; };

template <class V> KCALIB_FN V load(const Real<V>* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V> KCALIB_FN void store(Real<V>* p, V v) { __builtin_memcpy(p, &v, sizeof v); }

// Square root of x >= 0, to within one ulp; with AVX-512 it is 0 for x < 2^-1000 (float: 2^-120).
KCALIB_FN DoublePack square_root(DoublePack x) {
#if defined(__AVX512F__)
  // vsqrtpd costs more than an exp here: start from vrsqrt14pd (2^-14) and take a Goldschmidt
  // step (2^-27) and a Newton correction (2^-55). The floor keeps 0 * inf = NaN away.
  const DoublePack floored = at_least(x, 0x1p-1000);
  DoublePack h = DoublePack(_mm512_maskz_rsqrt14_pd(0xff, __m512d(floored)));
  DoublePack g = floored * h;
  h = 0.5 * h;
  DoublePack e = 0.5 - g * h;
  g = g * e + g;
  h = h * e + h;
  e = floored - g * g;
  g = e * h + g;
  return x < 0x1p-1000 ? DoublePack{} : g;
#elif defined(__AVX2__)
  return DoublePack(_mm256_sqrt_pd(__m256d(x)));
#elif defined(__x86_64__)
  return DoublePack(_mm_sqrt_pd(__m128d(x)));
#else
  DoublePack y;
  for (int i = 0; i < LANES<DoublePack>; ++i) y[i] = __builtin_sqrt(x[i]);
  return y;
#endif
}

KCALIB_FN FloatPack square_root(FloatPack x) {
#if defined(__AVX512F__)
  const FloatPack floored = at_least(x, 0x1p-120f);
  FloatPack h = FloatPack(_mm512_maskz_rsqrt14_ps(0xffff, __m512(floored)));
  FloatPack g = floored * h;
  h = 0.5f * h;
  const FloatPack e = floored - g * g;
  g = e * h + g;
  return x < 0x1p-120f ? FloatPack{} : g;
#elif defined(__AVX2__)
  return FloatPack(_mm256_sqrt_ps(__m256(x)));
#elif defined(__x86_64__)
  return FloatPack(_mm_sqrt_ps(__m128(x)));
#else
  FloatPack y;
  for (int i = 0; i < LANES<FloatPack>; ++i) y[i] = __builtin_sqrtf(x[i]);
  return y;
#endif
}

// 1 / sqrt(x) for 2^-1000 <= x <= 2^1000 (float: 2^-120 to 2^120): with r from vrsqrt14 and e = 1 - x r^2, |e| < 2^-13,
// r (1 - e)^(-1/2) as a series, to e^3 (float: e).
#if defined(__AVX512F__)
KCALIB_FN DoublePack reciprocal_root(DoublePack x) {
  const DoublePack r = DoublePack(_mm512_maskz_rsqrt14_pd(0xff, __m512d(x)));
  const DoublePack e = 1.0 - x * r * r;
  return (e * ((e * 0.3125 + 0.375) * e + 0.5)) * r + r;
}
KCALIB_FN FloatPack reciprocal_root(FloatPack x) {
  const FloatPack r = FloatPack(_mm512_maskz_rsqrt14_ps(0xffff, __m512(x)));
  const FloatPack e = 1.0f - x * r * r;
  return (e * 0.5f) * r + r;
}
#else
template <class V> KCALIB_FN V reciprocal_root(V x) { return Real<V>(1) / square_root(x); }
#endif

// 1 / x for 2^-1000 <= x <= 2^1000 (float: 2^-120 to 2^120): with r from vrcp14 and e = 1 - x r, r (1 + e + e^2 + e^3).
#if defined(__AVX512F__)
KCALIB_FN DoublePack reciprocal(DoublePack x) {
  const DoublePack r = DoublePack(_mm512_maskz_rcp14_pd(0xff, __m512d(x)));
  const DoublePack e = 1.0 - x * r;
  return ((e * e + e) * e + e) * r + r;
}
KCALIB_FN FloatPack reciprocal(FloatPack x) {
  const FloatPack r = FloatPack(_mm512_maskz_rcp14_ps(0xffff, __m512(x)));
  const FloatPack e = 1.0f - x * r;
  return e * r + r;
}
#else
template <class V> KCALIB_FN V reciprocal(V x) { return Real<V>(1) / x; }
#endif

template <class V> KCALIB_FN V higher(V x, V y) { return x > y ? x : y; }
template <class V> KCALIB_FN V lower(V x, V y) { return x < y ? x : y; }
#if defined(__AVX512F__)
template <> KCALIB_FN DoublePack lower(DoublePack x, DoublePack y) {
  return DoublePack(_mm512_maskz_min_pd(0xff, __m512d(x), __m512d(y)));
}
template <> KCALIB_FN FloatPack lower(FloatPack x, FloatPack y) {
  return FloatPack(_mm512_maskz_min_ps(0xffff, __m512(x), __m512(y)));
}
#endif
// values[index] for each lane.
template <class V> KCALIB_FN V gather(const Real<V>* values, Bits<V> index) {
  V v;
  for (int i = 0; i < LANES<V>; ++i) v[i] = values[index[i]];
  return v;
}
#if defined(__AVX512F__)
template <> KCALIB_FN DoublePack gather(const double* values, LongPack index) {
  return DoublePack(_mm512_mask_i64gather_pd(_mm512_setzero_pd(), 0xff, __m512i(index), values, 8));
}
template <> KCALIB_FN FloatPack gather(const float* values, IntPack index) {
  return FloatPack(_mm512_mask_i32gather_ps(_mm512_setzero_ps(), 0xffff, __m512i(index), values, 4));
}
#endif
// x, which the compiler then cannot contract with an addition: sums have the same bits wherever they are made.
template <class V> KCALIB_FN V rounded(V x) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(x));
#elif defined(__x86_64__)
  __asm__("" : "+x"(x));
#elif defined(__aarch64__)
  __asm__("" : "+w"(x));
#else
  __asm__("" : "+m"(x));
#endif
  return x;
}
template <class V> KCALIB_FN V magnitude(V x) { return x < Real<V>(0) ? -x : x; }

// Whether any lane of a comparison's result is true.
template <class B> KCALIB_FN bool any(B mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask(__m512i(mask), __m512i(mask)) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8(__m256i(mask)) != 0;
#elif defined(__x86_64__)
  return _mm_movemask_epi8(__m128i(mask)) != 0;
#else
  long long words[PACK_BYTES / 8], found = 0;
  __builtin_memcpy(words, &mask, sizeof words);
  for (long long w : words) found |= w;
  return found != 0;
#endif
}

// Transposes LANES packs of LANES numbers by exchanging the off-diagonal halves, then quarters, ...
template <int STEP, class V, int... LANE> KCALIB_FN void exchange(V& a, V& b, Lanes<LANE...>) {
  constexpr int L = sizeof...(LANE);
  const V first = __builtin_shufflevector(a, b, (LANE & STEP ? L + LANE - STEP : LANE)...);
  b = __builtin_shufflevector(a, b, (LANE & STEP ? L + LANE : LANE + STEP)...);
  a = first;
}
template <class V, int STEP = LANES<V> / 2> KCALIB_FN void transpose(V* packs) {
#pragma GCC unroll 16
  for (int i = 0; i < LANES<V>; ++i)
    if (!(i & STEP)) exchange<STEP>(packs[i], packs[i + STEP], typename LanesUpTo<LANES<V>>::type{});
  if constexpr (STEP > 1) transpose<V, STEP / 2>(packs);
}

// A pack as double packs, in lane order: what every sum accumulates.
template <class V> constexpr int WIDE = 8 / int(sizeof(Real<V>));
KCALIB_FN void widen(DoublePack x, DoublePack* out) { out[0] = x; }
KCALIB_FN void widen(FloatPack x, DoublePack* out) {
  HalfFloatPack half[2];
  __builtin_memcpy(half, &x, sizeof x);
  out[0] = __builtin_convertvector(half[0], DoublePack);
  out[1] = __builtin_convertvector(half[1], DoublePack);
}

// Adds a pack to double packs, in lane order.
template <class V> KCALIB_FN void add_wide(V x, DoublePack* sums) {
  DoublePack wide[WIDE<V>];
  widen(x, wide);
  for (int w = 0; w < WIDE<V>; ++w) sums[w] += wide[w];
}

// A pack's lanes as numbers of another type.
KCALIB_FN void store_as(double* out, DoublePack x) { store<DoublePack>(out, x); }
KCALIB_FN void store_as(float* out, FloatPack x) { store<FloatPack>(out, x); }
KCALIB_FN void store_as(float* out, DoublePack x) {
  const HalfFloatPack narrow = __builtin_convertvector(x, HalfFloatPack);
  __builtin_memcpy(out, &narrow, sizeof narrow);
}
KCALIB_FN void store_as(double* out, FloatPack x) {
  DoublePack wide[2];
  widen(x, wide);
  __builtin_memcpy(out, wide, sizeof wide);
}

KCALIB_FN double sum_lanes(DoublePack x) {
  double s = x[0];
  for (int i = 1; i < LANES<DoublePack>; ++i) s += x[i];
  return s;
}

}  // namespace
}  // namespace kcalib
