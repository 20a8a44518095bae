"""`dataclass` for immutable values: that of the standard library, opened and made in a fraction of its time.

The library compiles six functions a class, 0.4 ms, and a first call waits for a hundred classes; its `__init__` calls
`object.__setattr__` once a field, and a call with few samples makes a dozen objects. Here `__init__` alone is compiled,
when a class is first called or looked at, and writes into `__dict__`; the rest are functions that loop over fields.
All modules take it from here; what may be set is `dataclasses.dataclass`. To type checkers, and to
`dataclasses.fields`, `replace` and the like, the two are the same.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool, eq: bool = True, kw_only: bool = False) -> Callable[[type], type]:
        """As `dataclasses.dataclass(frozen=True, ...)`."""
        assert frozen

        def decorated(cls: type) -> type:
            derived = any(map(dataclasses.is_dataclass, cls.__bases__))
            if cls.__doc__ is None:
                cls.__doc__ = ""  # rather than a signature, for which `__init__` would be compiled
            # What derives from an immutable class is declared one, which compiles two functions.
            dataclasses.dataclass(frozen=derived, init=False, repr=False, eq=False, kw_only=kw_only)(cls)
            parameters, fields = cls.__dataclass_params__, dataclasses.fields(cls)
            parameters.init = parameters.repr = parameters.frozen = True
            parameters.eq = eq
            methods = {"__init__": _Init(cls), "__repr__": _repr}
            if not derived:
                methods |= _refusals(cls, {field.name for field in fields})
            if eq:
                methods |= _comparisons([field.name for field in fields if field.compare])
            for name, method in methods.items():
                if name not in vars(cls) or (name == "__hash__" and vars(cls)[name] is None):
                    setattr(cls, name, method)
            return cls

        return decorated


class _Default:
    """What a signature shows for a value that is made by a call."""

    def __repr__(self) -> str:
        return "<factory>"


MADE = _Default()


class _Init:
    """`__init__` of a class, in place of which the function stands as soon as it is asked for."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def __get__(self, instance: Any, owner: type) -> Any:
        cls: Any = self._cls
        if cls.__dict__["__init__"] is self:
            cls.__init__ = _compiled(cls)
        return cls.__dict__["__init__"].__get__(instance, owner)


def _compiled(cls: Any) -> Any:
    """`__init__` with the fields as parameters; in the class's module, where its annotations are looked up."""
    fields = dataclasses.fields(cls)
    parameters, keywords, lines = ["self"], ["*"], ["__dict__ = self.__dict__"]
    known: dict[str, Any] = {"__MADE": MADE}  # names that no field has
    for field in fields:
        name, value, default = field.name, field.name, ""
        if field.default_factory is not dataclasses.MISSING:
            known[f"__make_{name}"], default = field.default_factory, "=__MADE"
            value = f"__make_{name}()" + (f" if {name} is __MADE else {name}" if field.init else "")
        elif field.default is not dataclasses.MISSING:
            known[f"__default_{name}"], default = field.default, f"=__default_{name}"
        if field.init:
            (keywords if field.kw_only else parameters).append(name + default)
        if field.init or value != name:
            lines.append(f"__dict__[{name!r}] = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    signature, body = ", ".join(parameters + (keywords if len(keywords) > 1 else [])), "\n  ".join(lines)
    text = f"def make({', '.join(known)}):\n def __init__({signature}):\n  {body}\n return __init__"
    found: dict[str, Any] = {}
    exec(text, vars(sys.modules[cls.__module__]), found)  # of names that were written in the class
    function: Any = found["make"](**known)
    function.__qualname__ = f"{cls.__qualname__}.__init__"
    function.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return function


@reprlib.recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({shown})"


def _refusals(cls: Any, names: set[str]) -> dict[str, Callable[..., None]]:
    """Fields cannot be set; what an undecorated class derives from `cls` beside them can."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _comparisons(names: list[str]) -> dict[str, Callable[..., Any]]:
    """Of the values of these fields, of objects of one class."""

    def single(self: Any) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in names])

    values: Any = operator.attrgetter(*names) if len(names) > 1 else single

    def __eq__(self: Any, other: Any) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__}
