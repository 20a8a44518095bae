"""The picture: valid files, all models drawn, readable at the width of a README."""

import os
import struct
import sys
from math import comb

import numpy as np
import pytest
from grid import some

import kcalib
from kcalib._command.cli import main
from kcalib._input.labels import prepare
from kcalib.distributions import Normal
from kcalib.estimators.reliability import diagram_of
from kcalib.lenses import TopLabel
from kcalib.report import diagrams, figures


def diagram_for(y, p, n_bins=15):
    return diagram_of(prepare(y, p, lens=TopLabel()), n_bins=n_bins)


def some_diagram(n=300, power=1.0):
    rng = np.random.default_rng(0)
    p = rng.uniform(size=n)
    return diagram_for(rng.uniform(size=n) < p, p**power)


def panel(name="model", miscalibrated=False, diagram=None):
    verdict = "miscalibrated, over-confident" if miscalibrated else "no evidence against calibration"
    return figures.Panel(
        name, verdict, miscalibrated, ("ECE 0.0100", "p = 0.5"), diagram or some_diagram(), figures.RELIABILITY
    )


def png_size(path):
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n") and content.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", content[16:24])


@pytest.mark.grid
def test_size_grows_by_rows_of_at_most_four(tmp_path):
    pytest.importorskip("matplotlib")
    sizes = []
    for count in (1, 4, 6):
        figures.plot_reliability([panel()] * count, tmp_path / "out.png")
        sizes.append(png_size(tmp_path / "out.png"))
    one, four, six = sizes
    assert 480 < one[0] < 600 and 700 < one[1] < 900
    assert 3 * one[0] < four[0] < 2100 and four[1] <= one[1]
    assert six[0] == pytest.approx(four[0] * 3 / 4, rel=0.05) and six[1] > 1.7 * four[1]


def test_draws_what_the_diagram_says():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    diagram = some_diagram(power=3.0)
    top, bottom = Figure().subplots(2)
    figures._draw_panel(top, bottom, panel(miscalibrated=True, diagram=diagram))
    used = diagram.count > 0
    points = np.stack((diagram.confidence, diagram.frequency), axis=1)[used]
    np.testing.assert_allclose(top.collections[-1].get_offsets(), points)
    bars = [(b.get_x(), b.get_height()) for b in bottom.patches]
    np.testing.assert_allclose(bars, np.stack((diagram.edges[:-1], diagram.weight / diagram.weight.sum()), 1))
    assert top.get_title() == "model"
    texts = [text.get_text() for text in top.texts]
    assert texts == ["miscalibrated, over-confident", "ECE 0.0100\np = 0.5"]


def test_colour_tells_the_verdict(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("matplotlib.image")
    for miscalibrated, colour in ((False, diagrams.CALIBRATED), (True, diagrams.MISCALIBRATED)):
        figures.plot_reliability([panel(miscalibrated=miscalibrated)], tmp_path / "out.png")
        pixels = matplotlib.image.imread(tmp_path / "out.png")[:, :, :3]
        distance = np.abs(pixels - matplotlib.colors.to_rgb(colour)).max(axis=2)
        assert np.sum(distance < 0.01) > 500, colour
        other = diagrams.CALIBRATED if miscalibrated else diagrams.MISCALIBRATED
        assert np.sum(np.abs(pixels - matplotlib.colors.to_rgb(other)).max(axis=2) < 0.01) == 0


@pytest.mark.grid
def test_texts_do_not_leave_the_picture_or_overlap(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    saved = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (saved.append(self), save(self, *a, **k)))
    names = ["short", "a_rather_long_name_of_a_model_with_variant_A", "b" * 200, "x", "y", "z"]
    figures.plot_reliability([panel(name, i % 2 == 0) for i, name in enumerate(names)], tmp_path / "out.png")
    (figure,) = saved
    boxes = [text.get_window_extent() for axes in figure.axes for text in (axes.title, axes.xaxis.label, *axes.texts)]
    boxes += [text.get_window_extent() for text in figure.texts]
    boxes = [box for box in boxes if box.width > 0 and box.height > 0]
    assert len(boxes) > 20
    for i, box in enumerate(boxes):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:i])


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")])
@pytest.mark.parametrize("name", some(["a $x^ b", "$\\frac$", "日本", "ü\\udc80", ""], "$\\frac$", "ü\\udc80"))
def test_formats_and_names(tmp_path, suffix, start, name):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"out{suffix}"
    figures.plot_reliability([panel(name)], str(path))
    assert path.read_bytes().startswith(start)


def test_no_state_is_left_behind(tmp_path):
    pytest.importorskip("matplotlib")
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    imported = "matplotlib.pyplot" in sys.modules
    figures.plot_reliability([panel()], tmp_path / "out.png")
    assert dict(mpl.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == imported


def test_settings_of_the_user_do_not_matter(tmp_path):
    mpl = pytest.importorskip("matplotlib")
    figures.plot_reliability([panel("a_b")], tmp_path / "a.png")
    with mpl.rc_context({"text.usetex": True, "font.size": 30, "figure.dpi": 20}):
        figures.plot_reliability([panel("a_b")], tmp_path / "b.png")
        assert mpl.rcParams["text.usetex"]
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("n_bins", some([1, 2, 500], 1, 500))
def test_few_samples_and_any_number_of_bins(tmp_path, n_bins):
    pytest.importorskip("matplotlib")
    diagram = diagram_for([0, 1], [[1.0, 0.0], [1.0, 0.0]], n_bins)
    figures.plot_reliability([panel(diagram=diagram)], tmp_path / "out.png")
    assert png_size(tmp_path / "out.png")[0] > 300


@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_the_old_picture_stays_until_the_new_one_is_whole(tmp_path, monkeypatch, fault, where):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.svg"
    path.write_bytes(b"old")

    def failing(*_):
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(os, where, failing)
        with pytest.raises((figures.PlotError, KeyboardInterrupt)) as caught:
            figures.plot_reliability([panel()], path)
    assert isinstance(caught.value, KeyboardInterrupt) or "cannot write the picture: No space left" in str(caught.value)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["out.svg"]
    figures.plot_reliability([panel()], path)
    assert path.read_bytes().startswith(b"<?xml") and os.listdir(tmp_path) == ["out.svg"]


def test_errors(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    with pytest.raises(figures.PlotError, match="cannot write the picture: No such file"):
        figures.plot_reliability([panel()], tmp_path / "none" / "out.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(figures.PlotError, match=r"cannot write the picture: .*folder\.png is a folder"):
        figures.plot_reliability([panel()], tmp_path / "folder.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(figures.PlotError, match=r"pip install 'kcalib\[plot\]'"):
        figures.plot_reliability([panel()], tmp_path / "out.png")


@pytest.fixture
def axes():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def test_points_of_few_samples_are_faint(axes):
    """999 of 1000 samples are in the last bin of a network that is nearly always sure."""
    p = np.append(np.linspace(0.95, 1, 999), 0.5)
    diagram = diagram_for(np.ones(1000, dtype=int), np.stack((1 - p, p), axis=1))
    diagrams.draw_diagram(axes, diagram, "#0072B2")
    intervals, _, points = axes.collections
    few, many = points.get_facecolors()[:, 3]
    assert few == diagrams.FAINTEST and many == 1
    few, many = intervals.get_colors()[:, 3]
    assert few < 0.2 and many == 0.75


def test_legends_are_above_the_data():
    pytest.importorskip("matplotlib")
    for drawn in (some_diagram(), kcalib.quantile_calibration([0.0, 1.0], Normal([0.0, 0.0], [1.0, 1.0]))):
        axes = drawn.plot()
        axes.figure.canvas.draw()
        legend = axes.get_legend().get_window_extent()
        assert legend.y0 >= axes.get_window_extent().y1 - 1
        assert legend.y1 <= axes.figure.bbox.y1


def test_a_logit_axis_has_everything_within_its_ends(axes):
    rng = np.random.default_rng(0)
    p = 1 - 10 ** rng.uniform(-7, -1, 2000)
    diagram = diagram_of(
        prepare(rng.uniform(size=2000) < p, np.stack((1 - p, p), axis=1), lens=TopLabel()), binning="equal_mass"
    )
    diagrams.draw_diagram(axes, diagram, "#0072B2", "logit")
    assert axes.get_xscale() == axes.get_yscale() == "logit"
    low, high = axes.get_xlim()
    assert axes.get_ylim() == (low, high) and 0 < low < high <= 1 - 10 ** -(diagrams.NINES + 1)
    offsets = np.asarray(axes.collections[-1].get_offsets())
    np.testing.assert_allclose(offsets, np.clip(np.stack((diagram.confidence, diagram.frequency), 1), low, high))
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.9", "0.99", "0.999", "0.9999"]


def test_the_density_on_a_logit_axis_is_that_of_log_odds(axes):
    """Log-odds that are uniform have bars of one height."""
    p = 1 / (1 + np.exp(-np.linspace(0.01, 8, 3000)))
    data = prepare(np.ones(3000, dtype=int), np.stack((1 - p, p), axis=1), lens=TopLabel())
    diagram = diagram_of(data, binning="equal_mass")
    diagrams.draw_histogram(axes, diagram, "#0072B2", "logit")
    heights = np.array([bar.get_height() for bar in axes.patches])
    assert len(heights) == 15 and heights.min() > 0.98 and heights.max() == 1


def test_greys_are_between_paper_and_text(axes):
    matplotlib = pytest.importorskip("matplotlib")
    light = diagrams.Tones.of(axes)
    with matplotlib.rc_context({"text.color": "white"}):
        axes.set_facecolor("black")
        dark = diagrams.Tones.of(axes)
        some_diagram().plot(axes, histogram=False)
    assert light.grey(diagrams.BAND) == pytest.approx((0.82,) * 3)
    assert dark.grey(diagrams.BAND) == pytest.approx((0.18,) * 3)
    assert light.verdict(True) == diagrams.MISCALIBRATED and dark.verdict(True) == diagrams.MISCALIBRATED_ON_DARK
    assert axes.collections[-1].get_facecolors()[0, :3] == pytest.approx(
        [0x56 / 255, 0xB4 / 255, 0xE9 / 255]  # light enough for black
    )


def test_dark_pictures(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("matplotlib.image")
    figures.plot_reliability([panel()], tmp_path / "out.png", "dark")
    pixels = matplotlib.image.imread(tmp_path / "out.png")[:, :, :3]
    assert np.median(pixels) == 0 and np.mean(np.all(pixels == 1, axis=2)) < 0.05


@pytest.mark.grid
def test_the_band_of_a_pit_histogram_holds_nineteen_of_twenty_bars(axes):
    """Of calibrated models, each bar by itself: a count that is binomial, so that bounds follow from the exact law."""
    rng = np.random.default_rng(0)
    n, sets, outside = 400, 50, 0
    for _ in range(sets):
        curve = kcalib.quantile_calibration(rng.normal(size=n), Normal(np.zeros(n), np.ones(n)))
        axes.clear()
        diagrams.draw_pit(axes, curve, "#0072B2")
        low, high = axes.patches[0].get_y(), axes.patches[0].get_y() + axes.patches[0].get_height()
        outside += int(np.sum((curve.histogram < low - 1e-9) | (curve.histogram > high + 1e-9)))
    p = 1 - sum(comb(n, k) * 0.05**k * 0.95 ** (n - k) for k in range(round(low * n), round(high * n) + 1))
    assert p <= 0.05
    assert abs(outside - 20 * sets * p) < 4 * (20 * sets * p) ** 0.5


def test_a_scale_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="`scale` is 'log', expected"):
        some_diagram().plot(scale="log")


def test_pictures_of_classes_have_the_worst_ones(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), size=2000)
    y = (rng.uniform(size=(2000, 1)) > p.cumsum(axis=1)).sum(axis=1)
    y[(y == 2) & (rng.uniform(size=2000) < 0.5)] = 1  # classes 1 and 2 are wrong
    monkeypatch.chdir(tmp_path)
    np.savez("m.npz", probs=p, labels=y)
    drawn = []
    plot = figures.plot_reliability
    monkeypatch.setattr(figures, "plot_reliability", lambda panels, *how: (drawn.extend(panels), plot(panels, *how)))
    options = ("--plot-classes", "2", "--axes", "logit", "--theme", "dark", "--method", "linear")
    assert main(["evaluate", "m.npz", "--plot", "m.png", *options]) == 0
    errors = kcalib.class_wise_ece.result(y, p, binning="equal_mass").class_values
    worst = sorted((1, 2), key=lambda k: -errors[k])
    assert [one.model for one in drawn] == ["m", *(f"m: class {k}" for k in worst)]
    assert drawn[1].verdict == f"ECE {max(errors):.4f}"
    np.testing.assert_array_equal(
        drawn[1].diagram.frequency,
        kcalib.reliability(y, p, lens=kcalib.lenses.ClassWise(worst[0]), binning="equal_mass").frequency,
    )


@pytest.mark.parametrize("option", [("--axes", "logit"), ("--theme", "dark"), ("--plot-classes", "2")])
def test_options_of_pictures_need_one(capsys, option):
    assert main(["demo", *option]) == 2
    assert f"{option[0]} needs --plot OUT" in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--axes", "logit"), ("--plot-classes", "2")])
def test_options_of_pictures_of_classes_are_not_for_regression(tmp_path, capsys, monkeypatch, option):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    np.savez("m.npz", y=np.zeros(9), mean=np.zeros(9), std=np.ones(9))
    assert main(["evaluate", "m.npz", "--plot", "m.png", *option]) == 1
    assert f"but {option[0]} is for class probabilities" in capsys.readouterr().err


def test_classes_are_not_drawn_from_pieces(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    np.savez("m.npz", labels=np.zeros(9, dtype=int), probs=np.full((9, 2), 0.5))
    assert main(["evaluate", "m.npz", "--plot", "m.png", "--plot-classes", "2", "--stream"]) == 1
    assert "--plot-classes needs all samples at once" in capsys.readouterr().err
