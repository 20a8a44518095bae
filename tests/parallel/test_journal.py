"""Journals of finished tiles, and what happens to a call whose workers, or which itself, are stopped."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from problems import softmax_problem

import kcalib
from kcalib._backend import files
from kcalib._backend.random import Weights
from kcalib.distributions import Mixture, Normal
from kcalib.kernels import MMD, Exponential, Gaussian
from kcalib.parallel import Executor, Processes, Serial, backend, journal, plan
from kcalib.parallel.backend import Run
from kcalib.parallel.journal import Journal, JournalError
from kcalib.parallel.transport import TileError

KERNEL = Exponential(0.3)
SIZE = 192


def problem(n=1200, seed=2):
    return softmax_problem(n, 5, seed=seed)


def numbers(result):
    return result.value, result.standard_error, result.null_standard_error


def skce(backend=None, *, y_p=None, **options):
    return kcalib.skce.result(*(y_p or problem()), **({"kernel": KERNEL} | options), backend=backend)


class Stopping(Serial):
    """Ctrl-C after some tiles."""

    def __init__(self, *, left, **options):
        super().__init__(**options)
        object.__setattr__(self, "left", left)

    def results(self, held, work, tiles, given, progress):
        for done in super().results(held, work, tiles, given, progress):
            yield done
            object.__setattr__(self, "left", self.left - 1)
            if self.left == 0:
                raise KeyboardInterrupt


def interrupted(path, rng, call, most=9):
    """The result of a call that is stopped after a few tiles, again and again, and how often it was."""
    stops = 0
    while True:
        try:
            return call(Stopping(journal=path, tile_size=SIZE, left=int(rng.integers(1, most)))), stops
        except KeyboardInterrupt:
            stops += 1


def test_an_interrupted_call_goes_on(tmp_path):
    found, stops = interrupted(tmp_path / "run.journal", np.random.default_rng(0), skce)
    assert stops > 5
    assert numbers(found) == numbers(skce())
    assert "from the journal" in found.backend_reason


def test_with_another_transport(tmp_path):
    path = tmp_path / "run.journal"
    with pytest.raises(KeyboardInterrupt):
        skce(Stopping(journal=path, tile_size=SIZE, left=20))
    with ThreadPoolExecutor(3) as pool:
        found = skce(Executor(executor=pool, journal=path, tile_size=500))  # the plan is that of the journal
    assert numbers(found) == numbers(skce())
    again = skce(Serial(journal=str(path), tile_size=SIZE))
    assert numbers(again) == numbers(found)
    counted = re.search(r"(\d+) tiles, (\d+) of them from the journal", again.backend_reason)
    assert counted
    assert counted[1] == counted[2]


def test_blocks_and_forms(tmp_path):
    rng = np.random.default_rng(0)
    found, stops = interrupted(
        tmp_path / "blocks", rng, lambda w: skce(w, estimator=kcalib.methods.BlockEstimator(block_size=40)), 3
    )
    assert stops
    assert found.value == skce(estimator=kcalib.methods.BlockEstimator(block_size=40)).value
    y, p = problem()

    def test(workers=None):
        return kcalib.calibration_test(y, p, kernel=KERNEL, method="bootstrap", seed=1, backend=workers)

    found, stops = interrupted(tmp_path / "forms", rng, test)
    assert stops
    assert found.pvalue == test().pvalue

    def exact(workers=None):
        return kcalib.calibration_test(y, p, method=kcalib.methods.Exact(40), seed=1, backend=workers)

    found, stops = interrupted(tmp_path / "labels", rng, exact, most=40)
    assert stops > 2
    assert found.log_pvalue == exact().log_pvalue


def test_products_go_on(tmp_path, monkeypatch):
    """Where they were within a product, and from one to the next."""
    monkeypatch.setattr(backend, "STATE_SECONDS", 0.0)
    y, p = problem(1600)
    multiplied = []

    class Watched(Stopping):
        def results(self, held, work, tiles, given, progress):
            for done in super().results(held, work, tiles, given, progress):
                multiplied.append(work.name)
                yield done

    def ckce(workers=None):
        found = kcalib.ckce.result(y, p, kernel=KERNEL, method="cg", backend=workers)
        return found.value, found.iterations, found.error_bound

    once = ckce(Watched(left=-1, tile_size=SIZE))
    n_tiles, stops = len(multiplied), 0
    multiplied.clear()
    while True:
        try:
            found = ckce(Watched(left=30, journal=tmp_path / "tiles", tile_size=SIZE))
            break
        except KeyboardInterrupt:
            stops += 1
    assert found == once
    assert stops >= n_tiles // 30 - 1 > 1
    assert len(multiplied) <= n_tiles + stops
    monkeypatch.setattr(backend, "STATE_SECONDS", 30.0)
    monkeypatch.setattr(backend, "COLUMNS_KEPT", 5)  # the first product
    monkeypatch.setattr(backend, "BYTES_KEPT", 0)
    assert ckce(Serial(journal=tmp_path / "fewer", tile_size=SIZE)) == once
    assert (tmp_path / "fewer").stat().st_size < 1600 * 5 * 8 + 5000


def test_a_sweep_of_which_all_tiles_are_there_stays_when_the_file_is_written_anew(tmp_path, monkeypatch):
    """A call that is stopped between the last tile of a sweep and their sum, and again in the next sweep."""
    monkeypatch.setattr(journal, "ROOM", 0)
    computed, matrix = [], np.diag([2.0, 1, 1, 1, 1])  # with which the variance takes a sweep of its own

    class Counted(Stopping):
        def results(self, held, work, tiles, given, progress):
            computed.append((work.problem, len(tiles)))
            yield from super().results(held, work, tiles, given, progress)

    def call(left):
        computed.clear()
        return skce(Counted(journal=tmp_path / "tiles", tile_size=SIZE, left=left), target_kernel=matrix)

    with pytest.raises(KeyboardInterrupt):
        call(1)
    first, count = computed[0]
    with pytest.raises(KeyboardInterrupt):
        call(count - 1)
    with pytest.raises(KeyboardInterrupt):
        call(9)
    found = call(-1)
    assert first not in dict(computed)
    assert numbers(found) == numbers(skce(target_kernel=matrix))


def test_states_that_are_outdated_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "ROOM", 1000)
    kept, state = Journal(tmp_path / "tiles"), {"products": np.arange(1000.0)}
    kept.check({"kernel": "some"})
    for key in "ab":
        kept.begin(key, {})
        for first in range(1, 30):
            kept.save(key, first, {"products": state["products"] + first}, {})
            assert (tmp_path / "tiles").stat().st_size < 4 * 8000 + 3000
    for again in range(2):
        for key in "ab":
            assert (kept.state(key)["products"] == state["products"] + 29).all()
        if not again:
            kept.close()
            kept = Journal(tmp_path / "tiles")
    os.truncate(tmp_path / "tiles", 9000)
    with pytest.raises(JournalError, match="was changed by somebody else; remove it"):
        kept.state("b")
    kept.close()


def test_the_file_stays_small(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "ROOM", 10_000)
    path, y_p = tmp_path / "run.journal", problem(3700)
    sizes = []

    class Watched(Serial):
        def results(self, *args):
            for done in super().results(*args):
                yield done
                sizes.append(path.stat().st_size)

    assert numbers(skce(Watched(journal=path, tile_size=SIZE), y_p=y_p)) == numbers(skce(y_p=y_p))
    assert len(sizes) > 200
    assert max(sizes) < 40 * 3700 + 20_000
    assert not list(tmp_path.glob(".*"))
    found, stops = interrupted(tmp_path / "other", np.random.default_rng(0), lambda w: skce(w, y_p=y_p), most=60)
    assert stops > 3
    assert numbers(found) == numbers(skce(y_p=y_p))


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"y_p": problem(seed=3)}, r"data \(fingerprint of labels, predictions and target kernel\)"),
        ({"y_p": problem(1199)}, "number of samples"),
        ({"kernel": Gaussian(0.3)}, r"kernel is 'Exponential\(bandwidth=0.3\)', that of this call 'Gaussian"),
        ({"dtype": "float32"}, "dtype"),
    ],
)
def test_another_call_is_refused(tmp_path, changed, what):
    path = tmp_path / "run.journal"
    skce(Serial(journal=path, tile_size=SIZE))
    with pytest.raises(JournalError, match=rf"{path} is of another call: its {what}.*; give each call a journal"):
        skce(Serial(journal=path, tile_size=SIZE), **changed)


def test_another_version_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "run.journal"
    skce(Serial(journal=path, tile_size=SIZE))
    monkeypatch.setattr("kcalib.parallel.backend.__version__", "99.0")
    with pytest.raises(JournalError, match=r"its version of kcalib is .*, that of this call '99.0'"):
        skce(Serial(journal=path, tile_size=SIZE))


def test_files_that_are_none(tmp_path):
    path = tmp_path / "other"
    path.write_text("some text that is longer than the first bytes of a journal")
    with pytest.raises(JournalError, match="is not a journal of kcalib"):
        skce(Serial(journal=path, tile_size=SIZE))
    assert path.read_text().startswith("some text")
    with pytest.raises(
        OSError, match="the journal .*nowhere.* cannot be opened: No such file or directory; name a file"
    ):
        skce(Serial(journal=tmp_path / "nowhere" / "file", tile_size=SIZE))
    with pytest.raises(JournalError, match=f"{tmp_path} is not a journal of kcalib, nor a file"):
        skce(Serial(journal=tmp_path, tile_size=SIZE))
    with pytest.raises(TypeError, match="`journal` is 3, expected the path"):
        Serial(journal=3)
    path.write_bytes(journal.MAGIC[:5])  # the power went when it was made
    assert numbers(skce(Serial(journal=path, tile_size=SIZE))) == numbers(skce())


RECORD = {"header": {}, "arrays": []}


@pytest.mark.parametrize(
    "record",
    [
        [],
        None,
        {},
        {"header": {}},
        RECORD | {"header": 3},
        RECORD | {"arrays": [["sums", "|O", [1]]]},
        RECORD | {"arrays": [["sums", "<f8", [-1]]]},
        RECORD | {"arrays": [["sums", "<f8", [2**62, 4]]]},
        RECORD | {"arrays": [["sums", "<f8", 1]]},
        {"sweep": [], "plan": {}, "arrays": []},
        {"sweep": "a", "plan": 3, "arrays": []},
        {"tile": ["never begun", 0], "arrays": []},
        {"tile": ["a"], "arrays": []},
        {"state": "never begun", "first": 0, "arrays": []},
    ],
)
@pytest.mark.parametrize("more", [b"", b"\0"])
def test_records_of_another_hand_are_refused(tmp_path, record, more):
    """The checksum is right: nothing that kcalib has written, and no traceback from inside."""
    path = tmp_path / "run.journal"
    words = json.dumps(record).encode()
    body = journal.LENGTHS.pack(len(words), len(words) + len(more)) + words + more
    path.write_bytes(journal.MAGIC + body + journal._digest(body))
    with pytest.raises(JournalError, match="is not as kcalib writes a journal, although its checksums are right; rem"):
        Journal(path)
    assert path.read_bytes().endswith(journal._digest(body))  # as it was


@pytest.mark.skipif(files.fcntl is None, reason="locks of files are POSIX's")
def test_two_calls_at_a_time(tmp_path):
    path = tmp_path / "run.journal"
    held = Journal(path)
    with pytest.raises(JournalError, match="in use by another process"):
        skce(Serial(journal=path, tile_size=SIZE))
    held.close()


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="asks Linux which files are open")
def test_open_files_are_not_replaced_on_windows(tmp_path, monkeypatch):
    replace, replaced = os.replace, []

    def replace_closed(source, target):
        opened = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
        assert not opened & {os.path.realpath(source), os.path.realpath(target)}
        replaced.append(target)
        replace(source, target)

    for module in (files, journal):
        monkeypatch.setattr(module, "REPLACES_OPEN_FILES", False)
    monkeypatch.setattr(os, "replace", replace_closed)
    held = Journal(tmp_path / "run.journal")
    held.check({})
    held.begin("sweep", {})
    held._unfolded = journal.ROOM
    held.save("sweep", 1, {"total": np.ones(3)}, {})
    assert held.state("sweep")["total"].tolist() == [1, 1, 1]
    held.close()
    assert len(replaced) == 1


def test_any_byte_may_be_lost(tmp_path):
    path, one = tmp_path / "run.journal", numbers(skce())
    with pytest.raises(KeyboardInterrupt):
        skce(Stopping(journal=path, tile_size=SIZE, left=15))
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for place in rng.integers(len(journal.MAGIC), len(whole), size=8):
        path.write_bytes(whole[:place])
        assert numbers(skce(Serial(journal=path, tile_size=SIZE))) == one
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert numbers(skce(Serial(journal=path, tile_size=SIZE))) == one


@pytest.mark.parametrize("room", [journal.ROOM, 100], ids=["appended", "rewritten"])
@pytest.mark.parametrize("step", [911, pytest.param(1, marks=pytest.mark.slow)])
def test_a_disk_that_is_full_at_any_byte_keeps_the_tiles(tmp_path, monkeypatch, step, room):
    """One sentence names the journal; with room again the call goes on to the same bits, and nothing else is left."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(journal, "ROOM", room)
    path, y_p = tmp_path / "run.journal", problem(600)
    one, most = numbers(skce(y_p=y_p)), resource.getrlimit(resource.RLIMIT_FSIZE)
    assert numbers(skce(Serial(journal=path, tile_size=SIZE), y_p=y_p)) == one
    size, open_files = path.stat().st_size, len(os.listdir("/dev/fd"))
    for k in [*range(0, size, step), size - 1]:
        path.unlink(missing_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (k, most[1]))
        try:
            with pytest.raises(OSError, match="^[^\n]*the journal .*run.journal cannot be written: ") as raised:
                skce(Serial(journal=path, tile_size=SIZE), y_p=y_p)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, most)
        assert raised.match("File too large; it") and len(os.listdir("/dev/fd")) == open_files
        if k < len(journal.MAGIC):  # a new file that holds nothing is not left
            assert not list(tmp_path.iterdir())
        else:
            assert [file.name for file in tmp_path.iterdir()] == ["run.journal"] and path.stat().st_size <= k
        if k % 5 == 0 or k == size - 1:
            assert numbers(skce(Serial(journal=path, tile_size=SIZE), y_p=y_p)) == one


def test_a_journal_that_could_not_be_written_anew_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "ROOM", 100)
    open_files = len(os.listdir("/dev/fd"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal.os, "replace", full)
    with pytest.raises(OSError, match=r"run\.journal cannot be written: No space left") as raised:
        skce(Serial(journal=tmp_path / "run.journal", tile_size=SIZE))
    assert len(os.listdir("/dev/fd")) == open_files and raised.tb  # which holds the frames, and files in them
    assert [file.name for file in tmp_path.iterdir()] == ["run.journal"]


def test_what_a_killed_process_left_beside_a_journal_is_removed(tmp_path):
    left, other = tmp_path / ".run.journal.0123456789ab.part", tmp_path / ".other.journal.0123456789ab.part"
    left.touch()
    other.touch()
    Journal(tmp_path / "run.journal").close()
    assert not left.exists() and other.exists()


SCRIPT = """
import sys
import numpy as np
import kcalib
from kcalib.kernels import Exponential
from kcalib.parallel import Processes

if __name__ == "__main__":
    with np.load(sys.argv[1]) as data:
        y, p = data["y"], data["p"]
    workers = Processes(workers=2, journal=sys.argv[2], tile_size=192)
    print(kcalib.skce.result(y, p, kernel=Exponential(0.3), backend=workers))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_goes_on(tmp_path, how):
    y, p = problem(20_000)
    np.savez(tmp_path / "data.npz", y=y, p=p)
    (tmp_path / "script.py").write_text(SCRIPT)
    path = tmp_path / "run.journal"
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "data.npz"), str(path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)  # which its workers hold, too, while they live
    until = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size > 300_000) and time.monotonic() < until:
        time.sleep(0.002)
    process.send_signal(how)
    start = time.monotonic()
    process.communicate(timeout=30)
    assert process.returncode
    assert time.monotonic() - start < 3
    one = kcalib.skce.result(y, p, kernel=KERNEL)
    found = kcalib.skce.result(y, p, kernel=KERNEL, backend=Serial(journal=path, tile_size=192))
    assert numbers(found) == numbers(one)
    assert "from the journal" in found.backend_reason


class Dying(Processes):
    """The first process that has a tile is killed."""

    def results(self, held, work, tiles, given, progress):
        for k, done in enumerate(super().results(held, work, tiles, given, progress)):
            if k == 3:
                os.kill(int(done.worker.rpartition(":")[2]), signal.SIGKILL)
            yield done


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_a_process_that_dies_is_replaced():
    assert numbers(skce(Dying(workers=2, tile_size=SIZE))) == numbers(skce())


class Broken(ThreadPoolExecutor):
    """Some tasks fail."""

    def __init__(self, fails):
        super().__init__(2)
        self.fails, self.count = fails, 0

    def submit(self, function, *args):
        self.count += 1
        return super().submit(fail if self.fails(self.count) else function, *args)


def fail(*args):
    raise MemoryError("no room")


def test_tiles_are_tried_again(tmp_path):
    with Broken(lambda count: count % 5 == 0) as pool:
        assert numbers(skce(Executor(executor=pool, tile_size=SIZE))) == numbers(skce())
    path = tmp_path / "run.journal"
    with Broken(lambda count: count > 12) as pool, pytest.raises(TileError, match=r"rows .* failed 3 times") as error:
        skce(Executor(executor=pool, tile_size=SIZE, journal=path))
    assert f"finished tiles are in {path}" in error.value.__notes__[0]
    assert numbers(skce(Serial(journal=path, tile_size=SIZE))) == numbers(skce())


@pytest.mark.slow
def test_workers_that_are_gone():
    with ProcessPoolExecutor(1) as pool:
        pool.submit(os._exit, 1)
        time.sleep(0.5)
        with pytest.raises(TileError, match="as the workers are gone") as error:
            skce(Executor(executor=pool, tile_size=SIZE))
    assert "with journal='FILE'" in error.value.__notes__[0]


def test_groups_that_are_too_large_are_cut(tmp_path, monkeypatch):
    """As with more than a million samples: merged within a tile, right to within rounding, and always the same."""
    monkeypatch.setattr(plan, "LARGEST_GROUP", 90)
    y_p = problem(2000)
    one, found = skce(y_p=y_p), skce(Serial(tile_size=400), y_p=y_p)
    size = kcalib.skce(y_p[0], y_p[1], kernel=KERNEL, estimator="biased")  # of the sum of magnitudes, at most
    assert abs(found.value - one.value) <= 1e-15 * max(size, 1e-2)
    assert found.value != 0
    with ThreadPoolExecutor(2) as pool:
        assert numbers(skce(Executor(executor=pool, tile_size=400), y_p=y_p)) == numbers(found)
    again, stops = interrupted(tmp_path / "run.journal", np.random.default_rng(0), lambda w: skce(w, y_p=y_p))
    assert stops
    assert numbers(again) == numbers(skce(Serial(tile_size=SIZE), y_p=y_p))


def test_plans():
    for n in (5000, 50_000, 10**6, 10**7, 10**8, 10**9):
        group = math.ceil(math.ceil(n / 192) / 32) * 192
        found = plan.grid(n, n, symmetric=True, block=192, group=group)
        assert found.n_tiles <= plan.MOST_TILES
        assert found.has_group_sums == (n <= 10**6)
        assert found.size % found.group == 0
    tiles = plan.grid(1000, 1000, symmetric=True, block=96, group=96, tile_size=200).tiles()
    covered = np.zeros((1000, 1000), dtype=int)
    for tile in tiles:
        covered[tile.row : tile.row_end, tile.column : tile.column_end] += 1
    assert (covered[np.triu_indices(1000)] == 1).all()
    assert [tile.number for tile in tiles] == list(range(len(tiles)))


def test_threads_are_those_of_the_task(monkeypatch):
    """No environment variable counts, and this process's own number neither."""
    seen = []

    class Looking(Serial):
        def results(self, held, work, tiles, given, progress):
            for done in super().results(held, work, tiles, given, progress):
                seen.append((work.threads, held._values[work.problem].tiles(work.options).backend.threads))
                yield done

    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    skce(Looking(threads=2, tile_size=SIZE), threads=5)
    assert set(seen) == {(2, 2)}


def test_weights_are_made_by_workers():
    """Counter-based: what is sent is their seed."""
    y, p = problem(300)
    sent = []

    class Looking(Serial):
        def results(self, held, work, tiles, given, progress):
            sent.extend(given.values())
            return super().results(held, work, tiles, given, progress)

    kcalib.calibration_test(y, p, method=kcalib.methods.Bootstrap(99), seed=1, backend=Looking(tile_size=100))
    assert any(isinstance(getattr(value, "weights", None), Weights) for value in sent)


@pytest.mark.grid
def test_slow_pairs_are_shared_out_sooner_and_are_fewer_in_a_tile():
    rng, plans = np.random.default_rng(0), []

    class Looking(Serial):
        def results(self, held, work, tiles, given, progress):
            plans.append(work.grid)
            return super().results(held, work, tiles, given, progress)

    for n, parts in ((600, 1), (600, 16)):
        members = [Normal(rng.normal(size=n), rng.uniform(0.5, 2, size=n)) for _ in range(parts)]
        prediction = Mixture(np.full((n, parts), 1 / parts), members)
        sample = rng.normal(size=n), prediction
        options = {"kernel": Exponential(1.0, metric=MMD())}
        found = kcalib.skce.result(*sample, backend=Looking(), **options)
        assert found.value == kcalib.skce.result(*sample, **options).value
        assert ("too few samples to share out" in found.backend_reason) == (parts == 1)
    assert {found.n_tiles for found in plans} == {10}
    sizes = [
        plan.grid(50_000, 50_000, symmetric=True, block=96, group=96, entry_cost=cost).size for cost in (1.0, 100.0)
    ]
    assert 5 * sizes[1] < sizes[0]


def test_arrays_on_a_gpu_are_refused():
    import emulated_cupy

    with emulated_cupy.installed():
        backend = type("Backend", (), {"problem": None, "on_a_line": False, "entry_cost": 1.0, "reason": ""})()
        from kcalib._pairs.problem import PairProblem, Side

        points = emulated_cupy.asarray(np.ones((3, 2)))
        backend.problem = PairProblem(Side(points, points), None, ())
        with pytest.raises(ValueError, match="workers take arrays in host memory"):
            Run(Serial()).spread(backend)


def test_sources_that_change(tmp_path):
    y, p = problem(300)
    path: Path = tmp_path / "samples.npz"
    np.savez(path, y_true=y, y_pred=p)
    source = kcalib.streaming.source(path)
    assert kcalib.skce(source, kernel=KERNEL, backend=Serial(tile_size=SIZE)) == kcalib.skce(y, p, kernel=KERNEL)

    class Writing(Serial):
        def results(self, *args):
            np.savez(path, y_true=y[:200], y_pred=p[:200])
            return super().results(*args)

    with pytest.raises(ValueError, match="was changed while it was read"):
        kcalib.skce(source, kernel=KERNEL, backend=Writing(tile_size=SIZE))


def test_a_journal_behind_a_link_keeps_the_link_and_the_mode(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "ROOM", 1)  # the file is written anew after each tile
    target, link = tmp_path / "target.journal", tmp_path / "link.journal"
    target.touch()
    os.chmod(target, 0o600)
    link.symlink_to(target)
    result, stops = interrupted(link, np.random.default_rng(0), skce)
    assert stops > 2
    assert numbers(result) == numbers(skce())
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_a_journal_of_another_instruction_level_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "run.journal"
    skce(Serial(journal=path, tile_size=SIZE))
    monkeypatch.setattr(backend, "machine", lambda: "Linux x86_64, another level")
    with pytest.raises(JournalError, match="system and instruction level is .*, that of this call 'Linux x86_64, ano"):
        skce(Serial(journal=path, tile_size=SIZE))
