"""The command `atoll replay`: another time axis for a run that is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.common import Overrides, console, say
from atoll.errors import ConfigError, RecordError

if TYPE_CHECKING:
    from atoll.clock import ClockTable, Timeline
    from atoll.records import Info, RunFolder


def replay(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    set_: Overrides = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write it as a run of its own, for reports.")] = None,
) -> None:
    """Time a finished run by another [clock], without training.

    For runs whose clock leaves nobody out: what they learned does not depend on time.
    """
    from atoll.clock import Clock, Timeline, retime
    from atoll.records import RunFolder

    folder = RunFolder(run)
    info, lines = folder.info, folder.times()
    table = _table(folder, info, lines, set_ or [])
    names = info["partition"].get("names", ())
    clock = Clock.of(table, info["seed"], info["partition"]["clients"], names)
    old = [Timeline.from_line(line) for line in lines]
    new = retime(clock, old)
    _print(old, new)
    if out is not None:
        _write(folder, RunFolder(out), info, table, new)
        say(f"Run: {out}")


def _table(folder: RunFolder, info: Info, lines: Sequence[Any], changes: list[str]) -> ClockTable:
    """The new [clock], where both the old and the new one leave everybody in."""
    from atoll.clock import ClockTable, why_not_replayable

    if info["experiment"].get("clock") is None or not lines:
        raise RecordError(f"{folder.path}: has no [clock], so it does not say who did how much. Run it with one.")
    if (topology := info.get("topology")) is not None:
        what = f"all_reduce of {topology['plan']}" if "plan" in topology else "a graph"
        raise RecordError(
            f"{folder.path}: its times follow {what}, and only rounds of one server can be timed again without "
            "training. Run the experiment again with the new [clock]."
        )
    if "began" in lines[0]:
        raise RecordError(
            f"{folder.path}: its round keeps a time of its own (whoever came back first was in a step, or edges went "
            "on by themselves), which is not timed again. Run the experiment again with the new [clock]."
        )
    table = _changed(info["experiment"], changes)
    for which, one in (("its", ClockTable.model_validate(info["experiment"]["clock"])), ("the new", table)):
        if (why := why_not_replayable(one)) is not None:
            raise RecordError(
                f"{folder.path}: with {which} clock the rounds would have been others ({why}). "
                "Run the experiment again with the new [clock]."
            )
    return table


def _changed(experiment: dict[str, Any], changes: list[str]) -> ClockTable:
    from pydantic import ValidationError

    from atoll.cli.remembered import parse
    from atoll.clock import ClockTable
    from atoll.schema import override

    changed = override(experiment, changes)
    others = [key for key in {**experiment, **changed} if key != "clock" and changed.get(key) != experiment.get(key)]
    if others:
        raise ConfigError(f"--set {others[0]}: only [clock] can change without training again. Use atoll run.")
    try:
        return ClockTable.model_validate(changed["clock"], strict=True)
    except ValidationError:
        parse(changed)  # says what is wrong, in the words of files
        raise


def _print(old: Sequence[Timeline], new: Sequence[Timeline]) -> None:
    from atoll.report import TextTable, number_columns, rich_table, row, significant

    picked = sorted({round(i * (len(new) - 1) / 9) for i in range(10)})
    rows = [
        row(str(i + 1), *(significant(x) for x in (old[i].seconds, old[i].end, new[i].seconds, new[i].end)))
        for i in picked
    ]
    heads = number_columns("round", "s before", "in all", "s now", "in all now")
    console.print(rich_table(TextTable(heads, tuple(rows), "virtual time")))
    say(f"{old[-1].end:,.6g} s before, {new[-1].end:,.6g} s now, for {len(new)} rounds.")


def _write(folder: RunFolder, to: RunFolder, info: Info, table: ClockTable, new: Sequence[Timeline]) -> None:
    """The run as it would have been recorded, but for its models and checkpoints."""
    from atoll.records import experiment_digest

    to.vacant()
    to.create(0)
    experiment = {**info["experiment"], "clock": table.model_dump(mode="json", exclude_none=True)}
    to.write_times(t.as_line(i + 1) for i, t in enumerate(new))
    to.write_record({**line, "clock": t.summary()} for line, t in zip(folder.record(), new, strict=False))
    clients = folder.clients()
    if clients is not None:
        to.write_clients(clients)
    digest = experiment_digest(experiment)
    to.write_info({**info, "experiment": experiment, "digest": digest, "replayed": info["digest"]})
