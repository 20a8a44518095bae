# Passes over the samples: checks and residuals (src/cpu/samples/rows.h), bins (src/cpu/samples/bins.h).

cdef extern from "cpu/samples/rows.h" namespace "kcalib" nogil:
    bint are_distributions[T](const T*, int64_t, int64_t, double, int, double*)
    bint complete_pairs[T](const T*, int64_t, double, int, double*)
    bint are_probabilities(const double*, int64_t, double, int)
    bint are_classes[T](const T*, int64_t, int64_t, int, int64_t*)
    void c_residuals "kcalib::residuals"[T](const double*, const int64_t*, int64_t, int64_t, int, T*, T*)
    void c_square_norms "kcalib::square_norms"[T](const T*, int64_t, int64_t, int, double*)


cdef extern from "cpu/samples/bins.h" namespace "kcalib" nogil:
    cdef cppclass Predictions:
        const double* p
        const int64_t* labels
        const double* weight
        int64_t n
        int64_t m
    cpdef enum class GapNorm:
        CITYBLOCK
        EUCLIDEAN
    void c_top_labels "kcalib::top_labels"(const Predictions&, int, double*, double*)
    void c_uniform_bins "kcalib::uniform_bins"(const Predictions&, int64_t, int, double*) except +
    int64_t c_uniform_cells "kcalib::uniform_cells"(
        const Predictions&, int64_t, GapNorm, int, int64_t*, double*, double*) except +
    int64_t c_median_variance_cells "kcalib::median_variance_cells"(
        const Predictions&, int64_t, int64_t, GapNorm, int, int64_t*, double*, double*) except +


ctypedef fused number:
    double
    int64_t
    int32_t


def distributions(rows, double tolerance, int threads, bint widen=True):
    """Probabilities of m classes (n, m), or of the second of two (n,) or (n, 1), as float64 rows; None
    if some row is no distribution within `tolerance`, or cannot quite be said to be one.

    Takes float64, returned as it is if it has several columns, and float32. Without `widen` float32 of several columns
    is returned as it is, too, and a column of float64 as a vector, whose rows `completed` makes.
    """
    if rows.dtype == np.float32:
        return checked_rows[float](rows.reshape(-1), rows, tolerance, threads, widen)
    if not widen and rows.size == rows.shape[0]:
        return checked_seconds(rows.reshape(-1), tolerance, threads)
    return checked_rows[double](rows.reshape(-1), rows, tolerance, threads, False)


def checked_seconds(seconds, double tolerance, int threads):
    cdef const double[::1] values = seconds
    cdef bint good
    with nogil:
        good = are_probabilities(&values[0], values.shape[0], tolerance, threads)
    return seconds if good else None


def completed(const double[::1] seconds, int threads):
    """Rows of both probabilities, of that of the second class, whatever it has become since it was checked."""
    rows = np.empty((seconds.shape[0], 2))
    cdef double[:, ::1] out = rows
    with nogil:
        complete_pairs(&seconds[0], seconds.shape[0], 0.0, threads, &out[0, 0])
    return rows


cdef checked_rows(const real[::1] values, rows, double tolerance, int threads, bint widen):
    cdef int64_t n = rows.shape[0], m = 1 if rows.ndim == 1 else rows.shape[1]
    cdef double[:, ::1] out
    cdef double* out_pointer = NULL
    cdef bint good
    if m == 1 or widen:
        rows = np.empty((n, max(m, 2)))
        out = rows
        out_pointer = &out[0, 0]
    with nogil:
        if m == 1:
            good = complete_pairs(&values[0], n, tolerance, threads, out_pointer)
        else:
            good = are_distributions(&values[0], n, m, tolerance, threads, out_pointer)
    return rows if good else None


def classes(labels, int64_t m, int threads):
    """A copy of labels 0..m-1 as int64; None if some label is not one of these. Takes int64, int32 and float64."""
    if labels.dtype == np.int64:
        return checked_labels[int64_t](labels, m, threads)
    if labels.dtype == np.int32:
        return checked_labels[int32_t](labels, m, threads)
    return checked_labels[double](labels, m, threads)


cdef checked_labels(const number[::1] values, int64_t m, int threads):
    labels = np.empty(values.shape[0], np.int64)
    cdef int64_t[::1] out = labels
    cdef int64_t* out_pointer = &out[0]
    cdef bint good
    with nogil:
        good = are_classes(&values[0], values.shape[0], m, threads, out_pointer)
    return labels if good else None


def points_and_residuals(p, const int64_t[::1] labels, dtype, int threads):
    """The float64 rows p (themselves, if that is `dtype`) and onehot(labels) - p, both in `dtype`."""
    out = np.empty(p.shape, dtype)
    if out.dtype == np.float64:
        write_residuals[double](p, labels, threads, None, out)
        return p, out
    points = np.empty(p.shape, dtype)
    write_residuals[float](p, labels, threads, points, out)
    return points, out


cdef write_residuals(
    const double[:, ::1] p, const int64_t[::1] labels, int threads, real[:, ::1] points, real[:, ::1] out,
):
    cdef real* points_pointer = NULL
    if points is not None:
        points_pointer = &points[0, 0]
    with nogil:
        c_residuals(&p[0, 0], &labels[0], p.shape[0], p.shape[1], threads, points_pointer, &out[0, 0])


def square_norms(vectors, int threads):
    """The float64 sums of squares of the rows, which are float64 or float32."""
    result = np.empty(vectors.shape[0])
    if vectors.dtype == np.float32:
        write_square_norms[float](vectors, threads, result)
    else:
        write_square_norms[double](vectors, threads, result)
    return result


cdef write_square_norms(const real[:, ::1] vectors, int threads, double[::1] out):
    with nogil:
        c_square_norms(&vectors[0, 0], vectors.shape[0], vectors.shape[1], threads, &out[0])


cdef Predictions predictions(
    const double[:, ::1] p, const int64_t[::1] labels, const double[::1] weight,
):
    cdef Predictions data
    data.p = &p[0, 0]
    data.labels = NULL
    data.weight = NULL
    if labels is not None:
        data.labels = &labels[0]
    if weight is not None:
        data.weight = &weight[0]
    data.n = p.shape[0]
    data.m = p.shape[1]
    return data


def top_labels(const double[:, ::1] p, const int64_t[::1] labels, int threads):
    """The largest entry of each row, and 1.0 where its first place is the label, else 0.0."""
    cdef Predictions data = predictions(p, labels, None)
    confidence, correct = np.empty(data.n), np.empty(data.n)
    cdef double[::1] confidence_view = confidence
    cdef double[::1] correct_view = correct
    with nogil:
        c_top_labels(data, threads, &confidence_view[0], &correct_view[0])
    return confidence, correct


def uniform_bins(
    const double[:, ::1] p, const int64_t[::1] labels, const double[::1] weight, int64_t n_bins, int threads,
):
    """Sums of each column by bins of equal width, of entries, weights, and weights of hits: (3, m, n_bins)."""
    cdef Predictions data = predictions(p, labels, weight)
    sums = np.empty((3, data.m, n_bins))
    cdef double[:, :, ::1] out = sums
    with nogil:
        c_uniform_bins(data, n_bins, threads, &out[0, 0, 0])
    return sums


GAP_NORMS = {"cityblock": GapNorm.CITYBLOCK, "euclidean": GapNorm.EUCLIDEAN}


def uniform_cells(
    const double[:, ::1] p, const int64_t[::1] labels, const double[::1] weight, int64_t n_bins, str norm, int threads,
):
    """The group of each row whose entries all lie in the same bins of equal width, (n,); weights of the groups and norms
    of their mean residuals, both (n_groups,); `norm`: "cityblock" or "euclidean"."""
    cdef Predictions data = predictions(p, labels, weight)
    cdef GapNorm kind = GAP_NORMS[norm]
    cdef int64_t count
    if data.n >= 2**31:
        raise ValueError(f"{data.n} rows, expected less than {2**31}")
    group, weights, gaps = np.empty(data.n, np.int64), np.empty(data.n), np.empty(data.n)
    cdef int64_t[::1] out = group
    cdef double[::1] weights_view = weights
    cdef double[::1] gaps_view = gaps
    with nogil:
        count = c_uniform_cells(data, n_bins, kind, threads, &out[0], &weights_view[0], &gaps_view[0])
    return group, weights[:count], gaps[:count]


def median_variance_cells(
    const double[:, ::1] p, const int64_t[::1] labels, int64_t max_bins, int64_t min_size, str norm, int threads,
):
    """The median-variance bin of each row, (n,), and of each bin how many rows it has and the norm of their mean residual."""
    cdef Predictions data = predictions(p, labels, None)
    cdef GapNorm kind = GAP_NORMS[norm]
    cdef int64_t count = max(1, min(max_bins, data.n // min_size))
    group, weights, gaps = np.empty(data.n, np.int64), np.empty(count), np.empty(count)
    cdef int64_t[::1] out = group
    cdef double[::1] weights_view = weights
    cdef double[::1] gaps_view = gaps
    with nogil:
        count = c_median_variance_cells(data, max_bins, min_size, kind, threads, &out[0], &weights_view[0], &gaps_view[0])
    return group, weights[:count], gaps[:count]
