"""Define estimators as functions that return a float, with an attribute ``result`` that returns the whole result.

``kcalib.skce(y_true, y_pred)`` is a float, ``kcalib.skce.result(y_true, y_pred)`` an `SKCEResult`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kcalib._backend.devices import on_their_gpu
from kcalib.parallel.argument import in_parallel

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Estimator(Protocol[P, R_co]):
    """A function that returns its estimate as a float."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> float: ...

    def result(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Return the estimate with its standard error and how it was computed."""


def with_result(function: Callable[Concatenate[bool, P], float | R]) -> Estimator[P, R]:
    """Make an estimator from `function`, which returns a result if its first argument is True, else a float."""
    value, result = _partial(function, False), _partial(function, True)
    result.__qualname__ += ".result"
    value.result = result
    return value


def _partial(function: Any, needs_result: bool) -> Any:
    """Bind the first argument of `function` and return a function with its own signature."""
    on_gpu = on_their_gpu(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return on_gpu(needs_result, *args, **kwargs)

    returns = function.__annotations__["return"].removeprefix("float | ") if needs_result else "float"
    (first, _), *parameters = inspect.signature(function).parameters.items()
    call.__annotations__ = {**function.__annotations__, "return": returns}
    del call.__annotations__[first]
    public: Any = in_parallel(call) if "backend" in call.__annotations__ else call
    public.__signature__ = inspect.Signature([parameter for _, parameter in parameters], return_annotation=returns)
    return public
