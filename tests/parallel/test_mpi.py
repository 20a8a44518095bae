"""Tiles on MPI ranks: bits, ranks that fail or die, threads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import kcalib
from kcalib.parallel import Serial

mpi4py = pytest.importorskip("mpi4py")
SUPPORT = Path(__file__).parents[1] / "support"
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
# Without the folder that tests are run in, where kcalib may be a source tree.
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(SUPPORT)]),
    "PYTHONSAFEPATH": "1",
}
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec")]


def program(*arguments, ranks=2, check=True, **environment):
    """Standard output and standard error of a program on that many ranks."""
    done = subprocess.run(
        [MPIEXEC, "-n", str(ranks), sys.executable, "-m", *arguments],
        env=ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode == 0) == check, done.stderr
    return done.stdout, done.stderr


def calls(*arguments, **options):
    """What the ranks of `mpi_calls` say, and standard error."""
    with tempfile.TemporaryDirectory() as folder:
        _, errors = program("mpi4py", str(SUPPORT / "mpi_calls.py"), folder, *arguments, **options)
        files = sorted(Path(folder).iterdir())
        return [json.loads(line) for file in files for line in file.read_text().splitlines()], errors


@pytest.fixture(scope="module")
def problem():
    sys.path.insert(0, str(SUPPORT))
    import mpi_calls

    return mpi_calls.samples(), mpi_calls.KERNEL, mpi_calls.TILE


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_ranks_have_the_bits_of_one_machine(problem, ranks):
    (y, p), kernel, _ = problem
    value = kcalib.skce(y, p, kernel=kernel)
    blocks = kcalib.skce.result(y, p, kernel=kernel, estimator="block")
    test = kcalib.calibration_test(y, p, kernel=kernel, method="spectrum")
    lines, _ = calls("calls", ranks=ranks)
    numbers = sorted(line for line in lines if len(line) == 5)
    expected = [value, blocks.value, blocks.standard_error, test.statistic]
    assert numbers == [[rank, *expected] for rank in range(ranks)]
    errors = sorted(line for line in lines if len(line) == 3)
    assert [error[:2] for error in errors] == [[0, "TypeError"]] + [[rank, "RankError"] for rank in range(1, ranks)]
    assert all("the call ended on rank 0: TypeError" in error[2] for error in errors[1:])
    size = len(p) * 8 * (3 + 1) / 1e6  # predictions and labels
    sent = f"{size:.3g} MB sent to each of {ranks - 1} worker" if ranks > 1 else "MPI rank of 1 thread"
    assert all(sent in line[1] for line in lines if len(line) == 2)


def test_a_tile_that_fails_ends_all_ranks():
    lines, errors = calls("failing", check=False)
    assert lines == []
    assert "failed on rank 1: ValueError: a tile that cannot be computed" in errors


def test_a_rank_that_is_killed_and_a_journal(problem, tmp_path):
    (y, p), kernel, tile = problem
    journal = tmp_path / "tiles"
    calls("killed", str(journal), check=False)
    found = kcalib.skce.result(y, p, kernel=kernel, backend=Serial(journal=journal, tile_size=tile))
    assert found.value == kcalib.skce(y, p, kernel=kernel)
    assert "from the journal" in found.backend_reason


def test_more_threads_than_processors():
    lines, _ = calls("crowded")
    assert any("2 ranks of 64 threads share" in text for _, _, *texts in lines for text in texts)


def test_processes_that_are_no_ranks():
    """As srun and a foreign mpiexec start them."""
    _, errors = calls("value", ranks=1, check=False, SLURM_STEP_NUM_TASKS="4")
    assert "4 processes were started, and MPI takes each for a program of one rank" in errors


def test_executor_of_mpi4py(problem, tmp_path):
    (y, p), kernel, tile = problem
    path = tmp_path / "pool.py"
    path.write_text(
        f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\n"
        "import json, kcalib, mpi_calls\n"
        "from mpi4py.futures import MPIPoolExecutor\n"
        "if __name__ == '__main__':\n"
        "    y, p = mpi_calls.samples()\n"
        "    with MPIPoolExecutor() as pool:\n"
        f"        parallel = kcalib.parallel.Executor(pool, workers=2, tile_size={tile})\n"
        "        print(json.dumps([kcalib.skce(y, p, kernel=mpi_calls.KERNEL, backend=parallel)]))\n"
    )
    output, _ = program("mpi4py.futures", str(path), ranks=3)
    assert json.loads(output) == [kcalib.skce(y, p, kernel=kernel)]


def test_the_command(problem, tmp_path):
    (y, p), _, _ = problem
    np.savez(tmp_path / "model.npz", labels=y, probs=p)
    arguments = ["kcalib", "evaluate", str(tmp_path / "model.npz"), "--csv"]
    options = {"env": ENVIRONMENT, "capture_output": True, "text": True, "timeout": 120, "check": True}
    alone = subprocess.run([sys.executable, "-m", *arguments], **options)
    done = subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, "-m", "mpi4py", "-m", *arguments, "--parallel", "mpi"], **options
    )
    assert done.stdout == alone.stdout  # once, and the same numbers
