"""Whatever is shared out is one number: on any number of workers, by any transport; mostly that of one machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import shared_out
from shared_out import OF_PRODUCTS, TILE, numbers

from kcalib.parallel import Dask, Executor, Processes, Serial

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:.*distributed:DeprecationWarning"),
]
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


@pytest.fixture(scope="module")
def tiles():
    return numbers(Serial(tile_size=TILE))


def test_of_one_machine(tiles):
    one = numbers(None)
    for name, values in tiles.items():
        if name in OF_PRODUCTS:
            assert values == pytest.approx(one[name], rel=1e-4 if name == "spectrum" else 1e-11), name
        else:
            assert values == one[name], name


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_threads(tiles, workers):
    with ThreadPoolExecutor(workers) as pool:
        assert numbers(Executor(pool, tile_size=TILE)) == tiles


def test_processes(tiles):
    assert numbers(Processes(2, tile_size=TILE)) == tiles


def test_dask(tiles):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
    ):
        assert numbers(Dask(client, tile_size=TILE)) == tiles


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec")
@pytest.mark.parametrize("ranks", [2, 3])
def test_mpi(tiles, tmp_path, ranks):
    pytest.importorskip("mpi4py")
    program = [sys.executable, "-m", "mpi4py", shared_out.__file__, str(tmp_path / "found")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"}
    subprocess.run([MPIEXEC, "-n", str(ranks), *program], env=environment, check=True, timeout=300)
    assert json.loads((tmp_path / "found").read_text()) == tiles
