"""Methods as users name them: a string for the default, an object for its options.

The classes stand in the files of what they do (`inference`, `solvers`), are frozen dataclasses whose fields are their
options, check these when they are made, and are public as `kcalib.methods`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from kcalib._backend.options import LARGEST_KEY, check_seed


class Method:
    """Base of all methods: one way to do a task that has several."""

    name: ClassVar[str]  # what users may write instead of an object with the default options


@dataclass(frozen=True, kw_only=True)
class Seeded(Method):
    """A method that draws random numbers, always the same for a seed."""

    seed: int | None = 0  # None is replaced by one that is drawn when the object is made

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed, LARGEST_KEY))

    @property
    def drawn_seed(self) -> int:
        """The seed, which is a number once the object is made."""
        assert self.seed is not None
        return self.seed


M = TypeVar("M", bound=Method)


def resolved(method: Any, classes: Sequence[type[M]], argument: str = "method") -> M:
    """Return the method that `argument` names, or is, of the `classes` that the function takes."""
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
