# Covariances of residuals by their roots: src/cpu/linalg/roots.h.

cdef extern from "cpu/linalg/roots.h" namespace "kcalib" nogil:
    cdef cppclass Roots:
        const double* p
        const double* deviations
        const int64_t* top
        int64_t n
        int64_t m
    void c_apply_roots "kcalib::apply_roots"(const Roots&, const double*, int64_t, int64_t, int, double*) except +
    void c_apply_transposed_roots "kcalib::apply_transposed_roots"(
        const Roots&, const double*, const double*, const double*, int64_t, int, double*) except +
    void c_covariances "kcalib::covariances"(const Roots&, int64_t, int, double*) except +
    void c_started_times "kcalib::started_times"(
        const Roots&, const double*, int64_t, const double*, int64_t, int, double*) except +
    void c_products_times "kcalib::products_times"(
        const Roots&, const double*, int64_t, const double*, int64_t, int, double*) except +
    void c_residual_lengths "kcalib::residual_lengths"(const double*, int64_t, int64_t, int, double*, double*)


cdef class CovarianceRoots:
    """The matrices L_i = diag(sqrt p_i) - p_i sqrt(p_i)^T of rows of m > 2 probabilities, p_i[top[i]] the largest.

    Numbers that are narrow are m - 1 of a sample for m: see src/cpu/linalg/roots.h.
    """

    cdef const double[:, ::1] p
    cdef const double[:, ::1] deviations
    cdef const int64_t[::1] top
    cdef Roots roots
    cdef int threads

    def __init__(
        self, const double[:, ::1] p, const double[:, ::1] deviations, const int64_t[::1] top, int threads,
    ):
        self.p, self.deviations, self.top, self.threads = p, deviations, top, threads
        self.roots.p, self.roots.deviations, self.roots.top = &p[0, 0], &deviations[0, 0], &top[0]
        self.roots.n, self.roots.m = p.shape[0], p.shape[1]

    def times(self, const double[:, ::1] x, double[:, :] out):
        """Writes L_i x_i of vectors (n m, c), narrow: shape (n, (m - 1) c), rows may be apart."""
        cdef int64_t stride = out.strides[0] // sizeof(double)
        with nogil:
            c_apply_roots(self.roots, &x[0, 0], x.shape[1], stride, self.threads, &out[0, 0])

    def transposed_times(
        self, const double[:, ::1] z, const double[::1] own, const double[:, ::1] y, double[:, ::1] out,
    ):
        """Writes L_i^T z_i, or of z_i - own_i y_i where these are not None, of narrow ones, to shape (n m, c)."""
        cdef const double* own_pointer = NULL
        cdef const double* y_pointer = NULL
        if own is not None:
            own_pointer, y_pointer = &own[0], &y[0, 0]
        with nogil:
            c_apply_transposed_roots(
                self.roots, &z[0, 0], own_pointer, y_pointer, out.shape[1], self.threads, &out[0, 0])

    def covariances(self, double[:, :] out):
        """Writes -p_a p_b for a < b: shape (n, m (m - 1) / 2), rows may be apart."""
        cdef int64_t stride = out.strides[0] // sizeof(double)
        with nogil:
            c_covariances(self.roots, stride, self.threads, &out[0, 0])

    def started_times(self, const double[:, ::1] x, const double[:, ::1] matrix, double[:, ::1] out):
        """Writes (L_i^T, x_i) times a matrix (m + c, w), for vectors x (n m, c), to shape (n m, w)."""
        with nogil:
            c_started_times(
                self.roots, &x[0, 0], x.shape[1], &matrix[0, 0], matrix.shape[1], self.threads, &out[0, 0])

    def products_times(self, const double[:, ::1] products, const double[:, ::1] matrix, double[:, ::1] out):
        """Writes L_i^T z_i times the matrix, z_i from products with what `covariances` and `times` write, in one."""
        with nogil:
            c_products_times(
                self.roots, &products[0, 0], matrix.shape[0] - self.roots.m, &matrix[0, 0], matrix.shape[1],
                self.threads, &out[0, 0])


def residual_lengths(const double[:, ::1] p, int threads):
    """E |e_i|^2 and E |e_i|^4 of the residuals of m > 2 classes, shape (n,) each."""
    squares, fourths = np.empty(p.shape[0]), np.empty(p.shape[0])
    cdef double[::1] squares_view = squares
    cdef double[::1] fourths_view = fourths
    with nogil:
        c_residual_lengths(&p[0, 0], p.shape[0], p.shape[1], threads, &squares_view[0], &fourths_view[0])
    return squares, fourths
