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
    cdef cppclass CSide "kcalib::Side<void>":
        const void* points
        int64_t n_coordinates
        const void* features
        int64_t n_features
        const int* labels
        const int* classes
        const double* centre
        const int64_t* order
        int64_t n
        bint expecting
    int N_THRESHOLDS "kcalib::THRESHOLDS"


cdef extern from "cpu/pairs/sweep.h" namespace "kcalib" nogil:
    cdef cppclass CProblem "kcalib::AnyProblem":
        PairProgram program
        CSide left
        CSide right
        bint symmetric
        bint single
    cdef struct Groups:
        int64_t block
        int64_t per_group
        int64_t rows
        int64_t columns
    cdef cppclass CReduction "kcalib::Reduction":
        pass
    Groups c_groups "kcalib::groups_of"(const CProblem&, const Run&)
    bint c_sweep "kcalib::sweep"(const CProblem&, const Run&, CReduction**, int64_t) except +
    bint c_own_products "kcalib::own_products"(const CProblem&, const Run&, void*) except +
    void c_merge "kcalib::merge"(const Run&, const double*, int64_t, int64_t, double*)
    int64_t c_weights_at_once "kcalib::weights_at_once"(const TileTable&, int64_t size)


cdef extern from "cpu/reductions/block_sums.h" namespace "kcalib" nogil:
    bint c_sum_blocks "kcalib::sum_blocks"(const CProblem&, const Run&, int64_t, double*) except +


cdef extern from "cpu/reductions/moments.h" namespace "kcalib" nogil:
    cdef struct MomentParts:
        double* totals
        double* rows
        double* columns
        double* squares
        double* expected
    cdef cppclass CMoments "kcalib::Moments"(CReduction):
        CMoments(const MomentParts&) except +


cdef extern from "cpu/reductions/quadratic_forms.h" namespace "kcalib" nogil:
    cdef cppclass CQuadraticForms "kcalib::QuadraticForms"[W](CReduction):
        CQuadraticForms(const W* const*, int64_t, int64_t, int64_t, double*) except +


cdef extern from "cpu/reductions/label_matches.h" namespace "kcalib" nogil:
    cdef cppclass CLabelMatches "kcalib::LabelMatches"(CReduction):
        CLabelMatches(const int* const*, int64_t, int64_t, int64_t, double*) except +


cdef extern from "cpu/reductions/products.h" namespace "kcalib" nogil:
    cdef struct ProductArrays:
        const double* vectors
        const double* left_vectors
        double* out
        double* column_out
        int64_t stride
        int64_t count
        bint is_apart
    cdef cppclass CProducts "kcalib::Products"[W](CReduction):
        CProducts(const ProductArrays&, bint) except +


cdef extern from "cpu/reductions/counts.h" namespace "kcalib" nogil:
    cdef cppclass CCounts "kcalib::Counts"(CReduction):
        CCounts(const double*, int64_t*) except +


cdef extern from "cpu/reductions/entries_in_range.h" namespace "kcalib" nogil:
    cdef cppclass CEntriesInRange "kcalib::EntriesInRange"(CReduction):
        CEntriesInRange(double, double, double*, int64_t) except +
        int64_t inside()
        int64_t below()


cdef extern from "cpu/reductions/dense_rectangle.h" namespace "kcalib" nogil:
    cdef cppclass CDenseRectangle "kcalib::DenseRectangle"(CReduction):
        CDenseRectangle(double*) except +


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
    """What is computed of points and features: the terms of the kernel, what features (`target`) and points (`predicted`)
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


cdef void set_side(CSide* side, Kernel kernel, tuple arrays) except *:
    points, features, labels_or_none, order_or_none = arrays
    cdef const int[::1] labels = labels_or_none
    cdef const int64_t[::1] order = order_or_none
    cdef bint single = points.dtype == np.float32
    side.n, side.n_coordinates = points.shape
    side.points, side.features = reals(points, single), reals(features, single)
    side.n_features = (points if features is None else features).shape[1]
    side.labels = side.classes = NULL
    side.centre = NULL
    side.order = NULL
    side.expecting = False
    if labels is not None and not kernel.one_product:
        side.classes = &labels[0]
    elif labels is not None:
        side.labels = &labels[0]
        if kernel.centre is not None:
            side.centre = &kernel.centre[0]
    if order is not None:
        side.order = &order[0]
        side.n = order.shape[0]


cdef class Problem:
    """A pair problem: its kernel, and the arrays (points, features, labels, order) of each side, which it keeps.

    The samples are those that `order` names, all of them where it is None. Without a right side the problem is symmetric.
    """

    cdef CProblem problem
    cdef readonly tuple left, right
    cdef Kernel kernel

    def __init__(self, Kernel kernel not None, tuple left not None, tuple right=None):
        self.kernel, self.left, self.right = kernel, left, left if right is None else right
        self.problem.program = kernel.program
        self.problem.symmetric = right is None
        self.problem.single = left[0].dtype == np.float32
        set_side(&self.problem.left, kernel, self.left)
        set_side(&self.problem.right, kernel, self.right)

    def groups(self, RunOptions options not None):
        """How the pairs are cut: samples of a block, and blocks of a group; see src/cpu/sweep.h."""
        cdef Groups groups = c_groups(self.problem, options.run)
        return groups.block, groups.per_group

    def sweep(self, list reductions not None, RunOptions options not None, bint merged=True):
        """The results of the reductions, of one sweep; without `merged` sums of pairs of groups as they are."""
        cdef vector[CReduction*] pointers
        cdef Groups groups = c_groups(self.problem, options.run)
        cdef Reduction reduction
        cdef bint finished
        for reduction in reductions:
            reduction.start(self, groups, options)
            pointers.push_back(reduction.reduction.get())
        with nogil:
            finished = c_sweep(self.problem, options.run, pointers.data(), pointers.size())
        options.raise_if_stopped(finished)
        return [reduction.merged(options) if merged else reduction.parts() for reduction in reductions]

    def block_sums(self, int64_t size, RunOptions options not None):
        """Sums over the pairs i != j of consecutive blocks of `size` samples; symmetric problems."""
        result = np.empty(self.problem.left.n // size)
        cdef double* out = doubles(result)
        cdef bint finished
        with nogil:
            finished = c_sum_blocks(self.problem, options.run, size, out)
        options.raise_if_stopped(finished)
        return result

    def own_products(self, RunOptions options not None):
        """The product of each point with itself under the target kernel, for points that are mixtures."""
        result = np.empty(self.problem.left.n, self.left[0].dtype)
        cdef void* out = reals(result, self.problem.single)
        cdef bint finished
        with nogil:
            finished = c_own_products(self.problem, options.run, out)
        options.raise_if_stopped(finished)
        return result


cdef merged_parts(parts, int64_t count, RunOptions options):
    """The sums of `count` parts, which are added up in order."""
    cdef int64_t length = parts.size // count
    result = np.empty(length)
    cdef double* numbers = doubles(parts)
    cdef double* out = doubles(result)
    with nogil:
        c_merge(options.run, numbers, count, length, out)
    return result


cdef class Reduction:
    """What a sweep keeps; see src/cpu/reductions/."""

    cdef unique_ptr[CReduction] reduction

    cdef start(self, Problem problem, const Groups& groups, RunOptions options):
        raise NotImplementedError

    cdef parts(self):
        """Sums of pairs of groups (a, b), or the result, where it needs no merging."""
        raise NotImplementedError

    cdef merged(self, RunOptions options):
        return self.parts()


cdef class Moments(Reduction):
    """Total; row and column sums if `rows`; with these the sum of `squares`, and with that the null variance.

    Column sums are those of rectangular problems, else None. The null variance is of points that are probabilities of
    labels: the expectation of the sum of squares given these, and the sum of kernel^2 <x, x'>, of which its roundings are a
    share. Without merging totals and squares have shape (a, b), row sums (b, n), column sums (a, n right), and null
    variances (a, b, 2).
    """

    cdef bint rows, squares, null_variance
    cdef tuple arrays

    def __init__(self, bint rows=True, bint squares=False, bint null_variance=False):
        self.rows, self.squares, self.null_variance = rows, squares, null_variance

    cdef start(self, Problem problem, const Groups& groups, RunOptions options):
        shape = groups.rows, groups.columns
        self.arrays = (
            np.empty(shape),
            np.empty((groups.columns, problem.problem.left.n)) if self.rows else None,
            np.empty((groups.rows, problem.problem.right.n)) if self.rows and not problem.problem.symmetric else None,
            np.empty(shape) if self.squares else None,
            np.empty((*shape, 2)) if self.null_variance else None,
        )
        cdef MomentParts parts
        parts.totals, parts.rows, parts.columns = doubles(self.arrays[0]), doubles(self.arrays[1]), doubles(self.arrays[2])
        parts.squares, parts.expected = doubles(self.arrays[3]), doubles(self.arrays[4])
        self.reduction.reset(new CMoments(parts))

    cdef parts(self):
        return self.arrays

    cdef merged(self, RunOptions options):
        totals, rows, columns, squares, expected = self.arrays
        return (
            merged_parts(totals, totals.size, options)[0],
            None if rows is None else merged_parts(rows, len(rows), options),
            None if columns is None else merged_parts(columns, len(columns), options),
            None if squares is None else merged_parts(squares, squares.size, options)[0],
            None if expected is None else tuple(merged_parts(expected, totals.size, options)),
        )


cdef class QuadraticForms(Reduction):
    """w^T H w for each column w of panels (n, weights_at_once) of one dtype, diagonal included.

    Of rectangles the rows have the panels' rows from `first_row` on, the columns those from `first_column` on. Without
    merging the shape is (a, b, columns of all panels).
    """

    cdef list panels
    cdef int64_t first_row, first_column
    cdef object forms
    cdef vector[const double*] wide
    cdef vector[const float*] narrow

    def __init__(self, list panels not None, int64_t first_row=0, int64_t first_column=0):
        self.panels, self.first_row, self.first_column = panels, first_row, first_column
        for panel in panels:
            if panel.dtype == np.float32:
                self.narrow.push_back(floats(panel))
            else:
                self.wide.push_back(doubles(panel))

    cdef start(self, Problem problem, const Groups& groups, RunOptions options):
        self.forms = np.empty((groups.rows, groups.columns, sum(panel.shape[1] for panel in self.panels)))
        cdef double* out = doubles(self.forms)
        if self.narrow.size():
            self.reduction.reset(
                new CQuadraticForms[float](self.narrow.data(), self.narrow.size(), self.first_row, self.first_column, out))
        else:
            self.reduction.reset(
                new CQuadraticForms[double](self.wide.data(), self.wide.size(), self.first_row, self.first_column, out))

    cdef parts(self):
        return self.forms

    cdef merged(self, RunOptions options):
        return merged_parts(self.forms, self.forms.shape[0] * self.forms.shape[1], options)


cdef class LabelMatches(Reduction):
    """Sums of H over the pairs i != j with equal labels, for each column of int32 panels (n, labels_at_once).

    Entries are rounded, see src/cpu/reductions/label_matches.h. Rectangles, and shapes, as in `QuadraticForms`.
    """

    cdef list panels
    cdef int64_t first_row, first_column
    cdef object sums
    cdef vector[const int*] pointers

    def __init__(self, list panels not None, int64_t first_row=0, int64_t first_column=0):
        cdef const int[:, ::1] view
        self.panels, self.first_row, self.first_column = panels, first_row, first_column
        for panel in panels:
            view = panel
            self.pointers.push_back(&view[0, 0])

    cdef start(self, Problem problem, const Groups& groups, RunOptions options):
        self.sums = np.empty((groups.rows, groups.columns, sum(panel.shape[1] for panel in self.panels)))
        self.reduction.reset(
            new CLabelMatches(self.pointers.data(), self.pointers.size(), self.first_row, self.first_column, doubles(self.sums)))

    cdef parts(self):
        return self.sums

    cdef merged(self, RunOptions options):
        return merged_parts(self.sums, self.sums.shape[0] * self.sums.shape[1], options)


cdef class Products(Reduction):
    """H @ vectors for `vectors` of shape (n right, c), and H^T @ left_vectors of shape (n, c), or None.

    Rows of both are those of the points, whatever the order. `single`: in float32. `rounded` entries are those of
    `LabelMatches`, in float64, of symmetric problems without the diagonal; others have the diagonal. `apart`: products with
    each group of the other side by themselves, shapes (b, n, c) and (a, n right, c); sides have no order.
    """

    cdef object vectors, left_vectors
    cdef bint single, rounded, apart
    cdef tuple arrays

    def __init__(self, vectors, left_vectors=None, *, bint single=False, bint rounded=False, bint apart=False):
        self.vectors, self.left_vectors = vectors, left_vectors
        self.single, self.rounded, self.apart = single, rounded, apart

    cdef start(self, Problem problem, const Groups& groups, RunOptions options):
        cdef ProductArrays arrays
        n, n_right, count = problem.left[0].shape[0], problem.right[0].shape[0], self.vectors.shape[1]
        self.arrays = (
            np.empty((groups.columns, n, count) if self.apart else (n, count)),
            None if self.left_vectors is None else np.empty((groups.rows, n_right, count) if self.apart else (n_right, count)),
        )
        arrays.vectors, arrays.left_vectors = doubles(self.vectors), doubles(self.left_vectors)
        arrays.out, arrays.column_out = doubles(self.arrays[0]), doubles(self.arrays[1])
        arrays.stride = arrays.count = count
        arrays.is_apart = self.apart
        if self.single and not self.rounded:
            self.reduction.reset(new CProducts[float](arrays, False))
        else:
            self.reduction.reset(new CProducts[double](arrays, self.rounded))

    cdef parts(self):
        return self.arrays


cdef class Counts(Reduction):
    """Number of pairs i < j with H_ij below each of the THRESHOLDS thresholds."""

    cdef const double[::1] thresholds
    cdef object counts

    def __init__(self, const double[::1] thresholds not None):
        self.thresholds = thresholds

    cdef start(self, Problem problem, const Groups& groups, RunOptions options):
        self.counts = np.empty(N_THRESHOLDS, dtype=np.int64)
        cdef int64_t[::1] out = self.counts
        self.reduction.reset(new CCounts(&self.thresholds[0], &out[0]))

    cdef parts(self):
        return self.counts


cdef class EntriesInRange(Reduction):
    """The entries H_ij, i < j, in [low, high), `most` of them and in no order; how many there are, and are below."""

    cdef double low, high
    cdef object values

    def __init__(self, double low, double high, int64_t most):
        self.low, self.high, self.values = low, high, np.empty(most)

    cdef start(self, Problem problem, const Groups& groups, RunOptions options):
        self.reduction.reset(new CEntriesInRange(self.low, self.high, doubles(self.values), self.values.size))

    cdef parts(self):
        cdef CEntriesInRange* reduction = <CEntriesInRange*>self.reduction.get()
        return self.values[: min(reduction.inside(), self.values.size)], reduction.inside(), reduction.below()


cdef class DenseRectangle(Reduction):
    """H, of rectangular problems."""

    cdef object matrix

    cdef start(self, Problem problem, const Groups& groups, RunOptions options):
        self.matrix = np.empty((problem.problem.left.n, problem.problem.right.n))
        self.reduction.reset(new CDenseRectangle(doubles(self.matrix)))

    cdef parts(self):
        return self.matrix


THRESHOLDS = N_THRESHOLDS


def weights_at_once(dtype, RunOptions options not None):
    """Columns of a panel of weights."""
    return c_weights_at_once(options.run.table[0], np.dtype(dtype).itemsize)


def labels_at_once(RunOptions options not None):
    """Columns of a panel of labels."""
    return options.run.table.labels_at_once
