"""Metrics of torchmetrics: what its own `MetricTester` looks at; values against kcalib in memory and by hand."""

from __future__ import annotations

import copy
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kcalib
from kcalib.kernels import Exponential
from kcalib.streaming import CalibrationState

torch = pytest.importorskip("torch")
pytest.importorskip("torchmetrics")

from torchmetrics import MetricCollection  # noqa: E402

from kcalib.integrations.torchmetrics import ECE, SKCE, CalibrationTest, Reliability  # noqa: E402

SUPPORT = Path(__file__).parents[1] / "support"
N_BATCHES, N_ROWS, M = 6, 40, 3
KERNEL = Exponential(1.0)


@pytest.fixture(scope="module")
def samples():
    """Batches of over-confident predictions: preds (N_BATCHES, N_ROWS, M), target (N_BATCHES, N_ROWS)."""
    rng = np.random.default_rng(5)
    p = rng.dirichlet(np.full(M, 0.7), size=N_BATCHES * N_ROWS)
    y = (np.sqrt(p).cumsum(axis=1) < rng.uniform(size=(len(p), 1)) * np.sqrt(p).sum(axis=1, keepdims=True)).sum(axis=1)
    return torch.from_numpy(p.reshape(N_BATCHES, N_ROWS, M)), torch.from_numpy(y.reshape(N_BATCHES, N_ROWS))


def ece_by_hand(preds, target, n_bins=15):
    """Literal, in bins (a, b]."""
    p, y = preds.numpy().astype(float), target.numpy()
    confidence, hit = p.max(axis=1), p.argmax(axis=1) == y
    total = 0.0
    for b in range(n_bins):
        rows = (confidence > b / n_bins) & (confidence <= (b + 1) / n_bins)
        if rows.any():
            total += abs(confidence[rows].sum() - hit[rows].sum())
    return total / len(y)


def skce_in_memory(preds, target):
    return kcalib.skce(
        target.numpy(), preds.numpy(), kernel=KERNEL, estimator=kcalib.methods.FeatureEstimator(n_columns=64, seed=0)
    )


def pvalue_in_memory(preds, target):
    state = kcalib.streaming.CalibrationState(preds.shape[1], kernel=KERNEL, n_columns=64, seed=0)
    return state.update(target.numpy(), preds.numpy()).calibration_test().pvalue


def frequency_in_memory(preds, target):
    return kcalib.reliability(target.numpy(), preds.numpy(), bands="confidence").frequency


CASES = [
    pytest.param(ECE, {}, ece_by_hand, id="ECE"),
    pytest.param(SKCE, {"n_columns": 64}, skce_in_memory, id="SKCE"),
    pytest.param(CalibrationTest, {"n_columns": 64}, pvalue_in_memory, id="CalibrationTest"),
    pytest.param(Reliability, {}, frequency_in_memory, id="Reliability"),
]


def plain(value):
    """The number of a result, or of the diagram its frequencies."""
    return (value["frequency"] if isinstance(value, dict) else value).numpy()


@pytest.mark.parametrize("metric_class, options, reference", CASES)
def test_what_metric_tester_looks_at(metric_class, options, reference, samples):
    preds, target = samples
    metric = metric_class(M, **options)
    for constant in ("is_differentiable", "higher_is_better", "full_state_update"):
        with pytest.raises(RuntimeError, match="Can't change const"):
            setattr(metric, constant, None)
    clone = metric.clone()
    assert clone is not metric and type(clone) is metric_class
    metric = pickle.loads(pickle.dumps(metric))
    other = copy.deepcopy(metric)
    for i in range(N_BATCHES):
        batch = metric(preds[i], target[i])
        np.testing.assert_allclose(plain(batch), reference(preds[i], target[i]), rtol=1e-12)
        if i == 0:
            other.update(preds[i], target[i])
            assert np.array_equal(plain(batch), plain(other.compute()), equal_nan=True)
    assert isinstance(hash(metric), int) and hash(metric) != hash(metric.clone())
    assert metric.state_dict() == {}
    whole = reference(preds.reshape(-1, M), target.reshape(-1))
    np.testing.assert_allclose(plain(metric.compute()), whole, rtol=1e-12)
    assert not any(one.requires_grad for one in values_of(metric.compute()))
    # A copy and what was pickled go on where the metric is.
    for again in (metric.clone(), pickle.loads(pickle.dumps(metric))):
        assert np.array_equal(plain(again.compute()), plain(metric.compute()), equal_nan=True)
    metric.reset()
    metric.update(preds[1], target[1])
    np.testing.assert_allclose(plain(metric.compute()), reference(preds[1], target[1]), rtol=1e-12)


def values_of(value):
    return list(value.values()) if isinstance(value, dict) else [value]


@pytest.mark.parametrize("metric_class, options, reference", CASES)
def test_no_gradients_go_through(metric_class, options, reference, samples):
    preds = samples[0][0].clone().requires_grad_(True)
    value = metric_class(M, **options)(preds, samples[1][0])
    assert metric_class.is_differentiable is False and not any(one.requires_grad for one in values_of(value))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("metric_class, options, reference", CASES)
def test_low_precision_is_taken(metric_class, options, reference, dtype, samples):
    preds, target = samples[0][0].to(dtype), samples[1][0]
    value = metric_class(M, **options)(preds, target)
    assert all(one.dtype == torch.float64 for one in values_of(value))
    if metric_class is ECE:  # and of these very numbers
        assert float(value) == pytest.approx(ece_by_hand(preds.double(), target), rel=1e-12)
    metric = metric_class(M, **options).half().set_dtype(dtype)
    metric.update(preds, target)
    assert all(one.dtype == dtype for one in values_of(metric.compute()))
    again = metric.set_dtype(torch.float64).compute()
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(values_of(again), values_of(value)))


@pytest.mark.parametrize("metric_class, options, reference", CASES)
def test_states_are_moved_saved_and_loaded(metric_class, options, reference, samples):
    preds, target = samples
    metric = metric_class(M, **options)
    metric.update(preds[0], target[0])
    metric.persistent(True)
    saved = metric.state_dict()
    assert set(saved) == set(metric.metric_state)
    other = metric_class(M, **options)
    other.load_state_dict(saved)
    other.update(preds[1], target[1])
    metric.to("cpu").double().update(preds[1], target[1])
    assert np.array_equal(plain(other.compute()), plain(metric.compute()), equal_nan=True)


@pytest.mark.parametrize("metric_class, options, reference", CASES)
def test_merged_states_are_those_of_all_samples(metric_class, options, reference, samples):
    preds, target = samples
    parts = [{"part": k} if metric_class is CalibrationTest else {} for k in range(3)]
    metrics = [metric_class(M, **options, **part) for part in parts]
    for k, metric in enumerate(metrics):
        for i in range(k, N_BATCHES, 3):
            metric.update(preds[i], target[i])
    first, last = metrics[0].clone(), metrics[2].clone()
    first.compute()  # is kept, and not the value of later
    first.merge_state(metrics[1])
    first.merge_state(metrics[2].metric_state)
    last.merge_state(metrics[1])
    last.merge_state(metrics[0])
    assert np.array_equal(plain(first.compute()), plain(last.compute()), equal_nan=True)
    if metric_class is not CalibrationTest:  # which numbers rows by their parts
        whole = reference(preds.reshape(-1, M), target.reshape(-1))
        np.testing.assert_allclose(plain(first.compute()), whole, rtol=1e-12)


def test_merging_the_same_rows_of_a_test_is_refused(samples):
    metric = CalibrationTest(M, n_columns=64)
    metric.update(samples[0][0], samples[1][0])
    with pytest.raises(ValueError, match="added already; give every process a `part=`"):
        metric.merge_state(metric.clone())
    with pytest.raises(ValueError, match="`incoming_state` is a ECE, expected a CalibrationTest or its metric_state"):
        metric.merge_state(ECE(M))


@pytest.mark.parametrize(
    "first, second",
    [
        (SKCE(M, n_columns=64), SKCE(M, n_columns=64, seed=1)),
        (SKCE(M, n_columns=64), SKCE(M, n_columns=64, kernel=Exponential(2.0))),
        (ECE(M), ECE(M, n_bins=10)),
    ],
    ids=["seed", "kernel", "n_bins"],
)
def test_sums_of_other_options_do_not_add_up(first, second, samples):
    first, second = first.clone(), second.clone()
    for metric in (first, second):
        metric.update(samples[0][0], samples[1][0])
    before = first.compute()
    for incoming in (second, second.metric_state):
        with pytest.raises(ValueError, match="the metrics have different options, whose sums do not add up; make"):
            first.merge_state(incoming)
    first._computed = None
    assert first.compute() == before
    second.persistent(True)
    first.load_state_dict(second.state_dict())
    first._computed = None
    with pytest.raises(ValueError, match="the sums were loaded from a metric with other options, expected n_classes=3"):
        first.compute()


@pytest.mark.parametrize("metric_class, options, reference", [CASES[0], CASES[1], CASES[3]])  # a test has no sums
def test_tensors_of_processes_are_summed(metric_class, options, reference, samples):
    """With a gathering of which each of two processes has these samples; on real processes below."""
    preds, target = samples[0][0], samples[1][0]
    gathered = {"distributed_available_fn": lambda: True, "dist_sync_fn": lambda tensor, group: [tensor, tensor]}
    metric = metric_class(M, **options, **gathered)
    metric.update(preds, target)
    twice = torch.cat([preds, preds]), torch.cat([target, target])
    np.testing.assert_allclose(plain(metric.compute()), reference(*twice), rtol=1e-12)
    other = metric_class(M, **options, **gathered | {"dist_sync_fn": lambda tensor, group: [tensor, tensor + 1]})
    other.update(preds, target)
    with pytest.raises(ValueError, match="the metrics have different options"):
        other.compute()


@pytest.mark.parametrize("metric_class, options, reference", CASES)
def test_a_batch_of_too_few_samples_has_no_value_and_counts(metric_class, options, reference, samples):
    preds, target = samples[0][0], samples[1][0]
    few = 0 if metric_class in (ECE, Reliability) else 1
    metric = metric_class(M, **options)
    for rows in torch.split(torch.arange(N_ROWS), [N_ROWS - few, few]):
        last = metric(preds[rows], target[rows])
    assert np.isnan(plain(last)).all()
    np.testing.assert_allclose(plain(metric.compute()), reference(preds, target), rtol=1e-12)
    empty = metric_class(M, **options)
    empty.update(preds[:0], target[:0])
    with pytest.raises(ValueError, match=r"there are no samples yet|needs at least 2 samples, and there is 0"):
        empty.compute()


@pytest.mark.parametrize("metric_class", [ECE, SKCE])
def test_batches_of_any_order_give_the_same_bits(metric_class, samples):
    preds, target = samples
    values, states = set(), []
    for order in (range(N_BATCHES), reversed(range(N_BATCHES))):
        metric = metric_class(M)
        for i in order:
            metric.update(preds[i], target[i])
        values.add(float(metric.compute()))
        states.append(metric.metric_state)
    assert len(values) == 1
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_the_size_of_the_sums_is_constant(samples):
    preds, target = samples
    for metric in (ECE(M), SKCE(M), Reliability(M)):
        sizes = []
        for i in range(3):
            metric.update(preds[i], target[i])
            sizes.append(sum(one.numel() for one in metric.metric_state.values()))
        assert len(set(sizes)) == 1
    assert sum(one.numel() * 8 for one in ECE(M).metric_state.values()) == (3 * 5 * (1 + M) + 3) * 15 * 8 + 8


@pytest.mark.parametrize("n", [4, 20, 3000])
def test_saturated_predictions_keep_their_digits(n):
    rng = np.random.default_rng(n)
    e = 10 ** rng.uniform(-8, -4, size=n)
    p = np.column_stack([1 - 2 * e, e, e])
    y = np.where(np.arange(n) == 1, 1, 0)
    preds, target = torch.from_numpy(p), torch.from_numpy(y)
    metric, error, test = SKCE(M, n_columns=64), ECE(M), CalibrationTest(M, n_columns=64)
    for one in (metric, error, test):
        for rows in torch.split(torch.arange(n), 700):
            one.update(preds[rows], target[rows])
    assert float(metric.compute()) == pytest.approx(skce_in_memory(preds, target), rel=1e-9, abs=1e-18)
    assert float(error.compute()) == pytest.approx(ece_by_hand(preds, target), rel=1e-9)
    assert float(test.compute()) == pvalue_in_memory(preds, target)


def test_logits_dimensions_and_labels_that_are_left_out(samples):
    preds, target = samples
    logits = torch.log(preds) + 3.0
    expected = ece_by_hand(preds.reshape(-1, M), target.reshape(-1))
    images = preds.reshape(N_BATCHES, 8, 5, M).movedim(-1, 1)
    marked = torch.cat([target, torch.full((N_BATCHES, 1), -100)], dim=1).reshape(-1)
    more = torch.cat([preds, preds[:, :1]], dim=1).reshape(-1, M)
    cases = [
        (ECE(M, from_logits=True), logits.reshape(-1, M), target.reshape(-1)),
        (ECE(M), images, target.reshape(N_BATCHES, 8, 5)),
        (ECE(M, ignore_index=-100), more, marked),
    ]
    for metric, batch, labels in cases:
        assert float(metric(batch, labels)) == pytest.approx(expected, rel=1e-9)
    ignored = ECE(M, ignore_index=0)
    ignored.update(preds[0], target[0] * 0)
    with pytest.raises(ValueError, match="no samples yet"):
        ignored.compute()


def test_two_classes_are_one_column(samples):
    p, y = samples[0][..., 0], samples[1] == 0
    both = torch.stack([1 - p, p], dim=-1)
    for metric_class in (ECE, SKCE, CalibrationTest):
        one, two = metric_class(2), metric_class(2)
        assert float(one(p[0], y[0])) == pytest.approx(float(two(both[0], y[0].long())), rel=1e-12)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ECE(1), "`num_classes` is 1"),
        (lambda: ECE(3, n_bins=0), "`n_bins` is 0"),
        (lambda: ECE(3, norm="l3"), "`norm` is 'l3'"),
        (lambda: ECE(3, notion="all"), "`notion` is 'all'"),
        (lambda: ECE(3, bins=4), "Unexpected keyword arguments: `bins`"),
        (lambda: SKCE(3, kernel=Exponential()), "epochs and processes are to have the same kernel; pass one with"),
        (lambda: CalibrationTest(3, kernel=Exponential()), "epochs and processes are to have the same kernel"),
        (lambda: SKCE(3, n_columns=7), "`n_columns` is 7"),
        (lambda: CalibrationTest(3, part=-1), "`part` is -1"),
        (lambda: ECE(3).update(torch.ones(4, 2) / 2, torch.zeros(4)), "`preds` has 2 classes, but the metric is of"),
        (lambda: ECE(3).update(torch.ones(4), torch.zeros(4)), r"expected \(n, 3, ...\) and \(n, ...\)"),
        (lambda: ECE(3).update(torch.ones(4, 3), torch.zeros(4)), r"`preds\[0\]` sums to 3"),
        (lambda: ECE(2).update(torch.ones(2), torch.tensor([-1, 1])), r"`target` holds -1, .* ignore_index="),
        (lambda: ECE(3).update(torch.ones(2, 3) / 3, torch.tensor([0, 3])), "`target` holds 3, expected 0..2"),
        (
            lambda: ECE(3).update(np.ones((4, 3)) / 3, torch.zeros(4)),
            r"`preds` is a ndarray, .*; pass torch.as_tensor\(",
        ),
        (lambda: ECE(3).update(torch.ones(4, 3) / 3, [0, 1, 2, 0]), "`target` is a list, expected a torch.Tensor"),
        (lambda: ECE(3).update(torch.ones(1, 3) / 3, torch.tensor([0.5])), r"swapped: the order is \(preds, target\)"),
        (lambda: ECE(2).update(torch.tensor([0, 1]), torch.tensor([0.2, 0.7])), r"the order is \(preds, target\)"),
        (lambda: ECE(3, from_logits="yes"), "`from_logits` is 'yes', expected True or False"),
        (lambda: ECE(3, ignore_index="a"), "`ignore_index` is 'a', expected an integer"),
        (lambda: ECE(3).set_dtype(torch.int64), "`dst_type` is torch.int64, expected a floating point one"),
        (lambda: SKCE(3, kernel=None), "epochs and processes are to have the same kernel; pass one with"),
        (lambda: CalibrationTest(3, kernel=None), "epochs and processes are to have the same kernel"),
    ],
)
def test_errors_name_what_to_do(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_a_collection_shares_what_is_the_same(samples):
    preds, target = samples
    both = MetricCollection([ECE(M), Reliability(M), SKCE(M, n_columns=64), CalibrationTest(M, n_columns=64)])
    for i in range(N_BATCHES):
        both.update(preds[i], target[i])
    found = both.compute()
    assert {frozenset(group) for group in both.compute_groups.values()} >= {frozenset({"ECE", "Reliability"})}
    flat = preds.reshape(-1, M), target.reshape(-1)
    assert float(found["ECE"]) == pytest.approx(ece_by_hand(*flat), rel=1e-12)
    assert float(found["CalibrationTest"]) == pvalue_in_memory(*flat)
    np.testing.assert_allclose(found["frequency"].numpy(), frequency_in_memory(*flat), rtol=1e-12)


def test_plots(samples, monkeypatch):
    pytest.importorskip("matplotlib").use("agg")
    from matplotlib import pyplot

    preds, target = samples
    for metric in (ECE(M), SKCE(M, n_columns=64), CalibrationTest(M, n_columns=64)):
        values = [metric(preds[i], target[i]) for i in range(2)]
        figure, ax = metric.plot(values)
        assert ax in figure.axes and len(ax.lines)
    diagram = Reliability(M)
    diagram.update(preds[0], target[0])
    _, ax = pyplot.subplots()
    figure, drawn = diagram.plot(ax=ax)
    assert drawn in figure.axes and diagram.diagram().n_samples == N_ROWS
    pyplot.close("all")


def test_a_test_has_its_state_and_all_that_it_says(samples):
    preds, target = samples
    metric = CalibrationTest(M, n_columns=64)
    state = CalibrationState(M, kernel=KERNEL, n_columns=64)
    for i in range(N_BATCHES):
        metric.update(preds[i], target[i])
        state.update(target[i].numpy(), preds[i].numpy())
    assert metric.state == state
    assert metric.evaluation().test.pvalue == state.calibration_test().pvalue


@pytest.mark.grid
def test_processes_have_the_values_of_all_samples(samples, tmp_path):
    preds, target = samples
    np.savez(tmp_path / "samples.npz", preds=preds.numpy(), target=target.numpy())
    program = [sys.executable, "-P", str(SUPPORT / "metrics_in_processes.py")]
    running = [subprocess.Popen([*program, str(rank), "2", str(tmp_path)]) for rank in range(2)]
    try:
        assert [one.wait(timeout=120) for one in running] == [0, 0]
    finally:
        for one in running:
            one.kill()
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    flat = preds.reshape(-1, M), target.reshape(-1)
    states = [CalibrationState(M, kernel=KERNEL, n_columns=64, part=rank) for rank in range(2)]
    for i in range(N_BATCHES):
        states[i % 2].update(target[i].numpy(), preds[i].numpy())
    expected = {"ece": ece_by_hand(*flat), "skce": skce_in_memory(*flat)}
    for on_step in (False, True):
        for name, value in expected.items():
            assert first[f"{name} {on_step}"]["whole"] == second[f"{name} {on_step}"]["whole"]
            assert first[f"{name} {on_step}"]["whole"] == pytest.approx(value, rel=1e-12)
        assert first[f"test {on_step}"]["whole"] == (states[0] + states[1]).calibration_test().pvalue
        frequency = np.array(first[f"reliability {on_step}"]["whole"]["frequency"], dtype=float)
        np.testing.assert_allclose(frequency, frequency_in_memory(*flat), rtol=1e-12)
        assert first[f"evaluation {on_step}"] == second[f"diagram {on_step}"] == N_BATCHES * N_ROWS
    # Of a step those of its own batch, or of both processes' batches.
    assert first["ece False"]["steps"][0] == pytest.approx(ece_by_hand(preds[0], target[0]))
    both = preds[:2].reshape(-1, M), target[:2].reshape(-1)
    assert first["ece True"]["steps"][0] == pytest.approx(ece_by_hand(*both))
    assert first["skce True"]["steps"][0] == pytest.approx(skce_in_memory(*both))
    assert first["one rank"] == second["one rank"] == first["rank 0 alone"]
    assert math.isfinite(first["test True"]["steps"][0])


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore")  # of Lightning, about loaders and jit
def test_a_loop_of_lightning_logs_the_values_of_an_epoch(samples, tmp_path):
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(M, M)
            self.ece, self.test_of = ECE(M, from_logits=True), CalibrationTest(M, n_columns=64, from_logits=True)
            self.seen = []

        def training_step(self, batch, i):
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def on_validation_epoch_start(self):
            self.seen = []

        def validation_step(self, batch, i):
            logits = self.layer(batch[0])
            self.seen.append((logits, batch[1]))
            for name, metric in {"ece": self.ece, "p-value": self.test_of}.items():
                metric.update(logits, batch[1])
                self.log(name, metric, on_step=False, on_epoch=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.TensorDataset(samples[0].reshape(-1, M).float(), samples[1].reshape(-1))
    loader = torch.utils.data.DataLoader(data, batch_size=50)
    quiet = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", default_root_dir=tmp_path, **quiet)
    model = Model()
    trainer.fit(model, loader, loader)
    logits, target = (torch.cat(parts) for parts in zip(*model.seen))
    preds = torch.softmax(logits.double(), dim=1)
    logged = trainer.callback_metrics
    assert float(logged["ece"]) == pytest.approx(ece_by_hand(preds, target), rel=1e-6)
    assert float(logged["p-value"]) == pytest.approx(pvalue_in_memory(preds, target), rel=1e-6)
