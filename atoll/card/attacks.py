"""Where attacks are joined to the card: on the model, on membership, and on the inputs behind an update.

What cannot be done to a run is `not measured` with its reason; nothing here raises for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.attacks.leakage import AttackOptions, attack
from atoll.attacks.membership import audit
from atoll.attacks.model import ATTACKS
from atoll.errors import AtollError, ConfigError
from atoll.experiment import Device, Experiment, did_you_mean
from atoll.records import Record

WORST_OF = ("sign_flip", "alie", "ipm", "label_flip")  # the attacks that a card tries unless told otherwise
SHARE = 0.2  # of the clients that attack
VICTIMS = 32
KEY = "attack"  # of an experiment


def check_attacks(names: Sequence[str]) -> tuple[str, ...]:
    """The attacks to try; a name that nobody knows is refused."""
    known = list(ATTACKS)
    problems = [
        f"--attacks: {name!r} is not known.{did_you_mean(name, known)} Attacks: {', '.join(known)}."
        for name in names
        if name not in known
    ]
    if problems:
        raise ConfigError(problems)
    return tuple(names)


def attacked(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The experiment with a share of its clients attacking."""
    return {**raw, KEY: {"name": name, "share": SHARE}}


def membership(record: Record, device: Device = "auto") -> tuple[Mapping[str, Any] | None, str]:
    """The loss threshold on the run's own model (Yeom et al., 2018), done once; or why it cannot be."""
    there = _entry(record.attacks)
    if there is not None:
        return there, ""
    try:
        found = audit(Path(record.folder), "loss", "example", device=device)
    except AtollError as e:
        return None, str(e).splitlines()[0]
    return _entry(found["attacks"]), ""


def leakage(experiment: Experiment, seed: int, device: Device = "auto") -> tuple[Mapping[str, float] | None, str]:
    """What the FC attack gets back from the first round's updates, or why that is not measured.

    `identification` is the share of inputs that are the nearest of 1,000 to what was made of them.
    """
    try:
        summary = attack(experiment, AttackOptions(victims=VICTIMS, seed=seed), device).summary
    except AtollError as e:
        return None, str(e).splitlines()[0]
    return {"identification": float(summary["identification"]["rate"])}, ""


def _entry(attacks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((a for a in attacks if a["level"] == "example" and a["name"] == "loss threshold"), None)
