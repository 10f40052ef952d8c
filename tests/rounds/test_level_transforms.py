"""A chain for every level of a hierarchy: none is what there was, two edges by hand, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll import tree
from atoll.algorithms.fedavg import FedAvg
from atoll.core import Chain
from atoll.errors import ConfigError, SpecError
from atoll.records import RunFolder
from atoll.rounds import Central
from atoll.rounds.hierarchical_names import hierarchical
from atoll.testing import check_round
from atoll.testing.assertions import distance
from atoll.testing.harness import federation
from atoll.testing.problems import SIZES, flat, network, quadratics
from atoll.transforms import TRANSFORMS
from tests.rounds.test_hierarchical import GIVEN, LR, NOISE, local

CLIP, TOP_K = TRANSFORMS["clip_l2"], TRANSFORMS["top_k"]
EQUAL = TRANSFORMS["equal_weights"]()


def model(round: Any, rounds: int = 3, problem: Any = None, **more: Any) -> Any:
    problem = problem or network()
    made = federation(problem, FedAvg(problem.task, LR), round=round, **more)
    for _ in range(rounds):
        made.run(range(6))
    return made.round.model(made.state)


# What it becomes.


@pytest.mark.parametrize("rounds", [[1, 1], [2, 1]])
def test_empty_lists_are_a_hierarchy_without_any_bit_for_bit(rounds: list[int]) -> None:
    plain, empty = (model(hierarchical(6, [3, 2], rounds, level_transforms=x)) for x in ([], [[], []]))
    assert tree.digest(plain) == tree.digest(empty)


def test_one_edge_with_an_empty_list_is_the_central_round_bit_for_bit() -> None:
    chain = Chain((EQUAL, CLIP(0.1), TRANSFORMS["gaussian_noise"](1.0)))
    ends = [model(round, chain=chain) for round in (Central(), hierarchical(6, [1], level_transforms=[[]]))]
    assert tree.digest(ends[0]) == tree.digest(ends[1])


def test_the_same_list_on_each_level_is_one_for_all_bit_for_bit() -> None:
    layers = [TOP_K(0.5), TRANSFORMS["qsgd"](8)]
    all_levels = model(hierarchical(6, [3, 2], transform=layers))
    each = model(hierarchical(6, [3, 2], level_transforms=[layers, layers]))
    assert tree.digest(all_levels) == tree.digest(each)
    assert distance(each, model(hierarchical(6, [3, 2], level_transforms=[layers, []]))) > 1e-4


def test_a_clip_that_nothing_reaches_changes_nothing_but_rounding() -> None:
    clipped = model(hierarchical(6, [3, 2], level_transforms=[[CLIP(1e6)], []]))
    assert distance(clipped, model(hierarchical(6, [3, 2]))) < 1e-6


# By hand.


TENSORS = ((0, 2), (2, 3), (3, 4), (4, 8))  # the three of the model, and its buffer


def largest(x: Any) -> Any:
    """Half of every tensor's entries, at least one."""
    sent = np.zeros_like(x)
    for a, b in TENSORS:
        at = a + np.argsort(-np.abs(x[a:b]))[: max(1, (b - a) // 2)]
        sent[at] = x[at]
    return sent


def change(problem: Any, client: int, w: Any) -> Any:
    """Of the model, and of the buffer: a running mean of the client's one target."""
    target = problem.columns["y"][int(problem.partition.of(client)[0])].double().numpy()
    stays = 0.9 ** -(-SIZES[client] // 2)
    return np.concatenate([local(problem, client, w[:4]), (1 - stays) * (target - w[4:])])


def edge_change(problem: Any, w: Any, clients: range) -> tuple[Any, int]:
    n = sum(SIZES[c] for c in clients)
    return sum(SIZES[c] * change(problem, c, w) for c in clients) / n, n


def begun(round: Any) -> tuple[Any, Any, Any]:
    """A problem, its federation, and where the server is before the first round."""
    problem = quadratics()
    made = federation(problem, FedAvg(problem.task, LR), round=round)
    return problem, made, server(made)


def server(made: Any) -> Any:
    return torch.cat([flat(made.server["params"]), made.server["buffers"]["centre"]]).double().numpy()


def test_two_edges_keep_what_they_held_back_each_for_itself() -> None:
    """top_k above two edges: w + sum of n_e times the largest of (change + residual), over the sum of n_e."""
    problem, made, w = begun(hierarchical(6, [2], level_transforms=[[TOP_K(0.5)]]))
    residual = np.zeros((2, 8))
    for _ in range(5):
        made.run(range(6))
        total, weight = np.zeros(8), 0
        for e, clients in enumerate((range(3), range(3, 6))):
            moved, n = edge_change(problem, w, clients)
            full = moved + residual[e]
            sent = largest(full)
            residual[e], total, weight = full - sent, total + n * sent, weight + n
        w = w + total / weight
        assert np.abs(server(made) - w).max() < 2e-6
    assert np.abs(residual).max() > 1e-3


def test_each_level_has_its_own_list() -> None:
    """Edges' changes are clipped and count the same; regions send the largest of the mean of their edges."""
    norm = 0.05
    problem, made, w = begun(hierarchical(6, [3, 2], level_transforms=[[EQUAL, CLIP(norm)], [TOP_K(0.5)]]))
    residual = np.zeros((2, 8))
    for _ in range(5):
        made.run(range(6))
        ends = [edge_change(problem, w, range(2 * e, 2 * e + 2))[0] for e in range(3)]
        ends = [x * min(1, norm / np.linalg.norm(x)) for x in ends]
        total = np.zeros(8)
        for r, edges in enumerate((ends[:2], ends[2:])):
            full = sum(edges) / len(edges) + residual[r]
            sent = largest(full)
            residual[r], total = full - sent, total + len(edges) * sent
        w = w + total / 3
        assert np.abs(server(made) - w).max() < 2e-6


def test_a_sum_of_residues_is_the_plain_sum_to_the_step() -> None:
    step, bounded = 2.0**-20, [EQUAL, CLIP(0.5)]
    residues = [*bounded, TRANSFORMS["fixed_point"](step), TRANSFORMS["secure_sum"](32)]
    ends = [
        flat(model(hierarchical(6, [2], level_transforms=[x], numbers=4), 1, quadratics())["params"])
        for x in (bounded, residues)
    ]
    assert 0 < float((ends[0] - ends[1]).abs().max()) < step


@pytest.mark.parametrize(
    ("edges", "clients", "deviation"), [([3, 1], 6, 1 / 3), ([3, 1], 2, 1 / 3), ([4, 2], 2, 2**0.5 / 4)]
)
def test_noise_is_on_the_sum_of_edges_over_how_many_were_asked(
    edges: list[int], clients: int, deviation: float
) -> None:
    """Edges that send next to nothing: deviation 1, also where one above hears of nobody."""
    noise = [EQUAL, CLIP(1e-9), TRANSFORMS["gaussian_noise"](1e9)]
    _, made, _ = begun(hierarchical(6, edges, level_transforms=[noise, []]))
    models = [flat(made.server["params"])]
    for _ in range(40):
        made.run(range(clients))
        models.append(flat(made.server["params"]))
    steps = torch.stack(models).diff(dim=0)
    assert float(steps.square().mean().sqrt()) == pytest.approx(deviation, rel=0.2)
    assert len(steps.unique(dim=0)) == 40


def test_it_does_what_a_round_must() -> None:
    lists = [[EQUAL, CLIP(0.5), TRANSFORMS["gaussian_noise"](0.001)], [TOP_K(0.5)]]
    chains = {"clip": (CLIP(0.5),), "top k": (TOP_K(0.5),)}
    assert "both halves of every transform" in check_round(hierarchical(6, [3, 2], level_transforms=lists), chains)


# In a file.

EACH = {"name": "hierarchical", "edges": [4, 2], "level_transforms": [NOISE, [{"name": "top_k", "share": 0.3}]]}


def record(run: atoll.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(run.folder).record()]


def test_a_resumed_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    file = {**GIVEN, "round": {**EACH, "rounds": [2, 1], "share": [0.7, 1.0, 1.0]}}
    whole = atoll.run(file, tmp_path / "whole")
    atoll.run({**file, "rounds": 3}, tmp_path / "part")
    assert record(atoll.run(file, tmp_path / "part", resume=True))[3:] == record(whole)[3:]


def test_bytes_of_each_level_are_those_of_its_own_list(tmp_path: Path) -> None:
    lists = {"plain": [[], []], "above": [[], [{"name": "top_k", "share": 0.05}]]}
    plain, above = (
        record(atoll.run({**GIVEN, "rounds": 1, "round": {**EACH, "level_transforms": x}}, tmp_path / name))[0]
        for name, x in lists.items()
    )
    levels = [line["diagnostics"]["traffic"] for line in (plain, above)]
    assert levels[0]["level_1"] == levels[1]["level_1"]
    assert levels[1]["level_2"]["up"] < 0.5 * levels[0]["level_2"]["up"]
    assert above["bytes"]["up"] == sum(level["up"] for level in levels[1].values())


def test_noise_above_the_edges_has_no_epsilon_and_the_run_says_why(tmp_path: Path) -> None:
    run = atoll.run({**GIVEN, "rounds": 2, "round": EACH}, tmp_path / "a")
    assert "privacy" not in run.info
    assert any(
        "level_transforms.0: no epsilon is printed for the noise of gaussian_noise" in x for x in run.info["notes"]
    )


def test_noise_of_clients_keeps_its_epsilon_whatever_edges_do_with_their_sums(tmp_path: Path) -> None:
    plain = {"name": "hierarchical", "edges": [4, 2]}
    blocks = [
        atoll.run({**GIVEN, "rounds": 2, "transform": NOISE, "round": x}, tmp_path / str(i)).info["privacy"]["client"]
        for i, x in enumerate((plain, {**plain, "level_transforms": [["sign"], []]}))
    ]
    assert blocks[0]["epsilon"] == blocks[1]["epsilon"]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([NOISE], r"level_transforms: has 1 lists, and there are 2 levels of edges. Give one for .*\[\[\], \[\]\]"),
        ([[], [], []], r"level_transforms: has 3 lists, and there are 2 levels"),
        (["top_k"], r"level_transforms: must be a list of lists \(got \"top_k\"\)"),
        ([[], [{"name": "top_q"}]], r"level_transforms\.1\.0\.name: 'top_q' is not known"),
        ([[], [{"name": "top_k", "share": 2}]], r"level_transforms\.1\.0\.share: must be"),
        ([NOISE[2:], []], r"level_transforms\.0: gaussian_noise needs .* Clients are the edges of level 1 here"),
        ([["secure_sum"], []], r"level_transforms\.0: secure_sum works on integers: put fixed_point before it"),
        (
            [[*NOISE[:2], {"name": "gaussian_noise", "epsilon": 2.0, "delta": 1e-5}], []],
            r"level_transforms\.0: .*use noise_multiplier",
        ),
        (
            [[{"name": "clip_l2", "max_norm": {"name": "cosine", "start": 1.0, "over": 9}}], []],
            r"level_transforms\.0: schedules are followed by \[\[transform\]\] alone",
        ),
    ],
)  # fmt: skip
def test_what_cannot_hold_is_refused_with_advice(lists: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, SpecError), match=message):
        atoll.run({**GIVEN, "round": {**EACH, "level_transforms": lists}}, tmp_path / "a")


def test_lists_for_all_levels_and_for_each_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"round\.transform: is for all levels"):
        atoll.run({**GIVEN, "round": {**EACH, "transform": ["half"]}}, tmp_path / "a")
