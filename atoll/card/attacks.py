"""Where attacks are joined to the card: on the model, on membership, and on the inputs behind an update.

What is not there yet, or cannot be done to a run, is `not measured` with its reason; nothing here raises for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from atoll.attacks.membership import audit
from atoll.errors import AtollError, ConfigError
from atoll.experiment import CATALOGUE, Device, Experiment, did_you_mean, schema
from atoll.records import Record

WORST_OF = ("sign_flip", "alie", "ipm", "label_flip")  # the attacks that a card tries unless told otherwise
SHARE = 0.2  # of the clients that attack
VICTIMS = 32
KEY, KIND = "attack", "attacks"  # of an experiment, and of the catalogue


class MeasureLeakage(Protocol):
    """What an attack on the inputs behind an update gets back, each from 0 to 1 but for the PSNR in dB."""

    def __call__(
        self, experiment: Experiment, method: str, victims: int, seed: int
    ) -> Mapping[str, float]:  # identification, label_accuracy, psnr
        ...


measure_leakage: MeasureLeakage | None = None  # set where reconstruction attacks are installed


def why_no_model_attacks() -> str | None:
    """Why experiments cannot be attacked here; None if they can."""
    if KEY in schema(Experiment) and KIND in CATALOGUE:
        return None
    return "this version has no attacks on the model (an experiment has no key `attack`)"


def check_attacks(names: Sequence[str]) -> tuple[str, ...]:
    """The attacks to try; a name that nobody knows is refused."""
    if why_no_model_attacks() is not None:
        return tuple(names)
    known = list(CATALOGUE[KIND])
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


def attack_success(record: Record) -> float | None:
    """What a targeted attack reached at the end; None where the run says nothing of it."""
    values = record.series("attack_success").values
    return float(values[-1]) if values.size else None


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


def leakage(experiment: Experiment, seed: int) -> tuple[Mapping[str, float] | None, str]:
    """What inversion of an update gives away, or why that is not measured."""
    if measure_leakage is None:
        return None, "this version has no reconstruction attacks (atoll.attacks.inversion)"
    try:
        return measure_leakage(experiment, "inverting_gradients", VICTIMS, seed), ""
    except AtollError as e:
        return None, str(e).splitlines()[0]


def _entry(attacks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    return next((a for a in attacks if a["level"] == "example" and a["name"] == "loss threshold"), None)
