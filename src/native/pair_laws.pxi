# Differences of two models by the law of one: src/cpu/pairs/pair_laws.h.

cdef extern from "cpu/pairs/pair_laws.h" namespace "kcalib" nogil:
    cdef cppclass PairLaws:
        int64_t rows
        int64_t n
        int64_t m
        const double* traces
        const double* own
        const double* other
        const double* unlikely
        const int64_t* top
        const double* d
    bint c_pair_law_sums "kcalib::pair_law_sums"(const PairLaws&, const Run&, double*) except +


def pair_law_sums(
    const double[:, ::1] traces,
    const double[:, ::1] own,
    const double[:, ::1] other,
    const double[:, ::1] unlikely,
    const int64_t[::1] top,
    const double[:, ::1] d,
    RunOptions options not None,
):
    """Of each row the sum of (own - other)^2 traces + 2 other^2 d_j^T V_i d_j over all columns j; none is empty.

    V_i is the covariance of a law with probabilities `unlikely` (rows, m), 0 of the most probable class `top` (rows,);
    d has the shape (n, m), the others (rows, n).
    """
    cdef PairLaws laws
    laws.rows, laws.n, laws.m = traces.shape[0], traces.shape[1], d.shape[1]
    laws.traces, laws.own, laws.other = &traces[0, 0], &own[0, 0], &other[0, 0]
    laws.unlikely, laws.top, laws.d = &unlikely[0, 0], &top[0], &d[0, 0]
    result = np.empty(laws.rows)
    cdef double* out = doubles(result)
    cdef bint finished
    with nogil:
        finished = c_pair_law_sums(laws, options.run, out)
    options.raise_if_stopped(finished)
    return result
