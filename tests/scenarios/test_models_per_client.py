"""Different models per client, as a file asks for them: resumed to the same bits, timed, refused with reasons."""

from pathlib import Path
from typing import Any

import pytest

from atoll.errors import ConfigError, SpecError
from atoll.experiment import Experiment, set_up
from atoll.records import RunFolder
from atoll.runs import RunLoop


def experiment(algorithm: dict[str, Any], **changes: Any) -> Experiment:
    return Experiment.parse(
        {
            "rounds": 4,
            "data": "digits",
            "partition": {"name": "iid", "clients": 4},
            "task": {"model": {"name": "mlp", "widths": [8]}},
            "local": {"batch": 32, "max_steps": 2},
            "evaluate": {"every": 4, "clients": 0},
            "engine": "vector",
            "algorithm": {"lr": 0.1, **algorithm},
            **changes,
        }
    )


METHODS: dict[str, dict[str, Any]] = {
    "heterofl": {"algorithm": {"name": "heterofl", "widths": [1.0, 0.5]}},
    "feddf": {"algorithm": {"name": "feddf", "steps": 2}, "server": {"root": 0.1}},
    "fedmd": {"algorithm": {"name": "fedmd", "widths": [1.0, 0.5]}, "server": {"root": 0.1}},
    "fedma": {"algorithm": {"name": "fedavg"}, "round": {"name": "fedma"}},
    "fednas": {"algorithm": {"name": "fednas"}, "task": {"model": {"name": "supernet", "channels": 2}}},
    "fedgan": {"algorithm": {"name": "fedgan"}, "task": {"model": {"name": "gan", "width": 8}}},
    "pseudo_labels": {"algorithm": {"name": "pseudo_labels", "labelled": 0.5}},
}


def loop(method: str, folder: Path, **changes: Any) -> RunLoop:
    setup = set_up(experiment(**{**METHODS[method], **changes}), device="cpu")
    folder.mkdir(exist_ok=True)
    return RunLoop(setup, RunFolder(folder))


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_goes_on_with_the_same_bits(method: str, tmp_path: Path) -> None:
    whole = loop(method, tmp_path / "whole")
    for _ in range(3):
        whole.next_round()
    first = loop(method, tmp_path / "parts")
    first.next_round()
    first.state.checkpoint()
    second = loop(method, tmp_path / "parts")
    second.resume()
    for _ in range(2):
        second.next_round()
    assert [x["model"] for x in second.plan.history] == [x["model"] for x in whole.plan.history]


def test_clients_with_less_of_the_model_are_heard_earlier(tmp_path: Path) -> None:
    made = loop(
        "heterofl",
        tmp_path / "clock",
        clock={"seconds_per_step": 0.0, "up_mbps": 0.1, "down_mbps": 0.1, "slow_start": False},
    )
    made.next_round()
    (times,) = RunFolder(tmp_path / "clock").times()
    sizes = dict(zip(times["ids"], times["up"], strict=True))
    arrived = dict(zip(times["ids"], times["arrived"], strict=True))
    assert len(set(sizes.values())) == 2
    assert all((sizes[a] < sizes[b]) == (arrived[a] < arrived[b]) for a in sizes for b in sizes)
    assert made.plan.history[-1]["bytes"]["up"] == sum(sizes.values())


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("heterofl", {"transform": [{"name": "top_k", "share": 0.1}]}, "parts of different sizes"),
    ("heterofl", {"round": {"name": "gossip"}}, "central"),
    ("heterofl", {"reducer": {"name": "median"}}, "Leave reducer out"),
    ("heterofl", {"secure": {"protocol": "secagg"}}, r"Leave \[secure\] out"),
    ("heterofl", {"broadcast": [{"name": "half"}]}, "Leave it out"),
    ("heterofl", {"task": {"model": "linear"}}, "no hidden units"),
    ("feddf", {"server": None}, r"server.root = 0.05"),
    ("fedmd", {"server": None}, r"server.root = 0.05"),
    ("feddf", {"round": {"name": "gossip"}}, "central"),
    ("fedma", {"reducer": {"name": "median"}}, "Leave reducer out"),
    ("fedma", {"secure": {"protocol": "secagg"}}, r"Leave \[secure\] out"),
    ("fedma", {"algorithm": {"name": "scaffold"}}, "fedavg or fedprox"),
]


@pytest.mark.parametrize(("method", "changes", "advice"), REFUSED)
def test_what_does_not_go_together_is_refused_with_advice(method: str, changes: dict[str, Any], advice: str) -> None:
    changes = {k: v for k, v in {**METHODS[method], **changes}.items() if v is not None}
    with pytest.raises((ConfigError, SpecError), match=advice):
        set_up(experiment(**changes), device="cpu")
