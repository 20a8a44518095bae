"""Arrays on GPUs from the user's call to the kernels, and what is said when it cannot be."""

from __future__ import annotations

import emulated_cupy
import pytest

from kcalib._memory import available_memory_on_gpu, check_memory


def test_memory_of_the_gpu_is_asked_where_the_array_is(cupy):
    with cupy.cuda.Device(1):
        array = cupy.zeros(4)
    with emulated_cupy.memory_limit(2**20 + emulated_cupy.used_bytes(1), device=1):
        assert available_memory_on_gpu(array.device) == 2**20
        check_memory(2**20, None, "tables", "make them smaller", array)
        with pytest.raises(MemoryError, match=r"tables take 2 MiB of memory on GPU 1, 1 MiB are available; make them"):
            check_memory(2**21, None, "tables", "make them smaller", array)
        with pytest.raises(MemoryError, match=r"on GPU 1, 0.5 MiB are allowed by `max_memory`"):
            check_memory(2**20, 2**19, "tables", "make them smaller", array)
        assert cupy.cuda.Device().id == 0
