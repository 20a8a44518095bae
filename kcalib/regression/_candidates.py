"""Make the candidates that `cross_validation` tries: estimation functions by name, and the settings of each.

The default grids are those of Gruber and Bach, appendix B, with the kernel and the ridge of the code behind their
tables.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kcalib.kernels import Gaussian
from kcalib.lenses import Lens
from kcalib.regression._function import CalibrationFunction
from kcalib.regression.binned import BinnedCalibration
from kcalib.regression.dirichlet_kde import BANDWIDTHS, DirichletKDE
from kcalib.regression.kernel_ridge import KKR, UKKR, KernelRidge
from kcalib.regression.temperature import TemperatureCalibration

Grid = Mapping[str, Iterable[Any]]
PUBLISHED = Gaussian(bandwidth=0.5**0.5)  # exp(-|p - p'|^2)
NAMES: dict[str, Callable[[Lens], CalibrationFunction]] = {
    "bins": lambda lens: BinnedCalibration(lens=lens),
    "temperature": lambda lens: TemperatureCalibration(lens=lens),
    "kde": lambda lens: DirichletKDE(lens=lens),
    "kkr": lambda lens: KKR(kernel=PUBLISHED, lens=lens),
    "ukkr": lambda lens: UKKR(kernel=PUBLISHED, lens=lens),
}


def default_grid(function: CalibrationFunction, n: int) -> Grid:
    """Return the grid of a function that is fitted to n samples."""
    if isinstance(function, KernelRidge):
        return {"regularization": function.regularization_grid(n, convention="code")}
    if isinstance(function, DirichletKDE):
        return {"bandwidth": BANDWIDTHS}
    return {"n_bins": range(5, 101, 5)} if isinstance(function, BinnedCalibration) else {}


@dataclass(frozen=True)
class Candidate:
    """An estimation function and the settings of its parameters to choose from."""

    name: str  # as the user calls it
    function: CalibrationFunction  # not fitted
    settings: tuple[dict[str, Any], ...]

    def groups(self) -> list[list[int]]:
        """Return numbers of settings that share work; each setting alone for functions that share none."""
        path = self.function._path
        groups: dict[Any, list[int]] = {}
        for number, setting in enumerate(self.settings):
            other_settings = tuple((name, id(value)) for name, value in setting.items() if name != path)
            groups.setdefault(number if path is None else other_settings, []).append(number)
        return list(groups.values())


def make_candidates(estimators: Any, lens: Lens, n_columns: int, n_fit: int) -> list[Candidate]:
    """Return what the user's `estimators` stand for; None for all that apply to points of so many columns."""
    if estimators is None:
        estimators = [name for name in NAMES if name != "bins" or n_columns <= 2]
    elif isinstance(estimators, (str, CalibrationFunction)) or _is_pair(estimators):
        estimators = [estimators]
    elif not isinstance(estimators, Sequence) or not estimators:
        raise _wrong_estimator(estimators, "`estimators` is")
    candidates = [_make_candidate(estimator, lens, n_fit) for estimator in estimators]
    names = [candidate.name for candidate in candidates]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"`estimators` has {name} twice; merge their grids into a list of grids")
    return candidates


def _is_pair(estimator: Any) -> bool:
    return isinstance(estimator, tuple) and len(estimator) == 2 and isinstance(estimator[0], CalibrationFunction)


def _wrong_estimator(estimator: Any, start: str = "`estimators` has") -> Exception:
    return (ValueError if isinstance(estimator, str) else TypeError)(
        f"{start} {estimator!r}, expected a name ({', '.join(map(repr, NAMES))}), an estimation function of "
        "kcalib.regression, a pair of such a function and a grid, or a list of these"
    )


def _make_candidate(estimator: Any, lens: Lens, n_fit: int) -> Candidate:
    if isinstance(estimator, str) and estimator in NAMES:
        function = NAMES[estimator](lens)
        return Candidate(estimator, function, _expand_grid(default_grid(function, n_fit), function))
    function, grid = estimator if _is_pair(estimator) else (estimator, {})
    if not isinstance(function, CalibrationFunction):
        raise _wrong_estimator(estimator)
    usual = inspect.signature(type(function)).parameters["lens"].default
    if function.lens not in (None, usual, lens):
        raise ValueError(f"`estimators` has {function!r}, but `lens` is {lens!r}; give the lens once, as `lens`")
    return Candidate(repr(function), function.clone().set_params(lens=lens), _expand_grid(grid, function))


def _expand_grid(grid: Any, function: CalibrationFunction) -> tuple[dict[str, Any], ...]:
    """Return all combinations of the values of a grid, or of several, as scikit-learn's ParameterGrid does."""
    grids = [grid] if isinstance(grid, Mapping) else grid
    if not isinstance(grids, Sequence) or not all(isinstance(part, Mapping) for part in grids):
        raise TypeError(f"the grid of {function!r} is {grid!r}, expected a dictionary of lists, or a list of these")
    if not grids:
        raise ValueError(f"the grid of {function!r} is empty; leave it out to try {function!r} as it is")
    return tuple(setting for part in grids for setting in _combine(part, function))


def _combine(grid: Grid, function: CalibrationFunction) -> Iterator[dict[str, Any]]:
    lists = []
    for name, values in grid.items():
        names = [key for key in function.get_params() if key != "lens"]
        if name not in names:
            raise ValueError(f"the grid of {function!r} has {name!r}; its parameters are {', '.join(names)}")
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(f"the grid of {function!r} has {name}={values!r}, expected a list of values to try")
        lists.append(list(values.tolist() if isinstance(values, np.ndarray) else values))
        if not lists[-1]:
            raise ValueError(f"the grid of {function!r} has no values of {name} to try")
    for combination in itertools.product(*lists):
        yield dict(zip(grid, combination, strict=True))
