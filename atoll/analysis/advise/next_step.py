"""Where nobody has measured: the command that measures it, on the clients that are asked about."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from atoll.experiment import Experiment
from atoll.runs import ARRAYS
from atoll.schema import inline_toml

_METHODS: dict[str, dict[str, Any]] = {"fedavg": {}, "fedprox": {"mu": 0.01}, "scaffold": {}, "fednova": {}}
_SEEDS = 3
_FILE = "compare.toml"
_FROM_PYTHON = (
    "Call atoll.simulate on these arrays with algorithm = {'name': 'fedavg', 'lr': 0.1}, then 'fedprox' and "
    f"'scaffold', each with seed = 0 to {_SEEDS - 1} and out = 'runs/<algorithm>-<seed>', and: atoll report 'runs/*'"
)


def of_file(file: str, changes: Sequence[str], experiment: Experiment) -> str:
    """A sweep over the usual algorithms, of a file as it is."""
    asked = [f"sweep.seeds={_SEEDS}", f"sweep.algorithm={inline_toml(_algorithms(experiment))}"]
    return shlex.join(["atoll", "sweep", file, *(w for change in (*changes, *asked) for w in ("--set", change))])


def of_experiment(experiment: Experiment) -> str:
    """The same where there is no file yet."""
    if experiment.data["name"] == ARRAYS:
        return _FROM_PYTHON
    own = experiment.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    table = {k: v for k, v in own.items() if k not in ("algorithm", "label", "seed")}
    table |= {"algorithm": "fedavg", "sweep": {"seeds": _SEEDS, "algorithm": _algorithms(experiment)}}
    lines = [f"{key} = {inline_toml(value)}" for key, value in table.items()]
    return "\n".join([f"cat > {_FILE} <<'END'", *lines, "END", f"atoll sweep {_FILE}"])


def _algorithms(experiment: Experiment) -> list[dict[str, Any]]:
    """The usual ones at the learning rate of the experiment, and its own."""
    own = experiment.algorithm
    usual = [{"name": name, "lr": own.get("lr", 0.1), **more} for name, more in _METHODS.items()]
    return usual if own["name"] in _METHODS else [*usual, own]
