"""Exact sums over pairs on several processes or machines: where they are computed, and how they go on after a stop.

Functions that sum over pairs take ``backend=``, an object of one of these classes:

.. code-block:: none

    Serial       in this process, tile by tile: for a journal
    Processes    worker processes of this machine
    Executor     any concurrent.futures.Executor
    Dask         a cluster of Dask
    MPI          the ranks of a program, which all make the same call

H is cut into tiles, whose sums are pure functions of samples and options, and are added in the order in which one
machine adds them, but for products with vectors: the numbers are the same for every transport, every number of workers,
and after every interruption. With ``journal=`` finished tiles are kept in a file, from which the same call goes on.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["MPI", "Dask", "Executor", "JournalError", "Parallel", "Processes", "RankError", "Serial", "TileError"]

if TYPE_CHECKING:
    from kcalib.parallel.dask import Dask
    from kcalib.parallel.executor import Executor, Processes
    from kcalib.parallel.journal import JournalError
    from kcalib.parallel.mpi import MPI, RankError
    from kcalib.parallel.transport import Parallel, Serial, TileError
else:  # opened when they are asked for: `import kcalib` does without
    MODULES = {
        "MPI": "mpi",
        "Dask": "dask",
        "Executor": "executor",
        "JournalError": "journal",
        "Parallel": "transport",
        "Processes": "executor",
        "RankError": "mpi",
        "Serial": "transport",
        "TileError": "transport",
    }

    def __getattr__(name: str) -> Any:
        if name not in MODULES:
            raise AttributeError(f"module 'kcalib.parallel' has no attribute {name!r}", name=name)
        value = getattr(importlib.import_module(f"kcalib.parallel.{MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *MODULES})
