"""What `atoll check` says of a run's bytes is what its record counts in the end."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import atoll
from atoll.cli.check import estimate
from atoll.experiment import Experiment

KINDS: dict[str, dict[str, Any]] = {
    "one server": {},
    "differences to who was there": {"broadcast": ["half"], "cohort": {"name": "fixed", "size": 4}},
    "one shot, all": {"round": "one_shot", "cohort": "everyone"},
    "one shot, some at a time": {"round": "one_shot"},
    "answers from the second time on": {
        "task": {"model": {"name": "gkt", "features": 4, "widths": [8]}},
        "algorithm": {"name": "fedgkt", "lr": 0.1},
    },
}


def file(**changes: Any) -> dict[str, Any]:
    return {
        "rounds": 4,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
        "cohort": {"name": "fixed", "size": 2},
        "task": {"model": "linear"},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "local": {"batch": 32, "max_steps": 2},
        "engine": "loop",
        "evaluate": {"every": 4, "clients": 0},
        **changes,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_all_rounds_are_those_that_the_record_counts(kind: str, tmp_path: Path) -> None:
    given = file(**KINDS[kind])
    console = Console(record=True, width=300)
    estimate(Experiment.parse(given), "cpu", console)
    (said,) = (line.strip() for line in console.export_text().splitlines() if line.strip().startswith("bytes"))
    lines = [line["bytes"] for line in atoll.run(given, tmp_path / "run").history]
    first, up, down = lines[0], sum(x["up"] for x in lines), sum(x["down"] for x in lines)
    assert said.endswith(f"{up / 1e6:,.3g} and {down / 1e6:,.3g} MB for all 4")
    assert f"{first['up'] / 1e6:,.3g} MB up and {first['down'] / 1e6:,.3g} MB down" in said
    assert ("a round" if kind == "one server" else "in the first round") in said
