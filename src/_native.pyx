# Typed memoryviews in, one C++ call out, the GIL released: no maths and no policy.
# Called by kcalib/_operators (the sweeps), kcalib/_backend/threads.py, and kcalib/_input/labels.py and
# kcalib/_packing/labels.py (the passes over the samples).
# Callers pass C-contiguous arrays of one dtype whose shapes agree; labels (both or
# neither) as int32, for kernels of Euclidean distances only.
"""The compiled core: sweeps over all pairs on the CPU."""

from libc.stdint cimport int32_t, int64_t
from libcpp.vector cimport vector
from cpython.exc cimport PyErr_CheckSignals

import numpy as np


cdef extern from *:
    const char* KCALIB_VERSION

version = KCALIB_VERSION.decode()


cdef extern from "kcalib/profiles.h" namespace "kcalib" nogil:
    cdef struct Factor:
        int profile
        int metric
        double scale
        double shape
    cdef struct Term:
        double coefficient
        int first_factor
        int n_factors
    cdef struct KernelProgram:
        const Term* terms
        int n_terms
        const Factor* factors


cdef extern from "kcalib/mixtures.h" namespace "kcalib" nogil:
    cdef struct Mixtures:
        int family
        int n_dims
        int n_components
        int n_terms
        KernelProgram kernel
    int MAX_DIMS "kcalib::MAX_FULL_DIMS"


cdef extern from "cpu/tile.h" namespace "kcalib" nogil:
    cdef struct PairProgram:
        KernelProgram kernel
        const Mixtures* target
        const Mixtures* predicted
        const double* table
        long table_stride
    cdef cppclass Side[T]:
        const T* points
        long n_features
        const T* marks
        long n_marks
        const int* labels
        const long* order
        long n
    cdef cppclass TileTable:
        const char* name
    int N_THRESHOLDS "kcalib::THRESHOLDS"
    cpdef enum class Probe:
        FMA
        EXP
        SQRT
    cpdef enum class ScalarFunction:
        EXP
        EXP_MINUS
        ONE_MINUS_EXP
        SQUARE_ROOT
        RECIPROCAL_ROOT
        RECIPROCAL
        LOG
        LOG1P
        POWER


cdef extern from "cpu/cpu_level.h" namespace "kcalib" nogil:
    const TileTable* tile_table(const char* level)


cdef extern from "cpu/sweep.h" namespace "kcalib" nogil:
    cdef cppclass PairProblem[T]:
        PairProgram program
        Side[T] left
        Side[T] right
        bint symmetric
    cdef cppclass Run:
        const TileTable* table
        int threads
        int (*poll)(void* context, double done) noexcept
        void* context
    bint c_moments "kcalib::moments"[T](const PairProblem[T]&, const Run&, double*, double*, double*, double*) except +
    bint c_block_sums "kcalib::block_sums"[T](const PairProblem[T]&, const Run&, long, double*) except +
    bint c_matmul "kcalib::matmul"[T](const PairProblem[T]&, const Run&, const double*, long, bint, double*) except +
    bint c_quadratic_forms "kcalib::quadratic_forms"[T, W](const PairProblem[T]&, const Run&, const W* const*, long, double*) except +
    long c_weights_at_once "kcalib::weights_at_once"(const TileTable&, bint single)
    bint c_counts "kcalib::counts"[T](const PairProblem[T]&, const Run&, const double*, long*) except +
    bint c_between "kcalib::between"[T](const PairProblem[T]&, const Run&, double, double, double*, long, long*) except +
    bint c_entries "kcalib::entries"[T](const PairProblem[T]&, const Run&, double*) except +
    bint c_own_products "kcalib::own_products"[T](const PairProblem[T]&, const Run&, T*) except +
    double c_probe "kcalib::probe"[T](const Run&, Probe, long) except +
    void c_evaluate "kcalib::evaluate"[T](const Run&, ScalarFunction, const T*, double, long, T*)
    bint compiled_with_openmp()
    int openmp_max_threads()
    int count_running_sweeps()
    void register_fork_handler()


cdef extern from "cpu/line.h" namespace "kcalib" nogil:
    cdef cppclass LineKernel:
        double rate
        const double* coefficients
        int degree
    cdef cppclass Residuals:
        const double* sizes
        long n_zeros
        long n
    cdef cppclass Line:
        const double* places
        long n
        long block
        LineKernel kernel
    cdef cppclass FormTerm:
        LineKernel kernel
        const double* factors
        int rank
    cdef cppclass FormWeights:
        const double* values
        unsigned long long seed
    bint c_line_gap "kcalib::line_gap"(const double*, long, const Run&, double*) except +
    bint c_line_residuals "kcalib::line_residuals"(
        const double*, const long long*, long, const Run&, double*, long*, double*, double*) except +
    bint c_line_total "kcalib::line_total"(const Residuals&, const LineKernel&, bint, const Run&, double*) except +
    cdef cppclass Samples:
        const double* points
        long n_features
        long n
        long block
    cdef cppclass Marks:
        const long long* labels
        double* values
        double off_line
        double square_norms
        double worst
    bint c_line_keys "kcalib::line_keys"(const Samples&, const Run&, unsigned long long*) except +
    bint c_line_order "kcalib::line_order"(
        const unsigned long long*, const Samples&, const Run&, long long*, double*, Marks*) except +
    cdef cppclass ProductTerm:
        LineKernel kernel
        const double* left
        const double* right
        int rank
    cdef cppclass VectorRows:
        const double* values
        long stride
        long first
    cdef cppclass ProductRows:
        double* values
        long stride
        long n
    bint c_line_product "kcalib::line_product"(
        const Line&, const long long*, const ProductTerm*, int, bint, const VectorRows&, long, const Run&,
        const ProductRows&) except +
    bint c_line_forms "kcalib::line_forms"(
        const Line&, const long long*, const FormTerm*, int, const FormWeights&, long, const Run&, double*) except +
    bint c_line_median "kcalib::line_median"(const double*, long, const Run&, double*) except +


cdef extern from "cpu/dirichlet.h" namespace "kcalib" nogil:
    cdef cppclass WeightedClasses[T]:
        const T* queries
        long n_queries
        const T* training
        const T* offsets
        const int* labels
        long n_training
        long n_features
        long n_classes
        bint leave_one_out
    bint c_class_shares "kcalib::class_shares"[T](const WeightedClasses[T]&, const Run&, double*, double*) except +
    bint c_log_normalisers "kcalib::log_normalisers"(const double*, long, long, const Run&, double*) except +


cdef extern from "cpu/rows.h" namespace "kcalib" nogil:
    bint are_distributions[T](const T*, long, long, double, int, double*)
    bint complete_pairs[T](const T*, long, double, int, double*)
    bint are_classes[T](const T*, long, long, int, int64_t*)
    void c_residuals "kcalib::residuals"[T](const double*, const int64_t*, long, long, int, T*, T*)
    void c_square_norms "kcalib::square_norms"[T](const T*, long, long, int, double*)


cdef extern from "cpu/bins.h" namespace "kcalib" nogil:
    cdef cppclass Predictions:
        const double* p
        const int64_t* labels
        const double* weight
        long n
        long m
    cpdef enum class GapNorm:
        CITYBLOCK
        EUCLIDEAN
    void c_top_labels "kcalib::top_labels"(const Predictions&, int, double*, double*)
    void c_uniform_bins "kcalib::uniform_bins"(const Predictions&, long, int, double*) except +
    long c_uniform_cells "kcalib::uniform_cells"(const Predictions&, long, GapNorm, int, int64_t*, double*) except +
    long c_median_variance_cells "kcalib::median_variance_cells"(
        const Predictions&, long, long, int, int64_t*) except +
    void c_group_gaps "kcalib::group_gaps"(
        const Predictions&, const int64_t*, long, const double*, GapNorm, int, double*, double*) except +


cdef extern from "cpu/resampling.h" namespace "kcalib" nogil:
    cdef enum WeightKind:
        pass
    bint c_fill_weights "kcalib::fill_weights"[T](
        WeightKind, unsigned long long, unsigned long long, long, long, T*, const Run&) except +


ctypedef fused real:
    double
    float


ctypedef fused number:
    double
    int64_t
    int32_t

ctypedef fused weight:
    double
    float


cdef class Sweep:
    """How to run: threads, instruction set (None: the best here), progress callback."""

    cdef Run run
    cdef object progress
    cdef object error

    def __init__(self, int threads, level=None, progress=None):
        cdef bytes name
        cdef const char* wanted = NULL
        if level is not None:
            name = level.encode()
            wanted = name
        self.run.table = tile_table(wanted)
        if self.run.table == NULL:
            raise ValueError(f"this machine cannot run the instruction set {level!r}")
        self.run.threads = threads
        self.run.poll = poll
        self.run.context = <void*>self
        self.progress = progress
        self.error = None

    @property
    def level(self):
        return self.run.table.name.decode()

    cdef raise_if_stopped(self, bint finished):
        if not finished:
            error, self.error = self.error, None
            raise error


cdef int poll(void* context, double done) noexcept with gil:
    # Python's signal handlers run here: Ctrl-C stops a sweep.
    cdef Sweep sweep = <Sweep>context
    try:
        PyErr_CheckSignals()
        if sweep.progress is not None:
            sweep.progress(done)
    except BaseException as error:
        sweep.error = error
        return 1
    return 0


MAX_FULL_DIMS = MAX_DIMS


cdef class Terms:
    """A kernel in normal form: [(coefficient, [(profile, metric, scale, shape), ...]), ...]."""

    cdef vector[Term] terms
    cdef vector[Factor] factors
    cdef KernelProgram program

    def __init__(self, terms):
        for coefficient, factors in terms:
            self.terms.push_back(Term(coefficient, <int>self.factors.size(), <int>len(factors)))
            for profile, metric, scale, shape in factors:
                self.factors.push_back(Factor(profile, metric, scale, shape))
        self.program = KernelProgram(self.terms.data(), <int>self.terms.size(), self.factors.data())


cdef class Kernel:
    """What is computed of points and marks: the terms of the kernel, what marks (`target`) and points (`predicted`)
    are, if not vectors, as (family, n_dims, n_components, n_terms, kernel terms), and a table of distances."""

    cdef Terms terms
    cdef list kept
    cdef const double[:, :] table
    cdef Mixtures target
    cdef Mixtures predicted
    cdef PairProgram program

    def __init__(self, terms, target=None, predicted=None, const double[:, :] table=None):
        self.kept = []
        self.terms = Terms(terms)
        self.program.kernel = self.terms.program
        self.program.target = self.program.predicted = NULL
        self.program.table = NULL
        if target is not None:
            self.target = self.mixtures(target)
            self.program.target = &self.target
        if predicted is not None:
            self.predicted = self.mixtures(predicted)
            self.program.predicted = &self.predicted
        if table is not None:
            self.table = table
            self.program.table = &table[0, 0]
            self.program.table_stride = table.strides[0] // <long>sizeof(double)

    cdef Mixtures mixtures(self, description):
        family, n_dims, n_components, n_terms, terms = description
        cdef Terms kernel = Terms(terms)
        self.kept.append(kernel)
        return Mixtures(family, n_dims, n_components, n_terms, kernel.program)


cdef Side[real] one_side(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const long[::1] order,
):
    cdef Side[real] side
    side.points = &points[0, 0]
    side.n_features = points.shape[1]
    side.n_marks = points.shape[1]
    side.marks = NULL
    side.labels = NULL
    side.order = NULL
    if marks is not None:
        side.n_marks = marks.shape[1]
        side.marks = &marks[0, 0]
    if labels is not None:
        side.labels = &labels[0]
    if order is not None:
        side.order = &order[0]
    side.n = points.shape[0]
    return side


cdef PairProblem[real] pair_problem(
    Kernel kernel,
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const long[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const long[::1] right_order,
    bint symmetric,
):
    cdef PairProblem[real] problem
    problem.program = kernel.program
    problem.symmetric = symmetric
    problem.left = one_side[real](points, marks, labels, order)
    problem.right = one_side[real](right_points, right_marks, right_labels, right_order)
    return problem


def moments(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const long[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const long[::1] right_order,
    bint symmetric, Kernel kernel not None, Sweep sweep not None, bint rows, bint second,
):
    """Total; if `rows` row sums and column sums (rectangular problems); if `second`, with `rows`, the sum of squares."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, right_points, right_marks, right_labels, right_order, symmetric)
    row_sums = np.empty(points.shape[0]) if rows else None
    column_sums = np.empty(right_points.shape[0]) if rows and not symmetric else None
    cdef double[::1] rows_view
    cdef double[::1] columns_view
    cdef double total = 0
    cdef double squares = 0
    cdef double* rows_pointer = NULL
    cdef double* columns_pointer = NULL
    if row_sums is not None:
        rows_view = row_sums
        rows_pointer = &rows_view[0]
    if column_sums is not None:
        columns_view = column_sums
        columns_pointer = &columns_view[0]
    cdef bint finished
    with nogil:
        finished = c_moments(
            problem, sweep.run, &total, rows_pointer, columns_pointer, &squares if second else NULL)
    sweep.raise_if_stopped(finished)
    return total, row_sums, column_sums, squares if second else None


def quadratic_forms(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const long[::1] order,
    Kernel kernel not None, Sweep sweep not None, list panels, const weight[:, ::1] first_panel,
):
    """w^T H w for each column w of the panels, shapes (n, weights_at_once), diagonal included."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, points, marks, labels, order, True)
    cdef vector[const weight*] pointers
    cdef const weight[:, ::1] panel
    for panel in panels:
        pointers.push_back(&panel[0, 0])
    result = np.empty((len(panels), first_panel.shape[1]))
    cdef double[:, ::1] out = result
    cdef double* out_pointer = &out[0, 0]
    cdef bint finished
    with nogil:
        finished = c_quadratic_forms(problem, sweep.run, pointers.data(), pointers.size(), out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def weights_at_once(dtype, Sweep sweep not None):
    """Columns of a panel of weights."""
    return c_weights_at_once(sweep.run.table[0], np.dtype(dtype) == np.float32)


THRESHOLDS = N_THRESHOLDS


def counts(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const long[::1] order,
    Kernel kernel not None, Sweep sweep not None, const double[::1] thresholds,
):
    """Number of pairs i < j with H_ij below each of the THRESHOLDS thresholds."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, points, marks, labels, order, True)
    result = np.empty(N_THRESHOLDS, dtype=np.int64)
    cdef long[::1] out = result
    cdef long* out_pointer = &out[0]
    cdef const double* thresholds_pointer = &thresholds[0]
    cdef bint finished
    with nogil:
        finished = c_counts(problem, sweep.run, thresholds_pointer, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def between(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const long[::1] order,
    Kernel kernel not None, Sweep sweep not None, double low, double high, long count,
):
    """The `count` entries H_ij, i < j, in [low, high), in no order."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, points, marks, labels, order, True)
    result = np.empty(count)
    cdef double[::1] out = result
    cdef double* out_pointer = &out[0] if count else NULL
    cdef long found = 0
    cdef bint finished
    with nogil:
        finished = c_between(problem, sweep.run, low, high, out_pointer, count, &found)
    sweep.raise_if_stopped(finished)
    assert found == count
    return result


def block_sums(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const long[::1] order,
    Kernel kernel not None, Sweep sweep not None, long size,
):
    """Sums over the pairs i != j of consecutive blocks of `size` samples."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, points, marks, labels, order, True)
    result = np.empty(points.shape[0] // size)
    cdef double[::1] out = result
    cdef double* out_pointer = &out[0]
    cdef bint finished
    with nogil:
        finished = c_block_sums(problem, sweep.run, size, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def matmul(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const long[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const long[::1] right_order,
    bint symmetric, Kernel kernel not None, Sweep sweep not None, const double[:, ::1] vectors, bint single,
):
    """H @ vectors for `vectors` of shape (n right, c), which, as the result, the orders refer to; `single`: in float32."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, right_points, right_marks, right_labels, right_order, symmetric)
    result = np.empty((points.shape[0], vectors.shape[1]))
    cdef double[:, ::1] out = result
    cdef double* out_pointer = &out[0, 0]
    cdef const double* vectors_pointer = &vectors[0, 0]
    cdef long n_vectors = vectors.shape[1]
    cdef bint finished
    with nogil:
        finished = c_matmul(problem, sweep.run, vectors_pointer, n_vectors, single, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def entries(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const long[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const long[::1] right_order,
    bint symmetric, Kernel kernel not None, Sweep sweep not None,
):
    """The dense H."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, right_points, right_marks, right_labels, right_order, symmetric)
    result = np.empty((points.shape[0], right_points.shape[0]))
    cdef double[:, ::1] out = result
    cdef double* out_pointer = &out[0, 0]
    cdef bint finished
    with nogil:
        finished = c_entries(problem, sweep.run, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def own_products(const real[:, ::1] points, Kernel kernel not None, Sweep sweep not None, real[::1] out):
    """Writes the product of each point with itself under the target kernel, for points that are mixtures."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, points, None, None, points, points, None, None, True)
    cdef real* out_pointer = &out[0]
    cdef bint finished
    with nogil:
        finished = c_own_products(problem, sweep.run, out_pointer)
    sweep.raise_if_stopped(finished)


cdef LineKernel line_kernel(double rate, const double[::1] coefficients):
    cdef LineKernel kernel
    kernel.rate = rate
    kernel.coefficients = &coefficients[0]
    kernel.degree = <int>coefficients.shape[0] - 1
    return kernel


cdef Line line_of(const double[::1] places, long block):
    cdef Line line
    line.places = &places[0]
    line.n = places.shape[0]
    line.block = block
    return line


def line_gap(const double[:, ::1] points, Sweep sweep not None):
    """Largest |p + q - 1| of the points (p, q)."""
    cdef double largest = 0
    cdef bint finished
    with nogil:
        finished = c_line_gap(&points[0, 0], points.shape[0], sweep.run, &largest)
    sweep.raise_if_stopped(finished)
    return largest


def line_residuals(const double[:, ::1] points, const long long[::1] labels, Sweep sweep not None):
    """Sizes of the residuals: label 0, two infinities, label 1; number of zeros; off_line and square_norms."""
    sizes = np.empty(points.shape[0] + 2)
    cdef double[::1] out = sizes
    cdef double off_line = 0
    cdef double square_norms = 0
    cdef long n_zeros = 0
    cdef bint finished
    with nogil:
        finished = c_line_residuals(
            &points[0, 0], &labels[0], points.shape[0], sweep.run, &out[0], &n_zeros, &off_line, &square_norms)
    sweep.raise_if_stopped(finished)
    return sizes, n_zeros, off_line, square_norms


def line_total(
    const double[::1] sizes, long n_zeros, double rate, const double[::1] coefficients, bint squared,
    Sweep sweep not None,
):
    """Sums over the pairs i < j of k(x_i, x_j) r_i r_j and of its size; see src/cpu/line.h."""
    cdef Residuals residuals
    residuals.sizes = &sizes[0]
    residuals.n_zeros = n_zeros
    residuals.n = sizes.shape[0] - 2
    cdef LineKernel kernel = line_kernel(rate, coefficients)
    cdef double[2] total
    cdef bint finished
    with nogil:
        finished = c_line_total(residuals, kernel, squared, sweep.run, total)
    sweep.raise_if_stopped(finished)
    return total[0], total[1]


def line_order(const double[:, ::1] points, const long long[::1] labels, long block, Sweep sweep not None):
    """Samples sorted by their last coordinates, within blocks: positions and places.

    And, unless `labels` is None, marks of the sorted samples, and off_line, square_norms and worst.
    """
    cdef Samples samples
    samples.points = &points[0, 0]
    samples.n_features = points.shape[1]
    samples.n = points.shape[0]
    samples.block = block
    keys = np.empty(samples.n, dtype=np.uint64)
    cdef unsigned long long[::1] keys_view = keys
    cdef bint finished
    with nogil:
        finished = c_line_keys(samples, sweep.run, &keys_view[0])
    sweep.raise_if_stopped(finished)
    keys.sort()
    positions = np.empty(samples.n, dtype=np.int64)
    places = np.empty(samples.n)
    residuals = None if labels is None else np.empty(samples.n)
    cdef long long[::1] positions_view = positions
    cdef double[::1] out = places
    cdef double[::1] residuals_view = residuals
    cdef Marks marks
    marks.labels = NULL
    if labels is not None:
        marks.labels = &labels[0]
        marks.values = &residuals_view[0]
    with nogil:
        finished = c_line_order(&keys_view[0], samples, sweep.run, &positions_view[0], &out[0], &marks)
    sweep.raise_if_stopped(finished)
    return positions, places, residuals, marks.off_line, marks.square_norms, marks.worst


def line_product(
    const double[::1] places, const long long[::1] positions, long block, terms, bint diagonal,
    const double[:, :] vectors, long first, long n_rows, Sweep sweep not None,
):
    """H @ vectors of samples within blocks, a row for each of the first n_rows positions; with H_ii if `diagonal`.

    terms: [(rate, coefficients, left, right), ...] with factors of shape (n, rank), of sorted points. vectors: at
    least a column, whose elements are beside each other in a row; rows of the positions from `first` on, 0 before.
    None: a column of 1.
    """
    cdef long n_vectors = 1 if vectors is None else vectors.shape[1]
    # Rows are read and written in any order: those of 8 or 16 columns shall not share a line of the cache.
    buffer = np.empty(n_rows * n_vectors + 7)
    cdef long skip = -(buffer.ctypes.data // 8) % 8
    result = buffer[skip : skip + n_rows * n_vectors].reshape(n_rows, n_vectors)
    cdef double[:, ::1] out = result
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
        rows.values, rows.stride = &vectors[0, 0], vectors.strides[0] // <long>sizeof(double)
    products.values, products.stride, products.n = &out[0, 0], n_vectors, n_rows
    cdef bint finished
    with nogil:
        finished = c_line_product(
            line, &positions[0], all_terms.data(), <int>all_terms.size(), diagonal, rows, n_vectors, sweep.run, products)
    sweep.raise_if_stopped(finished)
    return result


def line_forms(
    const double[::1] places, const long long[::1] positions, terms, const double[:, ::1] weights,
    unsigned long long seed, long n_replicates, Sweep sweep not None,
):
    """w^T H w for the columns w of `weights` or, where these are None, for Rademacher weights of `seed`.

    terms: [(rate, coefficients, factors of shape (rank, n), of sorted points), ...].
    """
    result = np.empty(n_replicates)
    cdef double[::1] out = result
    cdef vector[FormTerm] all_terms
    cdef FormTerm term
    cdef FormWeights source
    cdef const double[:, ::1] factors
    for rate, coefficients, term_factors in terms:
        factors = term_factors
        term.kernel = line_kernel(rate, coefficients)
        term.factors = &factors[0, 0]
        term.rank = <int>factors.shape[0]
        all_terms.push_back(term)
    source.values = NULL
    if weights is not None:
        source.values = &weights[0, 0]
    source.seed = seed
    cdef Line line = line_of(places, places.shape[0])
    cdef bint finished
    with nogil:
        finished = c_line_forms(
            line, &positions[0], all_terms.data(), <int>all_terms.size(), source, n_replicates, sweep.run, &out[0])
    sweep.raise_if_stopped(finished)
    return result


def line_median(const double[::1] places, Sweep sweep not None):
    """Median distance of the pairs of all places but the last, which is infinite; see src/cpu/line.h."""
    cdef double median = 0
    cdef bint finished
    with nogil:
        finished = c_line_median(&places[0], places.shape[0] - 1, sweep.run, &median)
    sweep.raise_if_stopped(finished)
    return median


def class_shares(
    const real[:, ::1] queries, const real[:, ::1] training, const real[::1] offsets, const int[::1] labels,
    long n_classes, bint leave_one_out, Sweep sweep not None,
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
        finished = c_class_shares(problem, sweep.run, &shares_view[0, 0], &log_sums_view[0])
    sweep.raise_if_stopped(finished)
    return shares, log_sums


def log_normalisers(const double[:, ::1] x, Sweep sweep not None):
    """log Gamma(m + sum_k x_ik) - sum_k log Gamma(1 + x_ik) for each row of x >= 0, shape (n, m)."""
    result = np.empty(x.shape[0])
    cdef double[::1] out = result
    cdef bint finished
    with nogil:
        finished = c_log_normalisers(&x[0, 0], x.shape[0], x.shape[1], sweep.run, &out[0])
    sweep.raise_if_stopped(finished)
    return result


def distributions(rows, double tolerance, int threads):
    """Probabilities of m classes (n, m), or of the second of two (n,) or (n, 1), as float64 rows; None
    if some row is no distribution within `tolerance`, or cannot quite be said to be one.

    Takes float64, returned as it is if it has several columns, and float32.
    """
    if rows.dtype == np.float32:
        return checked_rows[float](rows.reshape(-1), rows, tolerance, threads)
    return checked_rows[double](rows.reshape(-1), rows, tolerance, threads)


cdef checked_rows(const real[::1] values, rows, double tolerance, int threads):
    cdef long n = rows.shape[0], m = 1 if rows.ndim == 1 else rows.shape[1]
    cdef double[:, ::1] out
    cdef double* out_pointer = NULL
    cdef bint good
    if m == 1 or real is float:
        rows = np.empty((n, max(m, 2)))
        out = rows
        out_pointer = &out[0, 0]
    with nogil:
        if m == 1:
            good = complete_pairs(&values[0], n, tolerance, threads, out_pointer)
        else:
            good = are_distributions(&values[0], n, m, tolerance, threads, out_pointer)
    return rows if good else None


def classes(labels, long m, int threads):
    """Labels 0..m-1 as int64; None if some label is not one of these. Takes int64, returned as it is,
    int32 and float64."""
    if labels.dtype == np.int64:
        return checked_labels[int64_t](labels, labels, m, threads)
    if labels.dtype == np.int32:
        return checked_labels[int32_t](labels, labels, m, threads)
    return checked_labels[double](labels, labels, m, threads)


cdef checked_labels(const number[::1] values, labels, long m, int threads):
    cdef int64_t[::1] out
    cdef int64_t* out_pointer = NULL
    cdef bint good
    if number is not int64_t:
        labels = np.empty(values.shape[0], np.int64)
        out = labels
        out_pointer = &out[0]
    with nogil:
        good = are_classes(&values[0], values.shape[0], m, threads, out_pointer)
    return labels if good else None


def points_and_residuals(p, const int64_t[::1] labels, dtype, int threads):
    """The float64 rows p (themselves, if that is `dtype`) and onehot(labels) - p, both in `dtype`."""
    marks = np.empty(p.shape, dtype)
    if marks.dtype == np.float64:
        write_residuals[double](p, labels, threads, None, marks)
        return p, marks
    points = np.empty(p.shape, dtype)
    write_residuals[float](p, labels, threads, points, marks)
    return points, marks


cdef write_residuals(
    const double[:, ::1] p, const int64_t[::1] labels, int threads, real[:, ::1] points, real[:, ::1] marks,
):
    cdef real* points_pointer = NULL
    if points is not None:
        points_pointer = &points[0, 0]
    with nogil:
        c_residuals(&p[0, 0], &labels[0], p.shape[0], p.shape[1], threads, points_pointer, &marks[0, 0])


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
    const double[:, ::1] p, const int64_t[::1] labels, const double[::1] weight, long n_bins, int threads,
):
    """Sums of each column by bins of equal width, of entries, weights, and weights of hits: (3, m, n_bins)."""
    cdef Predictions data = predictions(p, labels, weight)
    sums = np.empty((3, data.m, n_bins))
    cdef double[:, :, ::1] out = sums
    with nogil:
        c_uniform_bins(data, n_bins, threads, &out[0, 0, 0])
    return sums


GAP_NORMS = {"cityblock": GapNorm.CITYBLOCK, "euclidean": GapNorm.EUCLIDEAN}


def uniform_cells(const double[:, ::1] p, const int64_t[::1] labels, long n_bins, str norm, int threads):
    """The group of each row whose entries all lie in the same bins of equal width, (n,), how many groups, and the norm
    of each row's residual, (n,), as `group_gaps` takes it."""
    cdef Predictions data = predictions(p, labels, None)
    cdef GapNorm kind = GAP_NORMS[norm]
    group, row_gap = np.empty(data.n, np.int64), np.empty(data.n)
    cdef int64_t[::1] out = group
    cdef double[::1] row_gap_view = row_gap
    cdef long count
    if data.n >= 2**31:
        raise ValueError(f"{data.n} rows, expected less than {2**31}")
    with nogil:
        count = c_uniform_cells(data, n_bins, kind, threads, &out[0], &row_gap_view[0])
    return group, count, row_gap


def median_variance_cells(const double[:, ::1] p, long max_bins, long min_size, int threads):
    """The median-variance bin of each row, (n,), and how many bins."""
    cdef Predictions data = predictions(p, None, None)
    group = np.empty(data.n, np.int64)
    cdef int64_t[::1] out = group
    cdef long count
    with nogil:
        count = c_median_variance_cells(data, max_bins, min_size, threads, &out[0])
    return group, count


def group_gaps(
    const double[:, ::1] p, const int64_t[::1] labels, const double[::1] weight, const int64_t[::1] group, long n_groups,
    const double[::1] row_gap, str norm, int threads,
):
    """Weights of the groups and norms of their mean residuals, both (n_groups,); `norm`: "cityblock" or "euclidean"."""
    cdef Predictions data = predictions(p, labels, weight)
    cdef GapNorm kind = GAP_NORMS[norm]
    cdef const double* rows = NULL
    if row_gap is not None:
        rows = &row_gap[0]
    weights, gaps = np.empty(n_groups), np.empty(n_groups)
    cdef double[::1] weights_view = weights
    cdef double[::1] gaps_view = gaps
    with nogil:
        c_group_gaps(data, &group[0], n_groups, rows, kind, threads, &weights_view[0], &gaps_view[0])
    return weights, gaps


def fill_weights(
    int kind, unsigned long long seed, unsigned long long first_replicate, real[:, ::1] out, Sweep sweep not None,
):
    """Writes the weights of the rows in replicates from `first_replicate` on; out not empty."""
    cdef real* out_pointer = &out[0, 0]
    cdef long n = out.shape[0]
    cdef long n_replicates = out.shape[1]
    cdef bint finished
    with nogil:
        finished = c_fill_weights(<WeightKind>kind, seed, first_replicate, n_replicates, n, out_pointer, sweep.run)
    sweep.raise_if_stopped(finished)


def probe(str what, dtype, long repetitions, Sweep sweep not None):
    """Number of elements on which `what` ("fma", "exp", "sqrt") was done, all threads together."""
    cdef Probe operation = {"fma": Probe.FMA, "exp": Probe.EXP, "sqrt": Probe.SQRT}[what]
    cdef bint single = np.dtype(dtype) == np.float32
    cdef double elements
    with nogil:
        if single:
            elements = c_probe[float](sweep.run, operation, repetitions)
        else:
            elements = c_probe[double](sweep.run, operation, repetitions)
    return elements


def evaluate(str function, const real[::1] x, real[::1] out, Sweep sweep not None, double a=1.0):
    """Writes a function of x to out: the name of a `ScalarFunction` in lower case; "power" is x^a."""
    c_evaluate(sweep.run, ScalarFunction[function.upper()], &x[0], a, x.shape[0], &out[0])


def has_openmp():
    """Whether the extension was compiled with OpenMP."""
    return compiled_with_openmp()


def max_threads():
    """OpenMP's number of threads; 1 in a forked child or inside a parallel region."""
    return openmp_max_threads()


def running_sweeps():
    """Number of sweeps that are running in this process."""
    return count_running_sweeps()


register_fork_handler()
