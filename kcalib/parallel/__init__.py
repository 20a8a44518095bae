"""Exact sums over pairs on several processes or machines, which can continue after an interruption.

Functions that sum over pairs take ``backend=``, an object of one of these classes:

.. code-block:: none

    Serial       this process, tile by tile: for a journal
    Processes    worker processes on this machine
    Executor     any concurrent.futures.Executor
    Dask         a Dask cluster
    MPI          the ranks of an MPI program, which all make the same call

The matrix H is divided into tiles. The sums of a tile depend on samples and options only, and are added in a fixed
order. Results are therefore the same for every transport, every number of workers, and after every interruption; they
equal those of a single machine, except products with vectors, which agree to rounding. With ``journal=`` finished tiles
are kept in a file, and the same call continues from it.
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
else:  # imported on first use, to keep `import kcalib` fast
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
