"""Where attacks are joined to the card: on the model, on membership, and on the inputs behind an update.

What cannot be done to a run is `not measured` with its reason; nothing here raises for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from atoll import tree
from atoll.attacks.leakage import AttackOptions, attack
from atoll.attacks.membership import audit, model_in
from atoll.attacks.model import ATTACKS
from atoll.engines import measure as measured_rows
from atoll.errors import AtollError, ConfigError
from atoll.experiment import Device, Experiment, did_you_mean, set_up
from atoll.records import Record, RunFolder

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


def attacked(raw: Mapping[str, Any], name: str, blind: bool = False) -> dict[str, Any]:
    """The experiment with a share of its clients attacking; `blind` ones see each other's updates at most."""
    seeing = {"sees": "colluders"} if blind and "sees" in signature(ATTACKS[name]).parameters else {}
    return {**raw, KEY: {"name": name, "share": SHARE, **seeing}}


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


def clean_rate(own: Record, under_attack: Record, device: Device = "auto") -> float:
    """The share of what the attack is measured on that the model without the attack gives the class it wants.

    0 where that model cannot be measured: the attack's success then counts whole.
    """
    try:
        setup = set_up(Experiment.parse(under_attack.experiment), device)
        if setup.attack is None or setup.attack.probe is None:
            return 0.0
        probe, model = tree.to(setup.attack.probe, setup.device), model_in(RunFolder(own.folder), setup)
    except AtollError:
        return 0.0
    found = measured_rows(setup.task, setup.dataset.decode, probe, model, None, setup.experiment.evaluate.batch)
    return float(found["accuracy"].mean()) if "accuracy" in found else 0.0


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
