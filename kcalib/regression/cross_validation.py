"""Choose an estimator of the calibration error and its parameters (Gruber and Bach, section 3.2.2).

Some samples are for tuning: each candidate, an estimation function with parameters, is fitted to all folds but one, and
its risk is evaluated on that fold. The functions with the lowest mean risk, one for each fold, together estimate the
calibration error on the other samples.
"""

from __future__ import annotations

import inspect
import itertools
import math
import numbers
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from kcalib._backend import arrays
from kcalib._backend.arrays import Array
from kcalib._backend.devices import on_their_gpu
from kcalib._backend.options import SEED, check_integer, check_seed
from kcalib._backend.threads import TerminalProgress
from kcalib._input.labels import prepare
from kcalib.kernels import Gaussian
from kcalib.lenses import Canonical, ClassWise, Lens
from kcalib.regression._choice import SquaredCalibrationErrorResult, average_over_classes, make_entry, make_result
from kcalib.regression._function import CalibrationFunction, Parametrised, Problem, null_risk_of, restore
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

Progress = Callable[[float], None]

__all__ = ["SquaredCalibrationErrorCV", "squared_calibration_error"]


@on_their_gpu
def squared_calibration_error(
    y_true: Any,
    y_pred: Any,
    *,
    lens: Lens | str | None = None,
    estimators: Any = None,
    n_folds: int = 5,
    test_size: float = 0.2,
    shuffle: bool = True,
    seed: int | None = SEED,
    classes: Any = None,
    from_logits: bool = False,
) -> SquaredCalibrationErrorResult:
    """Estimate the squared calibration error by the estimator with the lowest risk.

    `kcalib.regression.SquaredCalibrationErrorCV` compares estimators and parameters by cross-validated risk, and
    evaluates the best one on samples that were not used for the choice.

    Parameters
    ----------
    y_true, y_pred, classes, from_logits
        As in `kcalib.skce`.
    lens : Lens or "class_wise", optional
        Notion of calibration, one of `kcalib.lenses`; by default canonical. "class_wise": the means over all classes k
        of the results for ``ClassWise(k)``; each class has its own parameters, all have the same estimator.
    estimators, n_folds, test_size, shuffle, seed
        As in `kcalib.regression.SquaredCalibrationErrorCV`.

    Returns
    -------
    SquaredCalibrationErrorResult
        `value`, the squared error, its `root`, the `risk`, and a table of all `estimators`, which ``print`` shows.

    Raises
    ------
    TypeError, ValueError, MemoryError
        As `kcalib.regression.SquaredCalibrationErrorCV`.

    See Also
    --------
    kcalib.skce : A kernel calibration error with an unbiased estimate and without a fit.

    References
    ----------
    .. [1] S. G. Gruber, F. Bach. Optimizing estimators of squared calibration errors in classification. 2025.

    Examples
    --------
    >>> import numpy as np
    >>> import kcalib
    >>> rng = np.random.default_rng(0)
    >>> true = rng.uniform(size=5000)
    >>> y = rng.uniform(size=5000) < true
    >>> p = true**2 / (true**2 + (1 - true)**2)
    >>> result = kcalib.squared_calibration_error(y, p, lens=kcalib.lenses.ClassWise(1), estimators="bins")
    >>> bool(abs(result.root - np.sqrt(np.mean((p - true)**2))) < 0.01)
    True
    """
    options: dict[str, Any] = {"n_folds": n_folds, "test_size": test_size, "shuffle": shuffle, "seed": seed}
    if not isinstance(lens, str):
        cv = SquaredCalibrationErrorCV(estimators, lens=lens, **options)
        return cv.fit(y_true, y_pred, classes=classes, from_logits=from_logits).result_
    if lens != "class_wise":
        raise ValueError(f"`lens` is {lens!r}, expected one of kcalib.lenses, or 'class_wise'")
    start, results = time.perf_counter(), []
    if shuffle and seed is None:
        options["seed"] = check_seed(None)  # all classes share one seed, so that their folds are the same samples
    m = prepare(y_true, y_pred, classes=classes, from_logits=from_logits).m
    with TerminalProgress("kcalib cross-validation") as bar:
        for k in range(m):
            cv = SquaredCalibrationErrorCV(estimators, lens=ClassWise(k), **options)
            share = None if bar is None else partial(_show, bar, k, m)
            results.append(cv._fit(y_true, y_pred, classes, from_logits, share).result_)
    return average_over_classes(results, time.perf_counter() - start)


def _show(bar: Progress, k: int, m: int, share: float) -> None:
    bar((k + share) / m)


class SquaredCalibrationErrorCV(Parametrised):
    """Estimate the squared calibration error by the estimator with the lowest cross-validated risk.

    ``1 - test_size`` of the samples are for tuning, in `n_folds` folds. Each candidate, an estimation function with
    parameters, is fitted to all folds but one, and its risk is evaluated on that fold; the lowest mean risk wins. The
    winning functions, one for each fold, estimate the calibration error on the remaining samples. The estimate is their
    mean, and its standard error comes from their spread.

    Parameters
    ----------
    estimators : str, estimation function, pair, or list of these, optional
        The candidates: a name, for an estimator with its default grid of parameters; an estimation function of
        `kcalib.regression` with fixed parameters; or a pair of a function and a grid, a dictionary of lists of values
        (or a list of such) as in scikit-learn's ``GridSearchCV``. Names: "bins" (one probability or two classes only),
        "temperature", "kde", "kkr", "ukkr". Default: all names that apply.
    lens : Lens, optional
        Notion of calibration, one of `kcalib.lenses`; by default canonical. All estimators use it.
    n_folds : int
        Number of folds, at least 2.
    test_size : float
        Share of the samples that are not for tuning, in (0, 1).
    shuffle : bool
        Whether to permute the samples. If False, the first samples are for tuning, the last for the estimate.
    seed : int, optional
        Seed of ``numpy.random.default_rng(seed).permutation(n)``, at least 0. By default a seed is drawn, and reported
        in `result_`. Folds are contiguous in the permuted order; the first ones may be larger by one sample.

    Attributes
    ----------
    result_ : SquaredCalibrationErrorResult
        The estimate, its risk and the risk of h = 0, and a table of all estimators.
    estimators_ : list of estimation functions
        The winner fitted without each fold: the ensemble.
    best_params_ : dict
        The parameters of the winner in the grid.
    best_index_ : int
        The row of the winner in `cv_results_`.
    best_risk_ : float
        The mean risk of the winner.
    cv_results_ : dict of arrays
        A row for each setting of each estimator, as in ``GridSearchCV``: "estimator", "params", "param_NAME" (masked
        for estimators without it), "split0_risk", "split1_risk", ..., "mean_risk", "standard_error_risk",
        "mean_root_risk", "mean_risk_minus_null" and "rank_risk".

    See Also
    --------
    kcalib.squared_calibration_error : The same in one call.

    Notes
    -----
    Risks are of samples that the fit has not seen, but the lowest of many risks is optimistic; it only serves to
    choose. The risk has a part that no estimator can change: compare estimators by risk minus null risk, not by risk.

    Time: a fit and an evaluation for each setting and fold; settings that share work are fitted together. Memory: the
    samples, and one function for each fold of three candidates: the best so far, the best setting so far of the next
    estimator, and the current setting (or those that share work).

    A label may occur in one fold only: its probability is then estimated as for a class that does not occur.
    Interrupting `fit` leaves the object unchanged.

    `fit` raises TypeError or ValueError as `kcalib.skce`, and if a parameter or a grid is out of range, a fold has
    fewer than two samples, or an estimator refuses the data: "bins" if the lens leaves more than two classes,
    "equal_mass" bins if the folds have fewer samples than bins. MemoryError as the estimators.

    References
    ----------
    .. [1] S. G. Gruber, F. Bach. Optimizing estimators of squared calibration errors in classification. 2025,
       sections 3.2.2 and 5.2, appendix B.

    Examples
    --------
    >>> import numpy as np
    >>> from kcalib.lenses import TopLabel
    >>> from kcalib.regression import BinnedCalibration, SquaredCalibrationErrorCV, TemperatureCalibration
    >>> rng = np.random.default_rng(0)
    >>> true = rng.dirichlet(np.ones(3), size=4000)
    >>> y = (rng.uniform(size=(4000, 1)) > true.cumsum(axis=1)).sum(axis=1)
    >>> p = true**2 / np.sum(true**2, axis=1, keepdims=True)
    >>> few = BinnedCalibration(), {"n_bins": [2, 4, 8, 16]}
    >>> cv = SquaredCalibrationErrorCV([few, TemperatureCalibration()], lens=TopLabel()).fit(y, p)
    >>> cv.result_.estimator, cv.result_.n_test
    ('TemperatureCalibration()', 800)
    >>> cv.cv_results_["rank_risk"].tolist()
    [5, 3, 2, 4, 1]
    """

    def __init__(
        self,
        estimators: Any = None,
        *,
        lens: Lens | None = None,
        n_folds: int = 5,
        test_size: float = 0.2,
        shuffle: bool = True,
        seed: int | None = SEED,
    ) -> None:
        self.estimators = estimators
        self.lens = lens
        self.n_folds = n_folds
        self.test_size = test_size
        self.shuffle = shuffle
        self.seed = seed

    @on_their_gpu
    def fit(
        self, y_true: Any, y_pred: Any, *, classes: Any = None, from_logits: bool = False
    ) -> SquaredCalibrationErrorCV:
        """Choose the estimator, and estimate the error with it.

        Parameters
        ----------
        y_true, y_pred, classes, from_logits
            As in `kcalib.skce`.

        Returns
        -------
        SquaredCalibrationErrorCV
            The fitted object itself.
        """
        with TerminalProgress("kcalib cross-validation") as bar:
            return self._fit(y_true, y_pred, classes, from_logits, bar)

    @on_their_gpu
    def h(self, p: Any, q: Any = None, *, from_logits: bool = False) -> Array:
        """Evaluate the ensemble, the mean over folds, for all pairs of predictions.

        Parameters
        ----------
        p, q : array_like, shape (n, m) and (n', m)
            Predictions; `q` defaults to `p`.
        from_logits : bool
            Whether both are logits.

        Returns
        -------
        ndarray of float64, shape (n, n')
            The values; an array on the GPU if the predictions or the fit are there.
        """
        functions = self._ensemble()
        return restore(sum(f._values(p, q, from_logits) for f in functions) / len(functions), p)

    @on_their_gpu
    def squared_error(self, y_pred: Any, *, from_logits: bool = False) -> float:
        """Return the squared calibration error of other predictions by the ensemble.

        Parameters
        ----------
        y_pred, from_logits
            As in `kcalib.skce`.

        Returns
        -------
        float
            The mean over folds and predictions of h(p, p).
        """
        return float(np.mean([f.squared_error(y_pred, from_logits=from_logits) for f in self._ensemble()]))

    def _ensemble(self) -> list[CalibrationFunction]:
        if not hasattr(self, "estimators_"):
            raise ValueError("this SquaredCalibrationErrorCV is not fitted; call fit(y_true, y_pred) first")
        return self.estimators_

    def _fit(
        self, y_true: Any, y_pred: Any, classes: Any, from_logits: bool, progress: Progress | None
    ) -> SquaredCalibrationErrorCV:
        start = time.perf_counter()
        lens = Canonical() if self.lens is None else self.lens
        problem = Problem.of(prepare(y_true, y_pred, classes=classes, from_logits=from_logits, lens=lens), lens)
        split = self._split(problem.n)
        candidates = make_candidates(self.estimators, lens, problem.points.shape[1], len(split.without(0)))
        searches = _search_all(candidates, problem, split, progress)
        folds = [arrays.asarray_like(fold, problem.residuals) for fold in split.folds]
        null_risks = np.array([null_risk_of(problem.residuals[fold]) for fold in folds])
        winner = min(searches, key=lambda search: search.risk)
        # Set attributes last, so that an interrupted fit changes nothing.
        self.result_ = make_result(
            [
                make_entry(s.candidate.name, s.candidate.settings[s.best], s.values, s.risks[s.best], null_risks)
                for s in searches
            ],
            null_risks,
            lens=str(lens),
            by_class=None,
            n_samples=problem.n,
            n_tuning=problem.n - len(split.test),
            n_test=len(split.test),
            n_folds=len(split.folds),
            n_classes=problem.simplex.shape[1],
            seed=split.seed,
            seconds=time.perf_counter() - start,
        )
        self.cv_results_ = _cv_results(searches, null_risks)
        self.estimators_ = winner.functions
        self.best_params_ = winner.candidate.settings[winner.best]
        before = itertools.takewhile(lambda search: search is not winner, searches)
        self.best_index_ = sum(len(search.risks) for search in before) + winner.best
        self.best_risk_ = winner.risk
        for function in winner.functions:
            function._warn_of_fit()
        return self

    def _split(self, n: int) -> Split:
        n_folds = check_integer("n_folds", self.n_folds, 2)
        seed = check_seed(self.seed)
        if not isinstance(self.shuffle, (bool, np.bool_)):
            raise TypeError(f"`shuffle` is {self.shuffle!r}, expected True or False")
        if not self.shuffle and self.seed is not None and seed != SEED:
            raise ValueError(f"`seed` is {seed} but `shuffle` is False: nothing is random; leave one of them out")
        if isinstance(self.test_size, bool) or not isinstance(self.test_size, numbers.Real):
            raise TypeError(f"`test_size` is {self.test_size!r}, expected a share of the samples between 0 and 1")
        if not 0 < self.test_size < 1:
            raise ValueError(f"`test_size` is {self.test_size}, expected a share of the samples between 0 and 1")
        n_test = round(self.test_size * n)
        if n_test < 1 or n - n_test < 2 * n_folds:
            raise ValueError(
                f"`y_pred` has {n} predictions, of which test_size={self.test_size} leaves {n_test} for the estimate "
                f"and {n - n_test} for {n_folds} folds; at least 1 and 2 a fold are needed: pass more samples, or "
                "another `test_size` or `n_folds`"
            )
        order = np.random.default_rng(seed).permutation(n) if self.shuffle else np.arange(n)
        return Split(np.array_split(order[: n - n_test], n_folds), order[n - n_test :], seed if self.shuffle else None)


class Split(NamedTuple):
    folds: list[np.ndarray]  # rows of the samples for tuning
    test: np.ndarray  # rows of the others
    seed: int | None  # of the permutation; None if the samples kept their order

    def without(self, k: int) -> np.ndarray:
        """Return the rows of all folds but the k-th."""
        return np.concatenate([fold for number, fold in enumerate(self.folds) if number != k])


class Search(NamedTuple):
    candidate: Candidate
    risks: np.ndarray  # shape: (settings, folds)
    best: int  # the setting of the lowest mean risk
    functions: list[CalibrationFunction]  # with that setting, for each fold; empty if another candidate is better
    values: np.ndarray  # their estimates on the test samples, shape: (folds,)

    @property
    def risk(self) -> float:
        return float(self.risks[self.best].mean())


def _search_all(
    candidates: Sequence[Candidate], problem: Problem, split: Split, progress: Progress | None
) -> list[Search]:
    fits = sum(len(candidate.settings) for candidate in candidates) * len(split.folds)
    counter = itertools.count(1)

    def advance() -> None:
        if progress is not None:
            progress(next(counter) / fits)

    searches: list[Search] = []
    for candidate in candidates:
        searches.append(_search(candidate, problem, split, advance))
        best = min(searches, key=lambda search: search.risk)
        searches = [search if search is best else search._replace(functions=[]) for search in searches]
    return searches


def _search(candidate: Candidate, problem: Problem, split: Split, advance: Callable[[], None]) -> Search:
    """Return the risks of all settings; keep only functions of the best setting so far and of the current group."""
    risks = np.full((len(candidate.settings), len(split.folds)), np.inf)
    best, functions = 0, []
    for group in candidate.groups():
        settings = [candidate.settings[i] for i in group]
        fitted: dict[int, list[CalibrationFunction]] = {i: [] for i in group}
        for k, fold in enumerate(split.folds):
            trials = candidate.function._try_settings(settings, problem.take(split.without(k)), problem.take(fold))
            for i, (function, risk) in zip(group, trials, strict=True):
                risks[i, k] = risk
                fitted[i].append(function)
                advance()
        lowest = int(np.argmin(risks.mean(axis=1)))
        if lowest in fitted:
            best, functions = lowest, fitted[lowest]
    test = problem.take(split.test)
    return Search(candidate, risks, best, functions, np.array([f._squared_error(test) for f in functions]))


def _cv_results(searches: Sequence[Search], null_risks: np.ndarray) -> dict[str, Any]:
    """Return a row for each setting, with the keys of scikit-learn's GridSearchCV where they apply."""
    settings = [setting for search in searches for setting in search.candidate.settings]
    risks = np.concatenate([search.risks for search in searches])
    names = [search.candidate.name for search in searches for _ in search.candidate.settings]
    results: dict[str, Any] = {"estimator": np.array(names, dtype=object), "params": settings}
    for name in sorted({name for setting in settings for name in setting}):
        column = np.array([setting.get(name) for setting in settings], dtype=object)
        results[f"param_{name}"] = np.ma.array(column, mask=[name not in setting for setting in settings])
    results |= {f"split{k}_risk": column.copy() for k, column in enumerate(risks.T)}
    means = risks.mean(axis=1)
    return results | {
        "mean_risk": means,
        "standard_error_risk": risks.std(axis=1, ddof=1) / math.sqrt(risks.shape[1]),
        "mean_root_risk": np.sqrt(np.maximum(risks, 0.0)).mean(axis=1),
        "mean_risk_minus_null": (risks - null_risks).mean(axis=1),
        "rank_risk": np.array([1 + int(np.sum(means < mean)) for mean in means]),
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

    name: str  # as given by the user
    function: CalibrationFunction  # not fitted
    settings: tuple[dict[str, Any], ...]

    def groups(self) -> list[list[int]]:
        """Return groups of settings that share work, by their indices."""
        path = self.function._path
        groups: dict[Any, list[int]] = {}
        for number, setting in enumerate(self.settings):
            other_settings = tuple((name, id(value)) for name, value in setting.items() if name != path)
            groups.setdefault(number if path is None else other_settings, []).append(number)
        return list(groups.values())


def make_candidates(estimators: Any, lens: Lens, n_columns: int, n_fit: int) -> list[Candidate]:
    """Return candidates for the user's `estimators`; None: all that apply to points with `n_columns` columns."""
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
