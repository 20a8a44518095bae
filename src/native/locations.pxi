# Sums of values at test locations: src/cpu/locations/locations.h.

cdef extern from "cpu/locations/locations.h" namespace "kcalib" nogil:
    cdef cppclass LocatedSamples:
        const double* p
        const int64_t* labels
        int64_t n
        int64_t m
    cdef cppclass LocationPoints:
        KernelProgram kernel
        const double* points
        const int64_t* classes
        int64_t n_locations
    bint c_location_sums "kcalib::location_sums"(
        const LocatedSamples&, const LocationPoints&, const Run&, double*, double*, double*) except +
    bint c_location_fourth "kcalib::location_fourth"(
        const LocatedSamples&, const LocationPoints&, const double*, const Run&, double*) except +


cdef LocatedSamples located(const double[:, ::1] p, const int64_t[::1] labels):
    cdef LocatedSamples samples
    samples.p = &p[0, 0]
    samples.labels = NULL
    if labels is not None:
        samples.labels = &labels[0]
    samples.n = p.shape[0]
    samples.m = p.shape[1]
    return samples


cdef LocationPoints places(Kernel kernel, const double[:, ::1] points, const int64_t[::1] classes):
    cdef LocationPoints at
    at.kernel = kernel.program.kernel
    at.points = &points[0, 0]
    at.classes = &classes[0]
    at.n_locations = points.shape[0]
    return at


def location_sums(
    const double[:, ::1] points, const int64_t[::1] classes, const double[:, ::1] p, const int64_t[::1] labels,
    bint covariance, Kernel kernel not None, Sweep sweep not None,
):
    """Sums over samples of k_j ([y = c_j] - p_{c_j}) at each location j, (J,), and if `covariance` that of these values
    for drawn y, (J, J), and the largest |k_j|, (J,)."""
    cdef LocatedSamples samples = located(p, labels)
    cdef LocationPoints at = places(kernel, points, classes)
    differences = np.empty(at.n_locations)
    matrix = np.empty((at.n_locations, at.n_locations)) if covariance else None
    largest = np.empty(at.n_locations) if covariance else None
    cdef double[::1] differences_view = differences
    cdef double[:, ::1] matrix_view
    cdef double[::1] largest_view
    cdef double* matrix_pointer = NULL
    cdef double* largest_pointer = NULL
    if covariance:
        matrix_view = matrix
        largest_view = largest
        matrix_pointer = &matrix_view[0, 0]
        largest_pointer = &largest_view[0]
    cdef bint finished
    with nogil:
        finished = c_location_sums(
            samples, at, sweep.run, &differences_view[0], matrix_pointer, largest_pointer)
    sweep.raise_if_stopped(finished)
    return differences, matrix, largest


def location_fourth(
    const double[:, ::1] points, const int64_t[::1] classes, const double[:, ::1] p, const double[:, ::1] gram,
    Kernel kernel not None, Sweep sweep not None,
):
    """sum_i E (v^T gram v)^2 of the values v at the locations, for y drawn from p_i."""
    cdef LocatedSamples samples = located(p, None)
    cdef LocationPoints at = places(kernel, points, classes)
    cdef double fourth = 0
    cdef bint finished
    with nogil:
        finished = c_location_fourth(samples, at, &gram[0, 0], sweep.run, &fourth)
    sweep.raise_if_stopped(finished)
    return fourth
