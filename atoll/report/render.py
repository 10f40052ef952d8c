"""A table of text (`text_table.py`) for a terminal, Markdown, LaTeX and CSV; `render_html.py` has it for a page."""

from __future__ import annotations

import csv as csv_format
import io
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from rich import box
from rich.table import Table as Printed
from rich.text import Text

from atoll.report.text_table import TextCell, TextColumn, TextTable

WIDE, NARROW = 76, 10  # characters of a title that a terminal makes room for, and of a row's name that it may fold
_STYLES = {"best": "bold", "failed": "red", "soft": "dim"}
SPECIAL: Mapping[str, str] = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{c: f"{{{c}}}" for c in "[]*"},  # after the end of a row they would be arguments
    **{"−": "$-$", "±": r"$\pm$", "—": "---", "≈": r"$\approx$"},
}


def csv(table: TextTable) -> str:
    """Headings and rows, numbers unrounded where they are known."""
    out = io.StringIO()
    lines = csv_format.writer(out, lineterminator="\n")
    lines.writerow([column.title for column in table.columns])
    lines.writerows([cell.text if cell.value is None else cell.value for cell in row.filled] for row in table.rows)
    return out.getvalue()


def markdown(table: TextTable) -> str:
    """For a README or a web page: the title as a heading, the notes as a list."""
    rules = ["---:" if column.right else "---" for column in table.columns]
    lines = [[literal(column.title) for column in table.columns], rules]
    lines += [[_markdown(cell) for cell in row.filled] for row in table.rows]
    parts = [f"## {literal(table.title)}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join(parts + (["\n".join(f"- {literal(note)}" for note in table.notes)] if table.notes else []))


def _markdown(cell: TextCell) -> str:
    text = literal(cell.inline)
    return f"**{text}**" if cell.mark == "best" else f"{text} ≈" if cell.mark == "near" else text


def literal(text: str) -> str:
    r"""Text that Markdown shows as it stands, in a table too.

    >>> print(literal("a|b *c*"))
    a\|b \*c\*
    """
    return re.sub(r"([|*_`<\\])", r"\\\1", one_line(text))


def latex(table: TextTable) -> str:
    r"""For a paper: \usepackage{booktabs}, then \input."""
    aligned = "".join("r" if column.right else "l" for column in table.columns)
    return "\n".join(
        [
            f"% {one_line(table.title)}",
            rf"\begin{{tabular}}{{{aligned}}}",
            r"\toprule",
            rf"{' & '.join(escaped(column.title) for column in table.columns)} \\",
            r"\midrule",
            *(rf"{' & '.join(map(_latex, row.filled))} \\" for row in table.rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def _latex(cell: TextCell) -> str:
    text = escaped(cell.inline)
    return rf"\textbf{{{text}}}" if cell.mark == "best" else rf"\underline{{{text}}}" if cell.mark == "near" else text


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> print(escaped("#C=2, 50 % of a_b"))
    \#C=2, 50 \% of a\_b
    """
    return "".join(SPECIAL.get(c, c) for c in one_line(text))


def one_line(text: str) -> str:
    """Text without line breaks, which would end a row or a comment."""
    return " ".join(text.split())


def rich_table(table: TextTable) -> Printed:
    """For a rich console: the title bold, the notes dim; numbers never fold, everything else may."""
    printed = Printed(box=box.SIMPLE_HEAD, collapse_padding=True, title_justify="left", caption_justify="left")
    printed.title, printed.caption = Text(table.title, "bold"), Text("\n".join(table.notes), "dim")
    printed.min_width = min(len(table.title), WIDE)
    lines = [_column(column, [row.filled[i] for row in table.rows]) for i, column in enumerate(table.columns)]
    for i, (column, (heading, *_)) in enumerate(zip(table.columns, lines, strict=True)):
        least = None if i else min(NARROW, max(map(len, lines[0])))
        justify: Literal["left", "right"] = "right" if column.kind == "score" else "left"
        printed.add_column(heading, justify=justify, no_wrap=column.kind == "number", overflow="fold", min_width=least)
    for row in list(zip(*lines, strict=True))[1:]:
        printed.add_row(*row)
    return printed


def _column(column: TextColumn, cells: Sequence[TextCell]) -> list[Text]:
    """Heading and entries; numbers are padded so that means stand under means and spreads under spreads."""
    room = max((len(cell.spread) for cell in cells), default=0) if column.kind == "number" else 0
    lines = [Text(column.title), *(_line(cell, room) for cell in cells)]
    if column.kind == "number":
        width = max(len(part) for line in lines for part in line.plain.split("\n"))
        lines = [Text("\n".join(part.rjust(width) for part in line.plain.split("\n"))) for line in lines]
    return lines


def _line(cell: TextCell, room: int) -> Text:
    spread = f"{' ' if room else ''}±{cell.spread:>{room}}" if cell.spread else " " * (room + 2 if room else 0)
    remarks = f" ({'; '.join(cell.remarks)})" if cell.remarks else ""
    text = f"{'*' if cell.mark == 'best' else ''}{cell.text}{spread}{remarks}"
    return Text(f"{text}\n{cell.detail}" if cell.detail else text, _STYLES.get(cell.mark or cell.style, ""))
