"""The cuda backend's text: compiled for real devices, and what the contract (test_backends.py) does not see."""

from __future__ import annotations

import dataclasses
import gc
import re
import subprocess
import sys
from pathlib import Path

import compile_kernels
import emulated_cupy
import numpy as np
import nvrtc
import pytest
from compile_kernels import ARCHITECTURES
from problems import softmax_problem

from kcalib import _packing
from kcalib import kernels as K
from kcalib._backend import threads
from kcalib._backend.cuda import OPTIONS, Program, layout_check, struct
from kcalib._backend.random import KINDS, Weights, draw_on_device
from kcalib._backend.segments import segments_program
from kcalib._input.labels import prepare
from kcalib._pairs.backends import cuda, cuda_layout, rectangles
from kcalib._pairs.backends.cpu import CpuBackend
from kcalib._pairs.backends.cuda import CudaBackend
from kcalib._pairs.backends.device_mixtures import MIXTURE_NUMBERS
from kcalib._pairs.backends.rectangles import Rectangle
from kcalib._pairs.dispatch import backend_for
from kcalib._pairs.problem import PairProblem
from kcalib._pairs.reductions import (
    BlockSums,
    Counts,
    DenseRectangle,
    EntriesInRange,
    Moments,
    Products,
    QuadraticForms,
    sweep_one,
)

KERNEL = K.Exponential(bandwidth=0.5)


def _problem(n: int, m: int, dtype: str = "float64", other: int = 0, kernel: K.Kernel = KERNEL, seed: int = 3):
    y, p = softmax_problem(n + other, m, seed=seed)
    problem = _packing.pack(prepare(y, p, dtype=dtype), kernel, "delta").problem
    if not other:
        return problem
    left, right = problem.left.take(slice(0, n)), problem.left.take(slice(n, None))
    return PairProblem(left, right, problem.kernel)


def _on_gpu(problem: PairProblem) -> CudaBackend:
    import cupy

    def side(s):
        labels = None if s.labels is None else cupy.asarray(s.labels)
        return type(s)(cupy.asarray(s.points), cupy.asarray(s.features), labels)

    right = None if problem.right is None else side(problem.right)
    return CudaBackend(dataclasses.replace(problem, left=side(problem.left), right=right))


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        *(("kcalib_sums, float64, one", "sm_90"), ("kcalib_entries to float64, float32, one", "sm_70")),
        *(("weights, float64", "sm_80"), ("weights, float32", "sm_70"), ("segments", "sm_80")),
        *(("Poisson draws", "sm_90"), ("Dirichlet kernels, float32", "sm_90"), ("places on a line", "sm_70")),
        ("scan on a line, degree 0, 1 columns", "sm_90"),
    ],
)
def test_some_programs_compile(name, architecture):
    compile_kernels.compile_for(compile_kernels.named(name)[name], architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", [name for name, _ in compile_kernels.programs()])
def test_every_program_compiles(name, architecture):
    """As `python -P tests/support/compile_kernels.py --all`."""
    for program in compile_kernels.named(name).values():
        compile_kernels.compile_for(program, architecture)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_have_the_bits_of_the_compiled_core(cupy, kind, dtype):
    weights = Weights(kind, 1000, 140, 2**63 + 12345)
    found = draw_on_device(weights, 61, 135, 80, dtype).get()
    np.testing.assert_array_equal(found[:, :74], weights.values(61, 135, dtype))
    assert not found[:, 74:].any()


def _everything(backend: CudaBackend, vectors: np.ndarray) -> dict[str, np.ndarray]:
    """Results of all primitives, on the host."""
    import cupy

    symmetric, vectors = backend.problem.symmetric, cupy.asarray(vectors)
    moments = sweep_one(backend, Moments(second=True))
    found = {"rows": moments.row_sums.get(), "columns": moments.column_sums.get()}
    found |= {"total": np.float64(moments.total), "squares": np.float64(moments.sum_of_squares)}
    found |= {
        "product": sweep_one(backend, Products(vectors)).get(),
        "single": sweep_one(backend, Products(vectors, dtype="float32")).get(),
    }
    found["tile"] = sweep_one(backend, DenseRectangle(slice(None), slice(3, None))).get()
    assert sweep_one(backend, Moments(rows=False)).total == moments.total
    if symmetric:
        n = len(vectors)
        weights = Weights("rademacher", n, 33, 5)
        found["forms"] = sweep_one(backend, QuadraticForms(weights)).get()
        found["single forms"] = sweep_one(backend, QuadraticForms(weights, dtype="float32")).get()
        found["forms of an array"] = sweep_one(backend, QuadraticForms(vectors)).get()
        found |= {f"blocks of {size}": sweep_one(backend, BlockSums(size)).get() for size in (7, n // 2)}
        found["counts"] = sweep_one(backend, Counts(np.linspace(-0.5, 0.5, 9)))
        low, high = sweep_one(backend, Counts(np.array([0.0, 0.2])))
        found["between"] = np.sort(sweep_one(backend, EntriesInRange(0.0, 0.2, int(high - low))).values)
    return found


# Rectangles of few tiles, launches of few pairs, products of few columns.
SMALL = {"STRIP": 128, "STRIP_GROUP": 1, "BAND": 1, "LAUNCH_COST": 1e6, "GROUP_COST": 1, "PANEL": 16}
SMALL |= {"LARGE_BLOCK": 64}


def _check(found: dict, expected: np.ndarray, vectors: np.ndarray, symmetric: bool, tolerance: float) -> None:
    """Against the dense H, within `tolerance` of sums of sizes, and what products in float32 take besides."""
    size, single = np.abs(expected), tolerance + 194 * 2.0**-24
    off = expected - np.diag(np.diag(expected)) if symmetric else expected
    n = len(expected)

    def close(name, value, scale, tolerance=tolerance):
        assert (np.abs(found[name] - value) <= tolerance * scale).all(), name

    close("tile", expected[:, 3:], size[:, 3:] + np.finfo(np.float32).tiny)
    close("rows", off.sum(axis=1), size.sum(axis=1))
    close("columns", off.sum(axis=0), size.sum(axis=0))
    close("total", off.sum(), size.sum())
    close("squares", (off**2).sum(), (size**2).sum())
    close("product", expected @ vectors, size @ np.abs(vectors))
    close("single", expected @ vectors, size @ np.abs(vectors), single)
    if not symmetric:
        return
    weights = Weights("rademacher", n, 33, 5).values()
    close("forms", np.sum(weights * (expected @ weights), axis=0), size.sum())
    close("single forms", np.sum(weights * (expected @ weights), axis=0), size.sum(), single)
    form_scale = np.sum(np.abs(vectors) * (size @ np.abs(vectors)), axis=0)
    close("forms of an array", np.sum(vectors * (expected @ vectors), axis=0), form_scale)
    for length in (7, n // 2):
        blocks = [slice(b * length, (b + 1) * length) for b in range(n // length)]
        scales = np.array([size[b, b].sum() for b in blocks])
        close(f"blocks of {length}", np.array([off[b, b].sum() for b in blocks]), scales)
    pairs = np.sort(expected[np.triu_indices(n, 1)])
    np.testing.assert_array_equal(found["counts"], np.searchsorted(pairs, np.linspace(-0.5, 0.5, 9)))
    inside = pairs[(pairs >= 0) & (pairs < 0.2)]
    np.testing.assert_allclose(found["between"], inside, rtol=0, atol=tolerance * size.max())


SHAPES = [
    pytest.param((200, 10, 0, 0), id="residuals", marks=pytest.mark.grid),
    pytest.param((200, 10, 0, 9), id="residuals by cuBLAS"),
    pytest.param((200, 3, 70, 0), id="rectangular", marks=pytest.mark.slow),
    pytest.param((70, 12, 200, 9), id="rectangular by cuBLAS", marks=pytest.mark.slow),
]


@pytest.mark.grid
@pytest.mark.parametrize("shape", SHAPES)
def test_many_rectangles(cupy, monkeypatch, shape):
    """Several rectangles, groups of columns, bands of rows and panels, with ragged edges; 1e-12 of sums of sizes."""
    n, m, other, gram_from = shape
    for name, value in SMALL.items():
        monkeypatch.setattr(rectangles if name == "LAUNCH_COST" else cuda, name, value)
    if gram_from:
        monkeypatch.setattr(cuda, "GRAM_FROM", gram_from)
    problem = _problem(n, m, other=other)
    backend = _on_gpu(problem)
    assert ("-DKCALIB_GRAM=1" in backend.program("kcalib_sums").options) == bool(gram_from)
    vectors = np.random.default_rng(0).normal(size=(other or n, 18))
    found = _everything(backend, vectors)
    expected = sweep_one(CpuBackend(problem), DenseRectangle())
    _check(found, expected, vectors, not other, 1e-12)
    again = _everything(_on_gpu(problem), vectors)
    assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in again.items()}


def test_bits_of_sums_do_not_depend_on_the_launches(cupy, monkeypatch):
    backend = _on_gpu(_problem(300, 10))
    monkeypatch.setattr(cuda, "GROUP_COST", 1)

    def bits() -> list[bytes]:
        moments = sweep_one(backend, Moments(second=True))
        return [
            np.float64(moments.total).tobytes(),
            moments.row_sums.get().tobytes(),
            sweep_one(backend, BlockSums(100)).get().tobytes(),
        ]

    whole = bits()
    for changes in ({"BAND": 1}, {"LAUNCH_COST": 1.0}, {"BAND": 2, "PARTS_BYTES": 1}):
        with monkeypatch.context() as patch:
            for name, value in changes.items():
                patch.setattr(rectangles if name == "LAUNCH_COST" else cuda, name, value)
            assert bits() == whole


def test_rectangles_cover_each_pair_once():
    whole = Rectangle(10, 47, 10, 47)
    for rows, columns in ((8, 8), (8, 16), (5, 7), (16, 8), (100, 100)):
        for symmetric in (False, True):
            times = np.zeros((47, 47), int)
            for part in whole.parts(rows, columns, symmetric):
                times[part.row : part.row_end, part.column : part.column_end] += 1
            needed = np.triu(np.ones((37, 37), bool)) if symmetric else np.ones((37, 37), bool)
            assert times.max() == 1
            assert times[10:, 10:][needed].all()
            assert not times[:10].any() and not times[:, :10].any()


def test_too_little_memory_is_met_by_smaller_workspaces(emulation, monkeypatch):
    """The first workspaces do not fit, smaller ones do, with the same sums. After an error nothing stays allocated."""
    for name, value in {"STRIP": 4096, "GRAM_FROM": 9}.items():
        monkeypatch.setattr(cuda, name, value)
    n = 300
    backend = _on_gpu(_problem(n, 10))
    whole, vectors = sweep_one(backend, Moments()).total, emulation.asarray(np.ones((n, 2)))
    product = sweep_one(backend, Products(vectors)).get()
    pool = emulation.get_default_memory_pool()
    gc.collect()  # what tests before left in cycles would be freed in between
    used, entry = pool.used_bytes(), 8 * n * n
    monkeypatch.setattr(cuda, "free_memory", lambda: 2**40)  # what others take in the meantime is not foreseen
    with emulated_cupy.memory_limit(used + 2 * entry - 1000):
        np.testing.assert_allclose(sweep_one(backend, Products(vectors)).get(), product, rtol=0, atol=1e-13)
    assert pool.used_bytes() == used
    with emulated_cupy.memory_limit(used + 20_000):
        with pytest.raises(
            MemoryError, match=r"products with H of 300 samples do not fit into the memory of GPU 0 \(Out of"
        ):
            sweep_one(backend, Products(vectors))
        with pytest.raises(MemoryError, match=r"the moments of 300 samples do not fit .* pass fewer samples"):
            sweep_one(backend, Moments())
    assert pool.used_bytes() == used
    assert sweep_one(backend, Moments()).total == whole


def test_workspaces_are_fitted_to_the_free_memory(cupy, monkeypatch):
    monkeypatch.setattr(cuda, "GRAM_FROM", 9)
    backend = _on_gpu(_problem(300, 10))
    for free, strip in ((2**40, 4096), (2 * 8 * 4096**2, 4096), (2 * 8 * 4096**2 - 1, 2048), (0, 256)):
        monkeypatch.setattr(cuda, "free_memory", lambda free=free: free)
        assert backend._gram_of(Rectangle(0, 300, 0, 300), 1)[0] == strip


def test_long_work_waits_for_signals_and_shows_progress(emulation, monkeypatch):
    """After each share of the work a synchronisation, where Python sees an interrupt; what is behind does not run."""
    monkeypatch.setattr(rectangles, "LAUNCH_COST", 1e5)
    monkeypatch.setattr(cuda, "BAND", 1)
    backend = _on_gpu(_problem(300, 10))
    seen: list[float] = []
    monkeypatch.setattr(threads.ProgressBar, "__call__", lambda bar, done: seen.append(done))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    sweep_one(backend, Moments())
    assert len(seen) >= 4
    assert seen == sorted(seen)
    assert seen[-1] <= 1.0

    class Interrupted:
        def synchronize(self):
            raise KeyboardInterrupt

    gc.collect()  # of tests before this one
    used = emulation.get_default_memory_pool().used_bytes()
    monkeypatch.setattr(emulation.cuda, "get_current_stream", Interrupted)
    for work in (
        lambda: sweep_one(backend, Moments()),
        lambda: sweep_one(backend, Counts(np.zeros(1))),
        lambda: sweep_one(backend, DenseRectangle()),
    ):
        with pytest.raises(KeyboardInterrupt):
            work()
    assert emulation.get_default_memory_pool().used_bytes() == used


def test_pieces_larger_than_the_problem(cupy, monkeypatch):
    """Rows may be asked for repeatedly; products with no vectors at all are empty."""
    monkeypatch.setattr(cuda, "GRAM_FROM", 9)
    problem = _problem(20, 10)
    backend, rows = _on_gpu(problem), np.arange(50) % 20
    found = sweep_one(backend, DenseRectangle(cupy.asarray(rows), cupy.asarray(rows[::-1].copy()))).get()
    expected = sweep_one(CpuBackend(problem), DenseRectangle(rows, rows[::-1].copy()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    for dtype in ("float64", "float32"):
        assert sweep_one(backend, Products(cupy.zeros((20, 0)), dtype=dtype)).shape == (20, 0)
        assert sweep_one(backend, QuadraticForms(cupy.zeros((20, 0)), dtype=dtype)).shape == (0,)


def test_points_close_to_each_other_are_subtracted(cupy):
    """Not expanded, which would leave no digits and computing most pairs anew. 1e-12 of the scale of its entries."""
    rng, m = np.random.default_rng(0), 12
    y, p = rng.integers(m, size=40), softmax_problem(40, m)[1]
    kernel, option = K.Exponential(bandwidth=0.01), "-DKCALIB_{}=1".format
    for share, definition in ((1.0, "RESIDUALS"), (1e-2, "DIFFERENCES")):
        q = share * p + (1 - share) / m
        problem = _packing.pack(prepare(y, q), kernel, "delta").problem
        backend = _on_gpu(problem)
        assert option(definition) in backend.program("kcalib_sums").options
        expected = sweep_one(CpuBackend(problem), DenseRectangle())
        assert np.abs(sweep_one(backend, DenseRectangle()).get() - expected).max() <= 1e-12 * 2


def test_results_stay_on_the_device(emulation):
    n = 300
    backend = _on_gpu(_problem(n, 10))
    vectors = emulation.asarray(np.ones((n, 2)))
    with emulated_cupy.stays_on_device(at_most=9):
        sweep_one(backend, Moments(second=True))
        sweep_one(backend, Products(vectors))
        sweep_one(backend, QuadraticForms(Weights("gaussian", n, 3, 1)))
        sweep_one(backend, BlockSums(10))
        sweep_one(backend, Counts(np.zeros(2)))
        sweep_one(backend, DenseRectangle())


@pytest.mark.grid
def test_products_are_not_rounded_to_tf32(cupy, monkeypatch):
    """Where CuPy is told to use it: inner products in the register tile, products of float32 in float64."""
    monkeypatch.setenv("CUPY_TF32", "1")
    problem = _problem(40, 150, dtype="float32")
    backend = _on_gpu(problem)
    assert "-DKCALIB_GRAM=0" in backend.program("kcalib_sums").options
    vectors = cupy.asarray(np.random.default_rng(0).normal(size=(40, 2)))
    np.testing.assert_array_equal(
        sweep_one(backend, Products(vectors, dtype="float32")).get(), sweep_one(backend, Products(vectors)).get()
    )


def test_host_arrays_are_refused():
    y, p = softmax_problem(20, 3)
    problem = _packing.pack(prepare(y, p), K.Exponential(bandwidth=0.5), "delta").problem
    with pytest.raises(ValueError, match=r"backend='cuda' needs arrays on an NVIDIA GPU, `y_pred` is on cpu"):
        backend_for(problem, backend="cuda")


def _with_layout(check: str) -> Program:
    program = compile_kernels.named("kcalib_entries to float64, float64, one").popitem()[1]
    others = [option for option in program.options if not option.startswith("-DKCALIB_LAYOUT")]
    return dataclasses.replace(program, options=(*others, f"-DKCALIB_LAYOUT=({check})"))


@pytest.mark.parametrize("change", ["two fields exchanged", "a field less", "a smaller number"])
def test_a_struct_laid_out_otherwise_does_not_compile(change):
    """Every program that compiles has the fields as they are."""
    fields = [(name, cuda_layout.PROBLEM[name]) for name in cuda_layout.PROBLEM.names]
    if change == "two fields exchanged":
        fields[2], fields[4] = fields[4], fields[2]
    elif change == "a field less":
        fields.pop()
    else:
        fields[2] = (fields[2][0], np.dtype(np.int32))
        fields[3] = (fields[3][0], np.dtype([("number", np.int64), ("more", np.int32)]))
    program = _with_layout(layout_check("Problem", np.dtype(fields)))
    with pytest.raises(AssertionError, match=r"passes other fields than these"):
        nvrtc.cubin(program.source, program.every_option, "sm_90")


def test_all_fields_of_a_struct_are_filled():
    with pytest.raises(TypeError, match=r"has the fields \('n_dims', .*\), not \('n_dims',\)"):
        struct(MIXTURE_NUMBERS, {"n_dims": 1})


def test_a_struct_has_pointers_and_numbers(emulation):
    points = emulation.asarray([1.0, 2.0])
    side = {"points": points, "features": None, "norms": None, "labels": None, "stride": 7, "begin": 8, "n": 9}
    found = struct(np.dtype([("one", cuda_layout.SIDE), ("count", np.int64)]), {"one": side, "count": 3})
    assert found.tobytes() == np.array([points.data.ptr, 0, 0, 0, 7, 8, 9, 3], dtype=np.int64).tobytes()


@pytest.mark.grid
def test_sizes_are_numbers_of_python_alone():
    """A number that both sides need is defined for the compiler; without, nothing compiles."""
    for program in compile_kernels.named().values():
        for name, value in re.findall(r"-DKCALIB_([A-Z]+)=(\d+)", " ".join(program.every_option)):
            assert not re.search(rf"\b{name} = {value}\b", program.source), name
    program = segments_program()
    with pytest.raises(AssertionError, match="KCALIB_THREADS"):
        nvrtc.cubin(program.source, OPTIONS, "sm_90")


def test_the_list_of_programs_has_every_text():
    """Each file of src/cuda that has functions is compiled by some program of compile_kernels.py."""
    compiled = {file for program in compile_kernels.named().values() for file in program.files}
    folder = Path(__file__).parents[2] / "src" / "cuda"
    assert {f"cuda/{path.name}" for path in folder.iterdir()} <= compiled


@pytest.mark.slow
def test_the_script_for_a_card_goes_through():
    """On the CPU: every line of its tables that is about one call."""
    script = Path(__file__).parents[2] / "asv_benches" / "gpu.py"
    options = ["--rehearse", "--steps", "accuracy", "speed", "--only", "skce"]
    found = subprocess.run([sys.executable, str(script), *options], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "skce, block, m = 12" in found.stdout
    assert "fraction" in found.stdout
