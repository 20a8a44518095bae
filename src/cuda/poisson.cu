// Poisson draws on a GPU: those of numpy.random.Generator.poisson, from the same uniform numbers.
//
// kcalib/distributions/counts.py compiles this text, brings the uniform numbers, and calls it until all is drawn. A draw
// takes as many numbers as it needs, so one thread makes them one after the other. Below a rate of 10 uniform numbers
// are multiplied; from there on it is Hoermann's transformed rejection (The transformed rejection method for generating
// Poisson random variables, 1993).

namespace kcalib {
namespace {

// log Gamma(x), as NumPy's generators have it.
__device__ double log_gamma(double x) {
  const double a[10] = {8.333333333333333e-02,  -2.777777777777778e-03, 7.936507936507937e-04, -5.952380952380952e-04,
                        8.417508417508418e-04,  -1.917526917526918e-03, 6.410256410256410e-03, -2.955065359477124e-02,
                        1.796443723688307e-01, -1.39243221690590e+00};
  if (x == 1.0 || x == 2.0) return 0.0;
  const long long shift = x < 7.0 ? (long long)(7 - x) : 0;
  double x0 = x + double(shift);
  const double square = (1.0 / x0) * (1.0 / x0);
  double series = a[9];
  for (int k = 8; k >= 0; --k) {
    series *= square;
    series += a[k];
  }
  double result = series / x0 + 0.5 * 1.8378770664093453 + (x0 - 0.5) * log(x0) - x0;
  for (long long k = 1; k <= shift; ++k) {
    result -= log(x0 - 1.0);
    x0 -= 1.0;
  }
  return result;
}

struct Uniforms {
  const double* numbers;
  long long count, used;

  __device__ bool has(long long more) const { return count - used >= more; }
  __device__ double next() { return numbers[used++]; }
};

// Whether there were numbers enough for a draw.
__device__ bool by_products(double rate, Uniforms& uniforms, double& draw) {
  const double least = exp(-rate);
  double product = 1.0;
  for (draw = 0.0; uniforms.has(1); draw += 1.0) {
    product *= uniforms.next();
    if (!(product > least)) return true;
  }
  return false;
}

__device__ bool by_rejection(double rate, Uniforms& uniforms, double& draw) {
  const double log_rate = log(rate), b = 0.931 + 2.53 * sqrt(rate), a = -0.059 + 0.02483 * b;
  const double inverse_alpha = 1.1239 + 1.1328 / (b - 3.4), bound = 0.9277 - 3.6224 / (b - 2);
  while (uniforms.has(2)) {
    const double u = uniforms.next() - 0.5, v = uniforms.next(), distance = 0.5 - fabs(u);
    draw = floor((2 * a / distance + b) * u + rate + 0.43);
    if (distance >= 0.07 && v <= bound) return true;
    if (draw < 0 || (distance < 0.013 && v > distance)) continue;
    const double height = log(v) + log(inverse_alpha) - log(a / (distance * distance) + b);
    if (height <= -rate + draw * log_rate - log_gamma(draw + 1)) return true;
  }
  return false;
}

}  // namespace
}  // namespace kcalib

using namespace kcalib;

// out[d] = draw d, `size` draws of each rate in turn; from draw progress[0] on, until the numbers are used up. Then
// progress = {the first draw that was not made, the numbers that those before it took}.
extern "C" __global__ void kcalib_poisson(const double* rates, long long n_draws, long long size, const double* uniforms,
                                          long long n_uniforms, long long* progress, double* out) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  Uniforms numbers{uniforms, n_uniforms, 0};
  long long d = progress[0], taken = 0;
  for (; d < n_draws; ++d) {
    const double rate = rates[d / size];
    double draw = 0.0;
    if (!(rate >= 10 ? by_rejection(rate, numbers, draw) : by_products(rate, numbers, draw))) break;
    out[d] = draw;
    taken = numbers.used;
  }
  progress[0] = d;
  progress[1] = taken;
}
