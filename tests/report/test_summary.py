"""Results as a few lines and as a table in a notebook."""

from __future__ import annotations

import dataclasses
import functools
from html.parser import HTMLParser
from typing import Any

import numpy as np

import kcalib
from kcalib.distributions import Normal
from kcalib.recalibration import TemperatureScaling, choose
from kcalib.report.summary import MOST_ROWS, WIDTH, Summarized
from kcalib.solvers import KroneckerSolution, LowRank, Solution
from kcalib.streaming import CalibrationState


class Cells(HTMLParser):
    """The cells of a table, and whether every element that opens is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "br":
            self.open.append(tag)
            self.cells += [""] if tag in ("td", "th", "caption") else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data


@functools.cache
def results() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), size=60)
    y = (rng.uniform(size=(60, 1)) > p.cumsum(axis=1)).sum(axis=1)
    mean = rng.normal(size=60)
    z, predicted = mean + rng.normal(size=60), Normal(mean, np.ones(60))
    models = {f"<model {k}>": p ** (1 + k / 9) / np.sum(p ** (1 + k / 9), axis=1, keepdims=True) for k in range(9)}
    compared = kcalib.compare(y, models)
    return {
        "read": kcalib.streaming.read_forecasts({"y": [1], "0.1": [0], "0.9": [2]})[0],
        "SKCE": kcalib.skce.result(y, p),
        "CKCE": kcalib.ckce.result(y, p),
        "UCME": kcalib.ucme.result(y, p),
        "KDE": kcalib.kde_calibration_error.result(y, p),
        "ECE": kcalib.class_wise_ece.result(y, p),
        "MMCE": kcalib.mmce.result(y, p),
        "cumulative": kcalib.cumulative_calibration_error(y, p, n_resamples=9),
        "Brier": kcalib.brier_decomposition(y, p),
        "curve": kcalib.integrated_calibration_index.result(y == 0, p[:, 0]),
        "fit": kcalib.spiegelhalter_test(y == 0, p[:, 0]),
        "line": kcalib.logistic_recalibration(y == 0, p[:, 0]),
        "ratio": kcalib.observed_expected_ratio.result(y == 0, p[:, 0]),
        "diagram": kcalib.reliability(y, p),
        "quantiles": kcalib.quantile_calibration(z, predicted),
        "quantile scores": kcalib.quantile_scores(z, predicted),
        "bins": kcalib.top_label_ece.result(y, p).bins[0],
        "test": kcalib.calibration_test(y, p),
        "block": kcalib.calibration_test(y, p, method="adaptive").blocks[0],
        "evaluation": kcalib.evaluate(y, p),
        "forecasts": kcalib.evaluate(z, predicted),
        "labels": kcalib.evaluate(np.eye(4, 12, dtype=int)[y], np.tile(p, 4), multilabel=True),
        "groups": kcalib.worst_groups(y, p, {"half": np.arange(60) // 30}, seed=0),
        "group": kcalib.worst_groups(y, p, {"half": np.arange(60) // 30}, seed=0).groups[0],
        "comparison": compared,
        "model": compared.models[0],
        "difference": compared.differences[0],
        "few errors": kcalib.results.FewErrors(1, 0.2, 9, 2.0),
        "risk": kcalib.squared_calibration_error(y, p, estimators=["temperature"], n_folds=2),
        "median": kcalib.bandwidth.median_distance(p),
        "factor": LowRank(np.ones((4, 2)), np.arange(2), 0.1, 2),
        "solution": KroneckerSolution(np.ones(4), 0.5, 1e-16, "schur", (0, 0)),
        "scores": CalibrationState(3).update(y, p).scores(),
        "score": CalibrationState(3).update(y, p).scores().brier_score,
        "choice": choose(y, p, {"temperature": TemperatureScaling()}, n_folds=3),
        "solve": Solution(np.ones(4), 1e-9, 1e-10, 3, 2, "cg", "by wish", 64, True),
        "candidate": kcalib.squared_calibration_error(y, p, estimators=["temperature"], n_folds=2).estimators[0],
    }


def leaves(cls: type) -> set[type]:
    """Classes of results that none derives from."""
    below = [leaf for sub in cls.__subclasses__() for leaf in leaves(sub)]
    return set(below) or {cls}


def test_results_are_a_dozen_lines() -> None:
    for name, result in results().items():
        lines, page = str(result).splitlines(), result._repr_html_()
        assert 2 <= len(lines) <= MOST_ROWS + 2 and max(map(len, lines)) <= WIDTH, name
        cells = Cells(page).cells
        assert cells[0] == lines[0] and page.startswith("<table"), name
        assert "#" not in page, name  # no colour but that of the text
        if name not in ("comparison", "risk", "choice", "groups", "labels", "quantile scores"):
            fields = {field.name for field in dataclasses.fields(result)}
            for line, at in zip(lines[1:], range(1, len(cells), 2)):
                assert line.split()[0] == cells[at].split()[0] and (line.startswith("and ") or cells[at] in fields), (
                    name
                )


def test_public_results_have_a_summary() -> None:
    public = {name for name in kcalib.__all__ if dataclasses.is_dataclass(getattr(kcalib, name))}
    assert {name for name in public if not issubclass(getattr(kcalib, name), Summarized)} == set()
    assert public == {type(result).__name__ for result in results().values()} & public
    of_kcalib = {leaf for leaf in leaves(Summarized) if leaf.__module__.startswith("kcalib.")}
    assert of_kcalib == {type(result) for result in results().values()}
    assert max(len(str(result)) for result in results().values()) < 1100


def test_what_is_first() -> None:
    assert str(results()["evaluation"]).splitlines()[1] == f"verdict        {results()['evaluation'].verdict}"
    assert str(results()["test"]).splitlines()[1].split() == ["pvalue", f"{results()['test'].pvalue:.4g}"]
    value, error = results()["SKCE"].value, results()["SKCE"].standard_error
    assert f"{value:.4g}, standard error {error:.2g}" in str(results()["evaluation"])
    assert "array" not in "".join(str(results()["diagram"]).splitlines()[1:7])


def test_the_evaluation_of_two_classes_shows_the_test():
    rng = np.random.default_rng(0)
    p = rng.uniform(size=60)
    for metrics in (None, "logistic_recalibration"):
        result = kcalib.evaluate(rng.uniform(size=60) < p, p, metrics=metrics)
        shown = dict(line.split(maxsplit=1) for line in str(result).splitlines()[1:])
        assert shown["test"] == f"p-value {result.test.pvalue:.2g}, adaptive" and shown["positive_class"] == "1"


def test_names_of_models_are_no_markup() -> None:
    page = results()["comparison"]._repr_html_()
    assert "<model" not in page and "&lt;model 0&gt;" in page
    assert "and 3 more models" in str(results()["comparison"])


def test_a_terminal_of_ipython_shows_it_too() -> None:
    class Printer:
        seen = ""

        def text(self, text: str) -> None:
            self.seen += text

    printer = Printer()
    results()["SKCE"]._repr_pretty_(printer, False)
    assert printer.seen == str(results()["SKCE"]) and len(printer.seen) < 900
    assert repr(results()["SKCE"]).startswith("SKCEResult(value=")
