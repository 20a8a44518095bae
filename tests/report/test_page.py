"""Pages of HTML: whole, of one file, safe whatever models are called, and with the numbers of the library."""

import re
import warnings
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import kcalib
from kcalib._command.cli import main
from kcalib.distributions import Normal
from kcalib.recalibration import TemperatureScaling, choose
from kcalib.report.page import Section, document, paragraph, preformatted, svg, table
from kcalib.streaming import CalibrationState

# Old ones warn when they are imported, and `report` makes errors of warnings.
pytest.importorskip("matplotlib.figure")
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks that elements are closed in order, and collects text and addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.addresses, self.tags = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href", "action")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text.append(data)


def checked(text):
    """No network, no script, below a megabyte."""
    page = Page(text)
    assert text.startswith("<!doctype html>") and len(text.encode()) < 2**20
    assert "script" not in page.tags and "link" not in page.tags and "img" not in page.tags
    assert all(address.startswith("#") for address in page.addresses)
    assert not re.search(r"url\((?!#)|@import", text)
    screen, _, printed = text.partition("</style>")[0].rpartition("@media print")
    assert "overflow-x:auto" in screen and ".wide,figure{overflow:visible}" in printed  # paper cannot be scrolled
    return " ".join(" ".join(page.text).split())


def problem(n=200, power=1.0, seed=0):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), size=n)
    y = (rng.uniform(size=(n, 1)) > p.cumsum(axis=1)).sum(axis=1)
    q = p**power
    return y, q / q.sum(axis=1, keepdims=True)


def test_the_page_of_an_evaluation_has_its_verdict_first_and_its_numbers():
    evaluation = kcalib.evaluate(*problem(power=3.0))
    text = checked(evaluation.to_html())
    assert text.index(evaluation.verdict) < text.index("Numbers")
    for value in (f"{evaluation.log_loss:.4f}", f"{evaluation.skce.value:.2e}", f"p = {evaluation.test.pvalue:.2g}"):
        assert value in text
    assert all(block.name in text and block.finding in text for block in evaluation.test.blocks)
    assert evaluation.test.null_law in text and evaluation.skce.kernel in text and kcalib.__version__ in text


def test_pages_of_forecasts_and_states_and_of_tests_without_draws(tmp_path):
    rng = np.random.default_rng(0)
    mean = rng.normal(size=50)
    forecasts = kcalib.evaluate(rng.normal(mean), Normal(mean, np.ones(50)))
    assert f"{forecasts.crps:.4g}" in checked(forecasts.to_html())
    state = CalibrationState(3, n_columns=16, n_resamples=19)
    state.update(*problem())
    assert "19 draws of the labels" in checked(state.result().to_html())
    y, p = problem()
    text = kcalib.evaluate(y, p, method="spectrum").to_html(tmp_path / "a.html")
    assert (tmp_path / "a.html").read_text() == text
    assert "observed" not in checked(text)  # there are no draws to show


@pytest.mark.grid
def test_results_beside_an_evaluation_are_on_its_page():
    """Diagrams, a comparison and a choice of recalibrators: drawn, and as they are printed."""
    y, p = problem(power=2.0)
    beside = [
        kcalib.reliability(y, p),
        kcalib.compare(y, {"<a>": p, "b": problem()[1]}),
        choose(y, p, {"temperature": TemperatureScaling()}, n_folds=3),
        kcalib.calibration_test(y, p, method="spectrum"),  # has no picture
        kcalib.class_wise_ece.result(y, p),
    ]
    evaluation = kcalib.evaluate(y, p, method="spectrum")  # has none either
    assert "Beside it" not in checked(evaluation.to_html())
    page = evaluation.to_html(beside=beside)
    text = checked(page)
    assert page.count("<svg ") == 3 and page.count('<div class="row">') == 5
    for result in beside:
        for line in str(result).splitlines():
            assert " ".join(line.removesuffix("...").split()) in text
    with pytest.raises(TypeError, match=r"`beside\[1\]` is float, expected a result of kcalib"):
        evaluation.to_html(beside=[beside[0], 0.5])
    with pytest.raises(TypeError, match=r"`beside` is ReliabilityDiagram, expected several .*; pass \[result\]"):
        evaluation.to_html(beside=beside[0])
    assert evaluation.to_html(beside=iter(beside[:1])) == evaluation.to_html(beside=beside[:1])


def test_the_page_of_the_same_evaluation_is_the_same():
    evaluation = kcalib.evaluate(*problem(50))
    assert evaluation.to_html() == evaluation.to_html()


@pytest.mark.parametrize("method", ["exact", "features", "bootstrap", "multiplier"])
def test_results_keep_quantiles_of_their_draws(method):
    """The share of the quantiles that are as large as the statistic is the p-value, to the spacing of the quantiles."""
    for power in (1.0, 1.4):
        result = kcalib.calibration_test(*problem(power=power), method=method, seed=1)
        quantiles = np.array(result.null_quantiles)
        assert len(quantiles) == 41 and np.all(np.diff(quantiles) >= 0)
        share = np.mean(quantiles >= result.statistic)
        assert abs(share - result.pvalue) < 1 / 40 + 1 / 41
    assert kcalib.calibration_test(*problem(), method="spectrum").null_quantiles is None


def test_text_is_text_whatever_it_holds():
    nasty = "<script>alert('&\"')</script>"
    page = document(nasty, [], [Section(nasty, [paragraph(nasty), preformatted(nasty), table([nasty], [[nasty]])])])
    assert checked(page).count(nasty) == 7


def test_pictures_keep_their_numbers_and_take_the_colours_of_the_page():
    from matplotlib.figure import Figure

    def draw():
        figure = Figure()
        axes = figure.add_subplot()
        axes.plot([0.123456, 0.5], [0.1, 0.987654])
        axes.set_title("0.98765 <b>")
        axes.set_xlabel("#D55E00 font-family: x;")
        return figure

    text = svg(draw, 'a "label"')
    assert "0.98765 &lt;b" in text and "var(--ink)" in text and "&quot;label&quot;" in text
    assert not re.search(r"#(000000|ffffff)", text) and "#D55E00 font-family: x;" in text
    assert not re.search(r"\d\.\d\d", re.sub(r">[^<]*<", "><", text))
    assert "rotate(-0" not in text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, n, power in (("good", 200, 1.0), ("sure", 200, 3.0), ("few", 120, 3.0)):
        y, p = problem(n, power)
        np.savez(f"{name}.npz", labels=y, probs=p)
    return tmp_path


def report(capsys, *files, code=0):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["report", *files, "-o", "out.html"]) == code, capsys.readouterr()
    return capsys.readouterr()


@pytest.mark.grid
def test_the_report_of_two_models(folder, capsys):
    printed = report(capsys, "good.npz", "sure.npz", "--plot-classes", "2")
    assert re.fullmatch(r"out.html: 2 models, \d+ KiB\n", printed.out) and printed.err == ""
    text = checked((folder / "out.html").read_text())
    y, sure = problem(power=3.0)
    expected = kcalib.evaluate(y, sure)
    assert f"sure: {expected.verdict}" in text
    parts = ["Numbers", "Where is it off?", "Could this be chance?", "Which is better?", "Can it be repaired?"]
    assert sorted(map(text.index, parts)) == [text.index(part) for part in parts]
    difference = kcalib.compare(y, {"good": problem()[1], "sure": sure}).difference("good", "sure")
    assert f"good less sure {difference.difference:.3g}" in text
    choice = choose(y, sure)
    gain = choice.comparison.difference("chosen", "as given").difference
    assert f"sure : {choice.name} recalibration lowers the log loss by {-gain:.3g}" in text
    pvalue = kcalib.calibration_test(y, choice.predictions, seed=0).pvalue
    assert f"it passes the test (p = {pvalue:.2g})" in text
    no_gain = choose(*problem())
    assert no_gain.comparison.difference("chosen", "as given").confidence_interval.high >= 0
    finding = "no recalibration has a lower log loss; that of the choice changes by"
    if no_gain.name != "as given":
        finding = f"{no_gain.name} recalibration has the lowest log loss, but the gain of the choice is not significant"
    assert f"good : {finding}" in text and not re.search(r"-0\b(?!\.)", text[text.index("Can it be repaired?") :])
    assert "kcalib report good.npz sure.npz --plot-classes 2 -o out.html" in text
    worst = np.argmax(kcalib.class_wise_ece.result(y, sure).class_values)
    assert f"class {worst}" in text


@pytest.mark.grid
def test_repair_is_left_out_or_takes_a_minute(folder, capsys, monkeypatch):
    report(capsys, "good.npz", "--no-repair", "--plot-classes", "0")
    assert "Can it be repaired?" not in (folder / "out.html").read_text()
    monkeypatch.setattr("kcalib._command.report.MAX_SECONDS", 1e-6)
    report(capsys, "good.npz")
    assert "no recalibration was tried: it would take longer than 1e-06 s" in checked((folder / "out.html").read_text())


def test_the_report_of_distributions(folder, capsys):
    rng = np.random.default_rng(0)
    mean = rng.normal(size=200)
    np.savez("m.npz", y=rng.normal(mean, 2), mean=mean, std=np.ones(200))
    report(capsys, "m.npz")
    text = checked((folder / "out.html").read_text())
    assert "predicted quantile level" in text and "lowers the crps by" in text and "Which is better?" not in text


def test_a_report_of_vectors_is_refused(folder, capsys):
    np.savez("m.npz", y=np.zeros((9, 2)), mean=np.zeros((9, 2)), std=np.ones((9, 2)))
    assert main(["report", "m.npz", "-o", "out.html"]) == 1
    expected = "m.npz: holds predictions of vectors of 2 entries, but a report draws predictions of numbers; write"
    assert expected in capsys.readouterr().err and not (folder / "out.html").exists()


@pytest.mark.grid
def test_a_bandwidth_is_that_of_all_sections(folder, capsys):
    report(capsys, "good.npz", "sure.npz", "--bandwidth", "0.25", "--plot-classes", "0")
    text = checked((folder / "out.html").read_text())
    assert set(re.findall(r"bandwidth=([\d.]+)\)", text)) == {"0.25"}
    y, sure = problem(power=3.0)
    kernel = kcalib.kernels.Exponential(bandwidth=0.25)
    difference = kcalib.compare(
        y, {"good": problem()[1], "sure": sure}, metric=kcalib.methods.SKCE(kernel=kernel)
    ).difference("good", "sure")
    assert f"good less sure {difference.difference:.3g}" in text


@pytest.mark.grid
def test_models_of_other_samples_are_not_compared(folder, capsys):
    y, p = problem(seed=1)
    np.savez("other.npz", labels=y, probs=p)
    report(capsys, "good.npz", "other.npz", "--method", "linear", "--plot-classes", "0")
    assert "The models are not compared" in checked((folder / "out.html").read_text())


@pytest.mark.parametrize("option", [("--axes", "logit"), ("--plot-classes", "2")])
def test_options_of_classes_are_not_for_distributions(folder, capsys, option):
    np.savez("m.npz", y=np.zeros(9), mean=np.zeros(9), std=np.ones(9))
    report(capsys, "m.npz", *option, code=1)


@pytest.mark.grid
def test_each_diagram_of_a_report_is_a_picture_that_narrow_pages_put_below_each_other(folder, capsys):
    report(capsys, "good.npz", "sure.npz", "--plot-classes", "2", "--method", "linear")
    page = (folder / "out.html").read_text()
    rows = re.findall(r'<div class="row">(.*?)</div>', page, flags=re.DOTALL)
    labels = ["diagram of good", "diagram of sure"]
    assert [row.count("<svg ") for row in rows] == [2, 2, 2] and rows[0].count('role="img"') == 2
    assert re.findall(r'aria-label="([^"]*)"', rows[0]) == labels
    assert checked(page).count("points: accuracy in a bin") == 1


@pytest.mark.grid
def test_of_two_classes_one_has_a_diagram(folder, capsys):
    """The other one is its mirror image."""
    _, p = problem()
    np.savez("two.npz", labels=p[:, 0] < 0.2, probs=p[:, 1] / (p[:, 1] + p[:, 2]))
    report(capsys, "two.npz", "--method", "linear")
    assert re.findall(r"class \d", checked((folder / "out.html").read_text())) == ["class 1"]


@pytest.mark.parametrize("statistic", [-9.0, -1.9, 0.0, 1.5, 2.0, 50.0])
def test_texts_of_a_law_are_inside_and_apart(statistic):
    law = np.linspace(-2, 2, 41)
    result = replace(
        kcalib.calibration_test(*problem(), method="exact"), statistic=statistic, null_quantiles=tuple(law)
    )
    axes = result.plot()
    axes.figure.canvas.draw()
    inside, (one, other) = axes.get_window_extent(), (text.get_window_extent() for text in axes.texts)
    assert not one.overlaps(other)
    for box in (one, other):
        assert inside.x0 <= box.x0 and box.x1 <= inside.x1


@pytest.mark.grid
def test_names_of_files_are_text(folder, capsys):
    (folder / "<b>&.npz").write_bytes((folder / "good.npz").read_bytes())
    report(capsys, "<b>&.npz", "--method", "linear", "--plot-classes", "1")
    assert "<b>&: " in checked((folder / "out.html").read_text())


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (("good.npz", "-o", "out.pdf"), 2, "expected a file name that ends in .html"),
        (("good.npz", "nothing.npz", "-o", "out.html"), 1, "nothing.npz: No such file"),
        (
            ("few.npz", "-o", "none/out.html", "--method", "linear", "--plot-classes", "0"),
            1,
            "none/out.html: No such file",
        ),
        (("good.npz",), 2, "-o/--output"),
    ],
)
def test_errors_leave_no_page(folder, capsys, arguments, code, message):
    assert main(["report", *arguments]) == code
    assert message in capsys.readouterr().err
    assert not list(folder.glob("*.html"))


def test_the_exit_code_of_a_miscalibrated_model(folder, capsys):
    report(capsys, "few.npz", "--fail-if-miscalibrated", "--method", "features", "--plot-classes", "0", code=3)


@pytest.mark.grid
def test_results_draw_themselves():
    """The law beside the statistic, which is beyond it for a model that is far too sure; models in their order."""
    result = kcalib.calibration_test(*problem(power=4.0), method="exact")
    axes = result.plot()
    (law,) = (patch for patch in axes.patches if hasattr(patch, "get_data"))
    values, edges, _ = law.get_data()
    assert np.sum(values * np.diff(edges)) == pytest.approx(1)
    assert (edges[0], edges[-1]) == (result.null_quantiles[0], result.null_quantiles[-1])
    marks = sorted(line.get_xdata()[0] for line in axes.lines)
    assert marks == pytest.approx([result.null_quantiles[38], result.statistic])
    y, p = problem()
    labels = np.arange(60) % 2
    for hard, values in ((np.eye(2)[labels], 1), ([[0.7, 0.3], [0.6, 0.4]], 4)):  # statistics of few values
        drawn = kcalib.calibration_test(labels[: len(hard)], hard, method="exact", seed=0)
        assert len(set(drawn.null_quantiles)) == values
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            axes = drawn.plot()
            axes.figure.canvas.draw()
        laws = [patch.get_data() for patch in axes.patches if hasattr(patch, "get_data")]
        assert [pytest.approx(1)] * (values > 1) == [np.sum(law.values * np.diff(law.edges)) for law in laws]
    with pytest.raises(ValueError, match="the spectrum test has no draws to show"):
        kcalib.calibration_test(y, p, method="spectrum").plot()
    comparison = kcalib.compare(y, {"b": problem(power=3.0)[1], "a": p})
    axes = comparison.plot()
    assert [text.get_text() for text in axes.get_yticklabels()] == list(comparison.ranking) == ["a", "b"]
    assert [line.get_xdata()[0] for line in axes.lines[1::2]] == [comparison.model(name).value for name in "ab"]
