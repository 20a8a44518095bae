// What include/kcalib/mixtures.h asks of the file that includes it, for single numbers; cpu/simd/pack.h has it for packs.
namespace kcalib {
namespace {

template <class V> KCALIB_FN V magnitude(V x) { return x < V(0) ? -x : x; }
template <class V> KCALIB_FN V lower(V x, V y) { return x < y ? x : y; }
template <class V> KCALIB_FN V higher(V x, V y) { return x > y ? x : y; }
template <class V> KCALIB_FN V reciprocal(V x) { return V(1) / x; }
KCALIB_FN bool any(bool x) { return x; }
KCALIB_FN double reciprocal_root(double x) { return 1.0 / ::sqrt(x); }
KCALIB_FN float reciprocal_root(float x) { return 1.0f / ::sqrtf(x); }

}  // namespace
}  // namespace kcalib
