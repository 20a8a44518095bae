# cython: freethreading_compatible=True, auto_pickle=False
# Typed memoryviews in, one C++ call out, the GIL released: no maths and no policy. A file of native/ for each header of
# cpu/ declares what it calls.
# Called by kcalib/_pairs (pairs, line, features), kcalib/regression (dirichlet), kcalib/_input/labels.py,
# kcalib/_packing/labels.py and kcalib/estimators (rows), kcalib/streaming (state), kcalib/_backend (threads, weights),
# kcalib/inference (pair_laws).
# Callers pass C-contiguous arrays of one dtype whose shapes agree. Numbers of samples are int64, as in NumPy; labels
# beside points (both sides or neither) int32, for kernels of Euclidean distances only. Nothing here is kept between
# calls but counters that are atomic, and a RunOptions is of the call that made it: threads need no lock, and so no GIL.
"""The compiled core: sweeps over all pairs on the CPU."""

from libc.stdint cimport int32_t, int64_t
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals

import sys
import typing

import numpy as np


cdef extern from *:
    const char* KCALIB_VERSION

version = KCALIB_VERSION.decode()

NATIVE_ORDER = "@=<" if sys.byteorder == "little" else "@=>"  # prefixes of a buffer's format


cdef void* address(array, str dtype, int access=PyBUF_SIMPLE) except? NULL:
    """Where a C-contiguous array of "d" (float64) or "f" (float32) begins; NULL for None."""
    cdef Py_buffer buffer
    if array is None:
        return NULL
    PyObject_GetBuffer(array, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | access)
    number = buffer.format.decode().lstrip(NATIVE_ORDER)
    PyBuffer_Release(&buffer)
    if number != dtype:
        raise ValueError(f"an array has numbers of type {number!r}, expected {dtype!r}")
    return buffer.buf


cdef double* doubles(array) except? NULL:
    return <double*>address(array, "d")


cdef float* floats(array) except? NULL:
    return <float*>address(array, "f")


cdef void* reals(array, bint single) except? NULL:
    return address(array, "f" if single else "d")


include "native/run.pxi"
include "native/pairs.pxi"
include "native/line.pxi"
include "native/dirichlet.pxi"
include "native/rows.pxi"
include "native/label_cells.pxi"
include "native/features.pxi"
include "native/pair_laws.pxi"
include "native/state.pxi"
