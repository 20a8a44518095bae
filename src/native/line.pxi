# Samples on a line: src/cpu/line/line.h.

cdef extern from "cpu/line/line.h" namespace "kcalib" nogil:
    cdef cppclass LineKernel:
        double rate
        const double* coefficients
        int degree
    cdef cppclass Residuals:
        const double* sizes
        int64_t n_zeros
        int64_t n
    cdef cppclass Line:
        const double* places
        int64_t n
        int64_t block
        LineKernel kernel
    cdef cppclass FormTerm:
        LineKernel kernel
        const double* factors[2]
        int rank
    cdef cppclass LabelDraws:
        const unsigned long long* thresholds
        int64_t n
        unsigned long long key0
        unsigned long long key1
    cdef cppclass FormWeights:
        const double* values
        const int* labels
        const LabelDraws* draws
        unsigned long long seed
    bint c_line_gap "kcalib::line_gap"(const double*, int64_t, const Run&, double*) except +
    bint c_line_residuals "kcalib::line_residuals"(
        const double*, int64_t, const int64_t*, int64_t, const Run&, double*, int64_t*, double*, double*) except +
    bint c_line_total "kcalib::line_total"(const Residuals&, const LineKernel&, bint, const Run&, double*) except +
    cdef cppclass Samples:
        const double* points
        int64_t n_coordinates
        int64_t n
        int64_t block
    cdef cppclass SortedResiduals:
        const int64_t* labels
        double* values
        double off_line
        double square_norms
        double worst
    bint c_line_keys "kcalib::line_keys"(const Samples&, const Run&, unsigned long long*) except +
    bint c_line_order "kcalib::line_order"(
        const unsigned long long*, const Samples&, const Run&, int64_t*, double*, SortedResiduals*) except +
    cdef cppclass ProductTerm:
        LineKernel kernel
        const double* left
        const double* right
        int rank
    cdef cppclass VectorRows:
        const double* values
        int64_t stride
        int64_t first
    cdef cppclass ProductRows:
        double* values
        int64_t stride
        int64_t n
    bint c_line_product "kcalib::line_product"(
        const Line&, const int64_t*, const ProductTerm*, int, bint, const VectorRows&, int64_t, const Run&,
        const ProductRows&) except +
    bint c_line_forms "kcalib::line_forms"(
        const Line&, const int64_t*, const FormTerm*, int, bint, const FormWeights&, int64_t, const Run&, double*) except +
    bint c_line_counts "kcalib::line_counts"(
        const double*, int64_t, const double*, int64_t, const Run&, int64_t*) except +
    int64_t c_line_between "kcalib::line_between"(const double*, int64_t, double, double, double*, int64_t)


cdef LineKernel line_kernel(double rate, const double[::1] coefficients):
    cdef LineKernel kernel
    kernel.rate = rate
    kernel.coefficients = &coefficients[0]
    kernel.degree = <int>coefficients.shape[0] - 1
    return kernel


cdef Line line_of(const double[::1] places, int64_t block):
    cdef Line line
    line.places = &places[0]
    line.n = places.shape[0]
    line.block = block
    return line


def line_gap(const double[:, ::1] points, RunOptions options not None):
    """Largest |p + q - 1| of the points (p, q)."""
    cdef double largest = 0
    cdef bint finished
    with nogil:
        finished = c_line_gap(&points[0, 0], points.shape[0], options.run, &largest)
    options.raise_if_stopped(finished)
    return largest


def line_residuals(points, const int64_t[::1] labels, RunOptions options not None):
    """Sizes of the residuals: label 0, two infinities, label 1; number of zeros; off_line and square_norms.

    points: shape (n, 2), or (n,) where their second coordinates are all there is.
    """
    cdef int64_t n = labels.shape[0], n_coordinates = points.ndim
    if points.shape != (n, 2)[:n_coordinates]:
        raise ValueError(f"points of shape {points.shape} for {n} labels")
    cdef const double[::1] values = points.reshape(-1)
    sizes = np.empty(n + 2)
    cdef double* out = doubles(sizes)
    cdef double off_line = 0
    cdef double square_norms = 0
    cdef int64_t n_zeros = 0
    cdef bint finished
    with nogil:
        finished = c_line_residuals(
            &values[0], n_coordinates, &labels[0], n, options.run, out, &n_zeros, &off_line, &square_norms)
    options.raise_if_stopped(finished)
    return sizes, n_zeros, off_line, square_norms


def line_total(
    const double[::1] sizes, int64_t n_zeros, double rate, const double[::1] coefficients, bint squared,
    RunOptions options not None,
):
    """Sums over the pairs i < j of k(x_i, x_j) r_i r_j and of its size; see src/cpu/line/line.h."""
    cdef Residuals residuals
    residuals.sizes = &sizes[0]
    residuals.n_zeros = n_zeros
    residuals.n = sizes.shape[0] - 2
    cdef LineKernel kernel = line_kernel(rate, coefficients)
    cdef double[2] total
    cdef bint finished
    with nogil:
        finished = c_line_total(residuals, kernel, squared, options.run, total)
    options.raise_if_stopped(finished)
    return total[0], total[1]


def line_order(const double[:, ::1] points, const int64_t[::1] labels, int64_t block, RunOptions options not None):
    """Samples sorted by their last coordinates, within blocks: positions and places.

    And, unless `labels` is None, residuals of the sorted samples, and off_line, square_norms and worst.
    """
    cdef Samples samples
    samples.points = &points[0, 0]
    samples.n_coordinates = points.shape[1]
    samples.n = points.shape[0]
    samples.block = block
    keys = np.empty(samples.n, dtype=np.uint64)
    cdef unsigned long long[::1] keys_view = keys
    cdef bint finished
    with nogil:
        finished = c_line_keys(samples, options.run, &keys_view[0])
    options.raise_if_stopped(finished)
    keys.sort()
    positions = np.empty(samples.n, dtype=np.int64)
    places = np.empty(samples.n)
    residuals = None if labels is None else np.empty(samples.n)
    cdef int64_t[::1] positions_view = positions
    cdef double* out = doubles(places)
    cdef double* residuals_out = doubles(residuals)
    cdef SortedResiduals sorted
    sorted.labels = NULL
    if labels is not None:
        sorted.labels = &labels[0]
        sorted.values = residuals_out
    with nogil:
        finished = c_line_order(&keys_view[0], samples, options.run, &positions_view[0], out, &sorted)
    options.raise_if_stopped(finished)
    return positions, places, residuals, sorted.off_line, sorted.square_norms, sorted.worst


def line_product(
    const double[::1] places, const int64_t[::1] positions, int64_t block, terms, bint diagonal,
    const double[:, :] vectors, int64_t first, int64_t n_rows, RunOptions options not None,
):
    """H @ vectors of samples within blocks, a row for each of the first n_rows positions; with H_ii if `diagonal`.

    terms: [(rate, coefficients, left, right), ...] with factors of shape (n, rank), of sorted points. vectors: at
    least a column, whose elements are beside each other in a row; rows of the positions from `first` on, 0 before.
    None: a column of 1.
    """
    cdef int64_t n_vectors = 1 if vectors is None else vectors.shape[1]
    # Rows are read and written in any order: those of 8 or 16 columns shall not share a line of the cache.
    buffer = np.empty(n_rows * n_vectors + 7)
    cdef int64_t skip = -(buffer.ctypes.data // 8) % 8
    result = buffer[skip : skip + n_rows * n_vectors].reshape(n_rows, n_vectors)
    cdef double* out = doubles(result)
    cdef vector[ProductTerm] all_terms
    cdef ProductTerm term
    cdef const double[:, ::1] left, right
    for rate, coefficients, left_factors, right_factors in terms:
        left, right = left_factors, right_factors
        term.kernel = line_kernel(rate, coefficients)
        term.left, term.right = &left[0, 0], &right[0, 0]
        term.rank = <int>left.shape[1]
        all_terms.push_back(term)
    cdef Line line = line_of(places, block)
    cdef VectorRows rows
    cdef ProductRows products
    rows.values = NULL
    rows.stride = 0
    rows.first = first
    if vectors is not None:
        rows.values, rows.stride = &vectors[0, 0], vectors.strides[0] // <int64_t>sizeof(double)
    products.values, products.stride, products.n = out, n_vectors, n_rows
    cdef bint finished
    with nogil:
        finished = c_line_product(
            line, &positions[0], all_terms.data(), <int>all_terms.size(), diagonal, rows, n_vectors, options.run, products)
    options.raise_if_stopped(finished)
    return result


def line_forms(
    const double[::1] places, const int64_t[::1] positions, terms, const double[:, ::1] weights,
    unsigned long long seed, int64_t n_replicates, RunOptions options not None,
):
    """w^T H w for the columns w of `weights` or, where these are None, for Rademacher weights of `seed`.

    terms: [(rate, coefficients, factors), ...], factors of sorted points, shape (1, rank, n).
    """
    cdef FormWeights source
    source.seed = seed
    if weights is not None:
        source.values = &weights[0, 0]
    return forms_of(places, positions, terms, True, source, n_replicates, options)


def line_label_forms(
    const double[::1] places, const int64_t[::1] positions, terms, const int[:, ::1] labels, RunOptions options not None,
):
    """sum_{i != j} H_ij, with the factor of each sample that its label chooses, for the columns of `labels`, 0 and 1.

    terms: as `line_forms` has them, with the factors of label 0 and of label 1, shape (2, rank, n).
    """
    cdef FormWeights source
    source.labels = &labels[0, 0]
    return forms_of(places, positions, terms, False, source, labels.shape[1], options)


def line_drawn_forms(
    const double[::1] places, const int64_t[::1] positions, terms, const unsigned long long[::1] thresholds,
    unsigned long long key0, unsigned long long key1, int64_t n_draws, RunOptions options not None,
):
    """The same for labels that are drawn, with what `label_thresholds` returns."""
    cdef LabelDraws draws
    draws.thresholds, draws.n, draws.key0, draws.key1 = &thresholds[0], thresholds.shape[0], key0, key1
    cdef FormWeights source
    source.draws = &draws
    return forms_of(places, positions, terms, False, source, n_draws, options)


cdef forms_of(
    const double[::1] places, const int64_t[::1] positions, terms, bint diagonal, const FormWeights& source,
    int64_t n_replicates, RunOptions options,
):
    result = np.empty(n_replicates)
    cdef double* out = doubles(result)
    cdef vector[FormTerm] all_terms
    cdef FormTerm term
    cdef const double[:, :, ::1] factors
    for rate, coefficients, term_factors in terms:
        factors = term_factors
        term.kernel = line_kernel(rate, coefficients)
        term.factors[0] = &factors[0, 0, 0]
        term.factors[1] = NULL
        if factors.shape[0] > 1:
            term.factors[1] = &factors[1, 0, 0]
        term.rank = <int>factors.shape[1]
        all_terms.push_back(term)
    cdef Line line = line_of(places, places.shape[0])
    cdef bint finished
    with nogil:
        finished = c_line_forms(
            line, &positions[0], all_terms.data(), <int>all_terms.size(), diagonal, source, n_replicates, options.run, out)
    options.raise_if_stopped(finished)
    return result


def line_counts(const double[::1] places, const double[::1] thresholds, RunOptions options not None):
    """How many distances of pairs of places are below each threshold; the last place is infinite."""
    counts = np.empty(thresholds.shape[0], np.int64)
    cdef int64_t[::1] out = counts
    cdef bint finished
    with nogil:
        finished = c_line_counts(
            &places[0], places.shape[0] - 1, &thresholds[0], thresholds.shape[0], options.run, &out[0])
    options.raise_if_stopped(finished)
    return counts


def line_between(const double[::1] places, double low, double high, int64_t count):
    """The `count` distances in [low, high), in no order; the last place is infinite."""
    distances = np.empty(count)
    cdef double* out = doubles(distances)
    cdef int64_t found = 0
    if count > 0:
        with nogil:
            found = c_line_between(&places[0], places.shape[0] - 1, low, high, out, count)
    assert found == count
    return distances
