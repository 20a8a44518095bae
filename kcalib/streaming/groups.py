"""`GroupedState`: the calibration of a model in groups of samples and in total."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.memory import check_memory
from kcalib._backend.options import check_integer
from kcalib._input.frames import check_variables
from kcalib._pairs.label_cells import LabelCells
from kcalib.bandwidth import NoLengthScaleError
from kcalib.streaming._files.saving import Saved
from kcalib.streaming._options import StateOptions
from kcalib.streaming.state import CalibrationState

__all__ = ["GroupedState"]

MAX_GROUPS = 1000
Name = int | str


class GroupedState(Saved):
    """A `CalibrationState` of all samples and one of each group of samples: hospitals, languages, months.

    Parameters
    ----------
    n_classes : int
        As in `CalibrationState`.
    max_groups : int
        Maximum number of groups, which guards against a group for each sample.
    **options
        As in `CalibrationState`. Draws of labels take memory in each group: 8 MB for 10 classes and 199 draws.

    Raises
    ------
    TypeError, ValueError
        As `CalibrationState`.

    Notes
    -----
    A row is added to the total and to its group, where rows are numbered in the order of arrival. All groups have the
    kernel of the total. While its bandwidth is unknown, `groups` computes it from the rows so far. Time and memory are
    those of one state more than there are groups.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=3000)
    >>> language = rng.choice(["de", "en"], size=3000)
    >>> y = rng.uniform(size=3000) < np.where(language == "de", p, 0.7 * p + 0.3)
    >>> state = kcalib.streaming.GroupedState(2, n_columns=64).update(y, p, group=language)
    >>> {name: group.result().miscalibrated for name, group in state.groups.items()}
    {'de': False, 'en': True}
    >>> state.total.n_samples == sum(group.n_samples for group in state.groups.values())
    True
    """

    _kind: ClassVar[str] = "grouped"

    def __init__(self, n_classes: int, *, max_groups: int = MAX_GROUPS, **options: Any) -> None:
        self.max_groups = check_integer("max_groups", max_groups, 1)
        self._total = CalibrationState(n_classes, **options)
        self._groups: dict[Name, CalibrationState] = {}
        self._empty = self._total.copy()

    @property
    def options(self) -> StateOptions:
        """The options of all states."""
        return self._total.options

    @property
    def n_samples(self) -> int:
        """The number of rows so far."""
        return self._total.n_samples

    @property
    def total(self) -> CalibrationState:
        """A copy of the state of all samples."""
        return self._total.copy()

    @property
    def groups(self) -> dict[Name, CalibrationState]:
        """Copies of the states of the groups by name, sorted with numbers first, with the kernel of the total."""
        total = self._total
        with suppress(NoLengthScaleError):  # the bandwidth stays unknown
            total = total._with_kernel_of_rows()
        return {name: self._groups[name]._with_kernel_of(total) for name in sorted(self._groups, key=_order)}

    def update(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, *, group: Any, clusters: Any = None
    ) -> GroupedState:
        """Add a batch of samples. An error or an interrupt leaves the state unchanged.

        Parameters
        ----------
        y_true, y_pred, sample_weight, clusters
            As in `CalibrationState.update`.
        group : array_like of int or str, shape (n,), or int or str
            The group of each sample, or of all samples. False and True are the groups 0 and 1.

        Returns
        -------
        GroupedState
            The state itself.

        Raises
        ------
        TypeError, ValueError
            As `CalibrationState.update`; if `group` has another shape or type; if there are more than `max_groups`
            groups.
        MemoryError
            If there is no memory for the sums of new groups.
        """
        batch = self._total._batch(y_true, y_pred, sample_weight, clusters=clusters)
        check_variables(y_true, y_pred, group=group)
        names, number = _names(group, batch.n)
        if not batch.n:
            return self
        self._check_room({*self._groups, *names})
        total = self._total.copy()._add(batch)
        order = np.argsort(number, kind="stable")
        ends = np.cumsum(np.bincount(number, minlength=len(names)))
        groups = dict(self._groups)
        for name, rows in zip(names, np.split(order, ends[:-1]), strict=True):
            groups[name] = groups.get(name, self._empty)._with_kernel_of(total)._add_some(batch, rows)
        self._total, self._groups = total, groups
        return self

    def merge(self, other: GroupedState) -> GroupedState:
        """Add the groups of another state; groups with the same name are merged. An error leaves both states unchanged.

        Parameters
        ----------
        other : GroupedState
            A state with the same options, except `part` and `max_groups`.

        Returns
        -------
        GroupedState
            The state itself.

        Raises
        ------
        TypeError
            If `other` is not a `GroupedState`.
        ValueError
            As `CalibrationState.merge`, or if there are more than `max_groups` groups.
        MemoryError
            If there is no memory for the sums of new groups.
        """
        if not isinstance(other, GroupedState):
            raise TypeError(f"`other` is {type(other).__name__}, expected a GroupedState")
        self._check_room({*self._groups, *other._groups})
        total = self._total.copy().merge(other._total)
        groups = {name: state._with_kernel_of(total) for name, state in self._groups.items()}
        for name, state in other._groups.items():
            theirs = state._with_kernel_of(total)
            # Merge into a state of this part: a new group starts from an empty state.
            groups[name] = groups.get(name, self._empty)._with_kernel_of(total).merge(theirs)
        self._total, self._groups = total, groups
        return self

    def __add__(self, other: GroupedState) -> GroupedState:
        if not isinstance(other, GroupedState):
            return NotImplemented
        first, second = sorted((self, other), key=lambda state: state.options.part)
        new = first.copy()
        new.max_groups = max(self.max_groups, other.max_groups)
        return new.merge(second)

    def copy(self) -> GroupedState:
        """Return a copy."""
        state = type(self).__new__(type(self))
        state.max_groups, state._total, state._empty = self.max_groups, self._total.copy(), self._empty
        state._groups = {name: group_state.copy() for name, group_state in self._groups.items()}
        return state

    def __repr__(self) -> str:
        return f"GroupedState of {len(self._groups)} groups: {self._total!r}"

    def _check_room(self, names: set[Name]) -> None:
        """Refuse too many groups."""
        new = sorted(names - self._groups.keys(), key=_order)
        if len(names) > self.max_groups:
            raise ValueError(
                f"with {new[0]!r} there are {len(names)} groups, expected at most max_groups={self.max_groups}; use "
                "larger groups, or make the state with a larger `max_groups`"
            )
        options = self.options
        of_kernels = 16 * options.n_columns * options.n_classes * (1 + 1.25 * options.n_kernel_resamples)
        of_cells = 8 * LabelCells.for_classes(options.n_classes).size * options.n_resamples
        needed = len(new) * int(of_kernels + of_cells)
        remedy = "make the state with n_resamples=0, fewer columns or fewer groups"
        check_memory(needed, None, f"the sums of {len(new)} further groups", remedy)

    def _content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        names = sorted(self._groups, key=_order)
        states = {"total": self._total, "empty": self._empty}
        states |= {f"group {place}": self._groups[name] for place, name in enumerate(names)}
        parts = {name: np.frombuffer(state.to_bytes(), dtype=np.uint8) for name, state in states.items()}
        return {"names": tuple(names), "max_groups": self.max_groups}, parts

    @classmethod
    def _from_content(cls, options: dict[str, Any], arrays: dict[str, np.ndarray]) -> GroupedState:
        state = cls.__new__(cls)
        state.max_groups = options["max_groups"]
        total, empty = (CalibrationState.from_bytes(arrays[name].tobytes()) for name in ("total", "empty"))
        state._total, state._empty = total, empty
        state._groups = {
            name: CalibrationState.from_bytes(arrays[f"group {place}"].tobytes())
            for place, name in enumerate(options["names"])
        }
        return state


def _order(name: Name) -> tuple[bool, Name]:
    return isinstance(name, str), name


def _names(group: Any, n: int) -> tuple[list[Name], np.ndarray]:
    """Return the names in a batch, and for each sample the index of its name."""
    if isinstance(group, (int, np.integer, np.bool_)):
        return [check_integer("group", int(group), -(2**63), 2**63 - 1)], np.zeros(n, dtype=np.int64)
    if isinstance(group, str):
        return [str(group)], np.zeros(n, dtype=np.int64)
    is_list = isinstance(group, (list, tuple))
    group_names = None if is_list else arrays.to_host(arrays.as_array(group, "group"))
    if group_names is None or group_names.dtype.kind == "O":  # NumPy would turn mixed entries into strings
        entries = list(group)
        kinds = [_kind(name, row) for row, name in enumerate(entries)]
        index = next((row for row, kind in enumerate(kinds) if kind is not kinds[0]), None)
        if index is not None:
            raise TypeError(
                f"`group[0]` is {entries[0]!r} and `group[{index}]` is {entries[index]!r}, expected only integers or "
                "only strings; pass strings"
            )
        group_names = np.array(entries, dtype=(kinds[0] if kinds else int))
    if group_names.dtype.kind not in "biuU":
        raise TypeError(
            f"`group` has dtype {group_names.dtype}, expected integers or strings{_of_dates(group_names.dtype)}"
        )
    if group_names.shape != (n,):
        raise ValueError(f"`group` has shape {group_names.shape}, expected ({n},): the group of each sample")
    if group_names.dtype.kind != "U" and group_names.size and int(group_names.max()) > 2**63 - 1:
        check_integer(f"group[{int(group_names.argmax())}]", int(group_names.max()), -(2**63), 2**63 - 1)
    names, number = np.unique(
        group_names if group_names.dtype.kind == "U" else group_names.astype(np.int64), return_inverse=True
    )
    return names.tolist(), number


def _kind(name: Any, row: int) -> type:
    """Return `str` or `int` (also for booleans), or refuse the name."""
    if isinstance(name, str):
        if name.endswith("\0"):  # NumPy's strings do not keep it
            raise ValueError(f"`group[{row}]` is {name!r}, expected a name that does not end with a null character")
        return str
    if isinstance(name, (int, np.integer, np.bool_)):
        check_integer(f"group[{row}]", int(name), -(2**63), 2**63 - 1)
        return int
    hint = "; pass strings, such as those of date.isoformat()" if hasattr(name, "isoformat") else ""
    raise TypeError(f"`group[{row}]` is {name!r}, expected an integer or a string{hint}")


def _of_dates(dtype: np.dtype[Any]) -> str:
    return '; pass strings, such as numpy.datetime_as_string(group, unit="M") of months' if dtype.kind == "M" else ""
