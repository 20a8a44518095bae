// Scalar maths of the pair engine: exp, 1 - exp, log, log1p, power, cos(pi x), sin and cos, a polynomial.
//
// Every function is a template over its value type V: a SIMD pack on the CPU
// (cpu/simd/pack.h), a plain double or float elsewhere. Callers: profiles.h, mixtures.h, cpu/features/feature_kernels.cpp.
// All are branch-free, handle every finite argument in the stated range, and
// never produce denormals. NaN stays NaN, if it has no payload, which arithmetic gives none.
#pragma once

#ifndef KCALIB_FN
#ifdef __CUDACC__
#define KCALIB_FN __device__ __forceinline__
#else
#define KCALIB_FN inline __attribute__((always_inline))
#endif
#endif

namespace kcalib {
// The anonymous namespace keeps each instruction set's copy private to its
// translation unit: the linker must never merge the AVX-512 one into another.
namespace {

// Lane<V>::real is the type of one element, Lane<V>::bits the integer view of V.
template <class V> struct Lane;
template <> struct Lane<double> { using real = double; using bits = long long; };
template <> struct Lane<float> { using real = float; using bits = int; };
template <class V> using Real = typename Lane<V>::real;
template <class V> using Bits = typename Lane<V>::bits;

template <class V> KCALIB_FN V splat(Real<V> x) { return x - V{}; }
template <class V> KCALIB_FN Bits<V> to_bits(V x) { return __builtin_bit_cast(Bits<V>, x); }
template <class V> KCALIB_FN V from_bits(Bits<V> x) { return __builtin_bit_cast(V, x); }

// NaN stays NaN. cpu/simd/pack.h has them in one instruction where there is one.
template <class V> KCALIB_FN V at_least(V x, Real<V> low) { return x < low ? splat<V>(low) : x; }
template <class V> KCALIB_FN V at_most(V x, Real<V> high) { return x > high ? splat<V>(high) : x; }

template <class T> struct Constants;
template <> struct Constants<double> {
  static constexpr double exp_low = -708, exp_high = 709, tiny = 0x1p-1022;
  static constexpr double round = 0x1.8p52, inverse_ln2 = 0x1.71547652b82fep0;
  static constexpr double ln2 = 0x1.62e42fefa39efp-1, ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
  static constexpr double ln2_head = 0x1.62e4p-1, ln2_tail = 0x1.7f7d1cf79abcap-20;  // head: 15 bits
  static constexpr double pi = 0x1.921fb54442d18p+1, pi_low = 0x1.1a62633145c07p-53;
  // pi/2 in three parts; the first two have 33 bits (float: 8 and 11), so that their products with n are exact while n is small.
  static constexpr double half_pi_1 = 0x1.921fb544p+0, half_pi_2 = 0x1.0b4611a6p-34, half_pi_3 = 0x1.3198a2e037073p-69;
  static constexpr double two_over_pi = 0x1.45f306dc9c883p-1, most_phase = 0x1p50;
  static constexpr double exp2_low = -1021, exp2_high = 1023;
  static constexpr int mantissa = 52;
  static constexpr long long upper_half = ~0x7ffffffLL;  // of a mantissa: 26 bits
  static constexpr long long one = 0x3ff0000000000000, half_root2 = 0x3fe6a09e667f3bcd;
};
template <> struct Constants<float> {
  static constexpr float exp_low = -87, exp_high = 88, tiny = 0x1p-126f;
  static constexpr float round = 0x1.8p23f, inverse_ln2 = 0x1.715476p0f;
  static constexpr float ln2 = 0x1.62e430p-1f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
  static constexpr float ln2_head = 0x1.6p-1f, ln2_tail = 0x1.7217f8p-8f;  // head: 4 bits
  static constexpr float pi = 3.1415927f, pi_low = -8.742278e-8f;
  static constexpr float half_pi_1 = 1.5703125f, half_pi_2 = 4.837512969970703125e-4f, half_pi_3 = 7.549790126404332e-8f;
  static constexpr float two_over_pi = 0.636619747f, most_phase = 0x1p21f;
  static constexpr float exp2_low = -125, exp2_high = 127;
  static constexpr int mantissa = 23;
  static constexpr int upper_half = ~0xfff;  // of a mantissa: 12 bits
  static constexpr int one = 0x3f800000, half_root2 = 0x3f3504f3;
};

// exp(r) - 1 for |r| <= ln(2)/2: r + r^2 q(r) with q the Chebyshev fit of degree 9 (float: 4) to
// (exp(r) - 1 - r)/r^2, error 1.3e-17 (7.8e-9).
template <class V> KCALIB_FN V expm1_reduced(V r) {
  using R = Real<V>;
  V q;
  if constexpr (sizeof(R) == 8) {
    q = splat<V>(0x1.af38a9b0ec855p-26);
    q = q * r + 0x1.289185613a3d6p-22;
    q = q * r + 0x1.71de0dae63bb3p-19;
    q = q * r + 0x1.a019b90d2ae7ap-16;
    q = q * r + 0x1.a01a01a7c41d5p-13;
    q = q * r + 0x1.6c16c1788bd90p-10;
    q = q * r + 0x1.11111111109b3p-7;
    q = q * r + 0x1.5555555553d63p-5;
    q = q * r + 0x1.5555555555556p-3;
    q = q * r + 0x1.0000000000001p-1;
  } else {
    q = splat<V>(0.0013926183587713494f);
    q = q * r + 0.008363179052722578f;
    q = q * r + 0.041666554617204574f;
    q = q * r + 0.16666576989698775f;
    q = q * r + 0.5f;
  }
  return r * r * q + r;
}

// 2^n y for normal y and results, and `shifted` = n + Constants::round: n sits in its low mantissa bits.
template <class V> KCALIB_FN V times_power_of_two(V y, V shifted) {
  return from_bits<V>(to_bits(y) + (to_bits(shifted) << Constants<Real<V>>::mantissa));
}

// 2^n exp(r).
template <class V> KCALIB_FN V exp_reduced(V r, V shifted) {
  return times_power_of_two(expm1_reduced(r) + Real<V>(1), shifted);
}

// exp(x), x clamped to [-708, 709] (float: [-87, 88]): x = n ln 2 + r.
template <class V> KCALIB_FN V exp(V x) {
  using C = Constants<Real<V>>;
  x = at_most(at_least(x, C::exp_low), C::exp_high);
  const V shifted = x * C::inverse_ln2 + C::round;
  const V n = shifted - C::round;
  return exp_reduced((x - n * C::ln2_high) - n * C::ln2_low, shifted);
}

// exp(-x) for x >= -709 (float: -88), x clamped to 708 (87): what kernels need, a few instructions less.
template <class V> KCALIB_FN V exp_minus(V x) {
  using C = Constants<Real<V>>;
  x = at_most(x, -C::exp_low);
  const V shifted = C::round - x * C::inverse_ln2;
  const V n = shifted - C::round;
  return exp_reduced(-(n * C::ln2_high + x) - n * C::ln2_low, shifted);
}

// 1 - exp(-x) for x >= 0, accurate for small x: (1 - 2^n) - 2^n (exp(r) - 1).
template <class V> KCALIB_FN V one_minus_exp(V x) {
  using C = Constants<Real<V>>;
  x = at_most(x, -C::exp_low);
  const V shifted = C::round - x * C::inverse_ln2;
  const V n = shifted - C::round;
  const V r = -(n * C::ln2_high + x) - n * C::ln2_low;
  const V power = times_power_of_two(splat<V>(Real<V>(1)), shifted);
  return (Real<V>(1) - power) - power * expm1_reduced(r);
}

// 1 + x + x^2 / c.
template <class V> KCALIB_FN V quadratic(V x, Real<V> c) {
  using R = Real<V>;
  return x * (x * (R(1) / c) + R(1)) + R(1);
}

// x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), and log(1 + f) = f - (half_square - rest): with
// s = f / (2 + f), rest = s (f^2/2 + s^2 P(s^2)) (fdlibm's e_log.c).
template <class V> struct LogParts {
  V k, f, half_square, rest;
};
template <class V> KCALIB_FN LogParts<V> log_parts(V x) {
  using R = Real<V>;
  using C = Constants<R>;
  const Bits<V> offset = to_bits(x) - C::half_root2;
  const Bits<V> exponent = offset >> C::mantissa;
  const V f = from_bits<V>(to_bits(x) - (exponent << C::mantissa)) - R(1);
  const V k = from_bits<V>(to_bits(splat<V>(C::round)) + exponent) - C::round;
  const V s = f / (R(2) + f);
  const V z = s * s;
  V p;
  if constexpr (sizeof(R) == 8) {
    p = splat<V>(1.479819860511658591e-01);
    p = p * z + 1.531383769920937332e-01;
    p = p * z + 1.818357216161805012e-01;
    p = p * z + 2.222219843214978396e-01;
    p = p * z + 2.857142874366239149e-01;
    p = p * z + 3.999999999940941908e-01;
    p = p * z + 6.666666666666735130e-01;
  } else {
    p = splat<V>(0.24279078841f);
    p = p * z + 0.28498786688f;
    p = p * z + 0.40000972152f;
    p = p * z + 0.66666662693f;
  }
  const V half_square = R(0.5) * f * f;
  return {k, f, half_square, s * (half_square + z * p)};
}

// log(x) for normal x > 0.
template <class V> KCALIB_FN V log(V x) {
  using C = Constants<Real<V>>;
  const LogParts<V> p = log_parts(x);
  const V y = p.k * C::ln2_high - ((p.half_square - (p.rest + p.k * C::ln2_low)) - p.f);
  return x == x ? y : x;
}

// log(1 + x) for x >= 0, with the rounding error of 1 + x put back.
template <class V> KCALIB_FN V log1p(V x) {
  using R = Real<V>;
  const V u = x + R(1);
  return log(u) + (x - (u - R(1))) / u;
}

// x^a for x >= 0 and 0 < a <= 2, at least about 2^-1021 (float: 2^-125) for x > 0 and at most about 2^1023
// (2^127). With x = 2^k (1 + f) it is 2^n exp(r), r = (a k - n) ln 2 + a log(1 + f). That difference
// cancels: its large parts are products of numbers of half the digits, which are exact.
template <class V> KCALIB_FN V power(V x, Real<V> a) {
  using R = Real<V>;
  using C = Constants<R>;
  const auto half = [](auto y) { return from_bits<decltype(y)>(to_bits(y) & C::upper_half); };
  const LogParts<V> p = log_parts(at_least(x, C::tiny));
  const V minus_log_rest = p.half_square - p.rest;
  const R a_half = half(a), a_rest = a - a_half;
  const V f_half = half(p.f);
  const V exponent = a * p.k + a * C::inverse_ln2 * (p.f - minus_log_rest);
  const V shifted = at_most(at_least(exponent, C::exp2_low), C::exp2_high) + C::round;

  const V fraction = a_half * p.k - (shifted - C::round);
  const V small = (a_half * (p.f - f_half) + a_rest * p.f) + (fraction * C::ln2_tail + a_rest * C::ln2 * p.k);
  const V rest = small - a * minus_log_rest;
  V r = (fraction * C::ln2_head + a_half * f_half) + rest;
  r = at_most(at_least(r, R(-0.5)), R(0.5));  // beyond: where the exponent was clamped
  return x > R(0) ? exp_reduced(r, shifted) : x;
}

// cos(pi x) for x >= 0; beyond 2^51 (float: 2^22) it is 1. With f the distance to the nearest integer it is cos(pi f)
// or its negative, and g = 1/2 - f gives sin(pi g); f is exact, and so is g where it is small: few ulp are lost near
// the zeros, too. The polynomials are Chebyshev interpolants of (cos(pi f) - 1) / f^2 and (sin(pi g) / g - pi) / g^2 in
// the squares, up to 1/16, of degree 6 (float: 3), with errors of 1e-19 (2e-10) in the cosine.
template <class V> KCALIB_FN V cos_pi(V x) {
  using R = Real<V>;
  using C = Constants<R>;
  x = at_most(x, C::round / R(3));
  const V shifted = x + C::round;
  const V rest = x - (shifted - C::round);
  const V f = rest < R(0) ? -rest : rest;
  const V g = R(0.5) - f;
  const V z = f * f, w = g * g;
  V c, s;
  if constexpr (sizeof(R) == 8) {
    c = splat<V>(-0x1.b2f3eb054afcdp-14);
    c = c * z + 0x1.f9ce245cada0bp-10;
    c = c * z - 0x1.a6d1eef479be1p-6;
    c = c * z + 0x1.e1f5068688d5bp-3;
    c = c * z - 0x1.55d3c7e3cb241p+0;
    c = c * z + 0x1.03c1f081b5ac0p+2;
    c = c * z - 0x1.3bd3cc9be45dep+2;
    s = splat<V>(-0x1.6cc577dadd922p-16);
    s = s * w + 0x1.e8f036bcd3237p-12;
    s = s * w - 0x1.e3074d2614b2dp-8;
    s = s * w + 0x1.50783486facaap-4;
    s = s * w - 0x1.32d2cce62b872p-1;
    s = s * w + 0x1.466bc6775aae1p+1;
    s = s * w - 0x1.4abbce625be53p+2;
  } else {
    c = splat<V>(0.23212542f);
    c = c * z - 1.3351378f;
    c = c * z + 4.0587106f;
    c = c * z - 4.934802f;
    s = splat<V>(0.081229575f);
    s = s * w - 0.5992288f;
    s = s * w + 2.5501635f;
    s = s * w - 5.1677127f;
  }
  const V size = f <= R(0.25) ? c * z + R(1) : g * C::pi + g * (s * w + C::pi_low);
  return from_bits<V>(to_bits(size) ^ (to_bits(shifted) << (int(8 * sizeof(R)) - 1)));  // -1 to the power n
}

// sin(x) and cos(x), beyond +-2^50 (float: 2^21), where neighbours are far apart, those of that. x = n pi/2 + r; the error
// is a unit in the last place of 1, and what half a unit in the last place of x makes where there are no fused products.
// Of r the minimax polynomials of fdlibm's k_sin.c and k_cos.c (float: of Cephes' sinf.c).
template <class V> struct SinCos {
  V sine, cosine;
};
template <class V> KCALIB_FN SinCos<V> sin_cos(V x) {
  using R = Real<V>;
  using C = Constants<R>;
  constexpr int top = int(8 * sizeof(R)) - 1;
  x = at_most(at_least(x, -C::most_phase), C::most_phase);
  const V shifted = x * C::two_over_pi + C::round;
  const V n = shifted - C::round;
  const V r = ((x - n * C::half_pi_1) - n * C::half_pi_2) - n * C::half_pi_3;
  const V z = r * r;
  V s, c;
  if constexpr (sizeof(R) == 8) {
    s = splat<V>(1.58969099521155010221e-10);
    s = s * z - 2.50507602534068634195e-08;
    s = s * z + 2.75573137070700676789e-06;
    s = s * z - 1.98412698298579493134e-04;
    s = s * z + 8.33333333332248946124e-03;
    s = s * z - 1.66666666666666324348e-01;
    c = splat<V>(-1.13596475577881948265e-11);
    c = c * z + 2.08757232129817482790e-09;
    c = c * z - 2.75573143513906633035e-07;
    c = c * z + 2.48015872894767294178e-05;
    c = c * z - 1.38888888888741095749e-03;
    c = c * z + 4.16666666666666019037e-02;
  } else {
    s = splat<V>(-1.9515295891e-4f);
    s = s * z + 8.3321608736e-3f;
    s = s * z - 1.6666654611e-1f;
    c = splat<V>(2.443315711809948e-5f);
    c = c * z - 1.388731625493765e-3f;
    c = c * z + 4.166664568298827e-2f;
  }
  s = s * z * r + r;
  c = (c * z - R(0.5)) * z + R(1);
  const Bits<V> quadrant = to_bits(shifted);
  const Bits<V> odd = -(quadrant & 1), swapped = (to_bits(s) ^ to_bits(c)) & odd;
  const Bits<V> sine = to_bits(s) ^ swapped, cosine = to_bits(c) ^ swapped;
  // Negative in quadrants 2 and 3, and 1 and 2.
  return {from_bits<V>(sine ^ (quadrant >> 1 << top)), from_bits<V>(cosine ^ ((quadrant + 1) >> 1 << top))};
}

}  // namespace
}  // namespace kcalib
