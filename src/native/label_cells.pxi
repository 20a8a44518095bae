# Cells of predictions, src/cpu/samples/label_cells.h, maps of them, src/cpu/samples/temperature_sums.h, and sums in fixed
# point, src/cpu/state/exact_sums.h.

cdef extern from "cpu/state/exact_sums.h" namespace "kcalib" nogil:
    cdef cppclass ExactSums:
        int64_t* high
        int64_t* low


cdef extern from "cpu/samples/label_cells.h" namespace "kcalib" nogil:
    cdef cppclass LabelCells:
        const double* edges
        const double* top_edges
        int64_t n_cells
        int64_t n_top_cells
        double floor
        int64_t size(int64_t)
    cdef cppclass DrawnCells:
        LabelCells cells
        double* counts
        int64_t* fractions
        ExactSums log_scores
    cdef cppclass LabelSums:
        ExactSums cells
        ExactSums logs
        int64_t* impossible
    bint c_sum_label_cells "kcalib::sum_label_cells"(
        const Predictions&, const LabelCells&, const Run&, const LabelSums&) except +


cdef extern from "cpu/samples/temperature_sums.h" namespace "kcalib" nogil:
    bint c_sum_temperatures "kcalib::sum_temperatures"(
        const Predictions&, double, const Run&, const ExactSums&) except +


cdef ExactSums exact_sums(pair):
    # The caller's arrays, which it keeps.
    cdef int64_t[::1] high = pair[0]
    cdef int64_t[::1] low = pair[1]
    cdef ExactSums sums
    sums.high, sums.low = &high[0], &low[0]
    return sums


cdef LabelCells label_cells(parts):
    # Edges of all classes, edges of the largest probability, and the floor of probabilities; the caller keeps them.
    cdef const double[::1] edges = parts[0]
    cdef const double[::1] top_edges = parts[1]
    cdef LabelCells cells
    cells.edges, cells.top_edges, cells.floor = &edges[0], &top_edges[0], parts[2]
    cells.n_cells, cells.n_top_cells = edges.shape[0] + 1, top_edges.shape[0] + 1
    return cells


cdef DrawnCells drawn_cells(parts, int64_t n_draws, int64_t m):
    # `label_cells`, counts (draws, size) in one dimension, their fractions or None, and sums of logarithms (draws,); the
    # caller keeps them.
    cdef DrawnCells to
    cdef double[::1] counts = parts[1]
    cdef int64_t[::1] fractions = parts[2]
    to.cells, to.log_scores = label_cells(parts[0]), exact_sums(parts[3])
    assert counts.shape[0] == n_draws * to.cells.size(m) and len(parts[3][0]) == n_draws
    to.counts = &counts[0]
    to.fractions = NULL
    if fractions is not None:
        assert fractions.shape[0] == counts.shape[0]
        to.fractions = &fractions[0]
    return to


def sum_label_cells(
    const double[:, ::1] p, const int64_t[::1] labels, const double[::1] weight, cells, sums, logs,
    int64_t[::1] impossible, RunOptions options not None,
):
    """Adds the rows to `sums` and `logs`, pairs of int64 arrays (high, low) in one dimension, and to `impossible` (1,)."""
    cdef Predictions data = predictions(p, labels, weight)
    cdef LabelCells to = label_cells(cells)
    cdef LabelSums out
    cdef bint finished
    out.cells, out.logs, out.impossible = exact_sums(sums), exact_sums(logs), &impossible[0]
    assert len(sums[0]) == 4 * to.size(p.shape[1]) and len(logs[0]) == 3
    with nogil:
        finished = c_sum_label_cells(data, to, options.run, out)
    options.raise_if_stopped(finished)


def sum_temperatures(
    const double[:, ::1] p, const int64_t[::1] labels, double floor, sums, RunOptions options not None,
):
    """Adds the rows to `sums`, a pair of int64 arrays (high, low) in one dimension, five for each of 14 exponents."""
    cdef Predictions data = predictions(p, labels, None)
    cdef ExactSums out = exact_sums(sums)
    cdef bint finished
    assert len(sums[0]) == 5 * 14
    with nogil:
        finished = c_sum_temperatures(data, floor, options.run, out)
    options.raise_if_stopped(finished)
