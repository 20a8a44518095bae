"""Backends: sweeps of the never-stored matrix H, one file for each way to visit its blocks.

    cpu        compiled tiles, threads; NumPy arrays            (src/cpu/pairs/sweep.cpp)
    sorted     points on a line: O(n log n); NumPy arrays       (src/cpu/line/*.cpp)
               and CuPy arrays, by `sorted_cuda`                (src/cuda/line.cu, src/cuda/places.cu)
    cuda       tiles on an NVIDIA GPU; CuPy arrays              (src/cuda/pairs.cu)
    array-api  strips of rows in any array namespace, differentiable

Each takes a `PairProblem` and sweeps it for reductions (`base.Backend`, `kcalib._pairs.reductions`). Backends see
neither kernel objects nor user options.
`kcalib._pairs.dispatch` chooses; `tests/pairs/test_backends.py` holds the contract they all meet.
"""
