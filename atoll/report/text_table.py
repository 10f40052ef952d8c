"""A table of text: drawn up once, then rendered for a terminal, a page, Markdown, LaTeX or CSV by `render.py`.

The first cell of a row names it. What a rendering has no place for (a hint in LaTeX, a detail in Markdown) is left out
there, so that a table says everything it knows and nobody draws it up twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

ColumnKind = Literal["text", "number", "score", "code"]  # a score is a number that may win its row
Mark = Literal["", "best", "near", "clear"]  # the best of its row; not told apart from it; ahead by more than chance


@dataclass(frozen=True)
class TextCell:
    """An entry: what it says, what it is marked as, and what more there is to say where there is room."""

    text: str = ""
    spread: str = ""  # what stands after a ±
    mark: Mark = ""
    detail: str = ""  # below it, where there is room: an interval, or why it failed
    remarks: tuple[str, ...] = ()  # what must be said of it: below it, or in parentheses
    hint: str = ""  # for whoever points at it
    style: str = ""  # names of the style sheet
    value: float | None = None  # not rounded
    span: int = 1  # columns that it fills
    picture: str = ""  # HTML that a page has in place of the text

    @property
    def inline(self) -> str:
        """All that must be said, in one line.

        >>> TextCell("88.5", "0.8", remarks=("2 of 3 seeds",)).inline
        '88.5 ± 0.8 (2 of 3 seeds)'
        """
        spread = f" ± {self.spread}" if self.spread else ""
        return f"{self.text}{spread}{f' ({remarks})' if (remarks := '; '.join(self.remarks)) else ''}"


@dataclass(frozen=True)
class TextColumn:
    """A column: its heading, what it holds, and the heading above it, which neighbours share."""

    title: str
    kind: ColumnKind = "text"
    hint: str = ""
    group: str = ""
    style: str = ""

    @property
    def right(self) -> bool:
        """Is it aligned on the right?"""
        return self.kind in ("number", "score")


@dataclass(frozen=True)
class TextRow:
    """A row, and what is said under it across all columns but the first."""

    cells: tuple[TextCell, ...]
    style: str = ""
    hint: str = ""
    below: tuple[TextCell, ...] = ()

    @property
    def filled(self) -> tuple[TextCell, ...]:
        """A cell for every column: one that fills several is followed by empty ones."""
        return tuple(part for cell in self.cells for part in (cell, *[TextCell()] * (cell.span - 1)))


@dataclass(frozen=True)
class TextTable:
    """A table; `notes` are sentences below it."""

    columns: tuple[TextColumn, ...]
    rows: tuple[TextRow, ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    foot: TextRow | None = None
    style: str = ""

    @property
    def width(self) -> int:
        """Characters of a line on a terminal that folds nothing: every column has two of padding."""
        whole = 0
        for i, column in enumerate(self.columns):
            cells = [row.filled[i] for row in self.rows]
            spread = max((len(cell.spread) + 2 for cell in cells if cell.spread), default=0)
            whole += max([len(column.title), *(len(cell.text) + spread for cell in cells)]) + 2
        return whole

    def transposed(self, corner: str) -> TextTable:
        """Rows as columns: of a table of scores whose first column names the rows."""
        kinds = self.columns[1].kind if len(self.columns) > 1 else "text"
        heads = (TextColumn(corner), *(TextColumn(one.cells[0].text, kinds) for one in self.rows))
        rows = (row(column.title, *(one.cells[i] for one in self.rows)) for i, column in enumerate(self.columns) if i)
        return replace(self, columns=heads, rows=tuple(rows), foot=None)


def text_columns(*titles: str, kind: ColumnKind = "text", group: str = "") -> tuple[TextColumn, ...]:
    return tuple(TextColumn(title, kind, group=group) for title in titles)


def number_columns(*titles: str, group: str = "") -> tuple[TextColumn, ...]:
    return text_columns(*titles, kind="number", group=group)


def row(*cells: object, style: str = "", hint: str = "", below: Iterable[TextCell] = ()) -> TextRow:
    """A row; what is no cell yet becomes one.

    >>> [cell.text for cell in row("fedavg", 3, TextCell("88.5", "0.8")).cells]
    ['fedavg', '3', '88.5']
    """
    return TextRow(tuple(c if isinstance(c, TextCell) else TextCell(str(c)) for c in cells), style, hint, tuple(below))
