# Eigenproblems of small symmetric matrices: src/cpu/linalg/symmetric.h.

cdef extern from "cpu/linalg/symmetric.h" namespace "kcalib" nogil:
    void c_to_tridiagonal "kcalib::to_tridiagonal"(double*, int64_t, int64_t, double, double*, double*) except +
    void c_reflect "kcalib::reflect"(const double*, int64_t, int64_t, double*, int64_t) except +


def to_tridiagonal(double[:, ::1] matrix, double negligible):
    """The diagonal and what is beside it, of a symmetric matrix (k, k), not empty, which becomes the reflections."""
    cdef int64_t size = matrix.shape[0]
    diagonal, beside = np.empty(size), np.empty(size - 1)
    cdef double[::1] first = diagonal, second = np.empty(size)
    with nogil:
        c_to_tridiagonal(&matrix[0, 0], size, size, negligible, &first[0], &second[0])
    beside[:] = second[: size - 1]
    return diagonal, beside


def reflect(const double[:, ::1] reflections, double[:, ::1] rows):
    """Makes rows, eigenvectors of the tridiagonal matrix, those of the matrix that `to_tridiagonal` was given."""
    cdef int64_t size = reflections.shape[0], count = rows.shape[0]
    with nogil:
        c_reflect(&reflections[0, 0], size, size, &rows[0, 0], count)
