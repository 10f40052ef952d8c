"""The leaderboard: one page from many suites' results. Ranks travel between suites, values do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from atoll.errors import RecordError
from atoll.records import Cell, Results, replace_text
from atoll.report import prose
from atoll.report.metrics import suite_metric
from atoll.report.render_html import template
from atoll.report.suite import privacy_page as privacy
from atoll.report.suite.critical import critical
from atoll.report.suite.ranking import TALLY, comparable, ranks, tally
from atoll.report.suite.scores import best, by_seed, contest, decimals, named_rows
from atoll.report.text_table import TextCell, TextRow, TextTable, number_columns, row, text_columns
from atoll.stats import Estimate, align, t_interval

TUNED_ON = {"validation": "validation", "paper": "test data", "none": "not tuned"}


@dataclass(frozen=True)
class Standing:
    """One row of one suite: who leads it, by how much, and what that is worth."""

    suite: str
    row: str
    size: str
    measured: str
    best: str
    value: str
    second: str
    margin: float  # in favour of the best
    interval: tuple[float, float] | None  # of the margin, paired by seed
    places: int
    seeds: int
    methods: tuple[str, ...]
    scores: Mapping[str, Estimate]  # turned so that higher is better
    privacy: str = ""  # of the best; nothing where it has no account
    uneven: bool = False  # do the methods not hold the same epsilon?

    @property
    def clear(self) -> bool:
        """Whether the margin's interval leaves out 0."""
        return self.interval is not None and self.interval[0] > 0

    @property
    def said(self) -> str:
        """The interval as text."""
        ends = [prose.number(end, self.places) for end in self.interval or ()]
        return " to ".join(ends) or prose.MISSING


def leaderboard(results: Sequence[Results], out: Path) -> Path:
    """Write one page from many suites' results; return it."""
    if not results:
        raise RecordError("leaderboard: needs results. Name folders that `atoll bench` wrote, or their results.json.")
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, board(results))
    return out


def board(results: Sequence[Results]) -> str:
    """The page as text."""
    fresh, notes = unique(results)
    rows = [standing for one in fresh for standing in standings(one)]
    ranked_rows = {str(number): row.scores for number, row in enumerate(rows) if row.size != "smoke"}
    same, complete = comparable(ranked_rows)
    ranked = ranks({name: ranked_rows[name] for name in complete}, same, higher=True)
    counted = tally(ranked_rows, higher=True)
    order = sorted(counted, key=lambda method: (ranked.get(method, len(ranked) + 1.0), method))
    return template("leaderboard").render(
        suites=_suites(fresh),
        rows=_rows(rows) if rows else None,
        lead=_lead(fresh, rows),
        wins=_wins([row(method, *counted[method]) for method in order]) if order else None,
        told=_ranks_text(ranked, same, complete, ranked_rows),
        plot=critical(ranked, len(complete)) if len(same) > 2 and len(complete) > 1 else None,
        notes=[*notes, *_notes(fresh, rows)],
    )  # fmt: skip


def _wins(rows: Sequence[TextRow]) -> TextTable:
    note = (
        '"Clear" wins: no other method\'s 95\u00a0% interval overlaps. A dash: the method is missing in rows that the '
        "others share. Click on a heading to sort."
    )
    return TextTable(
        (*text_columns("method"), *number_columns(*TALLY)), tuple(rows), notes=(note,), style="wide sortable"
    )


def _rows(rows: Sequence[Standing]) -> TextTable:
    note = Markup(
        "The best method of every row at the last round, mean ± standard deviation over seeds, and how far it is ahead "
        'of the second best: <span class="mark">★</span> where the 95\u00a0% interval of the margin leaves out 0. That '
        "interval does not count that the best was picked among several. Click on a heading to sort."
    )
    accounted = any(one.privacy for one in rows)
    heads = (
        *text_columns("row", "suite", "size", "best", *(["its privacy"] if accounted else [])),
        *number_columns("value"),
    )
    heads += (*text_columns("measured", "second"), *number_columns("margin", "its interval", "methods", "seeds"))
    return TextTable(heads, tuple(_row(one, accounted) for one in rows), notes=(note,), style="wide told sortable")


def _row(one: Standing, accounted: bool) -> TextRow:
    private = [f"{one.privacy or prose.MISSING}{' †' if one.uneven else ''}"] if accounted else []
    best = TextCell(one.best, mark="clear" if one.clear else "")
    margin = TextCell(f"{one.margin:.{one.places}f}", value=one.margin)
    methods = TextCell(str(len(one.methods)), hint=", ".join(one.methods))
    head = one.row, one.suite, one.size, best, *private, one.value, one.measured, one.second
    return row(*head, margin, one.said, methods, one.seeds)


def _suites(results: Sequence[Results]) -> TextTable:
    heads = (
        *text_columns("suite", "title", "size", "metric", "tuned on"),
        *number_columns("cells"),
        *text_columns("date"),
    )
    facts = [(f"{one.metric}, {suite_metric(one).better}", TUNED_ON[one.tuning], len(one.cells)) for one in results]
    dates = [one.made.get("date", prose.MISSING) for one in results]
    rows = (row(x.suite, x.title, x.size, *s, d) for x, s, d in zip(results, facts, dates, strict=True))
    return TextTable(heads, tuple(rows), style="wide")


def unique(results: Sequence[Results]) -> tuple[list[Results], list[str]]:
    """Each cell once: of two results of one suite, size and tuning, the later one's cell counts."""
    seen: set[tuple[str, ...]] = set()
    fresh_results: list[Results] = []
    dropped = 0
    for one in reversed(results):
        place = (one.suite, one.size, one.tuning)
        fresh = tuple(cell for cell in one.cells if (*place, cell.block, cell.name) not in seen)
        dropped += len(one.cells) - len(fresh)
        seen |= {(*place, cell.block, cell.name) for cell in fresh}
        fresh_results.append(replace(one, cells=fresh))
    notes = [f"{prose.counted(dropped, 'cell')} stood in more than one of the results; the last one given counts."]
    return [one for one in reversed(fresh_results) if one.cells], notes if dropped else []


def standings(results: Results) -> list[Standing]:
    """Every row in which at least two methods have two seeds."""
    candidates = [_standing(results, name, cells) for name, cells in named_rows(results)]
    return [one for one in candidates if one is not None]


def _standing(results: Results, name: str, cells: Mapping[str, Cell]) -> Standing | None:
    rivals = contest(results, cells, "last")
    sign = 1 if results.higher else -1
    order = sorted((m for m in rivals if not rivals[m].diverged), key=lambda m: -sign * rivals[m].mean)
    if len(order) < 2:
        return None
    first, second = order[:2]
    turned = {m: one if results.higher else -one for m, one in rivals.items()}
    gaps = _gaps(results, cells, first, second)
    spread = t_interval(gaps) if len(gaps) > 1 else None
    interval = (spread.low, spread.high) if spread and spread.low is not None and spread.high is not None else None
    places = 2 if results.scale == 100 else decimals(False, list(rivals.values()))
    std = f"± {prose.number(rivals[first].std or 0.0, places)}"
    seeds = f"({prose.ALL_EQUAL})" if rivals[first].all_equal else std
    value = f"{prose.number(rivals[first].mean, places)} {seeds}"
    names = " = ".join(best(turned, higher=True))
    margin = sign * (rivals[first].mean - rivals[second].mean)
    labels = (results.suite, name, results.size, suite_metric(results).unit, names, value, second)
    unlike = privacy.uneven(cells[m] for m in rivals)
    promise = privacy.brief_claims(cells[first]) or ("not private" if unlike else "")
    return Standing(*labels, margin, interval, places, rivals[first].n, tuple(rivals), turned, promise, unlike)


def _gaps(results: Results, cells: Mapping[str, Cell], first: str, second: str) -> list[float]:
    """First over second in every common seed, above 0 where the first is better."""
    values = {m: by_seed(cells[m], results, "last") for m in (first, second)}
    if not set(values[first]) & set(values[second]):
        return []
    sign = 1 if results.higher else -1
    return [sign * float(gap) for gap in align(values).difference(first, second)]


def _lead(results: Sequence[Results], rows: Sequence[Standing]) -> str:
    clear = sum(row.clear for row in rows)
    return (
        f"{prose.counted(len(results), 'suite')}, {prose.counted(len(rows), 'row')} with at least two methods of two "
        f"seeds or more. In {clear} of them the best is ahead of the second best by more than chance (95 % interval of "
        "the margin, paired by seed)."
    )


def _ranks_text(
    ranked: Mapping[str, float], same: Sequence[str], complete: Sequence[str], rows: Mapping[str, object]
) -> str:
    if len(complete) < 2:
        return "Fewer than two rows have the same methods, so there are no average ranks."
    top = min(ranked, key=lambda method: ranked[method])
    return (
        f"Average ranks over the {len(complete)} of {len(rows)} rows that have all of {prose.listed(same)}: {top} "
        f"leads with {ranked[top]:.2f} (1 would be the best everywhere)."
    )


def _notes(results: Sequence[Results], rows: Sequence[Standing]) -> list[str]:
    """What is comparable and what is not."""
    smoke = [one.suite for one in results if one.size == "smoke"]
    ways = {one.tuning for one in results}
    notes = [
        "Comparable: methods within one row. They had the same data, clients, seeds and way of tuning.",
        "Not comparable: values of different rows or suites. Only ranks and wins are counted over rows.",
        "All of it is at the last round. Single seeds, and cells that repeat a published mistake, take no part.",
    ]
    if smoke:
        notes.append(f"Smoke sizes are listed but not ranked: {prose.listed(dict.fromkeys(smoke))}.")
    private = [row for row in rows if row.privacy]
    if private:
        notes.append(
            f"{prose.counted(len(private), 'row')} of {len(rows)} {'is' if len(private) == 1 else 'are'} of private "
            "runs, or of runs with their noise (see its epsilon): who leads there leads under that noise."
        )
    if any(row.uneven for row in rows):
        notes.append(
            "Where epsilon is marked †, the methods of a row do not hold the same: the best may only be less private."
        )
    if len(ways) > 1:
        notes.append("Suites were tuned in different ways (see the last table): tuning on the test data flatters.")
    return notes
