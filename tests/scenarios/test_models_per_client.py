"""Different models per client, as a file asks for them: resumed to the same bits, timed, refused with reasons."""

from pathlib import Path
from typing import Any

import pytest

from atoll import tree
from atoll.errors import ConfigError, SpecError
from atoll.experiment import Experiment, set_up
from atoll.records import RunFolder
from atoll.runs import RunLoop
from tests.support.other_models import OTHER_MODELS


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


def loop(method: str, folder: Path, **changes: Any) -> RunLoop:
    setup = set_up(experiment(**{**OTHER_MODELS[method], **changes}), device="cpu")
    folder.mkdir(exist_ok=True)
    return RunLoop(setup, RunFolder(folder))


@pytest.mark.parametrize("method", OTHER_MODELS)
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


def test_a_search_by_both_losses_runs_as_steps_are_recorded_and_moves_the_architecture_elsewhere(
    tmp_path: Path,
) -> None:
    """Numbers among the settings are tensors there: what is left out must be known without reading one."""
    models = []
    for name, more in {"one": {}, "none": {"arch_train": 0.0}, "both": {"arch_train": 1.0}}.items():
        algorithm = {**OTHER_MODELS["fednas"]["algorithm"], "arch_lr": 10.0, **more}
        made = loop("fednas", tmp_path / name, algorithm=algorithm, rounds=5)
        for _ in range(5):  # ten steps: the eighth is recorded
            made.next_round()
        models.append(made.setup.round.model(made.state.round)["params"]["alpha"])
    assert tree.digest({"alpha": models[0]}) == tree.digest({"alpha": models[1]})
    assert float((models[0] - models[2]).abs().max()) > 1e-4


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
    ("fedmd of kinds", {"task": {"model": "mlp"}}, "name = 'one_of'"),
    ("fedmd of kinds", {"round": {"name": "gossip"}}, "central"),
    ("feddf", {"round": {"name": "gossip"}}, "central"),
    ("fedma", {"reducer": {"name": "median"}}, "Leave reducer out"),
    ("fedma", {"secure": {"protocol": "secagg"}}, r"Leave \[secure\] out"),
    ("fedma", {"algorithm": {"name": "scaffold"}}, "fedavg or fedprox"),
    ("fedgkt", {"transform": [{"name": "top_k", "share": 0.1}]}, "single examples"),
    ("fedgkt", {"round": {"name": "gossip"}}, "central"),
    ("fedgkt", {"reducer": {"name": "median"}}, "Leave reducer out"),
    ("fedgkt", {"secure": {"protocol": "secagg"}}, r"Leave \[secure\] out"),
    ("fedgkt", {"broadcast": [{"name": "half"}]}, "Leave it out"),
    ("fedgkt", {"task": {"model": "mlp"}}, "task.model = 'gkt'"),
    ("fedgkt", {"attack": {"name": "sign_flip", "share": 0.25}}, "attack on data"),
]


@pytest.mark.parametrize(("method", "changes", "advice"), REFUSED)
def test_what_does_not_go_together_is_refused_with_advice(method: str, changes: dict[str, Any], advice: str) -> None:
    changes = {k: v for k, v in {**OTHER_MODELS[method], **changes}.items() if v is not None}
    with pytest.raises((ConfigError, SpecError), match=advice):
        set_up(experiment(**changes), device="cpu")


# With compression, noise and a clock.

AVERAGED = ("fednas", "fedgan", "pseudo_labels")
CLOCK = {"seconds_per_step": 0.1, "up_mbps": 0.1, "down_mbps": 0.1}


def lines(method: str, folder: Path, rounds: int = 2, **changes: Any) -> list[dict[str, Any]]:
    made = loop(method, folder, **changes)
    for _ in range(rounds):
        made.next_round()
    return list(made.plan.history)


@pytest.mark.parametrize("method", AVERAGED)
def test_all_of_an_update_in_top_k_is_the_update_and_a_tenth_of_it_is_fewer_bytes(method: str, tmp_path: Path) -> None:
    plain = lines(method, tmp_path / "plain")
    whole, tenth = (
        lines(method, tmp_path / str(share), transform=[{"name": "top_k", "share": share}]) for share in (1.0, 0.1)
    )
    assert [x["train_loss"] for x in whole] == pytest.approx([x["train_loss"] for x in plain], rel=1e-6)
    assert tenth[1]["train_loss"] != pytest.approx(plain[1]["train_loss"], rel=1e-6)
    assert all(a["bytes"]["up"] < 0.8 * b["bytes"]["up"] for a, b in zip(tenth, plain, strict=True))
    assert all(a["bytes"]["down"] == b["bytes"]["down"] for a, b in zip(tenth, plain, strict=True))


@pytest.mark.parametrize("method", AVERAGED)
def test_clipping_bounds_all_that_a_round_moves_and_noise_has_an_epsilon(method: str, tmp_path: Path) -> None:
    clip: list[Any] = ["equal_weights", {"name": "clip_l2", "max_norm": 0.01}]
    given = {**OTHER_MODELS[method]["algorithm"], **({"labelled": 0.9} if method == "pseudo_labels" else {})}
    made = loop(method, tmp_path / "clipped", transform=clip, algorithm=given, partition={"name": "iid", "clients": 1})
    before = made.setup.model["params"]
    made.next_round()
    moved = tree.sub(made.setup.round.model(made.state.round)["params"], before)
    assert float(tree.norm(moved)) == pytest.approx(0.01, rel=1e-4)  # of one client, whose update is longer
    (line,) = lines(method, tmp_path / "noisy", 1, transform=[*clip, {"name": "gaussian_noise", "noise_multiplier": 1}])
    assert line["privacy"]["epsilon"] > 0


@pytest.mark.parametrize("method", AVERAGED)
def test_a_clock_changes_no_model_and_waits_for_steps_and_bytes(method: str, tmp_path: Path) -> None:
    plain, timed = lines(method, tmp_path / "plain"), lines(method, tmp_path / "timed", clock=CLOCK)
    assert [x["model"] for x in timed] == [x["model"] for x in plain]
    (first, _) = RunFolder(tmp_path / "timed").times()
    bits = 8 * (plain[0]["bytes"]["up"] + plain[0]["bytes"]["down"]) / 4
    assert timed[0]["clock"]["counted"] == 4
    assert all(arrived >= 2 * 0.1 + bits / 1e5 for arrived in first["arrived"])


def test_noise_counts_clients_alike_so_that_the_weight_of_unlabelled_ones_is_nothing(tmp_path: Path) -> None:
    clip: list[Any] = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
    ends = []
    for weight in (0.0, 1.0):
        algorithm = {"name": "pseudo_labels", "labelled": 0.5, "threshold": 0.01, "unlabelled_weight": weight}
        both = [
            lines("pseudo_labels", tmp_path / f"{weight}-{len(c)}", algorithm=algorithm, transform=c)
            for c in ([], clip)
        ]
        ends.append([x[-1]["model"] for x in both])
    assert ends[0][0] != ends[1][0]
    assert ends[0][1] == ends[1][1]
