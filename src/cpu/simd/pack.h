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

// Square root of x, at least the root of `smallest` (2^-1000, float: 2^-120, where it is not one instruction), to within
// one ulp: what profiles take that are 1 near 0.
//
// With AVX-512, where vsqrtpd costs more than an exp, g = x r with r from vrsqrt14 and e = 1 - g r, |e| < 2^-13: then
// g (1 - e)^(-1/2) as a series to e^3, its e^4 in the coefficient of e^2 (float: a Newton step). The floor keeps
// 0 * inf = NaN away; it is not needed of x that are no less.
template <bool FLOOR = true> KCALIB_FN DoublePack positive_root(DoublePack x) {
#if defined(__AVX512F__)
  const DoublePack floored = FLOOR ? at_least(x, 0x1p-1000) : x;
  const DoublePack r = DoublePack(_mm512_maskz_rsqrt14_pd(0xff, __m512d(floored)));
  const DoublePack g = floored * r;
  const DoublePack e = 1.0 - g * r;
  return (g * e) * ((e * 0.3125 + (0.375 + 0x1.18p-28)) * e + 0.5) + g;
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

template <bool FLOOR = true> KCALIB_FN FloatPack positive_root(FloatPack x) {
#if defined(__AVX512F__)
  const FloatPack floored = FLOOR ? at_least(x, 0x1p-120f) : x;
  FloatPack h = FloatPack(_mm512_maskz_rsqrt14_ps(0xffff, __m512(floored)));
  const FloatPack g = floored * h;
  h = 0.5f * h;
  const FloatPack e = floored - g * g;
  return e * h + g;
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

// The same by the divider, where that is another way: it works beside the ports that everything else goes through.
#if defined(__AVX512F__)
KCALIB_FN DoublePack divider_root(DoublePack x) { return DoublePack(_mm512_maskz_sqrt_pd(0xff, __m512d(x))); }
KCALIB_FN FloatPack divider_root(FloatPack x) { return FloatPack(_mm512_maskz_sqrt_ps(0xffff, __m512(x))); }
#else
template <class V> KCALIB_FN V divider_root(V x) { return positive_root(x); }
#endif

// Square root of x >= 0, to within one ulp; with AVX-512 it is 0 for x < 2^-1000 (float: 2^-120).
template <class V> KCALIB_FN V square_root(V x) {
#if defined(__AVX512F__)
  constexpr Real<V> smallest = sizeof(Real<V>) == 8 ? Real<V>(0x1p-1000) : Real<V>(0x1p-120f);
  return x < smallest ? V{} : positive_root(x);
#else
  return positive_root(x);
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

// Exponentials as 2^(n + r), n a multiple of 1 / STEPS and |r| <= 1 / (2 STEPS): of `shifted` = n + ROUND<V>,
// `power_minus_one_over` is the minimax polynomial of (2^r - 1) / r, to 7e-18 / |r| (float: 2e-9).
#if defined(__AVX512F__)
// A table of 2^(j / 16) in two registers (float: one); the low bits of `shifted` are j, and the power of two below n is
// the instruction's that multiplies with it. Results are within 1.05 units in the last place, half of it the table's.
constexpr int STEPS = 16;
alignas(64) constexpr double POWERS[STEPS] = {
    0x1.0000000000000p+0, 0x1.0b5586cf9890fp+0, 0x1.172b83c7d517bp+0, 0x1.2387a6e756238p+0, 0x1.306fe0a31b715p+0,
    0x1.3dea64c123422p+0, 0x1.4bfdad5362a27p+0, 0x1.5ab07dd485429p+0, 0x1.6a09e667f3bcdp+0, 0x1.7a11473eb0187p+0,
    0x1.8ace5422aa0dbp+0, 0x1.9c49182a3f090p+0, 0x1.ae89f995ad3adp+0, 0x1.c199bdd85529cp+0, 0x1.d5818dcfba487p+0,
    0x1.ea4afa2a490dap+0};
alignas(64) constexpr float SINGLE_POWERS[STEPS] = {
    0x1.000000p+0f, 0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f, 0x1.306fe0p+0f, 0x1.3dea64p+0f,
    0x1.4bfdaep+0f, 0x1.5ab07ep+0f, 0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
    0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f};
KCALIB_FN DoublePack step_power(DoublePack shifted) {
  return DoublePack(_mm512_permutex2var_pd(_mm512_load_pd(POWERS), __m512i(shifted), _mm512_load_pd(POWERS + 8)));
}
KCALIB_FN FloatPack step_power(FloatPack shifted) {
  return FloatPack(_mm512_maskz_permutexvar_ps(0xffff, __m512i(shifted), _mm512_load_ps(SINGLE_POWERS)));
}
KCALIB_FN DoublePack times_floor_power(DoublePack y, DoublePack n) {
  return DoublePack(_mm512_maskz_scalef_pd(0xff, __m512d(y), __m512d(n)));
}
KCALIB_FN FloatPack times_floor_power(FloatPack y, FloatPack n) {
  return FloatPack(_mm512_maskz_scalef_ps(0xffff, __m512(y), __m512(n)));
}
template <class V> KCALIB_FN V power_minus_one_over(V r) {
  V q;
  if constexpr (sizeof(Real<V>) == 8) {
    q = splat<V>(0x1.430a690dc076cp-13);
    q = q * r + 0x1.5d89be4c1925dp-10;
    q = q * r + 0x1.3b2ab6fadd5aep-7;
    q = q * r + 0x1.c6b08d6e8a383p-5;
    q = q * r + 0x1.ebfbdff82c597p-3;
    q = q * r + 0x1.62e42fefa39fdp-1;
  } else {
    q = splat<V>(0.05550595f);
    q = q * r + 0.24023429f;
    q = q * r + 0.6931472f;
  }
  return q;
}
#else
constexpr int STEPS = 1;
template <class V> KCALIB_FN V power_minus_one_over(V r) {
  V q;
  if constexpr (sizeof(Real<V>) == 8) {
    q = splat<V>(0x1.ea182972068e8p-32);
    q = q * r + 0x1.e61caa8604d33p-28;
    q = q * r + 0x1.b524cdfe81a2ep-24;
    q = q * r + 0x1.62bfc6cb63c38p-20;
    q = q * r + 0x1.ffcbfc7c3d5dap-17;
    q = q * r + 0x1.4309130f30187p-13;
    q = q * r + 0x1.5d87fe78a0e50p-10;
    q = q * r + 0x1.3b2ab6fb9ff52p-7;
    q = q * r + 0x1.c6b08d704a0d7p-5;
    q = q * r + 0x1.ebfbdff82c5a5p-3;
    q = q * r + 0x1.62e42fefa39efp-1;
  } else {
    q = splat<V>(0.0001547415304230526f);
    q = q * r + 0.0013400351162999868f;
    q = q * r + 0.009618012234568596f;
    q = q * r + 0.055503275245428085f;
    q = q * r + 0.24022650718688965f;
    q = q * r + 0.6931471824645996f;
  }
  return q;
}
#endif
template <class V> constexpr Real<V> ROUND = Constants<Real<V>>::round / STEPS;
template <class V> KCALIB_FN V exp2_reduced(V r, [[maybe_unused]] V n, V shifted) {
#if defined(__AVX512F__)
  const V power = step_power(shifted);
  return times_floor_power((power * r) * power_minus_one_over(r) + power, n);
#else
  return times_power_of_two(power_minus_one_over(r) * r + Real<V>(1), shifted);
#endif
}

// exp(-scale x) for scale x >= -709 (float: -88), clamped to 708 (87) unless CLAMP is false, for what is no more. Its
// relative error is a unit in the last place and that of scale x.
template <class V> class Decay {
  using R = Real<V>;
  using C = Constants<R>;

 public:
  KCALIB_FN explicit Decay(R scale) : rate_(scale * C::inverse_ln2), most_(-C::exp_low / scale) {}
  template <bool CLAMP> KCALIB_FN V of(V x) const {
    if constexpr (CLAMP) x = at_most(x, most_);
    const V shifted = ROUND<V> - x * rate_;
    const V n = shifted - ROUND<V>;
    return exp2_reduced(-(x * rate_) - n, n, shifted);
  }

 private:
  const R rate_, most_;
};

#if defined(__AVX512F__)
template <class V> KCALIB_FN V exp_minus_by_table(V x) {
  using C = Constants<Real<V>>;
  constexpr Real<V> rest = sizeof(Real<V>) == 8 ? Real<V>(0x1.777d0ffda0d24p-56) : Real<V>(1.9259630e-08f);  // of 1 / ln 2
  x = at_most(x, -C::exp_low);
  const V shifted = ROUND<V> - x * C::inverse_ln2;
  const V n = shifted - ROUND<V>;
  return exp2_reduced(-(x * C::inverse_ln2) - n - x * rest, n, shifted);
}
template <> KCALIB_FN DoublePack exp_minus(DoublePack x) { return exp_minus_by_table(x); }
template <> KCALIB_FN FloatPack exp_minus(FloatPack x) { return exp_minus_by_table(x); }
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
// a b + c, rounded once where the instruction set has that, whatever the compiler thinks of the rest.
template <class V> KCALIB_FN V fused(V a, V b, V c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(Real<V>) == 8) return V(_mm512_fmadd_pd(__m512d(a), __m512d(b), __m512d(c)));
  else return V(_mm512_fmadd_ps(__m512(a), __m512(b), __m512(c)));
#elif defined(__FMA__)
  if constexpr (sizeof(Real<V>) == 8) return V(_mm256_fmadd_pd(__m256d(a), __m256d(b), __m256d(c)));
  else return V(_mm256_fmadd_ps(__m256(a), __m256(b), __m256(c)));
#else
  return rounded(a * b) + c;
#endif
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
#if defined(__AVX2__) && !defined(__AVX512F__)  // GCC 12 would take quarters, by way of memory
  out[0] = DoublePack(_mm256_cvtps_pd(_mm256_castps256_ps128(__m256(x))));
  out[1] = DoublePack(_mm256_cvtps_pd(_mm256_extractf128_ps(__m256(x), 1)));
#else
  HalfFloatPack half[2];
  __builtin_memcpy(half, &x, sizeof x);
  out[0] = __builtin_convertvector(half[0], DoublePack);
  out[1] = __builtin_convertvector(half[1], DoublePack);
#endif
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
