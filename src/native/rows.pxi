# Passes over the samples: checks and residuals (src/cpu/samples/rows.h), bins (bins.h), isotonic regression (isotonic.h).

cdef extern from "cpu/samples/rows.h" namespace "kcalib" nogil:
    bint are_distributions[T](const T*, int64_t, int64_t, double, int, double*)
    bint complete_pairs[T](const T*, int64_t, double, int, double*)
    bint are_probabilities(const double*, int64_t, double, int)
    bint are_classes[T](const T*, int64_t, int64_t, int, int64_t*)
    void c_residuals "kcalib::residuals"[T](const double*, const int64_t*, int64_t, int64_t, int, T*, T*)
    void c_square_norms "kcalib::square_norms"[T](const T*, int64_t, int64_t, int, double*)


cdef extern from "cpu/samples/isotonic.h" namespace "kcalib" nogil:
    void c_isotonic_with_hit "kcalib::isotonic_with_hit"(const double*, const double*, int64_t, double*) except +


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


def distributions(rows, double tolerance, int threads, bint widen=True):
    """Probabilities of m classes (n, m), or of the second of two (n,) or (n, 1), as float64 rows; None
    if some row is no distribution within `tolerance`, or cannot quite be said to be one.

    Takes float64, returned as it is if it has several columns, and float32. Without `widen` float32 of several columns
    is returned as it is, too, and a column of float64 as a vector, whose rows `completed` makes.
    """
    cdef int64_t n = rows.shape[0], m = rows.size // n
    cdef bint single = rows.dtype == np.float32, good
    cdef void* values = reals(rows, single)
    if not single and m == 1 and not widen:
        with nogil:
            good = are_probabilities(<const double*>values, n, tolerance, threads)
        return rows.reshape(-1) if good else None
    checked = np.empty((n, max(m, 2))) if m == 1 or (single and widen) else None
    cdef double* out = doubles(checked)
    with nogil:
        if m == 1 and single:
            good = complete_pairs(<const float*>values, n, tolerance, threads, out)
        elif m == 1:
            good = complete_pairs(<const double*>values, n, tolerance, threads, out)
        elif single:
            good = are_distributions(<const float*>values, n, m, tolerance, threads, out)
        else:
            good = are_distributions(<const double*>values, n, m, tolerance, threads, out)
    if not good:
        return None
    return rows if checked is None else checked


def completed(const double[::1] seconds, int threads):
    """Rows of both probabilities, of that of the second class, whatever it has become since it was checked."""
    rows = np.empty((seconds.shape[0], 2))
    cdef double* out = doubles(rows)
    with nogil:
        complete_pairs(&seconds[0], seconds.shape[0], 0.0, threads, out)
    return rows


def classes(labels, int64_t m, int threads):
    """A copy of labels 0..m-1 as int64; None if some label is not one of these. Takes int64, int32 and float64."""
    cdef const int64_t[::1] integers
    cdef const int32_t[::1] short_integers
    cdef int64_t n = labels.shape[0]
    copy = np.empty(n, np.int64)
    cdef int64_t[::1] out = copy
    if labels.dtype == np.int64:
        integers = labels
        good = are_classes(&integers[0], n, m, threads, &out[0])
    elif labels.dtype == np.int32:
        short_integers = labels
        good = are_classes(&short_integers[0], n, m, threads, &out[0])
    else:
        good = are_classes(doubles(labels), n, m, threads, &out[0])
    return copy if good else None


def points_and_residuals(p, const int64_t[::1] labels, dtype, int threads):
    """The float64 rows p (themselves, if that is `dtype`) and onehot(labels) - p, both in `dtype`."""
    cdef int64_t n = p.shape[0], m = p.shape[1]
    cdef const double* rows = doubles(p)
    residuals = np.empty(p.shape, dtype)
    points = p if residuals.dtype == np.float64 else np.empty(p.shape, dtype)
    cdef bint single = points is not p
    cdef void* points_out = reals(points, single)
    cdef void* out = reals(residuals, single)
    with nogil:
        if single:
            c_residuals[float](rows, &labels[0], n, m, threads, <float*>points_out, <float*>out)
        else:
            c_residuals[double](rows, &labels[0], n, m, threads, NULL, <double*>out)
    return points, residuals


def square_norms(vectors, int threads):
    """The float64 sums of squares of the rows, which are float64 or float32."""
    cdef int64_t n = vectors.shape[0], m = vectors.shape[1]
    cdef bint single = vectors.dtype == np.float32
    cdef void* rows = reals(vectors, single)
    result = np.empty(n)
    cdef double* out = doubles(result)
    with nogil:
        if single:
            c_square_norms(<const float*>rows, n, m, threads, out)
        else:
            c_square_norms(<const double*>rows, n, m, threads, out)
    return result


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
    cdef double* confidence_out = doubles(confidence)
    cdef double* correct_out = doubles(correct)
    with nogil:
        c_top_labels(data, threads, confidence_out, correct_out)
    return confidence, correct


def uniform_bins(
    const double[:, ::1] p, const int64_t[::1] labels, const double[::1] weight, int64_t n_bins, int threads,
):
    """Sums of each column by bins of equal width, of entries, weights, and weights of hits: (3, m, n_bins)."""
    cdef Predictions data = predictions(p, labels, weight)
    sums = np.empty((3, data.m, n_bins))
    cdef double* out = doubles(sums)
    with nogil:
        c_uniform_bins(data, n_bins, threads, out)
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
    cdef double* weights_out = doubles(weights)
    cdef double* gaps_out = doubles(gaps)
    with nogil:
        count = c_uniform_cells(data, n_bins, kind, threads, &out[0], weights_out, gaps_out)
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
    cdef double* weights_out = doubles(weights)
    cdef double* gaps_out = doubles(gaps)
    with nogil:
        count = c_median_variance_cells(data, max_bins, min_size, kind, threads, &out[0], weights_out, gaps_out)
    return group, weights[:count], gaps[:count]


def isotonic_with_hit(weight, hits):
    """The isotonic regression at each point if one more sample there is of the class, from sums at the points, (k,)."""
    cdef int64_t k = len(weight)
    cdef double* sums = doubles(weight)
    cdef double* class_sums = doubles(hits)
    values = np.empty(k)
    cdef double* out = doubles(values)
    with nogil:
        c_isotonic_with_hit(sums, class_sums, k, out)
    return values
