"""Save fitted recalibrators as JSON, and load them; the files contain no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kcalib._backend.files import write_whole
from kcalib.recalibration._recalibrator import Recalibrator
from kcalib.recalibration.venn_abers import Values
from kcalib.results import ConfidenceInterval

FORMAT = "kcalib recalibrator 1"
TUPLES: dict[str, Any] = {"ConfidenceInterval": ConfidenceInterval, "Values": Values}


def save(recalibrator: Recalibrator, path: Any) -> None:
    """Write a fitted recalibrator to a JSON file, for `load`.

    Parameters
    ----------
    recalibrator : Recalibrator
        The fitted recalibrator.
    path : str or path-like
        The file, such as "map.json"; overwritten if it exists.

    Raises
    ------
    OSError
        If the file cannot be written.
    TypeError
        If `recalibrator` is not a recalibrator, or a parameter is a kernel or another object that JSON cannot hold.
    ValueError
        If the recalibrator is not fitted.

    Examples
    --------
    >>> import tempfile
    >>> from kcalib.recalibration import PlattScaling, save
    >>> scaling = PlattScaling().fit([0, 1, 0, 1, 1], [0.1, 0.7, 0.6, 0.4, 0.9])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(scaling, f"{folder}/map.json")
    """
    if not isinstance(recalibrator, Recalibrator):
        raise TypeError(f"`recalibrator` is {recalibrator!r}, expected a fitted one; the order is (recalibrator, path)")
    recalibrator._check_fitted()
    state = {name: value for name, value in vars(recalibrator).items() if not name.startswith("_")}
    values = {name: _encode_value(name, value) for name, value in state.items()}
    content = {"format": FORMAT, "class": type(recalibrator).__name__, "state": values}
    write_whole(path, json.dumps(content, allow_nan=False).encode())


def _encode_value(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else {"number": str(value)}
    if isinstance(value, np.ndarray):
        numbers = [_encode_value(name, number) for number in value.ravel().tolist()]
        return {"array": numbers, "shape": value.shape, "dtype": value.dtype.name}
    if isinstance(value, (list, tuple)):
        items = [_encode_value(name, item) for item in value]
        return items if isinstance(value, list) else {"tuple": items, "class": type(value).__name__}
    raise TypeError(f"`{name}` is {type(value).__name__}, which JSON cannot hold; leave it at its default, or pickle")


def _decode_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.array([_decode_value(x) for x in value["array"]], value["dtype"]).reshape(value["shape"])
    if "tuple" in value:
        items = map(_decode_value, value["tuple"])
        return TUPLES[value["class"]](*items) if value["class"] in TUPLES else tuple(items)
    return float(value["number"])


def load(path: Any) -> Any:
    """Load a fitted recalibrator from a file written by `save`.

    Parameters
    ----------
    path : str or path-like
        The file. It contains numbers and names only, so files from others are safe to load.

    Returns
    -------
    Recalibrator
        An object of the saved class, with exactly the same numbers.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If the file was not written by `save`.

    Examples
    --------
    >>> import tempfile
    >>> from kcalib.recalibration import PlattScaling, load, save
    >>> scaling = PlattScaling().fit([0, 1, 0, 1, 1], [0.1, 0.7, 0.6, 0.4, 0.9])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(scaling, f"{folder}/map.json")
    ...     loaded = load(f"{folder}/map.json")
    >>> bool(loaded.transform([0.3])[0] == scaling.transform([0.3])[0])
    True
    """
    message = f"{str(path)!r} holds no recalibrator of this version of kcalib; write one by kcalib.recalibration.save"
    try:
        content = json.loads(Path(path).read_bytes())
        cls = _find_classes(Recalibrator)[content["class"]]
        if content["format"] != FORMAT:
            raise ValueError(message)
        state = {name: _decode_value(value) for name, value in content["state"].items()}
        recalibrator = cls(**{name: value for name, value in state.items() if not name.endswith("_")})
        for name, value in state.items():
            setattr(recalibrator, name, value)
        if not _is_usable(recalibrator):
            raise ValueError(message)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise ValueError(message) from None
    return recalibrator


def _is_usable(recalibrator: Any) -> bool:
    """Return whether a map of probabilities returns probabilities, and one of distributions has finite numbers."""
    if not recalibrator.family_.startswith("probabilities of"):
        numbers = [value for value in vars(recalibrator).values() if isinstance(value, (float, np.ndarray))]
        return all(np.all(np.isfinite(value)) for value in numbers)
    p = np.arange(1.0, 1 + len(recalibrator.classes_)) / sum(range(1, 1 + len(recalibrator.classes_)))
    q = recalibrator.transform(np.stack([p, p[::-1]]))
    return bool(np.all((q >= 0) & (np.abs(q.sum(axis=1, keepdims=True) - 1) < 1e-6)))


def _find_classes(base: type[Any]) -> dict[str, Any]:
    """Return the recalibrators of this package by name."""
    classes: dict[str, Any] = {}
    for cls in type.__subclasses__(base):
        if cls.__module__.startswith("kcalib.recalibration."):
            classes |= {cls.__name__: cls, **_find_classes(cls)}
    return classes
