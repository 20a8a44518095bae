// What a launch of the pair engine is passed by value: kcalib/_pairs/backends/cuda.py fills it, and defines
// KCALIB_LAYOUT, whether it thinks of the same fields in the same places. Pasted before mixtures.cuh and pairs.cu.

namespace kcalib {
namespace {

// One side of a pair problem, row-major; norms are |x|^2 and |e|^2 of each row.
struct Side {
  const KCALIB_REAL *points, *features, *norms;
  const int* labels;
  long long stride;    // of mixtures, which are transposed: column k of sample i is at k * stride + i
  long long begin, n;  // the rectangle's samples: begin, ..., n - 1
};

// Sizes of mixtures beside the family; of the atoms' kernel the first of its numbers in `program`, and its terms.
struct MixtureNumbers {
  long long n_dims, n_components, n_terms;
  long long program, program_terms;
};

struct Problem {
  Side left, right;
  long long n_coordinates, n_features;
  const double* program;  // coefficients of terms, then scale and shapes of each factor
  long long n_terms;
  MixtureNumbers target, predicted;
  const double* table;
  long long table_columns;
  const KCALIB_REAL *features_gram, *points_gram;  // inner products of the rectangle's samples, row by row
};

template <class S> struct Instance { static constexpr S of{}; };
static_assert(KCALIB_LAYOUT, "kcalib/_pairs/backends/cuda.py passes other fields than these");

}  // namespace
}  // namespace kcalib
