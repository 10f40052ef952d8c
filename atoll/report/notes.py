"""What a reader must know before trusting a figure, in plain sentences."""

from collections.abc import Sequence

from atoll.records import Record, find
from atoll.report.final_table import Final
from atoll.report.gains import HOW
from atoll.report.prose import listed
from atoll.report.seed_groups import Group
from atoll.stats import Estimate


def title(groups: Sequence[Group]) -> str:
    """What was compared, on what."""
    names = [group.name for group in groups]
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} more"]
    data = dict.fromkeys(str(group.settings["data.name"]) for group in groups if "data.name" in group.settings)
    return listed(names) + (f" on {listed(list(data))}" if data else "")


def lead(final: Final) -> str:
    """The first thing to say: who is ahead at the last round, and whether the intervals settle it."""
    key = "mean" if final.personal else "last"
    column = next((column for column in final.columns if column.key == key), None)
    known = [row for row in final.rows if row.when == "before" or not final.personal]
    rows = [(row.group, cell) for row in known if (cell := row.cells.get(key)) and cell.mean == cell.mean]
    if column is None or len(rows) < 2:
        return ""
    sign = 1 if final.metric.higher_is_better else -1
    leader, top = max(rows, key=lambda row: sign * row[1].mean)
    unit = " %" if final.metric.percent else ""
    value = column.cell(top).inline + unit
    word = "Highest" if final.metric.higher_is_better else "Lowest"
    what = f"mean over clients of their {final.metric.title}" if final.personal else final.metric.title
    return (
        f"{word} {what} at the last round: {leader.name}, {value}. "
        f"{_settled(top, [(group, cell) for group, cell in rows if group is not leader])}"
    )


def _settled(top: Estimate, others: Sequence[tuple[Group, Estimate]]) -> str:
    if top.half is None:
        return "That is 1 seed, no interval: another seed may change the order."
    known = [(group.name, cell) for group, cell in others if cell.half is not None]
    close = [name for name, cell in known if top.overlaps(cell)]
    if close:
        return f"Its interval overlaps that of {listed(close)}: more seeds are needed to settle the order."
    return "Its interval overlaps no other." if known else "The others have 1 seed, no interval."


def notes(records: Sequence[Record], groups: Sequence[Group], final: Final) -> list[str]:
    """Everything worth a warning, and nothing else."""
    return [
        *_single(groups),
        *_repeated(records, groups),
        *_unfinished(groups),
        *_splits(groups),
        *_own_notes(groups),
        *_gain(groups, final),
    ]


def _single(groups: Sequence[Group]) -> list[str]:
    single = [group.name for group in groups if len(group.records) == 1]
    return [f"1 seed, no interval: {listed(single)}."] if single else []


def _repeated(records: Sequence[Record], groups: Sequence[Group]) -> list[str]:
    used = {record.folder for group in groups for record in group.records}
    return [
        f"{record.folder}: left out, because another folder holds the same experiment with seed {record.seed}."
        for record in records
        if record.folder not in used
    ]


def _unfinished(groups: Sequence[Group]) -> list[str]:
    return [
        f"{group.name}, seed {record.seed}: stopped at round {done} of {asked}. "
        "Values of its group are those of the last round that all its seeds reached."
        for group in groups
        for record in group.records
        if isinstance(asked := record.experiment.get("rounds"), int) and (done := record.rounds[-1]["round"]) < asked
    ]


def _splits(groups: Sequence[Group]) -> list[str]:
    by_seed: dict[int, set[str]] = {}
    for record in (record for group in groups for record in group.records):
        by_seed.setdefault(record.seed, set()).add(record.split)
    uneven = [str(seed) for seed, splits in by_seed.items() if len(splits) > 1]
    if not uneven:
        return []
    return [f"Not all groups split the data alike (seed {listed(uneven)}): their clients are not the same clients."]


def _own_notes(groups: Sequence[Group]) -> list[str]:
    """What the runs say of their own figures, once each: on how much they were measured, whose seconds they are."""
    groups_by_note: dict[str, dict[str, None]] = {}
    for group in groups:
        for record in group.records:
            capped = [note for note in record.run.get("notes", []) if "evaluate.rows" in note]
            stacked = "in a stack" in str(find(record.run, "engine", "reason") or "")
            for note in [*capped, *([_STACKED] if stacked else [])]:
                groups_by_note.setdefault(note, {})[group.name] = None
    return [
        note if len(names) == len(groups) else f"{listed(list(names))}: {note}"
        for note, names in groups_by_note.items()
    ]


_STACKED = "These runs shared one stack: their seconds are those of the whole stack, not of one run alone."


def _gain(groups: Sequence[Group], final: Final) -> list[str]:
    missing = [
        row.group.name for row in final.rows if row.when == "before" and not row.group.alone and not row.cells["gain"]
    ]
    if not final.has_gain:
        return [HOW] if missing else []
    return [f"No gain is shown for {listed(missing)}: no local-only run with their split and seeds."] if missing else []
