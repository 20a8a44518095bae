"""Options of a state in JSON, and back: numbers, texts, arrays, and the objects that users name, without `eval`.

A kernel, a lens or a target kernel is its class's name and the fields that its constructor takes, each described in
turn; the constructor checks them again. A matrix is its bytes, so that no digit is lost.
"""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import numpy as np

import kcalib.kernels as kernels
import kcalib.lenses as lenses
import kcalib.target_kernels as target_kernels

CLASS = "class"
ARRAY = "array"
CLASSES: dict[str, type] = {
    f"{module.__name__.removeprefix('kcalib.')}.{name}": getattr(module, name)
    for module in (kernels, lenses, target_kernels)
    for name in module.__all__
    if dataclasses.is_dataclass(getattr(module, name))
}
NAMES = {kind: name for name, kind in CLASSES.items()}


class UnknownError(ValueError):
    """A description names a class that is not known here."""


def describe(value: Any, name: str) -> Any:
    """Return `value` as JSON has it.

    Raises
    ------
    TypeError
        If it is, or holds, an object that is none of kcalib's; the message calls the value `name`.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.generic):
        return describe(value.item(), name)
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, np.ndarray):
        data = value.astype(value.dtype.newbyteorder("<"), order="C")
        text = base64.b64encode(data.tobytes()).decode()
        return {CLASS: ARRAY, "dtype": data.dtype.str, "shape": list(data.shape), "base64": text}
    if isinstance(value, (tuple, list)):
        return [describe(entry, name) for entry in value]
    if type(value) not in NAMES:
        raise TypeError(
            f"{name} is {value!r}, of the class {type(value).__qualname__}, which is none of kcalib's, so that a file "
            "cannot say what it is; use kernels and lenses of kcalib"
        )
    fields = {field.name: describe(getattr(value, field.name), name) for field in dataclasses.fields(value)}
    return {CLASS: NAMES[type(value)], **fields}


def restore(value: Any) -> Any:
    """Return what `describe` was given; lists become tuples. An UnknownError if there is no such class."""
    if isinstance(value, list):
        return tuple(restore(entry) for entry in value)
    if not isinstance(value, dict):
        return value
    name = value[CLASS]
    if name == ARRAY:
        data = np.frombuffer(base64.b64decode(value["base64"], validate=True), dtype=np.dtype(value["dtype"]))
        return data.reshape(tuple(value["shape"])).astype(data.dtype.newbyteorder("="))
    if name not in CLASSES:
        raise UnknownError(f"an option of the class {name}, which this version does not know")
    return CLASSES[name](**{key: restore(entry) for key, entry in value.items() if key != CLASS})
