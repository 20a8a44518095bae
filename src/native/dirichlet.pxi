# Dirichlet kernels: src/cpu/dirichlet/dirichlet.h.

cdef extern from "cpu/dirichlet/dirichlet.h" namespace "kcalib" nogil:
    cdef cppclass WeightedClasses[T]:
        const T* queries
        int64_t n_queries
        const T* training
        const T* offsets
        const int* labels
        int64_t n_training
        int64_t n_features
        int64_t n_classes
        bint leave_one_out
    bint c_class_shares "kcalib::class_shares"[T](const WeightedClasses[T]&, const Run&, double*, double*) except +
    bint c_log_normalisers "kcalib::log_normalisers"(const double*, int64_t, int64_t, const Run&, double*) except +


def class_shares(
    const real[:, ::1] queries, const real[:, ::1] training, const real[::1] offsets, const int[::1] labels,
    int64_t n_classes, bint leave_one_out, RunOptions options not None,
):
    """Each class's part of the weights exp(-<training_i, query_j> - offset_i), shape (queries, n_classes), and the
    logarithms of their sums.

    The labels ascend. `leave_one_out`: the queries are the training samples, and do not see themselves.
    """
    cdef WeightedClasses[real] problem
    problem.queries, problem.n_queries = &queries[0, 0], queries.shape[0]
    problem.training, problem.n_training = &training[0, 0], training.shape[0]
    problem.offsets, problem.labels = &offsets[0], &labels[0]
    problem.n_features, problem.n_classes = training.shape[1], n_classes
    problem.leave_one_out = leave_one_out
    shares = np.empty((problem.n_queries, n_classes))
    log_sums = np.empty(problem.n_queries)
    cdef double[:, ::1] shares_view = shares
    cdef double[::1] log_sums_view = log_sums
    cdef bint finished
    with nogil:
        finished = c_class_shares(problem, options.run, &shares_view[0, 0], &log_sums_view[0])
    options.raise_if_stopped(finished)
    return shares, log_sums


def log_normalisers(const double[:, ::1] x, RunOptions options not None):
    """log Gamma(m + sum_k x_ik) - sum_k log Gamma(1 + x_ik) for each row of x >= 0, shape (n, m)."""
    result = np.empty(x.shape[0])
    cdef double[::1] out = result
    cdef bint finished
    with nogil:
        finished = c_log_normalisers(&x[0, 0], x.shape[0], x.shape[1], options.run, &out[0])
    options.raise_if_stopped(finished)
    return result
