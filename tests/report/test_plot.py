"""The picture: valid files, all models drawn, readable at the width of a README."""

import os
import struct
import sys

import numpy as np
import pytest
from grid import some

from kcalib._input.labels import prepare
from kcalib.estimators.reliability import diagram_of
from kcalib.lenses import TopLabel
from kcalib.report import figures


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


def test_size_grows_by_rows_of_at_most_four(tmp_path):
    pytest.importorskip("matplotlib")
    sizes = []
    for count in (1, 4, 6):
        figures.plot_reliability([panel()] * count, tmp_path / "out.png")
        sizes.append(png_size(tmp_path / "out.png"))
    one, four, six = sizes
    assert 300 < one[0] < 500 and 400 < one[1] < 700
    assert 3 * one[0] < four[0] < 1600 and four[1] <= one[1]
    assert six[0] == pytest.approx(four[0] * 3 / 4, rel=0.05) and six[1] > 1.7 * four[1]


def test_draws_what_the_diagram_says():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    diagram = some_diagram(power=3.0)
    top, bottom = Figure().subplots(2)
    figures._draw_panel(top, bottom, panel(miscalibrated=True, diagram=diagram))
    used = diagram.count > 0
    points = np.stack((diagram.confidence, diagram.frequency), axis=1)[used]
    np.testing.assert_allclose(top.collections[1].get_offsets(), points)
    bars = [(b.get_x(), b.get_height()) for b in bottom.patches]
    np.testing.assert_allclose(bars, np.stack((diagram.edges[:-1], diagram.weight / diagram.weight.sum()), 1))
    assert top.get_title() == "model"
    texts = [text.get_text() for text in top.texts]
    assert texts == ["miscalibrated, over-confident", "ECE 0.0100\np = 0.5"]


def test_colour_tells_the_verdict(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("matplotlib.image")
    for miscalibrated, colour in ((False, figures.CALIBRATED), (True, figures.MISCALIBRATED)):
        figures.plot_reliability([panel(miscalibrated=miscalibrated)], tmp_path / "out.png")
        pixels = matplotlib.image.imread(tmp_path / "out.png")[:, :, :3]
        distance = np.abs(pixels - matplotlib.colors.to_rgb(colour)).max(axis=2)
        assert np.sum(distance < 0.01) > 500, colour
        other = figures.CALIBRATED if miscalibrated else figures.MISCALIBRATED
        assert np.sum(np.abs(pixels - matplotlib.colors.to_rgb(other)).max(axis=2) < 0.01) == 0


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


@pytest.mark.parametrize("n_bins", [1, 2, 500])
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
