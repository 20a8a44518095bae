# Sweeps over all pairs: src/cpu/pairs/sweep.h.

cdef extern from "kcalib/profiles.h" namespace "kcalib" nogil:
    cdef struct Factor:
        int profile
        int metric
        double scale
        double a
        double b
    cdef struct Term:
        double coefficient
        int first_factor
        int n_factors
    cdef struct KernelProgram:
        const Term* terms
        int n_terms
        const Factor* factors


cdef extern from "cpu/pairs/profile_rows.h" namespace "kcalib" nogil:
    cdef struct ProfileRow:
        const char* name
        const char* argument
        double at_zero
        const char* slope
        const char* definite
        const char* formula
    const ProfileRow* PROFILE_ROWS
    int N_PROFILES


cdef extern from "kcalib/mixtures.h" namespace "kcalib" nogil:
    cdef struct Mixtures:
        int family
        int n_dims
        int n_components
        int n_terms
        KernelProgram kernel
    int64_t c_component_columns "kcalib::component_columns"(int family, int64_t d)


cdef extern from "cpu/pairs/families.h" namespace "kcalib" nogil:
    cdef struct FamilyFacts:
        const char* name
        double bound
        double bound_single
        double cost
        int max_dims
        bint matrices
        bint of_kernel
        bint apart
    const FamilyFacts* FAMILY_FACTS "kcalib::FAMILIES"
    int N_FAMILIES "kcalib::N_FAMILIES"


cdef extern from "cpu/pairs/tile.h" namespace "kcalib" nogil:
    cdef struct PairProgram:
        KernelProgram kernel
        const Mixtures* target
        const Mixtures* predicted
        const double* table
        int64_t table_stride
    cdef cppclass Side[T]:
        const T* points
        int64_t n_features
        const T* marks
        int64_t n_marks
        const int* labels
        const int* classes
        const double* centre
        const int64_t* order
        int64_t n
        bint expecting
    int N_THRESHOLDS "kcalib::THRESHOLDS"


cdef extern from "cpu/pairs/sweep.h" namespace "kcalib" nogil:
    cdef cppclass PairProblem[T]:
        PairProgram program
        Side[T] left
        Side[T] right
        bint symmetric
    cdef struct Groups:
        int64_t block
        int64_t per_group
        int64_t rows
        int64_t columns
    Groups c_groups "kcalib::groups_of"[T](const PairProblem[T]&, const Run&)
    bint c_moment_parts "kcalib::moment_parts"[T](
        const PairProblem[T]&, const Run&, double*, double*, double*, double*, double*) except +
    bint c_moments "kcalib::moments"[T](
        const PairProblem[T]&, const Run&, double*, double*, double*, double*, double*) except +
    bint c_block_sums "kcalib::block_sums"[T](const PairProblem[T]&, const Run&, int64_t, double*) except +
    cdef enum class Entries:
        DOUBLE
        SINGLE
        IN_UNITS
    bint c_matmul "kcalib::matmul"[T](
        const PairProblem[T]&, const Run&, const double*, const double*, int64_t, Entries, double*, double*) except +
    cdef cppclass LabelPanels:
        const int* const* panels
        int64_t count
        int64_t length(const TileTable&)
    bint c_match_parts "kcalib::match_parts"[T](
        const PairProblem[T]&, const Run&, const LabelPanels&, int64_t, int64_t, double*) except +
    bint c_matches "kcalib::matches"[T](const PairProblem[T]&, const Run&, const LabelPanels&, double*) except +
    bint c_quadratic_parts "kcalib::quadratic_parts"[T, W](
        const PairProblem[T]&, const Run&, const W* const*, int64_t, int64_t, int64_t, double*) except +
    bint c_quadratic_forms "kcalib::quadratic_forms"[T, W](const PairProblem[T]&, const Run&, const W* const*, int64_t, double*) except +
    int64_t c_weights_at_once "kcalib::weights_at_once"(const TileTable&, int64_t size)
    bint c_counts "kcalib::counts"[T](const PairProblem[T]&, const Run&, const double*, int64_t*) except +
    bint c_between "kcalib::between"[T](const PairProblem[T]&, const Run&, double, double, double*, int64_t, int64_t*, int64_t*) except +
    bint c_entries "kcalib::entries"[T](const PairProblem[T]&, const Run&, double*) except +
    bint c_own_products "kcalib::own_products"[T](const PairProblem[T]&, const Run&, T*) except +


ctypedef fused weight:
    double
    float


class FamilyOfDistributions(typing.NamedTuple):
    """What the header of a family (src/include/kcalib/families/) says of it."""

    number: int
    bound: dict  # of parameters, by dtype
    cost: float  # of a product, that of normals being 1
    max_dims: int | None
    matrices: bool  # whether a component has d^2 numbers
    of_kernel: bool  # whether its products are the target kernel at two places
    apart: bool  # whether MMD distances of single components have a formula that does without own products

    def component_columns(self, int64_t n_dims):
        """How many columns a component of a row has."""
        return c_component_columns(self.number, n_dims)


FAMILIES = {
    FAMILY_FACTS[k].name.decode().lower(): FamilyOfDistributions(
        k,
        {"float64": FAMILY_FACTS[k].bound, "float32": FAMILY_FACTS[k].bound_single},
        FAMILY_FACTS[k].cost,
        FAMILY_FACTS[k].max_dims or None,
        FAMILY_FACTS[k].matrices,
        FAMILY_FACTS[k].of_kernel,
        FAMILY_FACTS[k].apart,
    )
    for k in range(N_FAMILIES)
}


def profiles():
    """The rows of include/kcalib/profiles.h; a row's place is its profile's number."""
    cdef ProfileRow row
    found = []
    for k in range(N_PROFILES):
        row = PROFILE_ROWS[k]
        words = row.name.decode(), row.argument.decode(), row.slope.decode(), row.definite.decode()
        found.append((*words, row.at_zero, row.formula.decode()))
    return found


cdef class Terms:
    """A kernel in normal form: [(coefficient, [(profile, metric, scale, a, b), ...]), ...]."""

    cdef vector[Term] terms
    cdef vector[Factor] factors
    cdef KernelProgram program

    def __init__(self, terms):
        for coefficient, factors in terms:
            self.terms.push_back(Term(coefficient, <int>self.factors.size(), <int>len(factors)))
            for profile, metric, scale, a, b in factors:
                self.factors.push_back(Factor(profile, metric, scale, a, b))
        self.program = KernelProgram(self.terms.data(), <int>self.terms.size(), self.factors.data())


cdef class Kernel:
    """What is computed of points and marks: the terms of the kernel, what marks (`target`) and points (`predicted`)
    are, if not vectors, as (family, n_dims, n_components, n_terms, kernel terms), and a table of distances. Of sides with
    labels also whether distances and target factors come from `one_product`, and the centre about which points are
    packed for it; None: residuals are."""

    cdef Terms terms
    cdef list kept
    cdef const double[:, :] table
    cdef const double[::1] centre
    cdef bint one_product
    cdef Mixtures target
    cdef Mixtures predicted
    cdef PairProgram program

    def __init__(
        self, terms, target=None, predicted=None, const double[:, :] table=None, const double[::1] centre=None,
        bint one_product=True,
    ):
        self.kept = []
        self.one_product = one_product
        self.centre = centre
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
            self.program.table_stride = table.strides[0] // <int64_t>sizeof(double)

    cdef Mixtures mixtures(self, description):
        family, n_dims, n_components, n_terms, terms = description
        cdef Terms kernel = Terms(terms)
        self.kept.append(kernel)
        return Mixtures(family, n_dims, n_components, n_terms, kernel.program)


cdef Side[real] one_side(
    Kernel kernel, const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
):
    cdef Side[real] side
    side.points = &points[0, 0]
    side.n_features = points.shape[1]
    side.n_marks = points.shape[1]
    side.marks = NULL
    side.labels = NULL
    side.classes = NULL
    side.centre = NULL
    side.order = NULL
    if marks is not None:
        side.n_marks = marks.shape[1]
        side.marks = &marks[0, 0]
    if labels is not None and not kernel.one_product:
        side.classes = &labels[0]
    elif labels is not None:
        side.labels = &labels[0]
        if kernel.centre is not None:
            side.centre = &kernel.centre[0]
    if order is not None:
        side.order = &order[0]
    side.n = points.shape[0] if order is None else order.shape[0]
    side.expecting = False
    return side


cdef PairProblem[real] pair_problem(
    Kernel kernel,
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const int64_t[::1] right_order,
    bint symmetric,
):
    cdef PairProblem[real] problem
    problem.program = kernel.program
    problem.symmetric = symmetric
    problem.left = one_side[real](kernel, points, marks, labels, order)
    problem.right = problem.left
    if right_points is not None:
        problem.right = one_side[real](kernel, right_points, right_marks, right_labels, right_order)
    return problem


def moments(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const int64_t[::1] right_order,
    bint symmetric, Kernel kernel not None, Sweep sweep not None, bint rows, bint second,
    bint expected=False,
):
    """Total; if `rows` row sums and column sums (rectangular problems); if `second`, with `rows`, the sum of squares.

    If `expected`, with `second`, of points that are probabilities of labels: (expectation of the sum of squares given these,
    sum of kernel^2 <x, x'>, beside which this is rounded); else None.

    The samples are those that `order` names, all of them where it is None. Without `right_points` the right side is
    the left one.
    """
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, right_points, right_marks, right_labels, right_order, symmetric)
    row_sums = np.empty(problem.left.n) if rows else None
    column_sums = np.empty(problem.right.n) if rows and not symmetric else None
    cdef double[::1] rows_view
    cdef double[::1] columns_view
    cdef double total = 0
    cdef double squares = 0
    cdef double[2] expectation
    cdef double* rows_pointer = NULL
    cdef double* columns_pointer = NULL
    if row_sums is not None:
        rows_view = row_sums
        rows_pointer = &rows_view[0]
    if column_sums is not None:
        columns_view = column_sums
        columns_pointer = &columns_view[0]
    cdef double* expected_pointer = NULL
    if expected:
        problem.left.expecting = problem.right.expecting = True
        expected_pointer = &expectation[0]
    cdef bint finished
    with nogil:
        finished = c_moments(
            problem, sweep.run, &total, rows_pointer, columns_pointer, &squares if second else NULL, expected_pointer)
    sweep.raise_if_stopped(finished)
    return total, row_sums, column_sums, squares if second else None, (expectation[0], expectation[1]) if expected else None


def groups(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const int64_t[::1] right_order,
    bint symmetric, Kernel kernel not None, Sweep sweep not None,
):
    """How the pairs are cut: rows of a block, and blocks of a group; see src/cpu/pairs/sweep.h."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, right_points, right_marks, right_labels, right_order, symmetric)
    cdef Groups found = c_groups(problem, sweep.run)
    return found.block, found.per_group


def moment_parts(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const int64_t[::1] right_order,
    bint symmetric, Kernel kernel not None, Sweep sweep not None, bint rows, bint second, bint expected=False,
):
    """The sums of `moments` by groups: totals and squares of shape (a, b), row sums (b, n), column sums (a, n right), and
    (a, b, 2) of what is `expected`, of rectangles of symmetric problems, too."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, right_points, right_marks, right_labels, right_order, symmetric)
    cdef Groups found = c_groups(problem, sweep.run)
    totals = np.empty((found.rows, found.columns))
    squares = np.empty_like(totals) if second else None
    row_parts = np.empty((found.columns, problem.left.n)) if rows else None
    column_parts = np.empty((found.rows, problem.right.n)) if rows and not symmetric else None
    expectations = np.empty((found.rows, found.columns, 2)) if expected else None
    cdef double[:, :, ::1] expected_view
    cdef double[:, ::1] totals_view = totals
    cdef double[:, ::1] squares_view, rows_view, columns_view
    cdef double* squares_pointer = NULL
    cdef double* rows_pointer = NULL
    cdef double* columns_pointer = NULL
    if second:
        squares_view = squares
        squares_pointer = &squares_view[0, 0]
    if rows:
        rows_view = row_parts
        rows_pointer = &rows_view[0, 0]
    if column_parts is not None:
        columns_view = column_parts
        columns_pointer = &columns_view[0, 0]
    cdef double* expected_pointer = NULL
    if expected:
        problem.left.expecting = problem.right.expecting = True
        expected_view = expectations
        expected_pointer = &expected_view[0, 0, 0]
    cdef bint finished
    with nogil:
        finished = c_moment_parts(
            problem, sweep.run, &totals_view[0, 0], rows_pointer, columns_pointer, squares_pointer, expected_pointer)
    sweep.raise_if_stopped(finished)
    return totals, row_parts, column_parts, squares, expectations


def quadratic_forms(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    Kernel kernel not None, Sweep sweep not None, list panels, const weight[:, ::1] first_panel,
):
    """w^T H w for each column w of the panels, shapes (n, weights_at_once), diagonal included."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, points, marks, labels, order, True)
    cdef vector[const weight*] pointers
    cdef const weight[:, ::1] panel
    for panel in panels:
        pointers.push_back(&panel[0, 0])
    result = np.empty((len(panels), c_weights_at_once(sweep.run.table[0], sizeof(weight))))
    cdef double[:, ::1] out = result
    cdef double* out_pointer = &out[0, 0]
    cdef bint finished
    with nogil:
        finished = c_quadratic_forms(problem, sweep.run, pointers.data(), pointers.size(), out_pointer)
    sweep.raise_if_stopped(finished)
    return result


cdef LabelPanels label_panels(list panels, vector[const int*]& pointers):
    cdef LabelPanels found
    cdef const int[:, ::1] view
    for panel in panels:
        view = panel
        pointers.push_back(&view[0, 0])
    found.panels, found.count = pointers.data(), pointers.size()
    return found


def matches(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    Kernel kernel not None, Sweep sweep not None, list panels,
):
    """Sums of H over the pairs i != j with equal labels, for each column of the panels, shape (n, labels_at_once)."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, points, marks, labels, order, True)
    cdef vector[const int*] pointers
    cdef LabelPanels found = label_panels(panels, pointers)
    result = np.empty((len(panels), sweep.run.table.labels_at_once))
    cdef double[:, ::1] out = result
    cdef double* out_pointer = &out[0, 0]
    cdef bint finished
    with nogil:
        finished = c_matches(problem, sweep.run, found, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def match_parts(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const int64_t[::1] right_order,
    bint symmetric, Kernel kernel not None, Sweep sweep not None, list panels, int64_t first_row, int64_t first_column,
):
    """The sums of `matches` by groups, shape (a, b, columns), as `quadratic_parts` has those of forms."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, right_points, right_marks, right_labels, right_order, symmetric)
    cdef Groups groups = c_groups(problem, sweep.run)
    cdef vector[const int*] pointers
    cdef LabelPanels found = label_panels(panels, pointers)
    result = np.empty((groups.rows, groups.columns, found.length(sweep.run.table[0])))
    cdef double[:, :, ::1] out = result
    cdef double* out_pointer = &out[0, 0, 0]
    cdef bint finished
    with nogil:
        finished = c_match_parts(problem, sweep.run, found, first_row, first_column, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def labels_at_once(Sweep sweep not None):
    """Columns of a panel of labels."""
    return sweep.run.table.labels_at_once


def quadratic_parts(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const int64_t[::1] right_order,
    bint symmetric, Kernel kernel not None, Sweep sweep not None, list panels, const weight[:, ::1] first_panel,
    int64_t first_row, int64_t first_column,
):
    """The sums of `quadratic_forms` by groups, shape (a, b, panels, weights_at_once), for rows and columns of H.

    Their weights are the panels' rows from `first_row` and from `first_column` on.
    """
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, right_points, right_marks, right_labels, right_order, symmetric)
    cdef Groups found = c_groups(problem, sweep.run)
    cdef vector[const weight*] pointers
    cdef const weight[:, ::1] panel
    for panel in panels:
        pointers.push_back(&panel[0, 0])
    result = np.empty((found.rows, found.columns, len(panels), c_weights_at_once(sweep.run.table[0], sizeof(weight))))
    cdef double[:, :, :, ::1] out = result
    cdef double* out_pointer = &out[0, 0, 0, 0]
    cdef bint finished
    with nogil:
        finished = c_quadratic_parts(
            problem, sweep.run, pointers.data(), pointers.size(), first_row, first_column, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def weights_at_once(dtype, Sweep sweep not None):
    """Columns of a panel of weights."""
    cdef int64_t size = np.dtype(dtype).itemsize
    return c_weights_at_once(sweep.run.table[0], size)


THRESHOLDS = N_THRESHOLDS


def counts(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    Kernel kernel not None, Sweep sweep not None, const double[::1] thresholds,
):
    """Number of pairs i < j with H_ij below each of the THRESHOLDS thresholds."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, points, marks, labels, order, True)
    result = np.empty(N_THRESHOLDS, dtype=np.int64)
    cdef int64_t[::1] out = result
    cdef int64_t* out_pointer = &out[0]
    cdef const double* thresholds_pointer = &thresholds[0]
    cdef bint finished
    with nogil:
        finished = c_counts(problem, sweep.run, thresholds_pointer, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def between(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    Kernel kernel not None, Sweep sweep not None, double low, double high, int64_t most,
):
    """The entries H_ij, i < j, in [low, high), `most` of them and in no order; how many there are, and are below."""
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, points, marks, labels, order, True)
    result = np.empty(most)
    cdef double[::1] out = result
    cdef double* out_pointer = &out[0] if most else NULL
    cdef int64_t found = 0
    cdef int64_t below = 0
    cdef bint finished
    with nogil:
        finished = c_between(problem, sweep.run, low, high, out_pointer, most, &found, &below)
    sweep.raise_if_stopped(finished)
    return result[:min(found, most)], found, below


def block_sums(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    Kernel kernel not None, Sweep sweep not None, int64_t size,
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
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const int64_t[::1] right_order,
    bint symmetric, Kernel kernel not None, Sweep sweep not None, const double[:, ::1] vectors, bint single,
    const double[:, ::1] left_vectors=None, bint in_units=False,
):
    """H @ vectors for `vectors` of shape (n right, c), which, as the result, the orders refer to; `single`: in float32.

    `in_units`: the entries rounded as those of `matches`, of symmetric problems those off the diagonal.
    And, of rectangular problems, H^T @ left_vectors of shape (n, c), None where these are.
    """
    cdef PairProblem[real] problem = pair_problem[real](
        kernel, points, marks, labels, order, right_points, right_marks, right_labels, right_order, symmetric)
    result = np.empty((points.shape[0], vectors.shape[1]))
    columns = None if left_vectors is None else np.empty((right_points.shape[0], vectors.shape[1]))
    cdef double[:, ::1] out = result
    cdef double[:, ::1] column_out
    cdef double* out_pointer = &out[0, 0]
    cdef double* column_pointer = NULL
    cdef const double* vectors_pointer = &vectors[0, 0]
    cdef const double* left_pointer = NULL
    cdef int64_t n_vectors = vectors.shape[1]
    cdef Entries entries = Entries.DOUBLE
    if in_units:
        entries = Entries.IN_UNITS
    elif single:
        entries = Entries.SINGLE
    if left_vectors is not None:
        column_out = columns
        column_pointer = &column_out[0, 0]
        left_pointer = &left_vectors[0, 0]
    cdef bint finished
    with nogil:
        finished = c_matmul(
            problem, sweep.run, vectors_pointer, left_pointer, n_vectors, entries, out_pointer, column_pointer)
    sweep.raise_if_stopped(finished)
    return result, columns


def entries(
    const real[:, ::1] points, const real[:, ::1] marks, const int[::1] labels, const int64_t[::1] order,
    const real[:, ::1] right_points, const real[:, ::1] right_marks, const int[::1] right_labels,
    const int64_t[::1] right_order,
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
