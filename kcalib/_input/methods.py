"""Methods as users name them: a string for default options, or an object.

Their classes are frozen dataclasses whose fields are checked options, public in `kcalib.methods`, and defined next to
their code (`inference`, `solvers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from kcalib._backend.options import LARGEST_KEY, check_seed


class Method:
    """Base class of methods."""

    name: ClassVar[str]  # stands for an object with default options


@dataclass(frozen=True, kw_only=True)
class Seeded(Method):
    """A method that draws random numbers, which depend on the seed only."""

    seed: int | None = 0  # None is replaced by a drawn seed

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed, LARGEST_KEY))

    @property
    def drawn_seed(self) -> int:
        """The seed as a number."""
        assert self.seed is not None
        return self.seed


M = TypeVar("M", bound=Method)


def resolved(method: Any, classes: Sequence[type[M]], argument: str = "method") -> M:
    """Return the method that `argument` names or is, out of `classes`."""
    by_name = {cls.name: cls for cls in classes}
    if isinstance(method, str) and method in by_name:
        return by_name[method]()
    for cls in classes:
        if isinstance(method, cls):
            return method
    expected = f"expected one of {', '.join(map(repr, by_name))}, or such an object of kcalib.methods"
    if isinstance(method, type) and issubclass(method, Method):
        raise TypeError(f"`{argument}` is the class {method.__name__}; pass an object, {method.__name__}()")
    if isinstance(method, (str, Method)):
        raise ValueError(f"`{argument}` is {method!r}, {expected}")
    raise TypeError(f"`{argument}` is {method!r}, {expected}")
