// Resampling weights: pure functions of (seed, replicate, row).
//
// Weight w of a row in a replicate, for the three kinds of weights (WeightKind):
//
//   RADEMACHER   1 or -1, each with probability 1/2;
//   GAUSSIAN     a standard normal deviate;
//   MULTINOMIAL  how many of n draws with replacement fall on the row.
//
// All come from the words of one counter-based generator (random_words), so nothing has
// to be drawn in order, and the same seed gives the same weights for any number of
// threads, any instruction set, and on the CPU as on the GPU. Callers: cpu/random/weights.cpp.
//
// Functions are templates over the type W of a 64-bit word and V of a real: packs of
// them on the CPU, plain ones elsewhere. The same bits everywhere take IEEE operations
// that are rounded one by one: a file that includes this is compiled with
// -ffp-contract=off, and `plus` and `times` are intrinsics that CUDA never fuses.
#pragma once

#include "kcalib/math.h"

namespace kcalib {

enum class WeightKind : unsigned { MULTINOMIAL = 0, RADEMACHER = 1, GAUSSIAN = 2 };

using Word = unsigned long long;

namespace {

// The product of the lower halves of a and b.
template <class W> KCALIB_FN W half_product(W a, W b) { return (a & 0xffffffff) * (b & 0xffffffff); }
template <class W> KCALIB_FN W splat_word(Word x) { return W{} + x; }
// x >> 32 in the lower half, anything above.
template <class W> KCALIB_FN W upper_half(W x) { return x >> 32; }

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011)
// of the counter c[0..3], each in the lower half of its word; upper halves are ignored, and hold
// anything afterwards.
template <class W> KCALIB_FN void philox(Word seed, W* c) {
  unsigned key0 = unsigned(seed), key1 = unsigned(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const W product0 = half_product(c[0], splat_word<W>(0xD2511F53));
    const W product1 = half_product(c[2], splat_word<W>(0xCD9E8D57));
    c[0] = upper_half(product1) ^ c[1] ^ Word(key0);
    c[1] = product1;
    c[2] = (product0 >> 32) ^ c[3] ^ Word(key1);
    c[3] = product0;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
}

// Words 2 * pair and 2 * pair + 1 of a replicate (or of 128, RADEMACHER): the outputs x0 + 2^32 x1 and x2 + 2^32 x3 of Philox
// with the key `seed` and the counter (pair mod 2^32, pair / 2^32, replicate, kind).
template <class W> KCALIB_FN void random_words(Word seed, WeightKind kind, W replicate, W pair, W* words) {
  W c[4] = {pair, pair >> 32, replicate, splat_word<W>(Word(kind))};
  philox(seed, c);
  words[0] = (c[0] & 0xffffffff) | (c[1] << 32);
  words[1] = (c[2] & 0xffffffff) | (c[3] << 32);
}
KCALIB_FN Word random_word(Word seed, WeightKind kind, Word replicate, Word index) {
  Word words[2];
  random_words<Word>(seed, kind, replicate, index >> 1, words);
  return words[index & 1];
}

// RADEMACHER. A row has a sign, 1 - 2 * bit, for each of 128 replicates in the two words of (replicate / 128, row): rows are
// wanted in any order. Bit (replicate mod 64) of this word:
KCALIB_FN Word sign_word(Word seed, Word replicate, Word row) {
  return random_word(seed, WeightKind::RADEMACHER, replicate / 128, 2 * row + replicate / 64 % 2);
}
template <class V, class W> KCALIB_FN V rademacher(W word, int bit) {
  return from_bits<V>(Bits<V>(((word >> bit) << 63) | Word(Constants<double>::one)));
}

// MULTINOMIAL. Word k is draw k, on row floor(n * word / 2^64). Of 2^64 words a row gets as many as any
// other or one more: its probability is 1/n to within 2^-64.
template <class W> KCALIB_FN W drawn_row(W word, Word n) {
  const W low = splat_word<W>(n), high = splat_word<W>(n >> 32), upper = word >> 32;
  const W first = half_product(upper, low) + (half_product(word, low) >> 32);
  if (n >> 32 == 0) return first >> 32;
  const W second = half_product(word, high) + (first & 0xffffffff);
  return half_product(upper, high) + (first >> 32) + (second >> 32);
}

// IEEE operations, each rounded by itself.
template <class V> KCALIB_FN V plus(V a, V b) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(a, b);
#else
  return a + b;
#endif
}
template <class V> KCALIB_FN V times(V a, V b) {
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}
template <class V> KCALIB_FN V over(V a, V b) {
#ifdef __CUDA_ARCH__
  return __ddiv_rn(a, b);
#else
  return a / b;
#endif
}
template <class V> KCALIB_FN V root(V x) {
#ifdef __CUDA_ARCH__
  return __dsqrt_rn(x);
#else
  return __builtin_sqrt(x);
#endif
}

template <class V> KCALIB_FN V times_plus(V a, V b, Real<V> c) { return plus(times(a, b), splat<V>(c)); }
template <class V, class M> KCALIB_FN V either(M mask, Real<V> a, Real<V> b) {
  return mask ? splat<V>(a) : splat<V>(b);
}

// -log(x) for x in (0, 1/2], as math.h has it.
template <class V> KCALIB_FN V minus_log(V x) {
  using C = Constants<double>;
  const Bits<V> k = (to_bits(x) - C::half_root2) >> C::mantissa;
  const V scale = plus(from_bits<V>(to_bits(splat<V>(C::round)) + k), splat<V>(-C::round));
  const V f = plus(from_bits<V>(to_bits(x) - (k << C::mantissa)), splat<V>(-1));
  const V s = over(f, plus(f, splat<V>(2)));
  const V z = times(s, s);
  V p = splat<V>(1.479819860511658591e-01);
  p = times_plus(p, z, 1.531383769920937332e-01);
  p = times_plus(p, z, 1.818357216161805012e-01);
  p = times_plus(p, z, 2.222219843214978396e-01);
  p = times_plus(p, z, 2.857142874366239149e-01);
  p = times_plus(p, z, 3.999999999940941908e-01);
  p = times_plus(p, z, 6.666666666666735130e-01);
  const V half_square = times(times(f, splat<V>(0.5)), f);
  const V low = plus(times(s, plus(half_square, times(z, p))), times(scale, splat<V>(C::ln2_low)));
  return plus(plus(plus(half_square, -low), -f), times(scale, splat<V>(-C::ln2_high)));
}

// GAUSSIAN. Word `row` gives the deviate of the row: minus or plus (bit 0 of the word) the quantile at
// v = (k + 1/2) / 2^53, k the upper 52 bits: the inverse of the normal distribution function at the
// midpoint of one of 2^53 intervals. The quantile is Wichura's algorithm AS 241 (PPND16, Applied
// Statistics 37, 1988), with relative error 1e-16 before rounding; in terms of sqrt(-log(v)) outside
// the central 85 %, and another function of it for v < 2^-36.
template <class V, class W> KCALIB_FN V tail_probability(W word) {  // exact
  const V unit = from_bits<V>(Bits<V>((word >> 12) | Word(Constants<double>::one)));
  return times(plus(unit, splat<V>(-1 + 0x1p-53)), splat<V>(0.5));
}
template <class V, class W> KCALIB_FN V with_sign(V size, W word) {
  return from_bits<V>(to_bits(size) ^ Bits<V>(word << 63));
}

template <class W> KCALIB_FN auto is_far(W word) { return word < splat_word<W>(1 << 29); }  // once in 3e10 words

template <class V, class W> KCALIB_FN V far_deviate(W word) {
  const V r = plus(root(minus_log(tail_probability<V>(word))), splat<V>(-5));
  V a = splat<V>(2.01033439929228813265e-7);
  a = times_plus(a, r, 2.71155556874348757815e-5);
  a = times_plus(a, r, 1.24266094738807843860e-3);
  a = times_plus(a, r, 2.65321895265761230930e-2);
  a = times_plus(a, r, 2.96560571828504891230e-1);
  a = times_plus(a, r, 1.78482653991729133580e0);
  a = times_plus(a, r, 5.46378491116411436990e0);
  a = times_plus(a, r, 6.65790464350110377720e0);
  V b = splat<V>(2.04426310338993978564e-15);
  b = times_plus(b, r, 1.42151175831644588870e-7);
  b = times_plus(b, r, 1.84631831751005468180e-5);
  b = times_plus(b, r, 7.86869131145613259100e-4);
  b = times_plus(b, r, 1.48753612908506148525e-2);
  b = times_plus(b, r, 1.36929880922735805310e-1);
  b = times_plus(b, r, 5.99832206555887937690e-1);
  b = times_plus(b, r, 1);
  return with_sign(over(a, b), word);
}

// Of a word that is not far.
template <class V, class W> KCALIB_FN V near_deviate(W word) {
  const V v = tail_probability<V>(word);
  const V q = plus(splat<V>(0.5), -v);  // exact
  const auto central = q <= splat<V>(0.425);
  const V r = central ? plus(splat<V>(0.180625), -times(q, q)) : plus(root(minus_log(v)), splat<V>(-1.6));
  V a = either<V>(central, 2.5090809287301226727e+3, 7.74545014278341407640e-4);
  a = plus(times(a, r), either<V>(central, 3.3430575583588128105e+4, 2.27238449892691845833e-2));
  a = plus(times(a, r), either<V>(central, 6.7265770927008700853e+4, 2.41780725177450611770e-1));
  a = plus(times(a, r), either<V>(central, 4.5921953931549871457e+4, 1.27045825245236838258e0));
  a = plus(times(a, r), either<V>(central, 1.3731693765509461125e+4, 3.64784832476320460504e0));
  a = plus(times(a, r), either<V>(central, 1.9715909503065514427e+3, 5.76949722146069140550e0));
  a = plus(times(a, r), either<V>(central, 1.3314166789178437745e+2, 4.63033784615654529590e0));
  a = plus(times(a, r), either<V>(central, 3.3871328727963666080e0, 1.42343711074968357734e0));
  V b = either<V>(central, 5.2264952788528545610e+3, 1.05075007164441684324e-9);
  b = plus(times(b, r), either<V>(central, 2.8729085735721942674e+4, 5.47593808499534494600e-4));
  b = plus(times(b, r), either<V>(central, 3.9307895800092710610e+4, 1.51986665636164571966e-2));
  b = plus(times(b, r), either<V>(central, 2.1213794301586595867e+4, 1.48103976427480074590e-1));
  b = plus(times(b, r), either<V>(central, 5.3941960214247511077e+3, 6.89767334985100004550e-1));
  b = plus(times(b, r), either<V>(central, 6.8718700749205790830e+2, 1.67638483018380384940e0));
  b = plus(times(b, r), either<V>(central, 4.2313330701600911252e+1, 2.05319162663775882187e0));
  b = times_plus(b, r, 1);
  return with_sign(over(central ? times(q, a) : a, b), word);
}

KCALIB_FN double normal_deviate(Word word) {
  return is_far(word) ? far_deviate<double>(word) : near_deviate<double>(word);
}

}  // namespace
}  // namespace kcalib
