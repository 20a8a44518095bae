# Products of tall matrices: src/cpu/linalg/tall.h.

cdef extern from "cpu/linalg/tall.h" namespace "kcalib" nogil:
    cdef cppclass Tall:
        const double* columns
        int64_t count
        int64_t n
    bint c_tall_inner_products "kcalib::tall_inner_products"(
        const Tall&, const double*, int64_t, const Run&, double*) except +
    bint c_tall_combined "kcalib::tall_combined"(const Tall&, const double*, int64_t, const Run&, double*) except +
    cdef cppclass TallRows:
        const double* numbers
        int64_t columns
    bint c_inner_products_of_rows "kcalib::inner_products_of_rows"(
        const vector[TallRows]&, int64_t, const Run&, double*) except +
    bint c_combined_rows "kcalib::combined_rows"(
        const vector[TallRows]&, int64_t, const double*, int64_t, const Run&, int64_t, double*) except +
    int64_t c_inverse_root "kcalib::inverse_root"(double*, int64_t, int64_t) except +


def tall_inner_products(const double[:, ::1] columns, const double[:, ::1] vectors, Sweep sweep not None):
    """columns @ vectors, shape (columns, vectors), of columns (count, n) and vectors (n, c); not empty."""
    result = np.empty((columns.shape[0], vectors.shape[1]))
    cdef double[:, ::1] out = result
    cdef Tall tall
    tall.columns, tall.count, tall.n = &columns[0, 0], columns.shape[0], columns.shape[1]
    cdef const double* right = &vectors[0, 0]
    cdef int64_t c = vectors.shape[1]
    cdef double* out_pointer = &out[0, 0]
    cdef bint finished
    with nogil:
        finished = c_tall_inner_products(tall, right, c, sweep.run, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def tall_combined(const double[:, ::1] columns, const double[:, ::1] weights, Sweep sweep not None):
    """weights.T @ columns, shape (c, n), of columns (count, n) and weights (count, c); not empty."""
    result = np.empty((weights.shape[1], columns.shape[1]))
    cdef double[:, ::1] out = result
    cdef Tall tall
    tall.columns, tall.count, tall.n = &columns[0, 0], columns.shape[0], columns.shape[1]
    cdef const double* right = &weights[0, 0]
    cdef int64_t c = weights.shape[1]
    cdef double* out_pointer = &out[0, 0]
    cdef bint finished
    with nogil:
        finished = c_tall_combined(tall, right, c, sweep.run, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


cdef int64_t append_rows(vector[TallRows]& rows, const double[:, ::1] block):
    cdef TallRows own
    own.numbers, own.columns = &block[0, 0], block.shape[1]
    rows.push_back(own)
    return block.shape[0]


def inner_products_of_rows(list blocks, Sweep sweep not None):
    """Inner products of the columns of all blocks, each (n, columns), with those of the last one; none is empty."""
    cdef vector[TallRows] rows
    cdef int64_t n = 0, columns = 0
    for block in blocks:
        n = append_rows(rows, block)
        columns += block.shape[1]
    result = np.empty((columns, blocks[-1].shape[1]))
    cdef double[:, ::1] out = result
    cdef double* out_pointer = &out[0, 0]
    cdef bint finished
    with nogil:
        finished = c_inner_products_of_rows(rows, n, sweep.run, out_pointer)
    sweep.raise_if_stopped(finished)
    return result


def combined_rows(list blocks, const double[:, ::1] weights, Sweep sweep not None, out):
    """Writes the sum of the blocks times their rows of the weights (columns of all, c) to (n, c) whose rows are apart."""
    cdef vector[TallRows] rows
    for block in blocks:
        append_rows(rows, block)
    cdef double[:, :] written = out
    cdef int64_t n = written.shape[0], c = written.shape[1], stride = written.strides[0] // sizeof(double)
    cdef bint finished
    with nogil:
        finished = c_combined_rows(rows, n, &weights[0, 0], c, sweep.run, stride, &written[0, 0])
    sweep.raise_if_stopped(finished)


def inverse_root(const double[:, :] matrix):
    """(L^-1, -1) of a symmetric L L^T, not empty; or (a part of it, the row that shows it not to be positive definite)."""
    cdef int64_t size = matrix.shape[0], stride = (2 * size + 16 + 7) // 8 * 8, fault
    work = np.zeros((size, stride))
    work[:, :size] = matrix
    work[:, size : 2 * size] = np.eye(size)
    cdef double[:, ::1] rows = work
    with nogil:
        fault = c_inverse_root(&rows[0, 0], size, stride)
    return work[:, size : 2 * size], fault
