"""Files for other programs and for papers: results.csv, table.md, table.tex."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping

from atoll.records import Cell, Results, Trace, claims
from atoll.report.suite import prose
from atoll.report.suite.score_table import ScoreEntry, ScoreRow, ScoreTable, table

AFTER = (
    *("settings", "seed", "last", "best", "bytes", "seconds", "together"),
    *("digest", "partition_digest", "status", "quirk"),
)
PRIVACY = (
    "privacy_epsilon",
    "privacy_delta",
    "privacy_unit",
    "privacy",
)  # where any run has an account; epsilon of the run itself
SPECIAL: Mapping[str, str] = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
    **{c: f"{{{c}}}" for c in "[]*"},  # after the end of a row they would be arguments
    **{"−": "$-$", "±": r"$\pm$", "—": "---", "≈": r"$\approx$"},
}


def as_csv(results: Results) -> str:
    """One line per run; values as they were measured (not scaled), seconds of one run's share of its stack."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    accounted = any(run.privacy for cell in results.cells for run in cell.runs)
    lines.writerow(["block", *results.axes, *AFTER, *(PRIVACY if accounted else ())])
    for cell in results.cells:
        for run in cell.runs:
            held = _held(run) if accounted else []
            lines.writerow([cell.block, *cell.path.values(), *_run(results, cell, run), *held])
    return out.getvalue()


def as_markdown(results: Results) -> str:
    """Both tables of every block, for a README or a web page."""
    parts = [f"# {literal(results.title)}", _told(results)]
    for one in tables(results):
        parts += [f"## {literal(_title(one))}", "\n".join(_markdown(one)), *_notes(one)]
    return "\n\n".join(parts) + "\n"


def as_latex(results: Results) -> str:
    """Both tables of every block, for a paper: \\usepackage{booktabs}, then \\input."""
    head = [f"% {line}" for line in (_plain(results.title), _plain(_told(results)), r"Needs \usepackage{booktabs}.")]
    return "\n".join(head) + "\n\n" + "\n\n".join("\n".join(_latex(one)) for one in tables(results)) + "\n"


def tables(results: Results) -> Iterator[ScoreTable]:
    """Every block at the last round, then at the best one."""
    for block in results.blocks():
        yield table(results, block, "last")
        yield table(results, block, "best")


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> print(escaped("#C=2, 50 % of a_b"))
    \#C=2, 50 \% of a\_b
    """
    return "".join(SPECIAL.get(c, c) for c in _plain(text))


def _run(results: Results, cell: Cell, run: Trace) -> list[object]:
    settings = json.dumps(dict(cell.settings), sort_keys=True) if cell.settings else ""
    costs = [run.bytes[-1] if run.bytes else "", run.seconds[-1] / run.together if run.seconds else "", run.together]
    reached = [run.last, run.best(results.higher)]
    return [settings, run.seed, *reached, *costs, run.digest, run.partition, run.status, cell.quirk or ""]


def _held(run: Trace) -> list[object]:
    found = claims(run.privacy)
    first = next((claim for claim in found if claim.holds), None)
    numbers: list[object] = ["", "", ""] if first is None else [first.epsilon, first.delta, first.unit]
    return [*numbers, "; ".join(claim.said for claim in found)]


def literal(text: str) -> str:
    r"""Text that Markdown shows as it stands, in a table too.

    >>> print(literal("a|b *c*"))
    a\|b \*c\*
    """
    return re.sub(r"([|*_`<\\])", r"\\\1", _plain(text))


def _markdown(one: ScoreTable) -> list[str]:
    head = [literal(name) for name in (*one.axes, *one.methods)]
    lines = [_line(head), _line(["---"] * len(one.axes) + ["---:"] * len(one.methods))]
    return lines + [
        _line([*map(literal, row.path), *(_md(one, row.entries[m]) for m in one.methods)]) for row in one.rows
    ]


def _line(entries: list[str]) -> str:
    return f"| {' | '.join(entries)} |"


def _md(one: ScoreTable, entry: ScoreEntry) -> str:
    text = literal(_text(one, entry))
    return f"**{text}**" if entry.mark == "best" else f"{text} ≈" if entry.mark == "near" else text


def _text(one: ScoreTable, entry: ScoreEntry) -> str:
    """An entry in one line: mean ± std, or a word, and what must be said of its seeds."""
    if entry.score is None:
        return entry.note
    std = one.std(entry)
    said = f" ({told})" if (told := "; ".join(filter(None, [entry.note, entry.privacy]))) else ""
    return f"{one.mean(entry)} ± {std}{said}" if std else f"{one.mean(entry)}{said}"


def _latex(one: ScoreTable) -> list[str]:
    heads = " & ".join(rf"{escaped(name)}" for name in (*one.axes, *one.methods))
    return [
        f"% {_plain(_title(one))}",
        rf"\begin{{tabular}}{{{'l' * len(one.axes)}{'r' * len(one.methods)}}}",
        r"\toprule",
        rf"{heads} \\",
        r"\midrule",
        *(_latex_row(one, row) for row in one.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]


def _latex_row(one: ScoreTable, row: ScoreRow) -> str:
    entries = [*map(escaped, row.path), *(_tex(one, row.entries[m]) for m in one.methods)]
    return " & ".join(entries) + r" \\"


def _tex(one: ScoreTable, entry: ScoreEntry) -> str:
    text = escaped(_text(one, entry))
    return rf"\textbf{{{text}}}" if entry.mark == "best" else rf"\underline{{{text}}}" if entry.mark == "near" else text


def _title(one: ScoreTable) -> str:
    return f"{one.block}, {'last round' if one.when == 'last' else 'best round (chosen on the test data)'}"


def _told(results: Results) -> str:
    said = {"validation": "Settings chosen on validation data.", "paper": "Settings chosen on the test data."}
    return (
        f"{prose.first_up(prose.unit(results))}, {prose.better(results)}: mean ± standard deviation over seeds. "
        f"{said.get(results.tuning, 'Settings as given.')} The best of a row is bold; marked ≈ (underlined) are those "
        "whose 95 % interval overlaps the best one's."
    )


def _notes(one: ScoreTable) -> list[str]:
    quirks = [f"{name}: repeats on purpose what was published ({quirk})." for name, quirk in one.quirks.items()]
    failed = [
        f"{row.name}, {method}: {entry.note}{f' ({entry.why})' if entry.why else ''}."
        for row in one.rows
        for method, entry in row.entries.items()
        if entry.cell and not entry.score
    ]
    return ["\n".join(f"- {literal(line)}" for line in quirks + failed)] if quirks or failed else []


def _plain(text: str) -> str:
    return " ".join(str(text).split())
