"""The current GPU: public functions and methods run on the GPU of their arrays.

`on_their_gpu` looks for arrays of CuPy, PyTorch or JAX on NVIDIA GPUs among the arguments, also in dictionaries, lists
and objects of kcalib. If there is one, its GPU is the current one during the call, and `faults` explains errors; the
current stream of CuPy on that GPU is not changed. `methods_on_their_gpu` applies it to all methods of a class.
"""

from __future__ import annotations

import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.faults import check_gpu, explain_error, import_cupy

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

# Frequent types of arguments that hold no array on a GPU.
_PLAIN = frozenset({np.ndarray, np.float64, np.int64, np.bool_, int, float, str, bool, type(None)})
_DEPTH, _ENTRIES = 4, 64  # depth of search in objects, entries of a list


class Place(NamedTuple):
    """An array on a GPU among the arguments."""

    argument: str  # parameter
    label: str  # name in messages
    gpu: int
    array: Any


def on_their_gpu(function: F) -> F:
    """Run `function` with the GPU of its array arguments as the current one, and restore the caller's."""
    code: Any = function
    names = code.__code__.co_varnames[: code.__code__.co_argcount]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if {"cupy", "torch", "jax"} & sys.modules.keys():
            arguments = dict(zip(names, args, strict=False)) | kwargs
            places = [place for name, value in arguments.items() for place in _places(value, name, name, _DEPTH)]
            if places:
                _check_places(places, arguments)
                return _run(function, places[0], args, kwargs)
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


def methods_on_their_gpu(cls: type[T]) -> type[T]:
    """Apply `on_their_gpu` to the constructor and all public methods that a class defines."""
    for name, value in list(vars(cls).items()):
        if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, on_their_gpu(value))
    return cls


def _run(function: Callable[..., Any], place: Place, args: Any, kwargs: Any) -> Any:
    gpu = place.gpu
    remedy = f"pass {place.label}.cpu()" if arrays.library(place.array) == "torch" else "bring the arrays to the CPU"
    cupy = import_cupy(f"`{place.label}` is on cuda:{gpu}", remedy)
    try:
        with cupy.cuda.Device(gpu):
            check_gpu(gpu)
            return function(*args, **kwargs)
    except Exception as error:
        fault = explain_error(error, gpu)
        if fault is None:
            raise
        _release_memory(error, cupy, gpu)
        raise fault from error


def _release_memory(error: BaseException | None, cupy: Any, gpu: int) -> None:
    """Free what the failed call holds on the GPU, even if the error is kept, as in interactive Python."""
    out_of_memory = isinstance(error, MemoryError)
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    if out_of_memory:
        with cupy.cuda.Device(gpu):
            cupy.get_default_memory_pool().free_all_blocks()


def _check_places(places: list[Place], arguments: dict[str, Any]) -> None:
    first = next((place for place in places if place.argument in ("y_pred", "y_preds")), places[0])
    for place in places:
        if place.gpu != first.gpu:
            raise ValueError(
                f"{_name_of(place)} is on GPU {place.gpu}, {_name_of(first)} on GPU {first.gpu}; bring them to one "
                f"GPU, such as by {_call_to_move(place, first)}"
            )
    gpu_places = [place for place in places if place.argument != "self"]
    for name in ("y_pred", "y_preds"):
        for label, value in _entries(arguments.get(name), name):
            kind: Any = type(value)
            if gpu_places and _classify_type(kind) != "object" and not any(p.label.startswith(label) for p in places):
                raise ValueError(
                    f"{_name_of(gpu_places[0])} is on GPU {gpu_places[0].gpu}, but `{label}` is not; bring both to one "
                    f"place: cupy.asarray({label}) computes on the GPU, {_call_to_fetch(gpu_places[0])} on the CPU"
                )


def _entries(value: Any, name: str) -> list[tuple[str, Any]]:
    if value is None:
        return []
    return [(f"{name}[{k!r}]", v) for k, v in value.items()] if isinstance(value, Mapping) else [(name, value)]


def _name_of(place: Place) -> str:
    return f"this {place.label}" if place.argument == "self" else f"`{place.label}`"


def _call_to_move(place: Place, to: Place) -> str:
    name = arrays.library(place.array)
    if name == "torch":
        return f"{place.label}.to('cuda:{to.gpu}')"
    if name == "jax":
        return f"jax.device_put({place.label}, {to.label}.device)"
    return f"cupy.asarray({place.label}) inside `with cupy.cuda.Device({to.gpu}):`"


def _call_to_fetch(place: Place) -> str:
    name = arrays.library(place.array)
    if name == "torch":
        return f"{place.label}.cpu()"
    return f"numpy.asarray({place.label})" if name == "jax" else f"cupy.asnumpy({place.label})"


def _places(value: Any, argument: str, label: str, depth: int) -> Iterator[Place]:
    """Yield the arrays on GPUs in a value, its entries and its attributes."""
    kind: Any = type(value)
    category = _classify_type(kind)
    if category is None or depth == 0:
        return
    if category == "array":
        gpu = arrays.gpu_of(value)
        if gpu is not None:
            yield Place(argument, label, gpu, value)
    elif category == "mapping":
        for key, entry in value.items():
            yield from _places(entry, argument, f"{label}[{key!r}]", depth - 1)
    elif category == "sequence":
        for position, entry in enumerate(value[:_ENTRIES]):
            yield from _places(entry, argument, f"{label}[{position}]", depth - 1)
    else:
        owner = type(value).__name__ if label == "self" else label
        for name, entry in getattr(value, "__dict__", {}).items():
            inner = owner if argument == "self" or name.startswith("_") else f"{label}.{name}"
            yield from _places(entry, argument, inner, depth - 1)


@functools.lru_cache(maxsize=1024)
def _classify_type(kind: Any) -> str | None:
    """Classify a type by the names of its bases, since libraries may be missing.

    "array": of a library with arrays on GPUs; "object": of kcalib, derived from one of its classes, or a distribution
    of another library; "mapping"; "sequence": a list or tuple; None: holds no arrays.
    """
    if kind in _PLAIN:
        return None
    names = {(base.__module__.partition(".")[0], base.__name__.rpartition(".")[2]) for base in kind.__mro__}
    if names & {("cupy", "ndarray"), ("torch", "Tensor"), ("jaxlib", "ArrayImpl"), ("jax", "Array")}:
        return "array"
    if issubclass(kind, Mapping):
        return "mapping"
    if issubclass(kind, (list, tuple)):
        return "sequence"
    modules = {base.__module__ for base in kind.__mro__}
    if any(m.partition(".")[0] in ("kcalib", "numpyro") or m.startswith("torch.distributions") for m in modules):
        return "object"
    return None
