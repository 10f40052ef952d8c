"""Two runs: what was asked otherwise, where their records part, and (run again) the client and tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atoll.analysis.diff.lines import Lines, compared
from atoll.errors import AtollError
from atoll.records import RunFolder, find, read_inputs
from atoll.report import differing, flatten

if TYPE_CHECKING:  # torch is not needed to read two records
    from atoll.analysis.diff.replay import Replay

Again = Literal["rounds", "setup", "no"]

# Settings that say how and when, not what: runs that differ in these alone should end with the same model.
_MEASURING = tuple(f"evaluate.{key}" for key in ("every", "clients", "after", "batch", "rows"))
_HARMLESS = ("label", "engine.", "checkpoint.", *_MEASURING)
_MISSING = "-"
_TAKES_SAME = "that takes --same, which runs both again up to there"


@dataclass(frozen=True)
class Parting:
    """What is known of two runs beside each other."""

    a: str
    b: str
    settings: Mapping[str, tuple[Any, Any]]  # that differ; the seed among them
    lines: Lines
    data: tuple[str, str]  # digests of the examples; "" where a run does not say
    partition: bool  # the same examples at the same clients?
    initial: bool | None  # the same initial model? None: not known
    replay: Replay | None
    unknown: str  # why nothing was run again, if that is so
    machines: Mapping[str, tuple[Any, ...]]  # versions, hardware, engine that differ: of A, of B, of here if run again
    inputs: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # digests of files and graphs that differ

    @property
    def paired(self) -> bool | None:
        """Can the difference between their results be laid to the settings alone? None: not known."""
        drawn_alike = "seed" not in self.settings and self.partition and self.lines.cohorts
        if self.other_data or self.inputs or not drawn_alike or self.initial is False:
            return False
        return None if self.initial is None else True

    @property
    def other_data(self) -> bool:
        """Do the data differ though both ask for the same?"""
        return all(self.data) and self.data[0] != self.data[1] and not any(k.startswith("data.") for k in self.settings)

    @property
    def parted(self) -> bool:
        return not self.lines.same


def must_agree(a: Path, b: Path) -> bool:
    """Should these two runs be equal: the same experiment, but for engine, label, checkpoints and measuring?"""
    different = _settings(RunFolder(a).info, RunFolder(b).info)
    return all(key.startswith(_HARMLESS) for key in different)


def parting(a: Path, b: Path, again: Again = "rounds") -> Parting:
    """Where two runs part. `again`: run both up to there for the client and the tensor, or only set them up, or no."""
    infos, records = [RunFolder(x).info for x in (a, b)], [RunFolder(x).record() for x in (a, b)]
    lines = compared(*records)
    until = lines.model or (lines.first.round if lines.first else None)
    alike = _begin_alike(*infos)
    known = again == "setup" and alike is not None and until is not None
    repeated, initial, unknown = (None, alike, _TAKES_SAME) if known else _again(a, b, until, again)
    return Parting(
        str(a),
        str(b),
        _settings(*infos),
        lines,
        (str(find(infos[0], "data", "digest") or ""), str(find(infos[1], "data", "digest") or "")),
        find(infos[0], "partition", "digest") == find(infos[1], "partition", "digest"),
        initial,
        repeated,
        unknown,
        _machines(infos[0], infos[1], here=repeated is not None),
        _inputs(*infos),
    )


def _inputs(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What both read or drew, under one name in the file, and that is another in each."""
    one, other = (read_inputs(info) for info in (a, b))
    settings = _settings(a, b)
    asked = {name for name in one.keys() & other.keys() if not any(k.startswith(name) for k in settings)}
    return {name: (one[name], other[name]) for name in sorted(asked) if one[name] != other[name]}


def _begin_alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool | None:
    """Do both begin with the same model? None where an older run does not say."""
    one, other = (find(info, "model", "initial") for info in (a, b))
    return one == other if one and other else None


def _again(a: Path, b: Path, until: int | None, how: Again) -> tuple[Replay | None, bool | None, str]:
    """Both run again, whether they begin alike, and why not."""
    if until is None:
        return None, True, ""  # no round of either says otherwise
    if how == "no":
        return None, None, "nothing was run again"
    from atoll.analysis.diff.replay import initial, replay, set_up_again

    try:
        both = set_up_again(a, b)
        if how == "setup":
            return None, initial(both), _TAKES_SAME
        return replay(both, until), initial(both), ""
    except AtollError as e:  # data that is not here, or what a Python program handed over
        return None, None, str(e)


def _settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    one, other = (_flat(info) for info in (a, b))
    return {key: (one.get(key), other.get(key)) for key in differing([one, other])}


def _flat(info: Mapping[str, Any]) -> dict[str, Any]:
    return {"seed": info["experiment"].get("seed", 0), **flatten(info["experiment"])}


def _machines(a: Mapping[str, Any], b: Mapping[str, Any], here: bool) -> dict[str, tuple[Any, ...]]:
    tables = [flatten({k: info.get(k) or {} for k in ("versions", "hardware", "engine")}) for info in (a, b)]
    tables += [_this_machine()] if here else []
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = {key: tuple(table.get(key, _MISSING) for table in tables) for key in keys if key != "engine.reason"}
    return {key: row for key, row in rows.items() if len(set(map(str, row[: 2 if "engine" in key else 3]))) > 1}


def _this_machine() -> dict[str, Any]:
    import torch

    from atoll.runs import hardware, versions

    return flatten({"versions": versions(), "hardware": hardware(torch.device("cpu"))})
