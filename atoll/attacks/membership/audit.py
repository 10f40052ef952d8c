"""All attacks that were asked for on one run, and audit.json, which says what came of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from atoll import __version__
from atoll.attacks import CONFIDENCE, judge
from atoll.attacks.membership.loss_threshold import FinishedRun, Level, Scores, loss_scores
from atoll.attacks.membership.shadow import Told, lira_scores, silent
from atoll.errors import AtollError, ConfigError, PartitionError, RecordError
from atoll.experiment import Device
from atoll.records import clean, read_audit, write_audit

Attack = Literal["loss", "lira", "all"]
NAMES = {"loss": "loss threshold", "lira": "likelihood ratio"}
_FACTS = ("epsilon", "delta", "unit", "adjacency", "sampler", "mechanism", "accountant")


def audit(
    path: Path | str,
    attack: Attack = "all",
    level: Level | Literal["both"] = "both",
    *,
    shadows: int = 16,
    targets: int = 1,
    delta: float | None = None,
    confidence: float = CONFIDENCE,
    out: Path | str | None = None,
    device: Device = "auto",
    told: Told = silent,
) -> dict[str, Any]:
    """Attack a finished run, and write audit.json into its folder (or `out`); what that holds is returned.

    "loss" attacks the weights of the run; "lira" its recipe, by training `targets` and `shadows` on random halves. If
    nothing of what is asked for can be done it is refused; a part of it that cannot be is left out, and `skipped` says
    why. `delta` is the accounted one where there is one, else a tenth of 1 / units.
    """
    run = FinishedRun.open(path, device)
    place = Path(out) if out is not None else run.folder.path
    found: list[dict[str, Any]] = []
    refused: list[tuple[str, AtollError]] = []
    for kind in ("loss", "lira") if attack == "all" else (attack,):
        for unit in _levels(level):
            try:
                scores = (
                    loss_scores(run, unit)
                    if kind == "loss"
                    else lira_scores(run, unit, shadows, targets, place / "audit", device, told)
                )
            except (ConfigError, PartitionError) as e:
                refused.append((f"{NAMES[kind]}, {unit}", e))
                continue
            found.append(_entry(run, kind, unit, scores, delta, confidence))
    if not found:
        raise refused[0][1]
    skipped = [{"attack": name, "why": str(e)} for name, e in refused]
    return _written(run, place, found, skipped)


def accounted(info: dict[str, Any], unit: str) -> dict[str, Any] | None:
    """The epsilon that run.json states for this unit, with what it rests on; None where none holds."""
    block = (info.get("privacy") or {}).get(unit) or {}
    return {k: block[k] for k in _FACTS if k in block} if block.get("holds") and "epsilon" in block else None


def _levels(level: str) -> list[Level]:
    names: dict[str, list[Level]] = {"example": ["example"], "client": ["client"], "both": ["example", "client"]}
    if level not in names:
        raise ConfigError(f"--level: must be example, client or both (got {level!r}).")
    return names[level]


def _entry(
    run: FinishedRun, kind: str, unit: Level, scores: Scores, delta: float | None, confidence: float
) -> dict[str, Any]:
    known, training = accounted(run.info, unit), run.setup.training
    units = training.size if unit == "client" else len(training.indices)
    at = delta if delta is not None else float(known["delta"]) if known else 0.1 / units
    much = f"; delta is above 1 / {unit}s, where bounds from one run are not sure" if at * units > 1 else ""
    found = asdict(judge(scores.members, scores.others, at, confidence, scores.note + much))
    entry = {"name": NAMES[kind], "level": unit, **found, "accounted": known}
    if known is not None and at >= known["delta"]:  # a guarantee at delta is one at every larger delta
        entry["exceeds"] = found["epsilon_lower"] > known["epsilon"]
    return entry


def _written(
    run: FinishedRun, place: Path, found: list[dict[str, Any]], skipped: list[dict[str, str]]
) -> dict[str, Any]:
    """audit.json, with what was found before of the same model and was not done again."""
    mark = {"digest": run.info["digest"], "model": run.record[-1]["model"] if run.record else None}
    now = {(a["name"], a["level"]) for a in found}
    before: dict[str, Any] = {}
    with suppress(RecordError):  # one that cannot be read is replaced
        before = read_audit(place)
    same = before.get("run") == mark
    kept = [a for a in before.get("attacks", []) if (a["name"], a["level"]) not in now] if same else []
    attacks = sorted(clean(kept + found), key=lambda a: (a["level"], a["name"]), reverse=True)
    known = [facts for unit in ("client", "example") if (facts := accounted(run.info, unit)) is not None]
    whole = {"attacks": attacks, "accounted": known, "skipped": skipped, "run": mark, "atoll": __version__}
    write_audit(place, whole)
    return whole
