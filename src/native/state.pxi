# Sums of states in fixed point: src/cpu/state/state_scores.h, src/cpu/state/state_sums.h, and
# of draws src/cpu/features/features.h.

cdef extern from "cpu/state/state_scores.h" namespace "kcalib" nogil:
    cdef cppclass StateTally:
        ExactSums scores
        ExactSums cells
        int64_t* counts
        double* lowest
        double* highest
    bint c_state_scores "kcalib::state_scores"(
        const Predictions&, int64_t, double, const Run&, const StateTally&) except +


cdef extern from "cpu/state/state_sums.h" namespace "kcalib" nogil:
    cdef cppclass StateRows:
        const double* p
        const int64_t* labels
        const double* weights
        const double* root
        int64_t m
        int64_t rank
    cdef cppclass StateSums:
        ExactSums sums
        ExactSums own
        ExactSums null_own
    bint c_state_sums "kcalib::state_sums"(
        const FeatureMap&, const StateRows&, const int64_t*, int64_t, const Run&, const StateSums&) except +


cdef extern from "cpu/features/features.h" namespace "kcalib" nogil:
    cdef cppclass DrawnSums:
        ExactSums base
        ExactSums base_own
        ExactSums changes
        ExactSums changes_own
    bint c_drawn_block_sums "kcalib::drawn_block_sums"(
        const FeatureMap&, DrawnLabels, const int64_t*, int64_t, const Run&, const DrawnSums&) except +


def state_scores(
    const double[:, ::1] p, const int64_t[::1] labels, const double[::1] weight, int64_t n_bins, double epsilon,
    scores, cells, int64_t[::1] counts, double[::1] lowest, double[::1] highest, RunOptions options not None,
):
    """Adds the rows to `scores` and `cells`, pairs of int64 arrays (high, low) in one dimension, and to the others."""
    cdef Predictions data = predictions(p, labels, weight)
    cdef StateTally tally
    cdef bint finished
    tally.scores, tally.cells = exact_sums(scores), exact_sums(cells)
    tally.counts, tally.lowest, tally.highest = &counts[0], &lowest[0], &highest[0]
    with nogil:
        finished = c_state_scores(data, n_bins, epsilon, options.run, tally)
    options.raise_if_stopped(finished)


def state_sums(
    Features features not None, const double[:, ::1] p, const int64_t[::1] labels, const double[::1] weights,
    const double[:, ::1] root, const int64_t[::1] ends, sums, own, null_own, RunOptions options not None,
):
    """Adds the tiles of rows up to each of `ends` to sums as those above; `root` may be None."""
    cdef StateRows rows
    cdef StateSums out
    cdef bint finished
    rows.p, rows.labels, rows.weights, rows.m = &p[0, 0], &labels[0], &weights[0], p.shape[1]
    rows.root = NULL
    rows.rank = rows.m
    if root is not None:
        rows.root, rows.rank = &root[0, 0], root.shape[1]
    out.sums, out.own, out.null_own = exact_sums(sums), exact_sums(own), exact_sums(null_own)
    with nogil:
        finished = c_state_sums(features.map, rows, &ends[0], ends.shape[0], options.run, out)
    options.raise_if_stopped(finished)


def drawn_block_sums(
    Features features not None, const double[:, ::1] p, const double[:, ::1] root, unsigned long long seed,
    int64_t n_draws, const int64_t[::1] first_rows, base, base_own, changes, changes_own, RunOptions options not None,
    cells=None, const double[::1] weights=None,
):
    """Adds draws of labels of blocks of rows, as many for each of `first_rows`, to sums as those above.

    `cells` are as `drawn_cells` takes them; `weights`, of the rows, may be None for 1.
    """
    cdef DrawnLabels labels
    cdef DrawnCells into
    cdef DrawnSums out
    cdef bint finished
    labels.probabilities, labels.n, labels.m = &p[0, 0], p.shape[0] // first_rows.shape[0], p.shape[1]
    labels.root = NULL
    labels.rank = 0
    if root is not None:
        labels.root, labels.rank = &root[0, 0], root.shape[1]
    labels.seed, labels.first, labels.n_draws, labels.first_row = seed, 0, n_draws, 0
    if cells is not None:
        into = drawn_cells(cells, n_draws, p.shape[1])
        labels.cells = &into
    if weights is not None:
        assert weights.shape[0] == p.shape[0]
        labels.weights = &weights[0]
    out.base, out.base_own = exact_sums(base), exact_sums(base_own)
    out.changes, out.changes_own = exact_sums(changes), exact_sums(changes_own)
    with nogil:
        finished = c_drawn_block_sums(features.map, labels, &first_rows[0], first_rows.shape[0], options.run, out)
    options.raise_if_stopped(finished)
