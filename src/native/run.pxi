# How compiled code runs: threads, instruction set, signals, progress; the weights of replicates; rates of the machine.

cdef extern from "cpu/pairs/tile.h" namespace "kcalib" nogil:
    cdef cppclass TileTable:
        const char* name
        int labels_at_once
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
        COS_PI
        SIN
        COS


cdef extern from "cpu/simd/cpu_level.h" namespace "kcalib" nogil:
    const TileTable* tile_table(size_t k) except +


cdef extern from "cpu/simd/threads.h" namespace "kcalib" nogil:
    cdef cppclass Run:
        const TileTable* table
        int threads
        int (*poll)(void* context, double done) noexcept
        void* context
        int64_t block
        int64_t per_group
    const char* c_thread_library "kcalib::thread_library"()
    int c_max_threads "kcalib::max_threads"()
    int count_running_sweeps()
    void register_fork_handler()


cdef extern from "cpu/pairs/sweep.h" namespace "kcalib" nogil:
    double c_probe "kcalib::probe"[T](const Run&, Probe, int64_t) except +
    void c_evaluate "kcalib::evaluate"[T](const Run&, ScalarFunction, const T*, double, int64_t, T*)


cdef extern from "cpu/random/resampling.h" namespace "kcalib" nogil:
    cdef enum WeightKind:
        pass
    bint c_fill_weights "kcalib::fill_weights"[T](
        WeightKind, unsigned long long, unsigned long long, int64_t, int64_t, T*, const Run&) except +
    bint c_count_products "kcalib::count_products"(
        unsigned long long, unsigned long long, int64_t, int64_t, const double*, double*, const Run&) except +


cdef extern from "cpu/random/drawn_labels.h" namespace "kcalib" nogil:
    bint c_draw_labels "kcalib::draw_labels"(
        const double*, int64_t, int64_t, unsigned long long, unsigned long long, unsigned long long, int64_t, int*, const Run&,
    ) except +
    bint c_label_thresholds "kcalib::label_thresholds"(
        const double*, int64_t, const Run&, unsigned long long*) except +
    void c_label_sums "kcalib::label_sums"(const double*, int64_t, int64_t, const int*, int64_t, double*, const Run&)
    bint c_changed_sums "kcalib::changed_sums"(
        const double*, int64_t, int64_t, const double*, const int*, const int*, int64_t, double*, const Run&) except +


def cpu_levels():
    """The names of the instruction levels that may be used, the best first."""
    names = []
    while tile_table(len(names)) != NULL:
        names.append(tile_table(len(names)).name.decode())
    return tuple(names)


cpu_levels()  # raises where the environment variable KCALIB_CPU_LEVEL is wrong


cdef class RunOptions:
    """How to run: threads, progress callback, and for a rectangle of a larger problem the rows of that problem's blocks, and
    the blocks of its groups; see `Problem.groups`."""

    cdef Run run
    cdef object progress
    cdef object error

    def __init__(self, int threads, progress=None, int64_t block=0, int64_t per_group=0):
        self.run.table = tile_table(0)
        self.run.threads = threads
        self.run.block, self.run.per_group = block, per_group
        self.run.poll = poll
        self.run.context = <void*>self
        self.progress = progress
        self.error = None

    cdef raise_if_stopped(self, bint finished):
        if not finished:
            error, self.error = self.error, None
            raise error


cdef int poll(void* context, double done) noexcept with gil:
    # Python's signal handlers run here: Ctrl-C stops a sweep.
    cdef RunOptions options = <RunOptions>context
    try:
        PyErr_CheckSignals()
        if options.progress is not None:
            options.progress(done)
    except BaseException as error:
        options.error = error
        return 1
    return 0


def fill_weights(int kind, unsigned long long seed, unsigned long long first_replicate, out, RunOptions options not None):
    """Writes the weights of the rows in replicates from `first_replicate` on; out float64 or float32."""
    cdef int64_t n = out.shape[0], n_replicates = out.shape[1]
    cdef bint single = out.dtype == np.float32, finished
    cdef void* pointer = address(out, "f" if single else "d", PyBUF_WRITABLE)
    cdef WeightKind weights = <WeightKind>kind
    with nogil:
        if single:
            finished = c_fill_weights(weights, seed, first_replicate, n_replicates, n, <float*>pointer, options.run)
        else:
            finished = c_fill_weights(weights, seed, first_replicate, n_replicates, n, <double*>pointer, options.run)
    options.raise_if_stopped(finished)


def count_products(
    unsigned long long seed, unsigned long long first_replicate, const double[::1] vector, double[::1] out,
    RunOptions options not None,
):
    """Writes the products of `vector` with the counts of draws in replicates from `first_replicate` on; out not empty."""
    cdef double* out_pointer = &out[0]
    cdef const double* vector_pointer = &vector[0]
    cdef int64_t n = vector.shape[0]
    cdef int64_t n_replicates = out.shape[0]
    cdef bint finished
    with nogil:
        finished = c_count_products(seed, first_replicate, n_replicates, n, vector_pointer, out_pointer, options.run)
    options.raise_if_stopped(finished)


def draw_labels(
    const double[:, ::1] cumulative, unsigned long long key0, unsigned long long key1, unsigned long long first,
    int[:, ::1] out, RunOptions options not None,
):
    """Writes labels (n, draws), drawn by NumPy's Philox numbers from `first` on, draw after draw; out not empty."""
    cdef const double* sums = &cumulative[0, 0]
    cdef int* out_pointer = &out[0, 0]
    cdef int64_t n = cumulative.shape[0]
    cdef int64_t m = cumulative.shape[1]
    cdef int64_t n_draws = out.shape[1]
    cdef bint finished
    with nogil:
        finished = c_draw_labels(sums, n, m, key0, key1, first, n_draws, out_pointer, options.run)
    options.raise_if_stopped(finished)


def label_thresholds(const double[:, ::1] probabilities, RunOptions options not None):
    """What labels of rows of two probabilities are drawn by, shape (n,); see src/cpu/random/drawn_labels.h."""
    result = np.empty(probabilities.shape[0], dtype=np.uint64)
    cdef unsigned long long[::1] out = result
    cdef bint finished
    with nogil:
        finished = c_label_thresholds(&probabilities[0, 0], probabilities.shape[0], options.run, &out[0])
    options.raise_if_stopped(finished)
    return result


def label_sums(const double[:, ::1] table, const int[:, ::1] labels, RunOptions options not None):
    """sum_i table[i, labels[i, d]] of each draw d; labels not empty."""
    result = np.empty(labels.shape[1])
    cdef double* out = doubles(result)
    with nogil:
        c_label_sums(&table[0, 0], table.shape[0], table.shape[1], &labels[0, 0], labels.shape[1], out, options.run)
    return result


def changed_sums(
    const double[:, ::1] rows, const double[:, ::1] values, const int[::1] likely, const int[:, ::1] labels,
    RunOptions options not None,
):
    """sum_i rows[i] (values[labels[i, d]] - values[likely[i]]) of each draw d, shape (draws, columns); not empty.

    A multiple of 8 columns; `labels` and `likely` are rows of `values`.
    """
    result = np.empty((labels.shape[1], rows.shape[1]))
    cdef double* out = doubles(result)
    cdef int64_t n = rows.shape[0], width = rows.shape[1], n_draws = labels.shape[1]
    cdef bint finished
    with nogil:
        finished = c_changed_sums(
            &rows[0, 0], n, width, &values[0, 0], &likely[0], &labels[0, 0], n_draws, out, options.run)
    options.raise_if_stopped(finished)
    return result


def probe(str what, dtype, int64_t repetitions, RunOptions options not None):
    """Number of elements on which `what` ("fma", "exp", "sqrt") was done, all threads together."""
    cdef Probe operation = {"fma": Probe.FMA, "exp": Probe.EXP, "sqrt": Probe.SQRT}[what]
    cdef bint single = np.dtype(dtype) == np.float32
    cdef double elements
    with nogil:
        if single:
            elements = c_probe[float](options.run, operation, repetitions)
        else:
            elements = c_probe[double](options.run, operation, repetitions)
    return elements


def evaluate(str function, x, out, RunOptions options not None, double a=1.0):
    """Writes a function of x to out: the name of a `ScalarFunction` in lower case; "power" is x^a."""
    cdef ScalarFunction formula = ScalarFunction[function.upper()]
    if x.dtype == np.float32:
        c_evaluate[float](options.run, formula, floats(x), a, x.shape[0], floats(out))
    else:
        c_evaluate[double](options.run, formula, doubles(x), a, x.shape[0], doubles(out))


def thread_library():
    """Return what starts threads: "openmp" or "std" (std::thread)."""
    return c_thread_library().decode()


def max_threads():
    """Return OMP_NUM_THREADS or the number of processors; 1 in a forked child or inside a parallel region."""
    return c_max_threads()


def running_sweeps():
    """Number of sweeps that are running in this process."""
    return count_running_sweeps()


register_fork_handler()
