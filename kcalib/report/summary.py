"""Results as a few lines of text, and as a table in notebooks.

Results derive from `Summarized`, which reads their fields; results of several models or estimators have their own
tables. Text is cut to the width of a line; `dataclasses.asdict` has all values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

from kcalib._backend.files import printable

MOST_ROWS = 10
WIDTH = 100  # of a line
MOST_VALUES = 4  # of a tuple
SIDES = "border:1px solid currentColor;border-width:1px 0;"  # follows light or dark notebooks
TABLE = f"border-collapse:collapse;{SIDES}font-size:90%"
TITLE = "text-align:left;font-weight:bold"


@dataclass(frozen=True)
class Summary:
    """A title, the rows of a table, and lines below it."""

    title: str
    rows: list[list[str]]
    is_text: list[bool]  # by column; numbers are right-aligned
    header: list[str] | None = None
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        rows = [self.header, *self.rows] if self.header else self.rows
        return "\n".join(map(cut, (self.title, *align(rows, self.is_text), *self.notes)))

    def html(self) -> str:
        parts = [f'<table style="{TABLE}"><caption style="{TITLE}">{_safe(self.title)}</caption>']
        if self.header:
            parts.append(f"<thead>{self._row(self.header, 'th')}</thead>")
        parts += ["<tbody>", *(self._row(row, "td") for row in self.rows), "</tbody>"]
        if self.notes:
            style = f'colspan="{len(self.is_text)}" style="text-align:left"'
            parts.append(f"<tfoot><tr><td {style}>{'<br>'.join(map(_safe, self.notes))}</td></tr></tfoot>")
        return "".join([*parts, "</table>"])

    def _row(self, cells: Sequence[str], tag: str) -> str:
        sides = ("left" if text else "right" for text in self.is_text)
        inside = (f'<{tag} style="text-align:{side}">{_safe(cell)}</{tag}>' for side, cell in zip(sides, cells))
        return f"<tr>{''.join(inside)}</tr>"


class Summarized:
    """A dataclass with a short text: the fields that have a value, arrays last."""

    #: Fields of the summary in this order; if empty, all fields up to a limit.
    _shown: ClassVar[tuple[str, ...]] = ()

    # For results with arrays, which have eq=False; other dataclasses replace both methods.
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        names = [field.name for field in fields(self) if field.compare]  # type: ignore[arg-type]
        return all(_is_same(getattr(self, name), getattr(other, name)) for name in names)

    def _summary(self) -> Summary:
        names = [field.name for field in fields(self) if field.repr]  # type: ignore[arg-type]
        names = [name for name in names if getattr(self, name) is not None]
        names.sort(key=lambda name: _is_long(getattr(self, name)))
        rows = [name for name in self._shown or names if name in names][:MOST_ROWS]
        further = [name for name in names if name not in rows]
        notes = () if not further else (f"and {', '.join(further)}",)
        return Summary(type(self).__name__, [[name, self._entry(name)] for name in rows], [True, True], notes=notes)

    def _entry(self, name: str) -> str:
        value = getattr(self, name)
        return "<1e-300" if name == "pvalue" and value < 1e-300 else format_value(value)

    def _brief(self) -> str:
        """Describe the result in a few words, for the summary of another one."""
        value, error = getattr(self, "value", None), getattr(self, "standard_error", None)
        if not isinstance(value, float):
            return type(self).__name__
        return f"{value:.4g}" if error is None else f"{value:.4g}, standard error {error:.2g}"

    def __str__(self) -> str:
        return self._summary().text()

    def _repr_html_(self) -> str:
        return self._summary().html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the summary in IPython."""
        printer.text(str(self))


def format_value(value: Any) -> str:
    """Format the value of a field in at most a line."""
    if isinstance(value, Summarized):
        return value._brief()
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return _format_tuple(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={format_value(entry)}" for name, entry in value.items())
    shape = getattr(value, "shape", None)
    return str(value) if shape is None else f"array of shape {tuple(shape)}"


def format_pvalue(pvalue: float) -> str:
    """Format a p-value, which is never 0."""
    return f"{pvalue:.2g}" if pvalue >= 1e-300 else "<1e-300"


def _is_same(first: Any, second: Any) -> bool:
    """Compare fields, arrays entry by entry; NaN equals NaN in arrays."""
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_is_same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return _is_same((*first, *first.values()), (*second, *second.values()))
    if is_dataclass(first) and type(first) is type(second) and type(first).__eq__ is object.__eq__:  # distributions
        return all(_is_same(getattr(first, field.name), getattr(second, field.name)) for field in fields(first))
    if not (hasattr(first, "dtype") and hasattr(second, "dtype")):
        return bool(first == second)
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())


def _is_long(value: Any) -> bool:
    """Return whether a value is an array or a tuple of arrays."""
    return hasattr(value, "shape") or (isinstance(value, tuple) and any(map(_is_long, value)))


def _format_tuple(value: tuple[Any, ...]) -> str:
    if hasattr(value, "low") and isinstance(value.low, float):
        return f"[{value[0]:.4g}, {value[1]:.4g}]"
    if value and all(isinstance(entry, Summarized) for entry in value):
        return f"{len(value)} of {type(value[0]).__name__}"
    dots = ", ..." if len(value) > MOST_VALUES else ""
    return f"({', '.join(map(format_value, value[:MOST_VALUES]))}{dots})"


def cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 3].rstrip() + "..."


def _safe(text: str) -> str:
    from html import escape  # slow import

    return escape(printable(cut(text)))


def align(rows: Sequence[Sequence[str]], is_text: Sequence[bool]) -> list[str]:
    """Return lines with texts to the left of their columns and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(row, widths, is_text, strict=True)
        ).rstrip()
        for row in rows
    ]
