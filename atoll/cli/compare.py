"""The commands `atoll compare` and `atoll advise`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from atoll.cli.common import (
    Alpha,
    By,
    Clients,
    Json,
    PartitionName,
    PartitionOptions,
    console,
    imports,
    partition_entry,
    say,
)
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.analysis.diff import Parting

When = Annotated[Literal["last", "best"], typer.Option(help="Which round counts.")]


def compare(
    sides: Annotated[
        list[str],
        typer.Argument(
            metavar="A B",
            help="Each a run's folder, a folder of runs, a sweep, a suite's folder or results.json, or a pattern in "
            "quotes; @fedavg after it picks one method.",
        ),
    ],
    same: Annotated[
        bool, typer.Option("--same", help="Two runs that should be equal: find where they part; exit 1 if they do.")
    ] = False,
    no_replay: Annotated[bool, typer.Option("--no-replay", help="Read the records; run nothing again.")] = False,
    metric: Annotated[
        str | None, typer.Option(help="A key of the record; default: what the runs or the suite say.")
    ] = None,
    when: When = "last",
    rope: Annotated[
        float | None, typer.Option(help="The largest difference that does not matter; default: 0.01 of accuracy.")
    ] = None,
    rho: Annotated[
        float, typer.Option(help="Correlation between pairs: 0 for independent seeds, 1/k for k folds.")
    ] = 0,
    json_: Json = None,
) -> None:
    """Compare two sides, paired by seed; of two runs also where they part: the first round, client and tensor."""
    with imports():
        from atoll.analysis.compare import compare as compare_
        from atoll.analysis.compare import opened, shown
        from atoll.records import is_run

    if len(sides) != 2:
        raise ConfigError(
            f"compare: takes two sides (got {len(sides)}). Put a pattern in quotes: 'runs/a-*' 'runs/b-*'."
        )
    runs = [Path(side) if is_run(Path(side)) else None for side in sides]
    written: dict[str, Any] = {}
    if runs[0] is not None and runs[1] is not None:
        written["parting"] = found = _parting(runs[0], runs[1], same, no_replay)
        equal = same or found.pop("must agree")
    elif same:
        raise ConfigError("--same: is for two runs. Name the folder of one run on each side.")
    else:
        equal = False
    if not equal:
        made = compare_(opened(sides[0]), opened(sides[1]), metric=metric, when=when, rope=rope, rho=rho)
        written["comparison"] = made.plain()
        console.print(shown(made))
    _write(json_, written)
    if same and written["parting"]["parted"]:
        sys.exit(1)


def advise(
    asked: Annotated[
        str, typer.Argument(metavar="DATA_OR_PARTITION", help="An experiment in TOML, a run's folder, or data by name.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file, or an option of the data set."),
    ] = None,
    partition: PartitionName = None,
    clients: Clients = None,
    alpha: Alpha = None,
    by: By = None,
    with_: PartitionOptions = None,
    seed: Annotated[int | None, typer.Option(help="Of the partition.")] = None,
    evidence: Annotated[
        list[Path] | None, typer.Option(help="A results.json, or a folder of such; may be repeated. Default: results/.")
    ] = None,
    within: Annotated[float | None, typer.Option(help="How far evidence may be; default: 0.3.")] = None,
    nearest: Annotated[int, typer.Option(min=1, help="How many measured settings to show.")] = 3,
    when: When = "last",
    rope: Annotated[float | None, typer.Option(help="The largest difference that does not matter.")] = None,
    json_: Json = None,
) -> None:
    """Name the algorithm that did best on the nearest measured settings, with the evidence; or say there is none."""
    with imports():
        from atoll.analysis.advise import WITHIN, default_evidence, read_evidence, settings, shown, target, words
        from atoll.analysis.advise import advise as advise_

    entry = partition_entry(partition, {"clients": clients, "alpha": alpha, "by": by}, with_ or [])
    measured = target(asked, set_ or [], entry, seed)
    found, notes = read_evidence(evidence if evidence else default_evidence())
    advice = advise_(measured, settings(found, when, rope), WITHIN if within is None else within, nearest)
    console.print(shown(advice))
    for line in [*words(advice), *(f"Note: {note}" for note in notes)]:
        say(line)
    _write(json_, {**advice.plain(), "notes": notes})


def _parting(a: Path, b: Path, same: bool, no_replay: bool) -> dict[str, Any]:
    from dataclasses import asdict

    from atoll.analysis.diff import must_agree, parting, words

    agree = must_agree(a, b)
    found: Parting = parting(a, b, "no" if no_replay else "rounds" if same or agree else "setup")
    said = words(found)
    for line in said:
        say(line)
    return {**asdict(found), "parted": found.parted, "paired": found.paired, "words": said, "must agree": agree}


def _write(path: Path | None, content: Mapping[str, Any]) -> None:
    if path is None:
        return
    from atoll.records import as_json, replace_text

    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, as_json(content, indent=1) + "\n")
    say(f"Written: {path}")
