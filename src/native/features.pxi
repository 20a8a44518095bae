# Sums of random features: src/cpu/features/features.h.

cdef extern from "cpu/features/features.h" namespace "kcalib" nogil:
    cdef cppclass FeatureMap:
        const double* frequencies
        const double* amplitudes
        const double* projections
        const double* offsets
        int64_t n_frequencies
        int64_t n_coordinates
        int64_t n_factors
    cdef cppclass DrawnLabels:
        const double* probabilities
        int64_t n
        int64_t m
        const double* root
        int64_t rank
        unsigned long long seed
        unsigned long long first
        int64_t n_draws
        unsigned long long first_row
        const DrawnCells* cells
        const double* weights
    bint c_sum_products "kcalib::sum_products"[T](
        const FeatureMap&, const T*, const T*, int64_t, int64_t, const Run&, double*, double*) except +
    bint c_row_forms "kcalib::row_forms"[T](
        const FeatureMap&, const T*, const T*, int64_t, int64_t, const double*, const Run&, double*, double*) except +
    bint c_feature_rows "kcalib::feature_rows"[T](const FeatureMap&, const T*, int64_t, const Run&, double*) except +
    bint c_gram_parts "kcalib::gram_parts"(
        const FeatureMap&, const double*, const double*, int64_t, int64_t, int64_t, const Run&, double*) except +
    bint c_drawn_label_totals "kcalib::drawn_label_totals"[T](
        const FeatureMap&, const T*, const DrawnLabels&, const Run&, double*) except +


cdef class Features:
    """A feature map: frequencies (F, d), amplitudes (F,), projections (L, F, d) and offsets (L, F), all float64."""

    cdef FeatureMap map
    cdef tuple kept

    def __init__(self, frequencies, amplitudes, projections, offsets):
        cdef const double[:, ::1] w = frequencies
        cdef const double[::1] a = amplitudes
        cdef const double[:, :, ::1] v = projections
        cdef const double[:, ::1] c = offsets
        self.kept = w, a, v, c
        self.map.n_frequencies, self.map.n_coordinates, self.map.n_factors = w.shape[0], w.shape[1], v.shape[0]
        self.map.frequencies = &w[0, 0] if w.shape[0] else NULL
        self.map.amplitudes = &a[0] if w.shape[0] else NULL
        self.map.projections = NULL
        self.map.offsets = NULL
        if self.map.n_factors:
            self.map.projections, self.map.offsets = &v[0, 0, 0], &c[0, 0]

    def sum_products(self, points, target_features, RunOptions options not None):
        """The sums of phi(x_i) (x) a_i, shape (2F, r), and of |a_i|^2 times a frequency's two squares, shape (F,)."""
        cdef int64_t n = points.shape[0], rank = target_features.shape[1]
        cdef bint single = points.dtype == np.float32, finished
        cdef void* x = reals(points, single)
        cdef void* a = reals(target_features, single)
        sums, own = np.empty((2 * self.map.n_frequencies, rank)), np.empty(self.map.n_frequencies)
        cdef double* out = doubles(sums)
        cdef double* own_out = doubles(own)
        with nogil:
            if single:
                finished = c_sum_products(self.map, <const float*>x, <const float*>a, n, rank, options.run, out, own_out)
            else:
                finished = c_sum_products(self.map, <const double*>x, <const double*>a, n, rank, options.run, out, own_out)
        options.raise_if_stopped(finished)
        return sums, own

    def row_forms(self, points, target_features, sums, RunOptions options not None):
        """<phi(x_i) (x) a_i, sums> and |phi(x_i)|^2 |a_i|^2, both (n,)."""
        cdef int64_t n = points.shape[0], rank = target_features.shape[1]
        cdef bint single = points.dtype == np.float32, finished
        cdef void* x = reals(points, single)
        cdef void* a = reals(target_features, single)
        forms, own = np.empty(n), np.empty(n)
        cdef double* s = doubles(sums)
        cdef double* out = doubles(forms)
        cdef double* own_out = doubles(own)
        with nogil:
            if single:
                finished = c_row_forms(self.map, <const float*>x, <const float*>a, n, rank, s, options.run, out, own_out)
            else:
                finished = c_row_forms(self.map, <const double*>x, <const double*>a, n, rank, s, options.run, out, own_out)
        options.raise_if_stopped(finished)
        return forms, own

    def gram_parts(self, const double[:, ::1] points, const double[:, ::1] columns, int64_t part_rows, RunOptions options not None):
        """The sums of z_i (x) z_i, z_i = (phi(x_i), columns_i), of parts of so many rows, shape (parts, w, w)."""
        cdef int64_t n = points.shape[0], n_columns = columns.shape[1], width = 2 * self.map.n_frequencies + n_columns
        result = np.empty((-(-n // part_rows), width, width))
        cdef double* out = doubles(result)
        cdef bint finished
        with nogil:
            finished = c_gram_parts(self.map, &points[0, 0], &columns[0, 0], n, n_columns, part_rows, options.run, out)
        options.raise_if_stopped(finished)
        return result

    def rows(self, points, RunOptions options not None):
        """phi(x_i), shape (n, 2F)."""
        cdef int64_t n = points.shape[0]
        cdef bint single = points.dtype == np.float32, finished
        cdef void* x = reals(points, single)
        result = np.empty((n, 2 * self.map.n_frequencies))
        cdef double* out = doubles(result)
        with nogil:
            if single:
                finished = c_feature_rows(self.map, <const float*>x, n, options.run, out)
            else:
                finished = c_feature_rows(self.map, <const double*>x, n, options.run, out)
        options.raise_if_stopped(finished)
        return result

    def drawn_label_totals(
        self, points, const double[:, ::1] probabilities, const double[:, ::1] root,
        unsigned long long seed, unsigned long long first, int64_t n_draws, RunOptions options not None, cells=None,
        const double[::1] weights=None,
    ):
        """|S R|^2 - sum_i w_i^2 |phi(x_i)|^2 |R^T e_i|^2 for each draw of labels, shape (n_draws,); `root` may be None.

        `cells` are as `drawn_cells` takes them; `weights`, of the rows, may be None for 1.
        """
        cdef DrawnLabels labels
        cdef DrawnCells into
        if cells is not None:
            into = drawn_cells(cells, n_draws, probabilities.shape[1])
            labels.cells = &into
        if weights is not None:
            assert weights.shape[0] == probabilities.shape[0]
            labels.weights = &weights[0]
        labels.probabilities, labels.n, labels.m = &probabilities[0, 0], probabilities.shape[0], probabilities.shape[1]
        labels.root = NULL
        labels.rank = 0
        if root is not None:
            labels.root, labels.rank = &root[0, 0], root.shape[1]
        labels.seed, labels.first, labels.n_draws, labels.first_row = seed, first, n_draws, 0
        cdef bint single = points.dtype == np.float32, finished
        cdef void* x = reals(points, single)
        result = np.empty(n_draws)
        cdef double* out = doubles(result)
        with nogil:
            if single:
                finished = c_drawn_label_totals(self.map, <const float*>x, labels, options.run, out)
            else:
                finished = c_drawn_label_totals(self.map, <const double*>x, labels, options.run, out)
        options.raise_if_stopped(finished)
        return result
