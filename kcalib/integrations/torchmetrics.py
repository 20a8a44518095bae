"""Calibration as metrics of torchmetrics: over batches, epochs and processes.

`ECE`, `Reliability` and `SKCE` hold sums in fixed point as tensors of integers, which torchmetrics adds up
(``dist_reduce_fx="sum"``): the same bits for any order of batches and processes, and of constant size.
`CalibrationTest` holds a `kcalib.streaming.CalibrationState`, whose bytes are its tensor: draws of labels need to know
which rows there are, so that merging is the state's. Arithmetic is that of `kcalib.streaming` on the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from kcalib._backend.exact_sums import ExactSums
from kcalib._backend.options import SEED, check_choice, check_integer
from kcalib._input.labels import Classification, Names, prepare
from kcalib.estimators.binning import MAX_BINS, N_BINS
from kcalib.estimators.debiased_ece import NOTIONS
from kcalib.estimators.ece import NORMS
from kcalib.estimators.reliability import ReliabilityDiagram
from kcalib.evaluation_results import Evaluation
from kcalib.kernels import Exponential, Kernel
from kcalib.lenses import Canonical, Lens
from kcalib.streaming._binned_results import diagram_of, ece_of
from kcalib.streaming._options import LARGEST_CLASSES, N_COLUMNS, SMALLEST_CLASSES, StateOptions
from kcalib.streaming._rows import Rows
from kcalib.streaming._sums import Machine
from kcalib.streaming._tally import Extremes, Tally, tally_of
from kcalib.streaming._totals import BinTotals
from kcalib.streaming.state import CalibrationState

__all__ = ["ECE", "SKCE", "CalibrationTest", "Reliability"]

NAMES = Names("target", "preds")


class _Calibration(Metric, ABC):
    """What the metrics share: what they take, and what they return."""

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False

    def __init__(self, num_classes: int, from_logits: bool, ignore_index: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = check_integer("num_classes", num_classes, SMALLEST_CLASSES, LARGEST_CLASSES)
        self.from_logits = from_logits
        self.ignore_index = ignore_index
        self._result_dtype: torch.dtype | None = None

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

        Parameters
        ----------
        preds : Tensor, shape (n, num_classes, ...), or (n, ...) of the second of two classes
            Probabilities, or logits with ``from_logits=True``, of any precision and device.
        target : Tensor, shape (n, ...)
            Classes 0..num_classes-1.

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce` for its arguments.
        """
        data = self._checked(preds, target)
        if data is not None:
            self._add(data)

    @abstractmethod
    def _add(self, data: Classification) -> None:
        """Add checked samples."""

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw values as torchmetrics does.

        Parameters
        ----------
        val : Tensor or sequence of Tensor, optional
            What `forward` or `compute` has returned; by default that of `compute`.
        ax : matplotlib.axes.Axes, optional
            Where to draw.

        Returns
        -------
        tuple
            Figure and axes.
        """
        return self._plot(val, ax)

    def set_dtype(self, dst_type: str | torch.dtype) -> _Calibration:
        """Return values of another type; sums stay integers.

        Parameters
        ----------
        dst_type : str or torch.dtype
            Of what `compute` returns. Default: float64, on devices that have it.

        Returns
        -------
        Metric
            The metric itself.
        """
        self._result_dtype, self._computed = torch.empty(0).type(dst_type).dtype, None
        return self

    def __prepare_scriptable__(self) -> Any:
        raise TypeError(
            f"{type(self).__name__} cannot be scripted: its sums are made by compiled code of kcalib; script the model "
            "alone, and update the metric outside"
        )

    def _checked(self, preds: Tensor, target: Tensor) -> Classification | None:
        """The samples in rows, on the host; None of none."""
        preds, target = preds.detach().cpu(), target.detach().cpu()
        several = preds.ndim == target.ndim + 1
        if not several and (preds.shape != target.shape or self.num_classes > 2):
            raise ValueError(
                f"`preds` has shape {tuple(preds.shape)} and `target` {tuple(target.shape)}, expected (n, "
                f"{self.num_classes}, ...) and (n, ...): a probability of each class, and one label"
            )
        preds = preds.movedim(1, -1).reshape(-1, preds.shape[1]) if several else preds.reshape(-1)
        target = target.reshape(-1)
        if self.ignore_index is not None:
            kept = target != self.ignore_index
            preds, target = preds[kept], target[kept]
        if not len(target):
            return None
        if target.dtype == torch.bool:
            target = target.long()
        others = target[(target < 0) | (target >= self.num_classes)]
        if len(others):
            raise ValueError(
                f"`target` holds {others[0].item()}, expected 0..{self.num_classes - 1}; leave samples of another "
                "label out with ignore_index="
            )
        data = prepare(target, preds, from_logits=self.from_logits, names=NAMES)
        if data.m != self.num_classes:
            raise ValueError(f"`preds` has {data.m} classes, but the metric is of num_classes={self.num_classes}")
        return data

    def _tensor(self, value: Any) -> Tensor:
        """A result where the metric is; Apple's GPUs have no float64."""
        usual = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.as_tensor(value, dtype=torch.float64).to(self.device, self._result_dtype or usual)

    def _sums(self, sums: ExactSums) -> Tensor:
        return torch.from_numpy(sums.limbs()).to(self.device)


def _exact(sums: Tensor) -> ExactSums:
    return ExactSums.of_limbs(sums.cpu().numpy())


class _Binned(_Calibration):
    """Sums by bins: the two metrics of it share their tensors in a `MetricCollection`."""

    cells: Tensor  # sums of `streaming._tally.CELLS`, shape (3, 1 + num_classes, n_bins, 5)
    counts: Tensor  # of the top label, shape (n_bins,)
    lowest: Tensor  # confidence in each bin, as the integers of the same bits, which have the same order
    highest: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        n_bins: int = N_BINS,
        from_logits: bool = False,
        ignore_index: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, from_logits, ignore_index, **kwargs)
        self.n_bins = check_integer("n_bins", n_bins, 1, MAX_BINS)
        empty = Tally.empty(self.num_classes, self.n_bins)
        self.add_state("cells", self._sums(empty.cells), "sum")
        for (name, values), reduced in zip(empty.extremes._asdict().items(), ("sum", "min", "max"), strict=True):
            self.add_state(name, torch.from_numpy(values.view(np.int64).copy()), reduced)

    def _add(self, data: Classification) -> None:
        rows = Rows(np.empty(0, np.int64), data.probabilities, data.labels, np.ones(data.n))
        tally = tally_of(rows, self.n_bins, data.input_epsilon, None)
        counts, lowest, highest = (torch.from_numpy(part.view(np.int64)).to(self.device) for part in tally.extremes)
        self.cells = self.cells + self._sums(tally.cells)
        self.counts = self.counts + counts
        self.lowest, self.highest = torch.minimum(self.lowest, lowest), torch.maximum(self.highest, highest)

    def _totals(self) -> BinTotals:
        counts, lowest, highest = (part.cpu().numpy() for part in (self.counts, self.lowest, self.highest))
        n = int(counts.sum())
        if not n:
            raise ValueError("there are no samples yet; call update() with some")
        extremes = Extremes(counts, lowest.view(np.float64), highest.view(np.float64))
        return BinTotals(n, 0, {}, _exact(self.cells).to_float(), extremes, Canonical())


class ECE(_Binned):
    """Expected calibration error: `kcalib.top_label_ece` or `kcalib.class_wise_ece`, in bins of equal width.

    Parameters
    ----------
    num_classes : int
        At least 2; 2 where predictions are the probabilities of the second of two classes.
    n_bins : int
        Bins (a, b] of equal width.
    norm : {"l1", "l2", "max"}
        As in `kcalib.top_label_ece`.
    notion : {"top_label", "class_wise"}
        Of which error.
    from_logits : bool
        Apply a softmax to the predictions.
    ignore_index : int, optional
        A label whose samples are left out.
    **kwargs
        Of ``torchmetrics.Metric``.

    Raises
    ------
    TypeError, ValueError
        If an option is not as above.

    Notes
    -----
    The tensors have 120 ``(1 + num_classes) n_bins`` bytes, whatever the number of samples.

    Examples
    --------
    >>> import torch
    >>> from kcalib.integrations.torchmetrics import ECE
    >>> metric = ECE(num_classes=2, n_bins=2)
    >>> metric.update(torch.tensor([0.25, 0.25, 0.75, 0.75]), torch.tensor([0, 1, 1, 1]))
    >>> metric.compute()
    tensor(0., dtype=torch.float64)
    """

    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        num_classes: int,
        *,
        n_bins: int = N_BINS,
        norm: str = "l1",
        notion: str = "top_label",
        from_logits: bool = False,
        ignore_index: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, n_bins=n_bins, from_logits=from_logits, ignore_index=ignore_index, **kwargs)
        self.norm, self.notion = check_choice("norm", norm, NORMS), check_choice("notion", notion, NOTIONS)

    def compute(self) -> Tensor:
        """The error of all samples so far.

        Returns
        -------
        Tensor
            Of no dimension.

        Raises
        ------
        ValueError
            If there are no samples.
        """
        return self._tensor(ece_of(self._totals(), self.notion, self.norm).value)


class Reliability(_Binned):
    """The reliability diagram, see `kcalib.reliability`, in bins of equal width.

    Parameters
    ----------
    num_classes, n_bins, from_logits, ignore_index, **kwargs
        As of `ECE`.

    Raises
    ------
    TypeError, ValueError
        If an option is not as there.

    Examples
    --------
    >>> import torch
    >>> from kcalib.integrations.torchmetrics import Reliability
    >>> metric = Reliability(num_classes=2, n_bins=2)
    >>> metric.update(torch.tensor([0.25, 0.25, 0.75, 0.75]), torch.tensor([0, 1, 1, 1]))
    >>> metric.compute()["frequency"]
    tensor([   nan, 0.7500], dtype=torch.float64)
    """

    def compute(self) -> dict[str, Tensor]:
        """Of the top label, in each bin.

        Returns
        -------
        dict
            Mean ``"confidence"`` and ``"frequency"`` of hits, NaN in empty bins, and ``"weight"``, the number of
            samples; shape (n_bins,).

        Raises
        ------
        ValueError
            If there are no samples.
        """
        found = diagram_of(self._totals(), None, 0.95, "confidence", False)
        return {name: self._tensor(getattr(found, name)) for name in ("confidence", "frequency", "weight")}

    def diagram(self, **options: Any) -> ReliabilityDiagram:
        """The diagram of the samples of all processes, with its bands.

        Parameters
        ----------
        **options
            Of `kcalib.streaming.CalibrationState.reliability`.

        Returns
        -------
        ReliabilityDiagram
            As there.

        Raises
        ------
        TypeError, ValueError
            As there.
        """
        options = {"lens": None, "confidence_level": 0.95, "bands": None, "simultaneous": False} | options
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            return diagram_of(self._totals(), **options)

    def plot(self, val: ReliabilityDiagram | None = None, ax: Any = None) -> Any:
        """Draw the diagram.

        Parameters
        ----------
        val : ReliabilityDiagram, optional
            What `diagram` has returned; by default that of the samples so far.
        ax : matplotlib.axes.Axes, optional
            Where to draw.

        Returns
        -------
        tuple
            Figure and axes.
        """
        axes = (val or self.diagram()).plot(ax)
        return axes.figure, axes


class SKCE(_Calibration):
    """The unbiased squared kernel calibration error: ``kcalib.skce(..., estimator="features")``.

    Parameters
    ----------
    num_classes : int
        As of `ECE`.
    kernel : Kernel
        With its bandwidth: epochs and processes are to have the same one. The median heuristic of some predictions
        is ``kcalib.kernels.Exponential(kcalib.bandwidth.median_distance(p).value)``.
    n_columns : int
        Columns of random features, a multiple of 16.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`.
    from_logits, ignore_index
        As of `ECE`.
    seed : int
        Of the features.
    **kwargs
        Of ``torchmetrics.Metric``.

    Raises
    ------
    TypeError, ValueError
        If an option is not as above.

    Notes
    -----
    The tensors have about 24 ``n_columns num_classes`` bytes. Batches are added up in blocks of 128 rows in float64,
    and exactly from there on.

    Examples
    --------
    >>> import torch
    >>> from kcalib.integrations.torchmetrics import SKCE
    >>> metric = SKCE(num_classes=2)
    >>> for _ in range(10):
    ...     metric.update(torch.full((8,), 0.5), torch.zeros(8, dtype=torch.long))
    >>> metric.compute()
    tensor(0.5000, dtype=torch.float64)
    """

    sums: Tensor
    own: Tensor
    n: Tensor

    def __init__(
        self,
        num_classes: int,
        *,
        kernel: Kernel = Exponential(1.0),  # noqa: B008
        n_columns: int = N_COLUMNS,
        lens: Lens | None = None,
        from_logits: bool = False,
        ignore_index: int | None = None,
        seed: int = SEED,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, from_logits, ignore_index, **kwargs)
        _check_bandwidth(kernel)
        self.options = StateOptions.checked(
            n_classes=self.num_classes,
            classes=None,
            from_logits=from_logits,
            lens=lens,
            kernel=kernel,
            target_kernel=None,
            n_columns=n_columns,
            n_bins=1,
            n_resamples=0,
            seed=seed,
            part=0,
        )
        self._machine: Machine | None = None
        empty = self._compiled().zeros()
        self.add_state("sums", self._sums(empty.sums), "sum")
        self.add_state("own", self._sums(empty.own), "sum")
        self.add_state("n", torch.zeros((), dtype=torch.int64), "sum")

    def _compiled(self) -> Machine:
        if self._machine is None:
            self._machine = Machine(self.options, self.options.seen_row().m, None)
        return self._machine

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_machine": None}  # it holds compiled code's memory

    def _add(self, data: Classification) -> None:
        machine, seen = self._compiled(), self.options.lens.induced(data)
        rows = Rows(np.arange(seen.n), np.ascontiguousarray(seen.probabilities), seen.labels, np.ones(seen.n))
        found = machine.plus(machine.zeros(), [rows])
        self.sums, self.own = self.sums + self._sums(found.sums), self.own + self._sums(found.own)
        self.n = self.n + seen.n

    def compute(self) -> Tensor:
        """The estimate from all samples so far.

        Returns
        -------
        Tensor
            Of no dimension; it may be negative.

        Raises
        ------
        ValueError
            If there are fewer than two samples.
        """
        n = int(self.n)
        if n < 2:
            raise ValueError(f"the SKCE needs at least 2 samples, and there is {n}; call update() with more")
        return self._tensor(self._compiled().total(_exact(self.sums), _exact(self.own)) / (n * (n - 1)))


class CalibrationTest(_Calibration):
    """The test of the hypothesis that the model is calibrated: ``kcalib.calibration_test(..., method="features")``.

    Parameters
    ----------
    num_classes, kernel, n_columns, lens, from_logits, ignore_index
        As of `SKCE`.
    n_bins, n_resamples, seed
        As of `kcalib.streaming.CalibrationState`.
    part : int, optional
        Where rows are numbered from: metrics that are merged by `merge_state` need different ones. Default: the rank of
        the process.
    **kwargs
        Of ``torchmetrics.Metric``.

    Raises
    ------
    TypeError, ValueError
        If an option is not as above.

    Notes
    -----
    Rows are numbered in the order in which they come, and labels drawn by these numbers: the p-value is exact for any
    number of samples, and that of `kcalib.streaming.CalibrationState`, whose memory and time it takes. `forward` adds a
    batch twice, and writes and reads the state: where values of batches are not needed, call `update`.

    Examples
    --------
    >>> import torch
    >>> from kcalib.integrations.torchmetrics import CalibrationTest
    >>> metric = CalibrationTest(num_classes=2, n_columns=64)
    >>> preds = torch.linspace(0.01, 0.99, 500)
    >>> metric.update(preds, (torch.arange(500) % 7 < 2).long())
    >>> bool(metric.compute() < 0.01), metric.evaluation().verdict.partition(":")[0]
    (True, 'miscalibrated, over-confident')
    """

    higher_is_better = None
    full_state_update = True  # rows are numbered on
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    def __init__(
        self,
        num_classes: int,
        *,
        kernel: Kernel = Exponential(1.0),  # noqa: B008
        n_columns: int = N_COLUMNS,
        n_bins: int = N_BINS,
        lens: Lens | None = None,
        n_resamples: int | None = None,
        from_logits: bool = False,
        ignore_index: int | None = None,
        seed: int = SEED,
        part: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, from_logits, ignore_index, **kwargs)
        _check_bandwidth(kernel)
        self._of_state: dict[str, Any] = {
            "kernel": kernel,
            "n_columns": n_columns,
            "n_bins": n_bins,
            "lens": lens,
            "n_resamples": n_resamples,
            "seed": seed,
        }
        self.part = part
        self._state = self._empty()
        self.add_state("packed", [], None)

    def _empty(self) -> CalibrationState:
        part = self.part
        if part is None:
            distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            part = torch.distributed.get_rank() if distributed else 0
        return CalibrationState(self.num_classes, part=part, **self._of_state)

    @property
    def packed(self) -> list[Tensor]:
        """The bytes of the state, which torchmetrics gathers, copies and keeps."""
        return [torch.frombuffer(bytearray(self._state.to_bytes()), dtype=torch.uint8).to(self.device)]

    @packed.setter
    def packed(self, tensors: Sequence[Tensor]) -> None:
        states = [CalibrationState.from_bytes(one.to("cpu", torch.uint8).numpy().tobytes()) for one in tensors]
        self._state = sum(states[1:], states[0]) if states else self._empty()

    @property
    def state(self) -> CalibrationState:
        """The state of the samples of this process: a copy."""
        return self._state.copy()

    def _add(self, data: Classification) -> None:
        if not self._state.n_samples:
            self._state = self._empty()  # the process may have got its rank since
        self._state.update(data.labels, data)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the samples of another metric.

        Parameters
        ----------
        incoming_state : CalibrationTest or dict
            With the same options but for another `part`, or the `metric_state` of one.

        Raises
        ------
        ValueError
            If it is something else, if an option differs, or if a row is in both.
        """
        if isinstance(incoming_state, CalibrationTest):
            incoming_state = incoming_state.metric_state
        if not isinstance(incoming_state, dict) or "packed" not in incoming_state:
            raise ValueError(
                f"`incoming_state` is a {type(incoming_state).__name__}, expected a CalibrationTest or its metric_state"
            )
        for one in incoming_state["packed"]:
            self._state.merge(CalibrationState.from_bytes(one.cpu().numpy().tobytes()))
        self._computed = None

    def reset(self) -> None:
        """Forget all samples."""
        super().reset()
        self._state = self._empty()

    def compute(self) -> Tensor:
        """The p-value of all samples so far.

        Returns
        -------
        Tensor
            Of no dimension.

        Raises
        ------
        ValueError
            If there are fewer than two samples.
        """
        return self._tensor(self._state.calibration_test().pvalue)

    def evaluation(self, *, level: float = 0.05, tolerance: float | None = None) -> Evaluation:
        """All that the state says of the samples of all processes.

        Parameters
        ----------
        level, tolerance
            Of `kcalib.streaming.CalibrationState.result`.

        Returns
        -------
        Evaluation
            As there, with the SKCE, its standard error, the test and a verdict.

        Raises
        ------
        TypeError, ValueError
            As there.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            return self._state.result(level=level, tolerance=tolerance)


def _check_bandwidth(kernel: Any) -> None:
    if isinstance(kernel, Kernel) and kernel.open_metrics():
        raise ValueError(
            f"`kernel` is {kernel}, which takes its bandwidth from the samples, but epochs and processes are to have "
            "the same kernel; pass one with its bandwidth, such as kcalib.kernels.Exponential(1.0)"
        )
