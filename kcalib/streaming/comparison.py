"""`ComparisonState`: several models on the same rows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from kcalib._backend.memory import check_memory
from kcalib._backend.options import check_choice, check_fraction
from kcalib._packing.labels import resolve
from kcalib.bandwidth import NoLengthScaleError
from kcalib.inference.compare import compared
from kcalib.results import Comparison
from kcalib.streaming._accumulator import FIRST_ROWS, Batch, explain_bandwidths, sign_row_count
from kcalib.streaming._classes.accumulator import ClassAccumulator, induced
from kcalib.streaming._classes.pair_metrics import METRICS, Compared
from kcalib.streaming._classes.pair_sums import PairSums, RowTerms
from kcalib.streaming._files.saving import Saved
from kcalib.streaming._options import StateOptions
from kcalib.streaming.state import CalibrationState

__all__ = ["ComparisonState"]

HELD = FIRST_ROWS - 1  # rows for the common bandwidth; with one more a state would fix its own


class ComparisonState(Saved):
    """Several models on the same samples, for paired comparisons from sums.

    Parameters
    ----------
    n_classes : int
        Number of classes, the same for all models.
    models : sequence of str
        Two or more names.
    **options
        Options of `CalibrationState`, the same for all models. A missing bandwidth of the `kernel` is set to the median
        over the models of the median distance of the first 1999 rows. `n_resamples` is 0 by default: draws of labels
        are needed only for the tests of the single states.

    Raises
    ------
    TypeError, ValueError
        As `CalibrationState`, and if `models` are not distinct names.
    MemoryError
        If there is no memory for the sums of pairs.

    Notes
    -----
    Memory: a state for each model, and 16 n_bins^2 bytes for each pair. Samples have no weights, as in
    `kcalib.compare`: confidence intervals of weighted differences are not known.

    Examples
    --------
    >>> import numpy as np, kcalib
    >>> rng = np.random.default_rng(1)
    >>> p = rng.uniform(size=3000)
    >>> y = rng.uniform(size=3000) < p
    >>> state = kcalib.streaming.ComparisonState(2, models=["right", "sharp"], n_columns=64)
    >>> for rows in np.split(np.arange(3000), 10):
    ...     sharp = p[rows] ** 3 / (p[rows] ** 3 + (1 - p[rows]) ** 3)
    ...     state = state.update(y[rows], {"right": p[rows], "sharp": sharp})
    >>> result = state.result()
    >>> result.ranking, result.difference("right", "sharp").distinguishable
    (('right', 'sharp'), True)
    """

    _kind: ClassVar[str] = "comparison"

    def __init__(self, n_classes: int, models: Sequence[str] = ("a", "b"), **options: Any) -> None:
        if options.get("clusters"):
            raise ValueError(
                "`clusters` is for states of single models; leave it out, or use kcalib.compare(clusters=) on samples "
                "in memory"
            )
        empty = CalibrationState(n_classes, **{"n_resamples": 0} | options)
        self._states = {name: empty.copy() for name in _checked(models)}
        n_pairs, n_bins = len(self._states) * (len(self._states) - 1) // 2, empty.options.n_bins
        check_memory(16 * n_bins**2 * n_pairs, None, f"sums of {n_pairs} pairs of models by bins", "use fewer `n_bins`")
        self._pairs = {pair: PairSums.empty(n_bins) for pair in itertools.combinations(self._states, 2)}
        self._threads = empty._threads

    @property
    def options(self) -> StateOptions:
        """The options of all states."""
        return next(iter(self._states.values())).options

    @property
    def n_samples(self) -> int:
        """The number of rows so far."""
        return next(iter(self._states.values())).n_samples

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """The numbers of the rows, as intervals [start, stop) in ascending order."""
        return next(iter(self._states.values())).rows

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models."""
        return tuple(self._states)

    @property
    def states(self) -> dict[str, CalibrationState]:
        """Copies of the states of the models, with the common kernel (without a bandwidth if all predictions agree)."""
        try:
            return self._with_common(self._states, self.n_samples)
        except NoLengthScaleError:
            return {name: state.copy() for name, state in self._states.items()}

    def update(self, y_true: Any, y_preds: Mapping[str, Any], *, first_row: int | None = None) -> ComparisonState:
        """Add a batch of samples. An error or an interrupt leaves the state unchanged.

        Parameters
        ----------
        y_true : array_like
            Labels, as in `CalibrationState.update`, the same for all models.
        y_preds : mapping of str to array_like
            The predictions of each model for the same samples in the same order.
        first_row : int, optional
            As in `CalibrationState.update`.

        Returns
        -------
        ComparisonState
            The state itself.

        Raises
        ------
        TypeError, ValueError
            As `CalibrationState.update`, with the name of the model; if the models in `y_preds` are not those of the
            state.
        """
        if not isinstance(y_preds, Mapping):
            raise TypeError(f"`y_preds` is a {type(y_preds).__name__}, expected a mapping of names to predictions")
        if y_preds.keys() != self._states.keys():
            raise ValueError(
                f"`y_preds` has the models {list(y_preds)}, expected {list(self._states)}; pass predictions of each"
            )
        batches: dict[str, Batch] = {}
        classes: tuple[Any, ...] | None = None  # of the first model
        for name, state in self._states.items():
            try:
                batches[name] = state._batch(y_true, y_preds[name], None, first_row, classes=classes)
                classes = batches[name].classes
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"`y_preds[{name!r}]`: {error}") from None
        if not next(iter(batches.values())).n:
            return self
        terms = {name: self._terms(batch) for name, batch in batches.items()}
        n_bins = self.options.n_bins
        pairs = {(a, b): sums + PairSums.of(terms[a], terms[b], n_bins) for (a, b), sums in self._pairs.items()}
        self._states, self._pairs = self._add_batches(batches), pairs
        return self

    def _terms(self, batch: Batch) -> RowTerms:
        return RowTerms.of(induced(batch, self.options.lens), self.options.n_bins)

    def _add_batches(self, batches: dict[str, Batch]) -> dict[str, CalibrationState]:
        """Return the states with their batches; the rows that fix the common bandwidth are added first."""
        states = {name: state.copy() for name, state in self._states.items()}
        n = next(iter(batches.values())).n
        held = HELD - self.n_samples
        if self.options.kernel.open_metrics() and n >= held:
            if held > 0:
                states = {name: state._add(batches[name].take(0, held)) for name, state in states.items()}
            states = self._with_common(states, HELD)
            batches = {name: batch.take(max(held, 0), n) for name, batch in batches.items()}
        return {name: state._add(batches[name]) if batches[name].n else state for name, state in states.items()}

    def _with_common(self, states: Mapping[str, CalibrationState], rows: int) -> dict[str, CalibrationState]:
        """Return the states with the common bandwidth: the median over the models of the median distances."""
        kernel = next(iter(states.values())).options.kernel
        if not kernel.open_metrics():
            return {name: state.copy() for name, state in states.items()}
        points = [state._accumulator.first_points()[:HELD] for state in states.values()]
        with explain_bandwidths():
            common, medians = resolve(points, kernel, self._threads, elsewhere=rows < HELD)

        def with_common_kernel(accumulator: ClassAccumulator) -> ClassAccumulator:
            return accumulator.flush(self._threads).with_kernel(
                common, sign_row_count(min(rows, HELD), medians), self._threads
            )

        return {
            name: state._with(with_common_kernel(state._accumulator), self._threads) for name, state in states.items()
        }

    def merge(self, other: ComparisonState) -> ComparisonState:
        """Add all rows of another state of the same models. An error leaves both states unchanged.

        Parameters
        ----------
        other : ComparisonState
            A state with the same models and options, except `part`.

        Returns
        -------
        ComparisonState
            The state itself.

        Raises
        ------
        TypeError, ValueError
            If `other` is not a `ComparisonState` or has other models; as `CalibrationState.merge`.
        """
        if not isinstance(other, ComparisonState):
            raise TypeError(f"`other` is {type(other).__name__}, expected a ComparisonState")
        if self.models != other.models:
            raise ValueError(
                f"`models` are {self.models} in one state and {other.models} in the other; make them with the same"
            )
        states = {name: state.copy().merge(other._states[name]) for name, state in self._states.items()}
        pairs = {pair: sums + other._pairs[pair] for pair, sums in self._pairs.items()}
        self._states, self._pairs = states, pairs
        return self

    def __add__(self, other: ComparisonState) -> ComparisonState:
        if not isinstance(other, ComparisonState):
            return NotImplemented
        first, second = sorted((self, other), key=lambda state: state.options.part)
        return first.copy().merge(second)

    def copy(self) -> ComparisonState:
        """Return a copy."""
        return self._from_states(
            {name: state.copy() for name, state in self._states.items()}, dict(self._pairs), self._threads
        )

    def result(self, metric: str = "skce", *, confidence_level: float = 0.95) -> Comparison:
        """Compare the models: values, paired differences and a ranking, as `kcalib.compare`.

        Parameters
        ----------
        metric : {"skce", "ece", "brier_score", "log_loss"}
            What to compare; lower is better. "skce" uses the same random features for all models.
        confidence_level : float
            Level of the intervals, in (0, 1). Models are distinguished at level 1 minus this over all pairs (Holm).

        Returns
        -------
        Comparison
            Values and differences over all rows. Paired standard errors of scores are exact. The standard error of the
            SKCE comes from the rows that the states keep, which are the same for all models. Confidence limits of the
            ECE come from normal deviations of the gaps of bins, with their covariance between models.

        Raises
        ------
        ValueError
            If an argument is out of range, or if there are fewer than four samples.
        """
        start = time.perf_counter()
        check_choice("metric", metric, tuple(METRICS))
        check_fraction("confidence_level", confidence_level)
        if self.n_samples < 4:
            raise ValueError(f"the state has {self.n_samples} samples, expected at least 4; add more")
        totals = [state._totals() for state in self.states.values()]
        inputs = Compared(totals, list(self._pairs.values()), self.options, self._threads)
        measured = METRICS[metric](inputs, confidence_level)
        return compared(self.models, metric, confidence_level, measured, totals[0].sample, totals[0].n, start)

    def __repr__(self) -> str:
        return f"ComparisonState of {list(self.models)}: {self.n_samples} samples"

    @classmethod
    def _from_states(
        cls, states: dict[str, CalibrationState], pairs: dict[tuple[str, str], PairSums], threads: int | None
    ) -> ComparisonState:
        state = cls.__new__(cls)
        state._states, state._pairs, state._threads = states, pairs, threads
        return state

    def _content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        parts = {
            f"model {place}": np.frombuffer(state.to_bytes(), dtype=np.uint8)
            for place, state in enumerate(self._states.values())
        }
        for place, sums in enumerate(self._pairs.values()):
            parts |= {f"pair {place} {name}": array for name, array in sums.to_arrays().items()}
        return {"models": self.models}, parts

    @classmethod
    def _from_content(cls, options: dict[str, Any], arrays: dict[str, np.ndarray]) -> ComparisonState:
        models = options["models"]
        states = {
            name: CalibrationState.from_bytes(arrays[f"model {place}"].tobytes()) for place, name in enumerate(models)
        }
        pairs, n_bins = {}, next(iter(states.values())).options.n_bins
        for place, pair in enumerate(itertools.combinations(models, 2)):
            start = f"pair {place} "
            of_pair = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
            pairs[pair] = PairSums.empty(n_bins).from_arrays(of_pair)
        return cls._from_states(states, pairs, None)


def _checked(models: Any) -> tuple[str, ...]:
    if isinstance(models, str) or not isinstance(models, Sequence):
        raise TypeError(f"`models` is {models!r}, expected a sequence of names")
    for name in models:
        if not isinstance(name, str):
            raise TypeError(f"`models` has {name!r}, expected names that are strings")
    if len(models) < 2 or len(set(models)) < len(models):
        raise ValueError(f"`models` is {list(models)}, expected at least 2 different names")
    return tuple(models)
