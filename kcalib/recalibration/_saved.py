"""Save fitted recalibrators as JSON, without code in the file, and load them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kcalib.recalibration._recalibrator import Recalibrator
from kcalib.recalibration.venn_abers import Values
from kcalib.results import ConfidenceInterval

FORMAT = "kcalib recalibrator 1"
TUPLES: dict[str, Any] = {"ConfidenceInterval": ConfidenceInterval, "Values": Values}


def encode(recalibrator: Recalibrator) -> bytes:
    """Return the parameters and what was fitted as JSON."""
    state = {name: value for name, value in vars(recalibrator).items() if not name.startswith("_")}
    values = {name: _encode_value(name, value) for name, value in state.items()}
    content = {"format": FORMAT, "class": type(recalibrator).__name__, "state": values}
    return json.dumps(content, allow_nan=False).encode()


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
    """Load a fitted recalibrator from a file of `Recalibrator.save`.

    Parameters
    ----------
    path : str or path-like
        The file. It holds numbers and names alone, so that it is safe to load from others.

    Returns
    -------
    Recalibrator
        Of the class that was saved, with the bits of its numbers.

    Raises
    ------
    OSError
        If the file cannot be read.
    ValueError
        If it is no such file.

    Examples
    --------
    >>> import tempfile
    >>> from kcalib.recalibration import PlattScaling, load
    >>> scaling = PlattScaling().fit([0, 1, 0, 1, 1], [0.1, 0.7, 0.6, 0.4, 0.9])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     scaling.save(f"{folder}/map.json")
    ...     loaded = load(f"{folder}/map.json")
    >>> bool(loaded.transform([0.3])[0] == scaling.transform([0.3])[0])
    True
    """
    from kcalib import recalibration

    message = f"{str(path)!r} holds no recalibrator of this version of kcalib; save one by its method `save`"
    try:
        content = json.loads(Path(path).read_bytes())
        cls = getattr(recalibration, content["class"]) if content["class"] in recalibration.__all__ else None
        if content["format"] != FORMAT or not (isinstance(cls, type) and issubclass(cls, Recalibrator)):
            raise ValueError(message)
        state = {name: _decode_value(value) for name, value in content["state"].items()}
        recalibrator = cls(**{name: value for name, value in state.items() if not name.endswith("_")})
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ValueError(message) from None
    for name, value in state.items():
        setattr(recalibrator, name, value)
    return recalibrator
