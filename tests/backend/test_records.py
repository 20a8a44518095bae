"""Immutable values: all that can be seen of them is that of the standard library's dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
import typing
from pathlib import Path
from typing import Any, ClassVar

import pytest

import kcalib
from kcalib._backend import records


def classes_of(dataclass: Any) -> tuple[Any, ...]:
    @dataclass(frozen=True)
    class Plain:
        """A pair."""

        values: Any  # a name that `__init__` could have used itself
        self_made: list[int] = dataclasses.field(default_factory=list)
        hidden: float = dataclasses.field(default=1.5, repr=False, compare=False)
        later: list[str] = dataclasses.field(default_factory=list, init=False)
        noun: ClassVar[str] = "pair"

    @dataclass(frozen=True, kw_only=True)
    class Derived(Plain):
        """More of it."""

        last: int
        word: str = "x"

        def __post_init__(self) -> None:
            object.__setattr__(self, "last", self.last + 1)

    @dataclass(frozen=True, eq=False)
    class Alone:
        """Compared by identity."""

        one: int

    @dataclass(frozen=True)
    class Empty:
        """Nothing."""

        def __repr__(self) -> str:
            return "nothing"

    return Plain, Derived, Alone, Empty


PAIRS = list(zip(classes_of(records.dataclass), classes_of(dataclasses.dataclass), strict=True))
ARGUMENTS: dict[str, tuple[Any, ...]] = {"Plain": ((1, 2),), "Derived": (3, [4], 0.5), "Alone": (5,), "Empty": ()}


def made(cls: Any) -> Any:
    keywords = {"last": 7} if cls.__name__ == "Derived" else {}
    return cls(*ARGUMENTS[cls.__name__], **keywords)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda one: one.__name__)
def test_as_the_standard_library_has_it(ours, theirs):
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__init__.__annotations__ == theirs.__init__.__annotations__
    assert ours.__init__.__qualname__ == theirs.__init__.__qualname__
    assert ours.__match_args__ == theirs.__match_args__
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)
    assert [str(one) for one in dataclasses.fields(ours)] == [str(one) for one in dataclasses.fields(theirs)]
    one, other = made(ours), made(theirs)
    assert repr(one) == repr(other).replace("theirs", "ours")
    assert vars(one) == vars(other) and list(vars(one)) == list(vars(other))
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    for cls in (ours, theirs):
        value = made(cls)
        assert (value == made(cls)) is cls.__dataclass_params__.eq
        for change in (lambda v: setattr(v, "new", 1), lambda v: delattr(v, "new")):
            with pytest.raises(dataclasses.FrozenInstanceError, match="field 'new'"):
                change(value)
        if all(field.init for field in dataclasses.fields(cls)):
            assert vars(dataclasses.replace(value)) == vars(value)
        undecorated = made(type(cls.__name__, (cls,), {}))
        undecorated.new = 1  # what derives without a decorator may have more
        assert undecorated.new == 1 and undecorated != value
        for field in dataclasses.fields(cls):
            with pytest.raises(dataclasses.FrozenInstanceError, match=f"assign to field '{field.name}'"):
                setattr(undecorated, field.name, 1)


def test_hashes():
    for cls in PAIRS[0]:
        with pytest.raises(TypeError, match="unhashable"):
            hash(cls([1]))
    ours, theirs = (
        decorator(frozen=True)(type("Two", (), {"__annotations__": {"x": int, "y": str}, "__doc__": "2"}))
        for decorator in (records.dataclass, dataclasses.dataclass)
    )
    assert hash(ours(1, "a")) == hash(theirs(1, "a")) == hash((1, "a"))
    alone = PAIRS[2][0]
    assert hash(alone(1)) != hash(alone(1))


def test_wrong_arguments_are_named():
    (ours, _), (derived, _) = PAIRS[:2]
    with pytest.raises(TypeError, match=r"__init__\(\) missing 1 required positional argument: 'values'"):
        ours()
    with pytest.raises(TypeError, match="unexpected keyword argument 'later'"):
        ours(1, later=[])
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'last'"):
        derived(1)


def test_standard_dataclasses_derive_from_ours_and_ours_from_them():
    ours, theirs = PAIRS[2]

    @dataclasses.dataclass(frozen=True)
    class Below(ours):
        two: int = 2

    @records.dataclass(frozen=True)
    class BelowTheirs(theirs):
        two: int = 2

    for cls in (Below, BelowTheirs):
        assert dataclasses.astuple(cls(1)) == (1, 2) and cls(1) == cls(1, 2) != cls(1, 3)
        with pytest.raises(dataclasses.FrozenInstanceError):
            cls(1).one = 2


@records.dataclass(frozen=True)
class Node:
    """With a field that is resolved late, and a list that can hold itself."""

    children: list[Node]
    name: str = "root"


def test_annotations_pickles_and_circles():
    assert typing.get_type_hints(Node.__init__) == {"children": list[Node], "name": str, "return": type(None)}
    node = Node([Node([])])
    assert pickle.loads(pickle.dumps(node)) == node == copy.deepcopy(node)
    node.children.append(node)
    assert repr(node) == "Node(children=[Node(children=[], name='root'), ...], name='root')"


def test_first_calls_by_many_threads_at_once():
    for _ in range(20):
        cls, barrier, found = classes_of(records.dataclass)[1], threading.Barrier(4), []

        def call(cls=cls, barrier=barrier, found=found) -> None:
            barrier.wait()
            found.append(made(cls))

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4 and all(one == found[0] for one in found)


def test_the_package_takes_them_from_here():
    for path in Path(kcalib.__file__).parent.rglob("*.py"):
        assert "@dataclasses.dataclass(frozen=True" not in (text := path.read_text(encoding="utf-8")), path
        assert "@dataclass(frozen=True" not in text or "records import dataclass" in text, path
