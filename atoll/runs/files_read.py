"""What a run reads from files beside its data: a file of the same name may say something else tomorrow."""

from __future__ import annotations

import hashlib
from pathlib import Path

from atoll.experiment import Experiment, Setup


def files_read(experiment: Experiment) -> dict[str, str]:
    """A digest of every file by the setting that names it: traces of devices, and of who can be reached."""
    clock = experiment.clock
    asked = {"cohort.trace": experiment.cohort.get("trace")}
    asked |= {} if clock is None else {"clock.trace": clock.trace, "clock.availability": clock.availability}
    return {name: _digest(Path(path)) for name, path in asked.items() if isinstance(path, str)}


def graph_digest(setup: Setup) -> str:
    """Of the built graph and its weights, wherever it comes from; "" where there is none that stays."""
    topology = setup.round.facts(setup.population.size).get("topology", {})
    return str(topology.get("digest", ""))


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.is_file() else ""
