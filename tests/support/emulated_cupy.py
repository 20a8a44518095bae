"""A module that stands for CuPy on a machine without a GPU: its arrays lie in host memory, its kernels run there.

`with installed() as cupy:` puts it in the place of CuPy. What it has of CuPy's functions it takes from NumPy, and it is
as strict as CuPy, or stricter:

* arrays on a device are not NumPy arrays, and nothing becomes one unasked: NumPy's functions refuse them, and
  NumPy arrays are refused beside them;
* `transfers` lists the numbers of elements that left a device (`get`, `asnumpy`, `float`, `int`, `bool`), so that tests
  can say what may;
* every operation needs its arrays on the current device, of which there are `N_DEVICES`;
* kernels (`RawModule`) are compiled as C++ behind cuda_emulation.h, and run thread by thread, in the order of
  `thread_order`;
* what `empty` and `empty_like` have is NaN, or another number that no result has;
* `from_dlpack` takes arrays of other libraries that say they are on a GPU and export memory of the host;
* `memory_limit(bytes)` makes allocations beyond that fail as on a full device, `properties` makes other devices and
  drivers.

Where there is a GPU, tests run with the real CuPy, too (`pytest -m gpu`): outside of `installed`, `asarray`,
`memory_limit` and `used_bytes` are those of the real one, and `stays_on_device` says nothing.

test_emulated_cupy.py compares names and signatures with those of the real one where it is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.special

HEADER = Path(__file__).with_name("cuda_emulation.h")
# Compiled kernels are kept here; processes that share the tests share the one that KCALIB_EMULATED_KERNELS names.
FOLDER = tempfile.TemporaryDirectory(prefix="kcalib-emulated-")
N_DEVICES = 2


def words(text: str) -> list[str]:
    return text.split()


# Functions of CuPy that are NumPy's, by name.
FUNCTIONS = words("""
    abs all any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin argsort around
    array_equal atleast_1d atleast_2d bincount bitwise_and bitwise_or bitwise_xor broadcast_arrays broadcast_to
    ceil clip column_stack concatenate copysign cos cosh count_nonzero cross cumprod cumsum diag diagonal diff
    divide dot einsum empty_like equal exp exp2 expand_dims expm1 eye fill_diagonal flatnonzero flip floor
    floor_divide fmax fmin full_like greater greater_equal hypot identity imag interp invert isclose isfinite
    isin isinf isnan kron left_shift less less_equal lexsort linspace log log10 log1p log2 logaddexp logical_and
    logical_not logical_or logical_xor logspace matmul max maximum mean median meshgrid min minimum mod moveaxis
    multiply nan_to_num negative nextafter nonzero not_equal ones_like outer partition percentile permute_dims
    positive power prod quantile ravel real reciprocal remainder repeat reshape right_shift roll round
    searchsorted sign signbit sin sinh sort sqrt square squeeze stack std subtract sum swapaxes take
    take_along_axis tan tanh tensordot tile trace transpose tri tril triu trunc unique var vdot vstack hstack
    where zeros_like add put_along_axis conj argpartition
""")
CREATION = words("empty zeros ones full")  # which take the current device
FFT = words("fft ifft fftn ifftn rfft irfft rfftn irfftn hfft ihfft fftfreq rfftfreq fftshift ifftshift")
MAKING = (
    words("""
    arange empty zeros ones full eye identity linspace logspace tri meshgrid diag atleast_1d atleast_2d
""")
    + FFT
)  # without arrays, or of whatever becomes one
JOINING = words("concatenate stack hstack vstack column_stack broadcast_arrays")
CONSTANTS = words("""
    bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 intp float32 float64 complex64 complex128 dtype
    generic integer floating number pi inf nan newaxis e finfo iinfo issubdtype result_type can_cast isdtype
    ndindex broadcast_shapes complexfloating
""")
LINALG = words("cholesky det eigh eigvalsh inv lstsq matrix_rank norm pinv qr slogdet solve svd")
SPECIAL = words("""
    betainc betaincinv digamma erf erfc erfcx erfinv expi expit gammainc gammaincc gammainccinv gammaincinv gammaln
    i0e i1e log_ndtr logsumexp ndtr ndtri psi xlogy zeta
""")
METHODS = words("""
    all any argmax argmin argsort astype clip conj copy cumsum diagonal dot max mean min nonzero prod ravel repeat
    reshape round squeeze std sum swapaxes take trace transpose var view flatten
""")

transfers: list[int] = []  # numbers of elements that left a device


class OutOfMemoryError(MemoryError):
    """cupy.cuda.memory.OutOfMemoryError."""


class CUDARuntimeError(RuntimeError):
    """cupy.cuda.runtime.CUDARuntimeError."""


class CompileException(Exception):
    """cupy.cuda.compiler.CompileException."""

    def __init__(self, msg: str, source: str, name: str, options: tuple[str, ...], backend: str = "nvrtc") -> None:
        self._msg, self.source, self.name, self.options, self.backend = msg, source, name, options, backend
        super().__init__()

    def __str__(self) -> str:
        return self._msg


# As the real ones', by which errors are known.
OutOfMemoryError.__module__, CompileException.__module__ = "cupy.cuda.memory", "cupy.cuda.compiler"
CUDARuntimeError.__module__ = "cupy_backends.cuda.api.runtime"


class _State(threading.local):
    device = 0
    raises = False  # whether linalg looks at what cuSOLVER reports
    order = 0  # of the threads of a block; see `thread_order`


_state = _State()
_properties = {"compute_capability": "90", "runtime": 13000, "driver": 13000, "is_hip": False}
_used = [0] * N_DEVICES  # bytes of arrays that are alive
_limits: list[float] = [float("inf")] * N_DEVICES


class Device:
    """cupy.cuda.Device."""

    def __init__(self, device: Any = None) -> None:
        self.id = _state.device if device is None else int(device)
        if not 0 <= self.id < N_DEVICES:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")
        self._entered: list[int] = []

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> Device:
        self._entered.append(_state.device)
        _state.device = self.id
        return self

    def __exit__(self, *args: object) -> None:
        _state.device = self._entered.pop()

    def use(self) -> None:
        _state.device = self.id

    def synchronize(self) -> None:
        pass

    @property
    def compute_capability(self) -> str:
        return str(_properties["compute_capability"])

    @property
    def mem_info(self) -> tuple[int, int]:
        total = 2**34 if _limits[self.id] == float("inf") else int(_limits[self.id])
        return max(0, total - _used[self.id]), total

    @property
    def attributes(self) -> dict[str, int]:
        return {"MultiProcessorCount": 132, "MaxSharedMemoryPerBlockOptin": 232448, "MaxSharedMemoryPerBlock": 49152}


pools_freed = 0  # how often


class MemoryPool:
    """cupy.get_default_memory_pool(), which keeps nothing here."""

    def used_bytes(self) -> int:
        return _used[_state.device]

    def total_bytes(self) -> int:
        return _used[_state.device]

    def free_bytes(self) -> int:
        return 0

    def free_all_blocks(self) -> None:
        global pools_freed
        pools_freed += 1

    def get_limit(self) -> int:
        limit = _limits[_state.device]
        return 0 if limit == float("inf") else int(limit)


class Stream:
    """cupy.cuda.Stream, and the current one; everything is done when it is called."""

    ptr = 0

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        pass

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


def _real() -> Any:
    """The real CuPy, if it is what `import cupy` gives; else None."""
    module = sys.modules.get("cupy")
    return None if module is None or module is _modules()["cupy"] else module


def used_bytes(device: int = 0) -> int:
    """Bytes of arrays that are alive on the device."""
    real = _real()
    if real is None:
        return _used[device]
    with real.cuda.Device(device):
        return int(real.get_default_memory_pool().used_bytes())


def _allocated(device: int, size: int) -> None:
    if _used[device] + size > _limits[device]:
        raise OutOfMemoryError(f"Out of memory allocating {size:,} bytes (allocated so far: {_used[device]:,} bytes).")
    _used[device] += size


def _freed(device: int, size: int) -> None:
    _used[device] -= size


class ndarray:
    """cupy.ndarray."""

    __array_priority__ = 100
    __hash__ = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("arrays are made by functions here")

    @staticmethod
    def _of(values: np.ndarray, device: int | None = None, base: np.ndarray | None = None) -> ndarray:
        """`values` on a device; `base`: whose memory a view is of."""
        array = object.__new__(ndarray)
        array._a = values
        array.device = Device(device)
        if values.base is None and base is None:
            _allocated(array.device.id, values.nbytes)
            weakref.finalize(values, _freed, array.device.id, values.nbytes)
        return array

    shape = property(lambda self: self._a.shape)
    dtype = property(lambda self: self._a.dtype)
    ndim = property(lambda self: self._a.ndim)
    size = property(lambda self: self._a.size)
    nbytes = property(lambda self: self._a.nbytes)
    itemsize = property(lambda self: self._a.itemsize)
    strides = property(lambda self: self._a.strides)
    flags = property(lambda self: self._a.flags)
    T = property(lambda self: _wrapped(self._here().T))
    mT = property(lambda self: _wrapped(self._here().mT))
    real = property(lambda self: _wrapped(self._here().real))
    data = property(lambda self: types.SimpleNamespace(ptr=self._pointer()))

    def _here(self) -> np.ndarray:
        if self.device.id != _state.device:
            raise ValueError(
                f"Array device must be same as the current device: array device = {self.device.id} while current = "
                f"{_state.device}"
            )
        return self._a

    def _pointer(self) -> int:
        """For kernels, which read what is on the current device, one number after the other."""
        values = self._here()
        assert values.flags.c_contiguous
        return values.ctypes.data if values.size else 0

    def get(self, stream: Any = None, order: str = "C", out: Any = None) -> np.ndarray:
        transfers.append(self.size)
        return np.array(self._a)

    def item(self, *index: Any) -> Any:
        transfers.append(1)
        return self._a.item(*index)

    def tolist(self) -> Any:
        transfers.append(self.size)
        return self._a.tolist()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy array "
            "explicitly."
        )

    def __array_function__(self, function: Any, *args: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} was called with an array on a device")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or any(isinstance(x, np.ndarray) and x.ndim for x in inputs):
            return NotImplemented
        return _wrapped(ufunc(*(_unwrapped(x) for x in inputs), **{k: _unwrapped(v) for k, v in kwargs.items()}))

    def __dlpack__(self, *, stream: Any = None, **kwargs: Any) -> Any:
        """For stand-ins of other libraries on GPUs, which pass a stream; NumPy does not."""
        if not isinstance(stream, int):
            raise BufferError("an array on a device is not exported to the host")
        return self._a.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    def _number(self) -> Any:
        """NumPy makes no number of an array that has dimensions, which CuPy's float and int get first."""
        if self.ndim:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        return self.item()

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __bool__(self) -> bool:
        return bool(self.item())

    __index__ = __int__

    def __len__(self) -> int:
        return len(self._a)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"emulated {self._a!r}"

    def __getitem__(self, index: Any) -> ndarray:
        return _wrapped(self._here()[_unwrapped(index)], base=self._a)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._here()[_unwrapped(index)] = _unwrapped(value)

    def fill(self, value: Any) -> None:
        self._here().fill(_unwrapped(value))

    def sort(self, axis: int = -1) -> None:
        self._here().sort(axis=axis, kind="stable")


ndarray.__module__ = "cupy"  # as the real one's, by which libraries know arrays


def _method(name: str) -> Any:
    def method(self: ndarray, *args: Any, **kwargs: Any) -> Any:
        self._here()
        if kwargs.keys() & {"initial", "where"}:
            raise TypeError(f"cupy.ndarray.{name}() has no `initial` and no `where`")
        arguments = [_unwrapped(a) for a in args]
        return _wrapped(
            getattr(self._a, name)(*arguments, **{k: _unwrapped(v) for k, v in kwargs.items()}), base=self._a
        )

    return method


for _name in METHODS:
    setattr(ndarray, _name, _method(_name))


def _backend(name: str) -> Any:
    def method(self: ndarray, *args: Any) -> Any:
        found = getattr(self._here(), name)(*(_unwrapped(a) for a in args))
        if found is NotImplemented:
            return found
        if name.startswith("__i") and name not in ("__invert__",):
            return self
        return _wrapped(found, base=self._a)

    return method


for _name in words("add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"):
    for _prefix in ("", "r", "i"):
        setattr(ndarray, f"__{_prefix}{_name}__", _backend(f"__{_prefix}{_name}__"))
for _name in words("lt le gt ge eq ne neg pos abs invert"):
    setattr(ndarray, f"__{_name}__", _backend(f"__{_name}__"))


@contextlib.contextmanager
def thread_order(order: int) -> Any:
    """Blocks, and threads between barriers, run in ascending (0) or descending (1) order, or shuffled by a seed."""
    before, _state.order = _state.order, order
    try:
        yield
    finally:
        _state.order = before


def _unset(values: np.ndarray) -> np.ndarray:
    """Memory in which nothing was written: numbers that no result has."""
    if values.dtype.kind in "fc":
        values.fill(np.nan)
    elif values.dtype.kind in "iu":
        values.fill(np.iinfo(values.dtype).max // 3)
    return values


def _unwrapped(value: Any) -> Any:
    """NumPy's view of an argument; NumPy arrays are refused, as CuPy does."""
    if isinstance(value, ndarray):
        return value._here()
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}: an array in host memory beside arrays on a device")
    if isinstance(value, (list, tuple)):
        return type(value)(_unwrapped(v) for v in value) if type(value) in (list, tuple) else value
    if isinstance(value, slice):
        return slice(*(None if v is None else int(v) for v in (value.start, value.stop, value.step)))
    return value


def _wrapped(value: Any, base: Any = None) -> Any:
    if isinstance(value, np.ndarray):
        return ndarray._of(value, base=value.base)
    if isinstance(value, np.generic):
        return ndarray._of(np.asarray(value))
    if isinstance(value, tuple):
        wrapped = [_wrapped(v) for v in value]
        return type(value)(*wrapped) if hasattr(value, "_fields") else tuple(wrapped)
    if isinstance(value, list):
        return [_wrapped(v) for v in value]
    return value


def _check(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """What CuPy refuses and NumPy takes: lists and numbers in the place of arrays, and some options."""
    if kwargs.keys() & {"initial", "where"}:
        raise TypeError(f"cupy.{name}() has no `initial` and no `where`")
    if name in MAKING:
        return
    if name in vars(scipy.special):
        if name == "polygamma" and not isinstance(args[0], ndarray):
            raise AttributeError("'bool' object has no attribute 'astype'")  # in it
        return
    first = args[0] if args else next(iter(kwargs.values()))
    if name in JOINING:
        arrays = args if name == "broadcast_arrays" else first
        if isinstance(arrays, ndarray) or all(isinstance(a, ndarray) for a in arrays):
            return
        raise TypeError(f"cupy.{name} joins arrays on a device only")
    if name == "einsum":
        first, args = args[1], args[1:]
    if isinstance(getattr(np, name, None), np.ufunc) and name not in ("matmul",):
        if any(isinstance(a, (list, tuple)) for a in args):
            raise TypeError(f"cupy.{name}: unsupported type list")
        return
    of_arrays = args if name in ("einsum", "matmul", "dot", "vdot", "outer", "tensordot", "kron") else (first,)
    if name == "searchsorted":
        of_arrays = args[:2]
    if not all(isinstance(a, ndarray) for a in of_arrays if not isinstance(a, (int, str)) or a is first):
        raise TypeError(f"cupy.{name} takes arrays on a device, found {[type(a).__name__ for a in of_arrays]}")
    if name == "lexsort" and first.ndim > 2:
        raise NotImplementedError("keys of three or more dimensions")
    if name == "repeat" and isinstance(args[1], ndarray):
        raise ValueError("`repeats` must be an int or a sequence of them")


def _function(function: Any, name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        _check(name, args, kwargs)
        return _wrapped(function(*(_unwrapped(a) for a in args), **{k: _unwrapped(v) for k, v in kwargs.items()}))

    call.__name__ = name
    return call


def asarray(values: Any, dtype: Any = None, order: Any = None, **kwargs: Any) -> Any:
    real = _real()
    if real is not None:
        return real.asarray(values, dtype=dtype, order=order)
    if isinstance(values, ndarray):
        values._here()
        found = np.asarray(values._a, dtype=dtype, order=order)
        return values if found is values._a else ndarray._of(found)
    if isinstance(values, (list, tuple)) and any(isinstance(v, ndarray) for v in values):
        if not all(isinstance(v, ndarray) for v in values):
            raise TypeError("Implicit conversion to a NumPy array is not allowed: numbers beside arrays on a device")
        values = [_unwrapped(v) for v in values]
    return ndarray._of(np.array(values, dtype=dtype, order=order))


def _array(values: Any, dtype: Any = None, copy: bool | None = True, **kwargs: Any) -> ndarray:
    if copy is not True or not isinstance(values, ndarray):
        return asarray(values, dtype)
    return ndarray._of(np.array(values._here(), dtype=dtype))


def _ascontiguousarray(values: Any, dtype: Any = None) -> ndarray:
    return asarray(values, dtype, order="C")


class _Exported:
    """Memory of the host in a DLPack capsule."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._capsule


def from_dlpack(array: Any, *, device: Any = None, copy: bool | None = None) -> ndarray:
    """An array of the memory of `array`, which says that it is on a GPU; with that GPU current while it is exported."""
    kind, index = array.__dlpack_device__()
    if kind not in (2, 13):
        raise TypeError(f"Unsupported array type: {kind}")
    with Device(index):
        values = np.from_dlpack(_Exported(array.__dlpack__(stream=1, max_version=(1, 0), copy=copy)))
        if values.dtype.name == "bfloat16":
            raise NotImplementedError("CuPy does not support bfloat16 yet")
        return ndarray._of(values, base=values)


def _asnumpy(values: Any) -> np.ndarray:
    return values.get() if isinstance(values, ndarray) else np.asarray(values)


def _cholesky(a: ndarray) -> ndarray:
    """As cuSOLVER: no error for an indefinite matrix unless asked for, but numbers that are none."""
    try:
        return _wrapped(np.linalg.cholesky(_unwrapped(a)))
    except np.linalg.LinAlgError:
        if _state.raises:
            raise
        return _wrapped(np.full(a.shape, np.nan))


@contextlib.contextmanager
def _errstate(*, linalg: str | None = None) -> Any:
    before, _state.raises = _state.raises, _state.raises if linalg is None else linalg == "raise"
    try:
        yield
    finally:
        _state.raises = before


def _in_columns(function: Any) -> Any:
    """Matrices as cuSOLVER leaves them, column by column."""

    def column_order(found: Any) -> Any:
        return ndarray._of(np.asfortranarray(found._a)) if found.ndim == 2 else found

    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        if isinstance(found, tuple):
            return (
                type(found)(*(column_order(a) for a in found))
                if hasattr(found, "_fields")
                else tuple(map(column_order, found))
            )
        return column_order(found)

    return functools.wraps(function)(call)


def _solve_triangular(
    a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False, **kw: Any
) -> Any:
    options = {"trans": trans, "lower": lower, "unit_diagonal": unit_diagonal}
    return _wrapped(scipy.linalg.solve_triangular(_unwrapped(a), _unwrapped(b), check_finite=False, **options))


COMPILED_FOR = ("-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-Wall", "-Wno-unknown-pragmas")


@functools.cache
def _precompiled(compiler: str, folder: Path) -> Path:
    """The header, compiled once for all kernels: a file that includes it, beside what the compiler made of that."""
    header = folder / "emulation.h"
    if not header.exists():  # else by another process
        own = folder / f"emulation.{os.getpid()}.h"
        own.write_text(f'#include "{HEADER}"\n')
        command = [compiler, *COMPILED_FOR, "-x", "c++-header", "-o", f"{own}.gch", str(own)]
        subprocess.run(command, capture_output=True, check=True)
        Path(f"{own}.gch").replace(f"{header}.gch")
        own.replace(header)
    return header


@functools.cache
def _library(source: str, definitions: tuple[str, ...]) -> ctypes.CDLL:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "the emulation needs a C++ compiler, as the build does"
    functions = re.findall(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\)\s)?(\w+)', source)
    text = f'#include "{HEADER}"\n{source}\n' + "".join(f"EMULATED({name})\n" for name in functions)
    folder = Path(os.environ.get("KCALIB_EMULATED_KERNELS", FOLDER.name))
    library = folder / (hashlib.sha256("\0".join((text, *definitions)).encode()).hexdigest()[:16] + ".so")
    if library.exists():  # by another process
        return ctypes.CDLL(str(library))
    stem = library.with_suffix(f".{os.getpid()}")
    Path(f"{stem}.cpp").write_text(text)
    first = ["-include", str(_precompiled(compiler, folder))]
    quiet = ["-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Werror"]
    command = [compiler, *COMPILED_FOR, "-shared", *quiet, *first, *definitions, "-o", str(stem), f"{stem}.cpp"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        raise CompileException(found.stderr[:4000], source, str(stem), definitions)
    stem.replace(library)
    return ctypes.CDLL(str(library))


compiled: list[tuple[str, tuple[str, ...]]] = []  # source and options of every module that was made
launched: set[str] = set()  # names of functions


class RawModule:
    """cupy.RawModule."""

    def __init__(self, *, code: str, options: tuple[str, ...] = (), backend: str = "nvrtc", **kwargs: Any) -> None:
        assert backend == "nvrtc" and not kwargs
        self._code, self._options = code, tuple(options)
        self._device = _state.device
        compiled.append((code, self._options))

    def compile(self) -> None:
        _library(self._code, tuple(o for o in self._options if o.startswith("-D")))

    def get_function(self, name: str) -> Any:
        function = getattr(
            _library(self._code, tuple(o for o in self._options if o.startswith("-D"))), f"emulated_{name}"
        )
        return functools.partial(self._launch, function)

    def _launch(self, function: Any, grid: tuple, block: tuple, arguments: tuple, *, shared_mem: int = 0) -> None:
        assert _state.device == self._device, "a module is of the device it was made on"
        assert len(block) == 1 and 1 <= len(grid) <= 2 and shared_mem <= 232448
        kept, pointers = [], []
        for argument in arguments:
            if isinstance(argument, ndarray):
                value: object = ctypes.c_void_p(argument.data.ptr)
            elif isinstance(argument, np.ndarray):  # a struct, by value
                assert argument.size == 1 and argument.dtype.names
                value = ctypes.create_string_buffer(argument.tobytes(), argument.nbytes)
            elif isinstance(argument, np.uintp):
                value = ctypes.c_void_p(int(argument))
            elif isinstance(argument, np.float64):
                value = ctypes.c_double(argument)
            else:
                assert isinstance(argument, (np.int64, np.uint64)), type(argument)
                value = ctypes.c_ulonglong(int(argument) % 2**64)
            kept.append(value)
            pointers.append(ctypes.addressof(value))
        array = (ctypes.c_void_p * len(pointers))(*pointers)
        x, y = *grid, *(1,) * (2 - len(grid))
        assert type(x) is int and type(y) is int and 0 < x < 2**31 and 0 < y < 2**16 and 0 < block[0] <= 1024
        launched.add(function.__name__.removeprefix("emulated_"))
        function.restype = ctypes.c_char_p
        fault = function(x, y, block[0], shared_mem, _state.order, array)
        assert not fault, fault.decode()


@functools.cache
def _modules() -> dict[str, types.ModuleType]:
    """CuPy's modules, by name."""
    cupy = types.ModuleType("cupy", __doc__)
    for name in FUNCTIONS:
        setattr(cupy, name, _function(getattr(np, name), name))
    for name in CREATION:
        setattr(cupy, name, _function(getattr(np, name), name))
    for name in CONSTANTS:
        setattr(cupy, name, getattr(np, name))
    for name in ("empty", "empty_like"):
        unset = functools.partial(lambda make, *args, **kwargs: _unset(make(*args, **kwargs)), getattr(np, name))
        setattr(cupy, name, _function(unset, name))
    cupy.__version__ = "14.2.0"
    cupy.ndarray, cupy.RawModule = ndarray, RawModule
    cupy.asarray, cupy.array, cupy.ascontiguousarray, cupy.asnumpy = asarray, _array, _ascontiguousarray, _asnumpy
    cupy.get_default_memory_pool, cupy.from_dlpack = MemoryPool, from_dlpack
    cupy.bool = np.bool_
    cupy.is_available = lambda: True

    linalg = types.ModuleType("cupy.linalg")
    for name in LINALG:
        setattr(linalg, name, _function(getattr(np.linalg, name), name))
    for name in ("eigh", "qr", "solve"):
        setattr(linalg, name, _in_columns(getattr(linalg, name)))
    linalg.cholesky, linalg.LinAlgError = _cholesky, np.linalg.LinAlgError
    linalg.matmul, linalg.matrix_transpose = cupy.matmul, _function(np.matrix_transpose, "matrix_transpose")
    fft = types.ModuleType("cupy.fft")
    for name in FFT:
        setattr(fft, name, _function(getattr(np.fft, name), name))
    cuda, runtime = types.ModuleType("cupy.cuda"), types.ModuleType("cupy.cuda.runtime")
    device, memory = types.ModuleType("cupy.cuda.device"), types.ModuleType("cupy.cuda.memory")
    compiler = types.ModuleType("cupy.cuda.compiler")
    runtime.getDeviceCount = lambda: N_DEVICES
    runtime.CUDARuntimeError = CUDARuntimeError
    runtime.driverGetVersion = lambda: _properties["driver"]
    runtime.runtimeGetVersion = lambda: _properties["runtime"]
    runtime.getDeviceProperties = lambda device: {"name": b"emulated GPU", "multiProcessorCount": 132}
    runtime.is_hip = _properties["is_hip"]
    runtime.memGetInfo = lambda: Device().mem_info
    device.Device = Device
    memory.OutOfMemoryError = OutOfMemoryError
    compiler.CompileException = CompileException
    cuda.Device, cuda.runtime, cuda.device, cuda.memory, cuda.compiler = Device, runtime, device, memory, compiler
    cuda.is_available = lambda: True
    cuda.Stream, cuda.get_current_stream = Stream, Stream
    cuda.MemoryPool = MemoryPool
    cupy.linalg, cupy.fft, cupy.cuda = linalg, fft, cuda
    cupyx, scipy_, s_linalg, special = (
        types.ModuleType(name) for name in ("cupyx", "cupyx.scipy", "cupyx.scipy.linalg", "cupyx.scipy.special")
    )
    s_linalg.solve_triangular = _solve_triangular
    cupyx.errstate = _errstate
    for name in SPECIAL:
        setattr(special, name, _function(getattr(scipy.special, name), name))
    cupyx.scipy, scipy_.linalg, scipy_.special = scipy_, s_linalg, special
    every = (cupy, linalg, fft, cuda, runtime, device, memory, compiler, cupyx, scipy_, s_linalg, special)
    for module in (cupy, cuda, cupyx, scipy_):
        module.__path__ = []
    return {module.__name__: module for module in every}


@contextlib.contextmanager
def installed() -> Any:
    """The emulation in the place of CuPy, for what is done inside."""
    mine = _modules()

    def others() -> dict[str, Any]:
        names = ("cupy", "cupyx", "array_api_compat.cupy")
        return {k: v for k, v in sys.modules.items() if any(k == n or k.startswith(n + ".") for n in names)}

    before = others()
    for name in before:
        del sys.modules[name]
    if before and "kcalib._backend.cuda" in sys.modules:  # compiled by the real one
        sys.modules["kcalib._backend.cuda"]._module.cache_clear()
    sys.modules.update(_state_modules.get("mine", {}) or mine)
    try:
        yield mine["cupy"]
    finally:
        _state_modules["mine"] = others()  # with array_api_compat's wrapper of it
        for name in _state_modules["mine"]:
            del sys.modules[name]
        if before and "kcalib._backend.cuda" in sys.modules:
            sys.modules["kcalib._backend.cuda"]._module.cache_clear()
        sys.modules.update(before)


_state_modules: dict[str, dict[str, Any]] = {}


@contextlib.contextmanager
def memory_limit(size: float, device: int = 0) -> Any:
    """Allocations on the device beyond `size` bytes, of all arrays alive, fail."""
    real = _real()
    if real is not None:
        with real.cuda.Device(device):
            pool = real.get_default_memory_pool()
            pool.free_all_blocks()
            before = pool.get_limit()
            pool.set_limit(size=int(size))
        try:
            yield
        finally:
            with real.cuda.Device(device):
                pool.set_limit(size=before)
        return
    before, _limits[device] = _limits[device], size
    try:
        yield
    finally:
        _limits[device] = before


@contextlib.contextmanager
def properties(**changed: Any) -> Any:
    """Other devices, or another driver: `compute_capability`, `is_hip`, `runtime` and `driver` versions."""
    before = dict(_properties)
    _properties.update(changed)
    runtime = _modules()["cupy.cuda.runtime"]
    runtime.is_hip = _properties["is_hip"]
    try:
        yield
    finally:
        _properties.update(before)
        runtime.is_hip = _properties["is_hip"]


@contextlib.contextmanager
def stays_on_device(at_most: int = 1) -> Any:
    """That no transfer from a device inside has more than `at_most` elements."""
    transfers.clear()
    yield
    assert max(transfers, default=0) <= at_most, f"{max(transfers)} numbers left the device at once"
