"""A page of HTML in one file: no network, light or dark mode, printable.

`document` joins sections; `table` and `svg` return their content. Colours of pictures become variables of the page, so
that a picture fits both modes. `evaluations` and the command `report` write pages.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kcalib._backend.files import printable_lines
from kcalib.report.diagrams import BAND, CALIBRATED, DIAGONAL, GRID, MISCALIBRATED, require_matplotlib
from kcalib.report.figures import CAPTION

__all__ = ["Section", "document", "escape", "row", "svg", "table"]

STYLE = """
:root{--paper:#fff;--ink:#111;--good:#0072b2;--bad:#b34700;--band:#d1d1d1;--diagonal:#595959;--grid:#e6e6e6;
--caption:#404040;--card:#f6f7f9}
@media (prefers-color-scheme:dark){:root{--paper:#14161a;--ink:#e8e8e8;--good:#56b4e9;--bad:#e69f00;--band:#3a3d42;
--diagonal:#9a9a9a;--grid:#2a2d31;--caption:#bbb;--card:#1d2026}}
@media print{:root{--paper:#fff;--ink:#000;--good:#0072b2;--bad:#b34700;--band:#d1d1d1;--diagonal:#595959;
--grid:#e6e6e6;--caption:#404040;--card:#fff}}
*{box-sizing:border-box}
body{background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:68rem;
padding:1.5rem}
h1{font-size:1.6rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}
.lead{background:var(--card);border-left:4px solid var(--diagonal);padding:.7rem 1rem;margin:1rem 0}
.lead p{margin:.25rem 0}.good{color:var(--good)}.bad{color:var(--bad)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.25rem .7rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child,.text{text-align:left}
figure{margin:1rem 0;overflow-x:auto}figure svg{max-width:100%;height:auto}svg text{fill:var(--ink)}
section>figure svg{min-width:27rem}
.row{display:flex;flex-wrap:wrap;gap:.5rem}.row>*{margin:0 0 1rem;max-width:100%;break-inside:avoid}
caption{text-align:left}
figcaption,.small{color:var(--caption);font-size:.85rem}
pre{background:var(--card);padding:.7rem 1rem;overflow-x:auto;font-size:.85rem;white-space:pre-wrap}
@media print{html{font-size:11px}body{font-size:11px;max-width:none;padding:0}
th,td{padding:.15rem .3rem;white-space:normal}td:not(.text){white-space:nowrap}.wide,figure{overflow:visible}
section>figure svg{min-width:0}.row{display:block}.row>*{display:inline-block;width:28%}
h2,.small{break-after:avoid}figure,tr{break-inside:avoid}h2{margin-top:1.2rem}}
"""


@dataclass(frozen=True)
class Section:
    """A part of a page; `parts` are HTML."""

    title: str
    parts: Sequence[str]


def escape(text: str) -> str:
    """Return a text as HTML shows it, without characters that no page may have."""
    return html.escape(printable_lines(text))


def document(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Write the page; `lead` are paragraphs of HTML that are read first."""
    body = [f"<h1>{escape(title)}</h1>", '<div class="lead">', *(f"<p>{text}</p>" for text in lead), "</div>"]
    for section in sections:
        body += ["<section>", f"<h2>{escape(section.title)}</h2>", *section.parts, "</section>"]
    head = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
    ]
    return "\n".join(["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", *body, "</body>",
                      "</html>", ""])  # fmt: skip


def paragraph(text: str, style: str = "") -> str:
    """Write a paragraph of plain text."""
    return f"<p{f' class={chr(34)}{style}{chr(34)}' if style else ''}>{escape(text)}</p>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[str] = ()) -> str:
    """Write a table of plain text; the columns whose headers are in `texts` hold no numbers."""

    def cells(row: Sequence[str], tag: str) -> str:
        marked = (' class="text"' if name in texts else "" for name in header)
        return "".join(f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(row, marked, strict=True))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells(header, "th")}</tr></thead><tbody>{body}</tbody></table></div>'


def row(pictures: Sequence[str]) -> str:
    """Put pictures side by side, as many as the page is wide."""
    return f'<div class="row">{"".join(pictures)}</div>'


def preformatted(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def svg(draw: Callable[[], Any], label: str) -> str:
    """Write the figure of what `draw` returns as a part of the page; `label` is read to those who do not see it."""
    require_matplotlib()
    import matplotlib
    import matplotlib.style

    picture = io.StringIO()
    with (
        matplotlib.style.context("default"),
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "kcalib", "font.family": "sans-serif"}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        draw().figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = printable_lines(picture.getvalue())
    variables = _variables()
    text = re.sub(r"<[^>]*>", lambda tag: _tag(tag[0], variables), text[text.index("<svg") :])  # not the user's texts
    text = text.replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)
    return f"<figure>{text}</figure>"


def _tag(text: str, variables: Mapping[str, str]) -> str:
    """Give a tag the fonts and colours of the page, and round numbers to tenths of a point."""
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r" font-family: [^;\"]*;?", "", text)
    text = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", text)
    text = re.sub(r"(\d\.\d)\d+", r"\1", text)
    for color, variable in variables.items():
        text = re.sub(color, f"var(--{variable})", text, flags=re.IGNORECASE)
    return text


def _variables() -> dict[str, str]:
    """Return the names on the page of the colours of a light picture, as matplotlib writes them."""
    from matplotlib.colors import to_hex

    greys = {BAND: "band", DIAGONAL: "diagonal", GRID: "grid", CAPTION: "caption"}
    colors = {to_hex((1 - share,) * 3): name for share, name in greys.items()}
    return {**colors, "#ffffff": "paper", "#000000": "ink", CALIBRATED: "good", MISCALIBRATED: "bad"}
