"""Categorical distributions: the predictions of a classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.special import asarray_on_device_of, to_device_of
from kcalib._input.checks import reject
from kcalib._input.labels import Names, prepare
from kcalib.distributions._checks import read_only
from kcalib.distributions._distribution import Family, take_rows

__all__ = ["Categorical"]


@dataclass(frozen=True, eq=False)
class Categorical(Family):
    r"""Class probabilities; functions of kcalib also take these as plain arrays.

    Parameters
    ----------
    probabilities : array_like, shape (n, m), or (n,) for binary problems
        Probabilities of the classes, or of the second of two classes.
    classes : array_like of length m, optional
        The label of each column. Default: 0..m-1.

    Raises
    ------
    TypeError, ValueError
        As `kcalib.skce` for class probabilities.

    Notes
    -----
    ``kcalib.skce(y, Categorical(p))`` equals ``kcalib.skce(y, p)``, with class labels as targets. Draws are positions
    of classes, 0..m-1.

    Examples
    --------
    >>> from kcalib.distributions import Categorical
    >>> predictions = Categorical([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]], classes=["cat", "dog", "owl"])
    >>> predictions.n, predictions.n_classes
    (2, 3)
    """

    probabilities: Array
    classes: tuple[Any, ...] | None

    support = "class"

    def __init__(self, probabilities: Any, classes: Any = None) -> None:
        array = arrays.as_array(probabilities, "probabilities")
        names = None if classes is None else arrays.to_host(arrays.as_array(classes, "classes"))
        n = array.shape[0] if array.ndim else 0
        labels = np.zeros(n, dtype=np.int64) if names is None or names.size == 0 else np.resize(names, n)
        checked = prepare(labels, array, classes=names, names=Names(y_pred="probabilities"))
        self._set_fields(probabilities=read_only(array), classes=None if names is None else checked.class_names)

    @property
    def n_classes(self) -> int:
        """Return the number m of classes."""
        binary = self.probabilities.ndim == 1 or self.probabilities.shape[1] == 1
        return 2 if binary else int(self.probabilities.shape[1])

    @property
    def event_shape(self) -> tuple[int, ...]:
        return ()

    def take(self, rows: Any) -> Categorical:
        # A copy that owns its array: checks of class probabilities need no view.
        return self._with(probabilities=take_rows(self.probabilities, rows))

    def parameters(self) -> Array:
        """Return the probabilities of all classes, shape (n, m), float64."""
        p = self.probabilities
        xp = arrays.namespace(p)
        p = arrays.cast(xp, p, "float64", or_else="float32")
        if p.ndim == 1 or p.shape[1] == 1:
            second = xp.reshape(p, (-1,))
            return xp.stack([1 - second, second], axis=1)
        return p

    def _draw_from(self, uniforms: Array) -> Array:
        uniforms = to_device_of(uniforms, self.probabilities)
        xp = arrays.namespace(uniforms)
        upper = xp.cumsum(arrays.to_compute_device(self.parameters()), axis=1)
        upper[upper >= upper[:, -1:]] = np.inf  # the last sum may be below 1 by rounding
        positions = xp.zeros(uniforms.shape[:2], dtype=np.int64)
        for k in range(self.n_classes - 1):
            positions += uniforms[:, :, 0] >= upper[:, k : k + 1]
        return arrays.like(positions, self.probabilities)

    def log_density(self, y: Any) -> Array:
        """Return the log probability of one class for each sample.

        Parameters
        ----------
        y : array_like of int, shape (n,)
            Positions of classes, 0..m-1.

        Returns
        -------
        array, shape (n,)
            In the library of the probabilities; -inf for a probability of 0.

        Raises
        ------
        ValueError
            If the shape is wrong, or a number is not the position of a class.
        """
        labels = arrays.as_array(y, "y")
        p = arrays.to_compute_device(self.parameters())
        if tuple(labels.shape) != (self.n,) or arrays.kind_of(labels) not in "iu":
            raise ValueError(
                f"`y` has shape {tuple(labels.shape)} and dtype {labels.dtype}, expected integers of shape ({self.n},)"
                ": the position of a class for each prediction"
            )
        labels = asarray_on_device_of(labels, p)
        reject(
            labels,
            (labels < 0) | (labels >= self.n_classes),
            lambda at, x: f"`y{at}` is {x}, expected the position of a class, 0 to {self.n_classes - 1}",
        )
        xp = arrays.namespace(p)
        p = p[xp.arange(self.n), labels]
        logs = xp.where(p > 0, xp.log(xp.where(p > 0, p, 1.0)), -np.inf)
        return arrays.like(logs, self.probabilities)
