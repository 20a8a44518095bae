// Products of points with themselves, for MMD distances; pasted after pairs.cu.

// out[i] = f(P_i, P_i), from points of n rows: the first of SPAN equal products, the function that distances come from.
extern "C" __global__ void kcalib_own_products(const T* points, long long n, const double* program,
                                               const MixtureNumbers predicted, T* out) {
  const long long i = blockIdx.x * (long long)THREADS + threadIdx.x;
  if (i >= n) return;
  T products[SPAN], apart[SPAN];
  point_products<PredictedPair, KCALIB_PREDICTED, KCALIB_PREDICTED_DIMS>(
      predicted, program, RowPart<T>{points + i, n}, ColumnPart<T, SPAN>{points + i, n, {}}, products, apart);
  out[i] = products[0];
}
