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
    queries, training, offsets, const int[::1] labels, int64_t n_classes, bint leave_one_out, RunOptions options not None,
):
    """Each class's part of the weights exp(-<training_i, query_j> - offset_i), shape (queries, n_classes), and the
    logarithms of their sums.

    The labels ascend. `leave_one_out`: the queries are the training samples, and do not see themselves.
    """
    cdef int64_t n = queries.shape[0], n_training = training.shape[0], n_features = training.shape[1]
    cdef bint single = queries.dtype == np.float32, finished
    shares, log_sums = np.empty((n, n_classes)), np.empty(n)
    cdef double* out = doubles(shares)
    cdef double* sums = doubles(log_sums)
    cdef WeightedClasses[double] wide
    cdef WeightedClasses[float] narrow
    if single:
        narrow.queries, narrow.training, narrow.offsets = floats(queries), floats(training), floats(offsets)
        narrow.n_queries, narrow.n_training, narrow.n_features, narrow.n_classes = n, n_training, n_features, n_classes
        narrow.labels, narrow.leave_one_out = &labels[0], leave_one_out
    else:
        wide.queries, wide.training, wide.offsets = doubles(queries), doubles(training), doubles(offsets)
        wide.n_queries, wide.n_training, wide.n_features, wide.n_classes = n, n_training, n_features, n_classes
        wide.labels, wide.leave_one_out = &labels[0], leave_one_out
    with nogil:
        finished = c_class_shares(narrow, options.run, out, sums) if single else c_class_shares(wide, options.run, out, sums)
    options.raise_if_stopped(finished)
    return shares, log_sums


def log_normalisers(const double[:, ::1] x, RunOptions options not None):
    """log Gamma(m + sum_k x_ik) - sum_k log Gamma(1 + x_ik) for each row of x >= 0, shape (n, m)."""
    result = np.empty(x.shape[0])
    cdef double* out = doubles(result)
    cdef bint finished
    with nogil:
        finished = c_log_normalisers(&x[0, 0], x.shape[0], x.shape[1], options.run, out)
    options.raise_if_stopped(finished)
    return result
