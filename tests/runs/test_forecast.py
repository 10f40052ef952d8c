"""What `atoll check` says of virtual time is what the run then takes."""

from pathlib import Path

import pytest

import atoll
from atoll.clock import Timeline
from atoll.experiment import Experiment, set_up
from atoll.records import RunFolder
from atoll.runs import virtual_time


def test_rounds_are_foretold_one_after_the_other(tmp_path: Path) -> None:
    """Who is in reach depends on when a round begins, and that on all rounds before it."""
    rows = [f"{c},{start},{start + 0.3 + c / 10}\n" for c in range(6) for start in range(0, 9)]
    (tmp_path / "there.csv").write_text("client,start,end\n" + "".join(rows))
    clock = {"seconds_per_step": 0.1, "availability": str(tmp_path / "there.csv"), "repeat": True, "dropout": 0.1}
    partition = {"name": "dirichlet", "alpha": 0.3, "clients": 6}
    file = {"rounds": 6, "engine": "loop", "data": "digits", "partition": partition, "task": {"model": "linear"}}
    experiment = Experiment.parse({**file, "algorithm": {"name": "fedavg", "lr": 0.1}, "clock": clock})
    run = atoll.run(experiment, tmp_path / "run")
    lines = [Timeline.from_line(line) for line in RunFolder(run.folder).times()]
    forecast = virtual_time(set_up(experiment), lines[0])
    assert forecast.seconds == [line.seconds for line in lines]
    assert forecast.total == pytest.approx(lines[-1].end)
    assert forecast.left_out == sum(int((~line.counted).sum()) for line in lines) > 0
    assert forecast.void == sum(line.void for line in lines)


def test_who_is_sent_a_difference_is_foretold_with_it(tmp_path: Path) -> None:
    """Half floats take as many bytes whatever they are, so the forecast is exact; and cohorts differ in size."""
    clock = {"seconds_per_step": 0.1, "up_mbps": 0.1, "down_mbps": 0.01, "dropout": 0.2}
    file = {"rounds": 6, "engine": "loop", "data": "digits", "partition": {"name": "iid", "clients": 6}, "clock": clock}
    more = {"cohort": {"name": "poisson", "probability": 0.6}, "broadcast": ["half"], "task": {"model": "linear"}}
    experiment = Experiment.parse({**file, **more, "algorithm": {"name": "fedavg", "lr": 0.1}})
    run = atoll.run(experiment, tmp_path / "run")
    lines = [Timeline.from_line(line) for line in RunFolder(run.folder).times()]
    assert virtual_time(set_up(experiment), lines[0]).seconds == [line.seconds for line in lines]
    assert len({len(line.ids) for line in lines}) > 1
