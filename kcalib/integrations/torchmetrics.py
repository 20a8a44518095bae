"""Calibration as metrics of torchmetrics: over batches, epochs and processes.

`ECE`, `Reliability` and `SKCE` hold sums in fixed point as integer tensors of constant size, which torchmetrics adds up
(``dist_reduce_fx="sum"``): every bit is the same for any order of batches and processes. `CalibrationTest` holds the
bytes of a `kcalib.streaming.CalibrationState` as a tensor, because draws of labels depend on row numbers. All
computation is done by `kcalib.streaming` on the host.
"""

from __future__ import annotations

import hashlib
import math
import re
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
from kcalib.streaming._classes.binned_results import diagram_of, ece_of
from kcalib.streaming._classes.totals import BinTotals
from kcalib.streaming._options import LARGEST_CLASSES, N_COLUMNS, SMALLEST_CLASSES, StateOptions
from kcalib.streaming._row_sums.machine import SEEN, Machine
from kcalib.streaming._row_sums.rows import Rows
from kcalib.streaming._row_sums.score_sums import Extremes, ScoreSums, sum_scores
from kcalib.streaming.state import CalibrationState

__all__ = ["ECE", "SKCE", "CalibrationTest", "Reliability"]

NAMES = Names("target", "preds", pred_first=True)


class _Calibration(Metric, ABC):
    """Base class of the metrics: arguments of `update`, and results."""

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False

    def __init__(self, num_classes: int, from_logits: bool, ignore_index: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes = check_integer("num_classes", num_classes, SMALLEST_CLASSES, LARGEST_CLASSES)
        if not isinstance(from_logits, bool):
            raise TypeError(f"`from_logits` is {from_logits!r}, expected True or False")
        self.from_logits = from_logits
        self.ignore_index = None if ignore_index is None else check_integer("ignore_index", ignore_index, -(2**63))
        self._result_dtype: torch.dtype | None = None
        self._in_forward = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # The value of a batch with too few samples, such as the last of an epoch, is NaN.
        self._in_forward = True
        try:
            return super().forward(*args, **kwargs)
        finally:
            self._in_forward = False

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

        Parameters
        ----------
        preds : Tensor, shape (n, num_classes, ...), or (n, ...) for the second of two classes
            Probabilities, or logits with ``from_logits=True``, of any precision and device.
        target : Tensor, shape (n, ...)
            Classes 0..num_classes-1.

        Raises
        ------
        TypeError, ValueError
            As `kcalib.skce`; if an argument is not a tensor.
        """
        for name, argument in (("preds", preds), ("target", target)):
            if not isinstance(argument, Tensor):
                raise TypeError(
                    f"`{name}` is a {type(argument).__name__}, expected a torch.Tensor; pass torch.as_tensor({name})"
                )
        data = self._prepare(preds, target)
        if data is not None:
            self._add(data)

    @abstractmethod
    def _add(self, data: Classification) -> None:
        """Add checked samples."""

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        return self._plot(val, ax)

    def set_dtype(self, dst_type: str | torch.dtype) -> _Calibration:
        # Sets the type of results; sums stay integers.
        dtype = torch.empty(0).type(dst_type).dtype
        if not dtype.is_floating_point:
            raise ValueError(f"`dst_type` is {dtype}, expected a floating point one, such as torch.float32")
        self._result_dtype, self._computed = dtype, None
        return self

    def _prepare(self, preds: Tensor, target: Tensor) -> Classification | None:
        """Check samples and return them as rows on the host; None if there are none."""
        preds, target = preds.detach().cpu(), target.detach().cpu()
        has_columns = preds.ndim == target.ndim + 1
        if not has_columns and (preds.shape != target.shape or self.num_classes > 2):
            raise ValueError(
                f"`preds` has shape {tuple(preds.shape)} and `target` {tuple(target.shape)}, expected (n, "
                f"{self.num_classes}, ...) and (n, ...): a probability of each class, and one label"
            )
        preds = preds.movedim(1, -1).reshape(-1, preds.shape[1]) if has_columns else preds.reshape(-1)
        target = target.reshape(-1)
        if self.ignore_index is not None:
            is_used = target != self.ignore_index
            preds, target = preds[is_used], target[is_used]
        if not len(target):
            return None
        if target.dtype == torch.bool:
            target = target.long()
        bad_labels = target[(target < 0) | (target >= self.num_classes)]
        if len(bad_labels):
            raise ValueError(
                f"`target` holds {bad_labels[0].item()}, expected 0..{self.num_classes - 1}; leave samples of another "
                "label out with ignore_index="
            )
        data = prepare(target, preds, from_logits=self.from_logits, names=NAMES)
        if data.m != self.num_classes:
            raise ValueError(f"`preds` has {data.m} classes, but the metric is of num_classes={self.num_classes}")
        return data

    def _tensor(self, value: Any) -> Tensor:
        """Return a result on the device of the metric; GPUs of Apple have no float64."""
        usual = torch.float32 if self.device.type == "mps" else torch.float64
        return torch.as_tensor(value, dtype=torch.float64).to(self.device, self._result_dtype or usual)

    def _no_samples(self) -> Tensor:
        return self._nan_or_raise("there are no samples yet; call update() with some")

    def _nan_or_raise(self, message: str) -> Tensor:
        """Return NaN for a batch of too few samples, and raise for all samples."""
        if self._in_forward:
            return self._tensor(math.nan)
        raise ValueError(message)


class _Summed(_Calibration):
    """Base class of metrics whose tensors torchmetrics adds up, with a digest of the options."""

    digest: Tensor  # of the options that sums depend on

    def _add_options(self, **options: Any) -> None:
        """Add the digest before further tensors, so that metrics with different options are not merged."""
        self._sum_options = options
        text = re.sub(" at 0x[0-9a-f]+", "", repr(options))  # addresses in representations of user classes
        digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])
        self.add_state("digest", torch.tensor(digest), _check_same_options)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        super().merge_state(incoming_state)
        self._computed = None  # torchmetrics would return the cached value

    def _check_options(self) -> None:
        if int(self.digest) != int(self._defaults["digest"]):
            raise ValueError(
                "the sums were loaded from a metric with other options, expected "
                + ", ".join(f"{name}={value}" for name, value in self._sum_options.items())
            )

    def _sums(self, sums: ExactSums) -> Tensor:
        return torch.from_numpy(sums.limbs()).to(self.device)


def _check_same_options(options: Tensor) -> Tensor:
    """Reduce the digests of options, which must be equal."""
    if bool((options != options[0]).any()):
        raise ValueError("the metrics have different options, whose sums do not add up; make them with the same ones")
    return options[0]


def _to_exact_sums(sums: Tensor) -> ExactSums:
    return ExactSums.of_limbs(sums.cpu().numpy())


class _Binned(_Summed):
    """Base class of binned metrics, which share their tensors in a `MetricCollection`."""

    cells: Tensor  # sums of `streaming._row_sums.score_sums.CELLS`, shape (3, 1 + num_classes, n_bins, 5)
    counts: Tensor  # of the top label, shape (n_bins,)
    lowest: Tensor  # confidence in each bin, as integers with the same bits and order
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
        self._add_options(n_classes=self.num_classes, n_bins=self.n_bins)
        empty = ScoreSums.empty(self.num_classes, self.n_bins)
        self.add_state("cells", self._sums(empty.cells), "sum")
        for (name, values), reduced in zip(empty.extremes._asdict().items(), ("sum", "min", "max"), strict=True):
            self.add_state(name, torch.from_numpy(values.view(np.int64).copy()), reduced)

    def _add(self, data: Classification) -> None:
        none = np.empty(0, np.int64)
        rows = Rows(none, data.probabilities, data.labels, np.ones(data.n), none)
        score_sums = sum_scores(rows, self.n_bins, data.input_epsilon, None)
        counts, lowest, highest = (
            torch.from_numpy(part.view(np.int64)).to(self.device) for part in score_sums.extremes
        )
        self.cells = self.cells + self._sums(score_sums.cells)
        self.counts = self.counts + counts
        self.lowest, self.highest = torch.minimum(self.lowest, lowest), torch.maximum(self.highest, highest)

    def _totals(self) -> BinTotals | None:
        """Return the sums by bins; None if there are no samples."""
        self._check_options()
        counts, lowest, highest = (part.cpu().numpy() for part in (self.counts, self.lowest, self.highest))
        n = int(counts.sum())
        if not n:
            return None
        extremes = Extremes(counts, lowest.view(np.float64), highest.view(np.float64))
        return BinTotals(n, 0, {}, False, _to_exact_sums(self.cells).to_float(), extremes, Canonical())


class ECE(_Binned):
    """Expected calibration error: `kcalib.top_label_ece` or `kcalib.class_wise_ece`, in bins of equal width.

    Parameters
    ----------
    num_classes : int
        At least 2; 2 if predictions are probabilities of the second of two classes.
    n_bins : int
        Bins (a, b] of equal width.
    norm : {"l1", "l2", "max"}
        As in `kcalib.top_label_ece`.
    notion : {"top_label", "class_wise"}
        Which error.
    from_logits : bool
        Apply softmax to the predictions.
    ignore_index : int, optional
        Samples with this label are ignored.
    **kwargs
        Arguments of ``torchmetrics.Metric``.

    Notes
    -----
    The tensors have about 120 ``(1 + num_classes) n_bins`` bytes for any number of samples.

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
        """Return the error of all samples so far.

        Returns
        -------
        Tensor
            A scalar.

        Raises
        ------
        ValueError
            If there are no samples.
        """
        totals = self._totals()
        return self._no_samples() if totals is None else self._tensor(ece_of(totals, self.notion, self.norm).value)


class Reliability(_Binned):
    """The reliability diagram, see `kcalib.reliability`, in bins of equal width.

    Parameters
    ----------
    num_classes, n_bins, from_logits, ignore_index, **kwargs
        As in `ECE`.

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
        """Return the diagram of the top label.

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
        totals = self._totals()
        if totals is None:
            nans = self._no_samples().repeat(self.n_bins)
            return {"confidence": nans, "frequency": nans.clone(), "weight": torch.zeros_like(nans)}
        diagram = diagram_of(totals, None, 0.95, "confidence", False)
        return {name: self._tensor(getattr(diagram, name)) for name in ("confidence", "frequency", "weight")}

    def diagram(self, **options: Any) -> ReliabilityDiagram:
        """Return the diagram of the samples of all processes, with its bands.

        Parameters
        ----------
        **options
            As in `kcalib.streaming.CalibrationState.reliability`.

        Returns
        -------
        ReliabilityDiagram
            The diagram.
        """
        options = {"lens": None, "confidence_level": 0.95, "bands": None, "simultaneous": False} | options
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            totals = self._totals()
        if totals is None:
            raise ValueError("there are no samples yet; call update() with some")
        return diagram_of(totals, **options)

    def plot(self, val: ReliabilityDiagram | None = None, ax: Any = None) -> Any:
        # The value is a diagram, by default of all samples so far.
        axes = (val or self.diagram()).plot(ax)
        return axes.figure, axes


class SKCE(_Summed):
    """The unbiased squared kernel calibration error: ``kcalib.skce(..., estimator="features")``.

    Parameters
    ----------
    num_classes : int
        As in `ECE`.
    kernel : Kernel
        Kernel with a bandwidth, which must be the same in all epochs and processes. The median heuristic for some
        predictions is ``kcalib.kernels.Exponential(kcalib.bandwidth.median_distance(p).value)``.
    n_columns : int
        Number of random features, a multiple of 16.
    lens : Lens, optional
        The notion of calibration, see `kcalib.lenses`.
    from_logits, ignore_index
        As in `ECE`.
    seed : int
        Seed of the features.
    **kwargs
        Arguments of ``torchmetrics.Metric``.

    Notes
    -----
    The tensors have about 24 ``n_columns num_classes`` bytes. Blocks of 128 rows are summed in float64, and
    blocks exactly.

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
        names = ("n_classes", "kernel", "lens", "n_columns", "seed")
        self._add_options(**{name: getattr(self.options, name) for name in names})
        empty = self._make_machine().seen.zeros()
        self.add_state("sums", self._sums(empty.sums), "sum")
        self.add_state("own", self._sums(empty.own), "sum")
        self.add_state("n", torch.zeros((), dtype=torch.int64), "sum")

    def _make_machine(self) -> Machine:
        if self._machine is None:
            self._machine = Machine(self.options, self.options.seen_row().m, None)
        return self._machine

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_machine": None}  # it holds compiled code's memory

    def _add(self, data: Classification) -> None:
        machine, induced = self._make_machine(), self.options.lens.induced(data)
        rows = Rows(
            np.arange(induced.n),
            np.ascontiguousarray(induced.probabilities),
            induced.labels,
            np.ones(induced.n),
            np.zeros(induced.n, dtype=np.int64),
        )
        added = machine.add(machine.zeros(), [rows]).kernels[SEEN]
        self.sums, self.own = self.sums + self._sums(added.sums), self.own + self._sums(added.own)
        self.n = self.n + induced.n

    def compute(self) -> Tensor:
        """Return the estimate from all samples so far, at least two.

        Returns
        -------
        Tensor
            A scalar, which may be negative.
        """
        self._check_options()
        n = int(self.n)
        if n < 2:
            return self._nan_or_raise(f"the SKCE needs at least 2 samples, and there is {n}; call update() with more")
        return self._tensor(
            self._make_machine().seen.total(_to_exact_sums(self.sums), _to_exact_sums(self.own)) / (n * (n - 1))
        )


class CalibrationTest(_Calibration):
    """The test of the hypothesis that the model is calibrated: `kcalib.methods.Adaptive`.

    Parameters
    ----------
    num_classes, kernel, n_columns, lens, from_logits, ignore_index
        As in `SKCE`.
    n_bins, n_resamples, seed
        As in `kcalib.streaming.CalibrationState`.
    part : int, optional
        Where row numbers start: metrics to be merged by `merge_state` need different parts. Default: the rank of the
        process.
    **kwargs
        Arguments of ``torchmetrics.Metric``.

    Notes
    -----
    The p-value is exact for any number of samples. It equals that of a `kcalib.streaming.CalibrationState` with the
    same rows in the same order, as do memory and time. `forward` adds a batch twice, and writes and reads the state:
    call `update` if values of batches are not needed.

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
    full_state_update = True  # rows are numbered consecutively
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
        self._state_options: dict[str, Any] = {"kernel": kernel, "n_columns": n_columns, "n_bins": n_bins, "lens": lens}
        self._state_options |= {"n_resamples": n_resamples, "seed": seed}
        self.part = part
        self._state = self._make_empty()
        self.add_state("packed", [], None)

    def _make_empty(self) -> CalibrationState:
        part = self.part
        if part is None:
            distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
            part = torch.distributed.get_rank() if distributed else 0
        return CalibrationState(self.num_classes, part=part, **self._state_options)

    @property
    def packed(self) -> list[Tensor]:
        """The bytes of the state, which torchmetrics gathers, copies and keeps."""
        return [torch.frombuffer(bytearray(self._state.to_bytes()), dtype=torch.uint8).to(self.device)]

    @packed.setter
    def packed(self, tensors: Sequence[Tensor]) -> None:
        states = [CalibrationState.from_bytes(tensor.to("cpu", torch.uint8).numpy().tobytes()) for tensor in tensors]
        self._state = sum(states[1:], states[0]) if states else self._make_empty()

    @property
    def state(self) -> CalibrationState:
        """A copy of the state of this process."""
        return self._state.copy()

    def _add(self, data: Classification) -> None:
        if not self._state.n_samples:
            self._state = self._make_empty()  # the rank of the process may be known only now
        self._state.update(data.labels, data)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        # Both metrics must have the same options, except `part`.
        if isinstance(incoming_state, CalibrationTest):
            incoming_state = incoming_state.metric_state
        if not isinstance(incoming_state, dict) or "packed" not in incoming_state:
            raise ValueError(
                f"`incoming_state` is a {type(incoming_state).__name__}, expected a CalibrationTest or its metric_state"
            )
        for packed in incoming_state["packed"]:
            self._state.merge(CalibrationState.from_bytes(packed.cpu().numpy().tobytes()))
        self._computed = None

    def reset(self) -> None:
        super().reset()
        self._state = self._make_empty()

    def compute(self) -> Tensor:
        """Return the p-value of all samples so far, at least two.

        Returns
        -------
        Tensor
            A scalar.
        """
        n = self._state.n_samples
        if n < 2:
            return self._nan_or_raise(f"the test needs at least 2 samples, and there is {n}; call update() with more")
        return self._tensor(self._state.calibration_test().pvalue)

    def evaluation(self, *, level: float = 0.05, tolerance: float | None = None) -> Evaluation:
        """Evaluate the samples of all processes.

        Parameters
        ----------
        level, tolerance
            As in `kcalib.streaming.CalibrationState.result`.

        Returns
        -------
        Evaluation
            The result, with the SKCE, its standard error, the test and a verdict.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn):
            return self._state.result(level=level, tolerance=tolerance)


def _check_bandwidth(kernel: Any) -> None:
    if kernel is None or (isinstance(kernel, Kernel) and kernel.open_metrics()):
        raise ValueError(
            f"`kernel` is {kernel}, which takes its bandwidth from the samples, but epochs and processes are to have "
            "the same kernel; pass one with its bandwidth, such as kcalib.kernels.Exponential(1.0)"
        )
