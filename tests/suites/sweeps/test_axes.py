"""From a [sweep] table to cells: the product, its names, its digests, and what is refused."""

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError
from atoll.experiment import Experiment, load
from atoll.suites.sweeps import SweepCell, expand, plan, stackable
from atoll.suites.sweeps.stacking import halved

BASE: dict[str, Any] = {
    "rounds": 5,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
    "algorithm": {"name": "fedprox", "lr": 0.1, "mu": 0.1},
}


def cells(sweep: Any, **changes: Any) -> list[SweepCell]:
    return expand({**BASE, **changes, "sweep": sweep})


def names(sweep: Any, **changes: Any) -> list[str]:
    return [cell.name for cell in cells(sweep, **changes)]


def refused(sweep: Any, **changes: Any) -> list[str]:
    with pytest.raises(ConfigError) as e:
        cells(sweep, **changes)
    return e.value.problems


# ------------------------------------------------------------------------------------------------------ the product


def test_cells_are_the_product_of_the_axes_the_last_fastest_and_seeds_last_of_all() -> None:
    found = cells({"seeds": 2, "algorithm.mu": [0.1, 0.2], "rounds": [3, 4]})
    assert [cell.coordinates for cell in found] == [
        {"algorithm.mu": mu, "rounds": rounds, "seed": seed}
        for mu, rounds, seed in itertools.product([0.1, 0.2], [3, 4], [0, 1])
    ]
    assert [cell.name for cell in found][:3] == [
        "mu=0.1,rounds=3,seed=0",
        "mu=0.1,rounds=3,seed=1",
        "mu=0.1,rounds=4,seed=0",
    ]


def test_a_cell_is_a_complete_experiment_with_its_digest() -> None:
    for cell in cells({"algorithm.mu": [0.2, 0.3], "seeds": [7]}):
        by_hand = copy.deepcopy(BASE)
        by_hand["algorithm"]["mu"] = cell.coordinates["algorithm.mu"]
        assert cell.experiment == Experiment.parse({**by_hand, "seed": 7})
        assert cell.digest == cell.experiment.digest()
        assert cell.experiment.complete()["local"]["batch"] == 32


def test_seeds_count_from_the_seed_of_the_file_or_are_listed() -> None:
    assert [c.experiment.seed for c in cells({"seeds": 3}, seed=5)] == [5, 6, 7]
    assert [c.experiment.seed for c in cells({"seeds": [0, 7]}, seed=5)] == [0, 7]
    assert [c.experiment.seed for c in cells({"seed": [4, 2]})] == [4, 2]


def test_a_whole_table_is_replaced_and_then_keys_inside_of_it() -> None:
    tables = ["fedavg", {"name": "fedprox", "mu": 1.0}]
    found = cells({"algorithm.lr": [0.5, 0.2], "algorithm": tables})
    assert [(c.experiment.algorithm["name"], c.experiment.algorithm["lr"]) for c in found] == [
        ("fedavg", 0.5),
        ("fedprox", 0.5),
        ("fedavg", 0.2),
        ("fedprox", 0.2),
    ]
    assert "mu" not in found[0].experiment.algorithm  # nothing of the file's own table is left
    assert tables == ["fedavg", {"name": "fedprox", "mu": 1.0}]  # what was given is as it was


def test_axes_may_count_into_lists() -> None:
    clip = [{"name": "clip_l2", "max_norm": 1.0}]
    found = cells({"transform.0.max_norm": [0.5, 2.0]}, transform=clip)
    assert [c.experiment.transform[0]["max_norm"] for c in found] == [0.5, 2.0]
    assert clip == [{"name": "clip_l2", "max_norm": 1.0}]


def test_an_axis_may_be_written_without_quotes() -> None:
    assert cells({"algorithm": {"mu": [0.1, 0.2]}}) == cells({"algorithm.mu": [0.1, 0.2]})


@pytest.mark.parametrize(
    ("sweep", "expected"),
    [
        ({"algorithm.lr": [0.1, {"name": "cosine", "start": 0.1, "over": 5}]}, ["lr=0.1", "lr=cosine"]),
        ({"algorithm": ["fedavg", "local"], "algorithm.lr": [0.1]}, ["fedavg,lr=0.1", "local,lr=0.1"]),
        (
            {"partition": [{"name": "iid", "clients": 3}, {"name": "iid", "clients": 4}]},
            ["iid,clients=3", "iid,clients=4"],
        ),
        ({"transform": [[], [{"name": "clip_l2", "max_norm": 1.0}, "equal_weights"]]}, ["transform=none",
                                                                                     "clip_l2+equal_weights"]),
        ({"transform": [[{"name": "clip_l2", "max_norm": b}] for b in (1.0, 2.0)]}, ["clip_l2~1", "clip_l2~2"]),
        ({"evaluate.batch": [8], "local.batch": [8, 16]}, ["evaluate.batch=8,local.batch=8",
                                                           "evaluate.batch=8,local.batch=16"]),
        ({"label": ["../../a b/c", "a:b"]}, ["label=..-..-a-b-c", "label=a-b"]),
        ({"local.shuffle": [True, False]}, ["shuffle=yes", "shuffle=no"]),
        ({"label": ["x" * 300, "x" * 301]}, ["label=" + "x" * 74, "label=" + "x" * 74 + "~2"]),
        ({"label": ["..", "-"]}, ["label=", "label=~2"]),
    ],
)  # fmt: skip
def test_names_are_short_readable_unique_and_fit_for_a_folder(sweep: Any, expected: list[str]) -> None:
    assert names(sweep) == expected


def test_cells_that_are_the_same_experiment_are_one() -> None:
    assert names({"seeds": [0, 0, 7]}) == ["seed=0", "seed=7"]
    assert names({"algorithm.mu": [1, 1.0, 2]}) == ["mu=1", "mu=2"]
    assert (
        len(cells({"algorithm": [{"name": "fedavg", "lr": 0.1}, {"name": "fedavg", "lr": 0.1, "server_lr": 1}]})) == 1
    )


AXES = {
    "algorithm.mu": st.sampled_from([0, 0.0, 0.1, 1, 1.0]),
    "algorithm.optimizer": st.sampled_from(["sgd", {"name": "sgd"}, {"name": "sgd", "momentum": 0.9}, "adam"]),
    "partition": st.sampled_from([{"name": "iid", "clients": 4}, BASE["partition"], {**BASE["partition"], "alpha": 1}]),
    "local.batch": st.integers(0, 2),
    "seed": st.integers(0, 3),
    "rounds": st.integers(1, 3),
}


@given(st.data())
def test_digests_and_names_are_unique_and_every_combination_is_there(data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(AXES)), min_size=1, max_size=3, unique=True))
    sweep = {axis: data.draw(st.lists(AXES[axis], min_size=1, max_size=3)) for axis in chosen}
    found = cells(sweep)
    wholes = [json.dumps(cell.experiment.complete(), sort_keys=True) for cell in found]
    assert len(set(wholes)) == len({c.digest for c in found}) == len({c.name for c in found}) == len(found)
    for values in itertools.product(*sweep.values()):  # by another way: one axis after the other
        raw = copy.deepcopy(BASE)
        for axis, value in zip(sweep, values, strict=True):
            outer, _, inner = axis.partition(".")
            if inner:
                raw[outer] = {**raw.get(outer, {}), inner: value}
            else:
                raw[outer] = value
        assert Experiment.parse(raw).digest() in {c.digest for c in found}
    assert [(c.name, c.digest) for c in cells(sweep)] == [(c.name, c.digest) for c in found]


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({"algoritm.mu": [1]}, "sweep.algoritm.mu: is not an option of an experiment. Did you mean algorithm?"),
        ({"mu": [1.0]}, 'sweep.mu: is not an option of an experiment. Did you mean "algorithm.mu"?'),
        ({"batch": [1]}, 'sweep.batch: is not an option of an experiment. Did you mean "local.batch"?'),
        ({"stak": False}, "sweep.stak: is not an option of an experiment. Did you mean stack?"),
        ({"local.bach": [1]}, "sweep.local.bach: is not an option of local. Did you mean batch?"),
        ({"algorithm.muu": [1]}, "algorithm.muu: is not an option of fedprox. Did you mean mu?"),
        ({"algorithm.mu": 0.1}, "sweep.algorithm.mu: must be a list of values (got 0.1). Write [0.1]. For all cells"),
        ({"seed": 3}, "sweep.seed: must be a list of values (got 3). Write [3]. For several seeds write seeds = 3."),
        ({"algorithm.mu": []}, "sweep.algorithm.mu: is an empty list, which leaves no cell. Give it a value, or leave"),
        ({"algorithm..mu": [1]}, "sweep.algorithm..mu: must be a path of keys with points between. Example:"),
        ({"rounds.x": [1]}, "sweep.rounds.x: rounds is 5, not a table. Set rounds itself."),
        ({"transform.1.max_norm": [1]}, "sweep.transform.1.max_norm: there is no transform.1, the list has 0 items."),
        (
            {"seeds": 0},
            "sweep.seeds: must be a whole number >= 1 or list of at least 1 whole numbers >= 0 (got 0). Exa",
        ),
        ({"seeds": []}, "sweep.seeds: must be"),
        ({"seeds": [0, -1]}, "sweep.seeds: must be"),
        ({"seeds": True}, "sweep.seeds: must be"),
        ({"seeds": 2, "seed": [1]}, "sweep.seed: is an axis, and seeds is given as well. Keep one:"),
        ({"stack": "no", "seeds": 2}, 'sweep.stack: must be true or false (got "no").'),
        ({"resources": {"gpu": 1}, "seeds": 2}, "sweep.resources.gpu: is not an option of sweep.resources. Did you"),
        ({"resources": {"gpus": -1}, "seeds": 2}, "sweep.resources.gpus: must be at least 0 (got -1)."),
        ({}, "sweep: has no axis, so there is one cell: use atoll run."),
        ({"stack": False}, "sweep: has no axis, so there is one cell: use atoll run."),
        (3, "sweep: must be a table (got 3)."),
        (
            {"algorithm": [{"name": "fedavg", "lr": 0.1}], "algorithm.lr": [0.1]},
            "sweep.algorithm: value 1 sets lr, and so does the axis algorithm.lr. Keep one of them.",
        ),
        (
            {"algorithm": ["fedavg"], "algorithm.name": ["fedavg"]},
            "sweep.algorithm: value 1 sets name, and so does the axis algorithm.name. Keep one of them.",
        ),
        (
            {"algorithm": {"mu": [1.0]}, "algorithm.mu": [2.0]},
            "sweep.algorithm.mu: is there twice, with and without quotes. Put its values into one list.",
        ),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused_with_advice(sweep: Any, words: str) -> None:
    (problem,) = refused(sweep)
    assert problem.startswith(words)


def test_all_problems_of_all_cells_are_listed_with_their_cells() -> None:
    found = refused({"algorithm.mu": [0.1, -1], "local.batch": [8, -8], "seeds": 2}, algorithm="fedprox")
    assert found == [
        "algorithm.lr: is missing; fedprox needs it. Example: lr = 0.1",  # in every cell
        "cells mu=0.1,batch=-8,seed=0; mu=0.1,batch=-8,seed=1; mu=-1,batch=-8,seed=0; mu=-1,batch=-8,seed=1: "
        "local.batch: must be at least 0 (got -8). 0 means all examples of the client at once.",
        "cells mu=-1,batch=8,seed=0; mu=-1,batch=8,seed=1; mu=-1,batch=-8,seed=0; mu=-1,batch=-8,seed=1: "
        "algorithm.mu: must be at least 0 (got -1).",
    ]
    (many,) = refused({"algorithm.mu": [-1, 1], "seeds": 9})
    assert many.startswith("cells mu=-1,seed=0; mu=-1,seed=1; mu=-1,seed=2 and 6 more: algorithm.mu: must be")
    (one,) = refused({"algorithm": ["fedavg", {"name": "fedavg", "lr": 1}]})
    assert one == "cell fedavg: algorithm.lr: is missing; fedavg needs it. Example: lr = 0.1"


@pytest.mark.parametrize("axis", ['"algorithm.mu" = [5]', "algorithm.mu = [5]", "algorithm = { mu = [5], lr = [1] }"])
def test_an_axis_is_replaced_from_the_command_line_however_it_was_written(tmp_path: Path, axis: str) -> None:
    file = tmp_path / "e.toml"
    file.write_text(f"{Experiment.parse(BASE).to_toml()}\n[sweep]\n{axis}\n")
    found = plan(file, ["sweep.algorithm.mu=[1, 2]"]).cells
    assert [cell.coordinates["algorithm.mu"] for cell in found] == [1, 2]


def test_a_sweep_is_not_a_run_and_a_run_is_not_a_sweep(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(Experiment.parse(BASE).to_toml() + "\n[sweep]\nseeds = 3\n")
    assert len(plan(file).cells) == 3
    changed = ["sweep.seeds=2", "sweep.algorithm.mu=[0.1, 0.2]", "sweep.resources.cpus=2", "rounds=7"]
    assert len(plan(file, changed).cells) == 4
    assert plan(file, changed).table.resources.cpus == 2
    assert {cell.experiment.rounds for cell in plan(file, changed).cells} == {7}
    with pytest.raises(ConfigError, match=r"this file has a \[sweep\] table: use atoll sweep"):
        load(file)
    file.write_text(Experiment.parse(BASE).to_toml())
    with pytest.raises(ConfigError, match=r"e.toml: has no \[sweep\] table. For a single run use: atoll run .*e.toml"):
        plan(file)
    with pytest.raises(ConfigError, match=r"sweep: there is no \[sweep\] table"):
        expand(BASE)


# ----------------------------------------------------------------------------------------------------------- stacks


def stacks(sweep: Any, **changes: Any) -> list[int]:
    return [len(group) for group in stackable(cells(sweep, **changes))]


CLIP = [{"name": "clip_l2", "max_norm": 1.0}]
SGD = {"name": "fedavg", "lr": 0.1, "optimizer": "sgd"}


@pytest.mark.parametrize(
    ("sweep", "changes"),
    [
        ({"seeds": 3}, {}),
        ({"algorithm.mu": [0.0, 0.1], "algorithm.lr": [0.1, {"name": "cosine", "start": 0.1, "over": 5}]}, {}),
        ({"algorithm.server_lr": [0.5, 1.0]}, {"engine": "vector"}),
        ({"algorithm.server_lr": [0.5, 1.0]}, {"algorithm": {"name": "fedadam", "lr": 0.1}}),  # built by a function
        ({"algorithm.lr": [0.5, 1.0]}, {"algorithm": {"name": "scaffold", "lr": 0.1}}),
        ({"algorithm.optimizer.momentum": [0.5, 0.9]}, {"algorithm": SGD}),
        ({"algorithm.optimizer": [{"name": "adam", "b1": b} for b in (0.8, 0.9)]}, {}),
        ({"transform.0.max_norm": [0.5, 1.0]}, {"transform": CLIP}),
        ({"algorithm.mu": [0.1, 1.0]}, {"partition": {"name": "noise", "clients": 4, "level": 0.1}}),
    ],
)
def test_cells_that_differ_in_numbers_are_one_stack(sweep: Any, changes: dict[str, Any]) -> None:
    assert stacks(sweep, **changes) == [len(cells(sweep, **changes))]


@pytest.mark.parametrize(
    ("sweep", "changes"),
    [
        ({"local.batch": [8, 16]}, {}),
        ({"local.epochs": [1, 2]}, {}),
        ({"rounds": [3, 4]}, {}),
        ({"partition.alpha": [0.1, 1.0]}, {}),
        ({"algorithm": [{"name": "fedavg", "lr": 0.1}, {"name": "fedprox", "lr": 0.1, "mu": 0.1}]}, {}),
        ({"algorithm.optimizer.momentum": [0.0, 0.9]}, {"algorithm": SGD}),  # with a buffer and without one
        ({"algorithm.optimizer.weight_decay": [0.0, 0.1]}, {"algorithm": SGD}),
        ({"algorithm.optimizer": ["sgd", "adam"]}, {}),
        ({"transform.0.share": [0.5, 1.0]}, {"transform": [{"name": "top_k", "share": 0.1}]}),  # a number of entries
        ({"transform": [[], CLIP]}, {}),
        ({"seeds": 2}, {"engine": "loop"}),
        ({"seeds": 2}, {"engine": "threads"}),
        ({"seeds": 2}, {"partition": {"name": "noise", "clients": 4, "level": 0.1}}),
        (
            {"seeds": 2},
            {"partition": {"name": "compose", "of": [{"name": "iid", "clients": 4}, {"name": "noise", "level": 0.1}]}},
        ),
        ({"data.seed": [0, 1]}, {"data": "fcube"}),
        ({"data": ["digits", "breast_cancer"]}, {}),
    ],
)
def test_cells_that_differ_in_more_are_not(sweep: Any, changes: dict[str, Any]) -> None:
    assert stacks(sweep, **changes) == [1] * len(cells(sweep, **changes))


def test_stacks_keep_the_order_of_their_cells() -> None:
    found = stackable(cells({"local.batch": [8, 16], "algorithm.mu": [0.1, 0.2]}))
    assert [[c.name for c in group] for group in found] == [
        ["batch=8,mu=0.1", "batch=8,mu=0.2"],
        ["batch=16,mu=0.1", "batch=16,mu=0.2"],
    ]


@pytest.mark.parametrize(("workers", "sizes"), [(1, [5]), (2, [3, 2]), (4, [1, 1, 2, 1]), (9, [1] * 5)])
def test_a_stack_is_cut_until_every_worker_has_a_task(workers: int, sizes: list[int]) -> None:
    whole = stackable(cells({"seeds": 5}))
    cut = halved(whole, workers)
    assert sorted(map(len, cut)) == sorted(sizes)
    assert sorted(c.name for group in cut for c in group) == sorted(c.name for c in whole[0])
    assert halved([], 3) == []


def test_a_stack_that_would_outlast_the_others_is_cut_too() -> None:
    found = cells({"algorithm.lr": [0.1, 0.2, 0.3], "seeds": 7})
    cut = halved([found[:3], found[3:]], 2)
    assert [len(group) for group in cut] == [3, 9, 9]
    assert [len(group) for group in halved([found[:10], found[10:]], 2)] == [10, 11]
    assert [len(group) for group in halved([found], 1)] == [21]


def test_across_partitions_those_with_as_many_clients_are_one_stack() -> None:
    even, skewed = {"name": "iid", "clients": 4}, {"name": "dirichlet", "clients": 4, "alpha": 0.5}
    noisy, larger = {"name": "noise", "clients": 4, "level": 0.1}, {"name": "iid", "clients": 5}
    found = cells({"partition": [even, skewed, noisy, larger], "seeds": 2})
    assert [len(group) for group in stackable(found)] == [2, 2, 1, 1, 2]
    assert [len(group) for group in stackable(found, across=True)] == [4, 1, 1, 2]


def test_a_stack_across_partitions_is_cut_in_pieces_of_nearly_equal_length() -> None:
    found = cells({"partition.alpha": [0.1, 1.0], "seeds": 25})
    pieces = stackable(found, across=True)
    assert [len(piece) for piece in pieces] == [17, 17, 16]
    assert [cell for piece in pieces for cell in piece] == found
