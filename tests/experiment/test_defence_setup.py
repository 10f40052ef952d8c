"""Reducers in reducers, cohorts that are too small, and a server that holds data of its own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import atoll
from atoll import tree
from atoll.core import Stack, Total
from atoll.data import Partition
from atoll.errors import ConfigError, SpecError
from atoll.experiment import Experiment, set_up
from atoll.experiment.defence_setup import with_root
from atoll.experiment.listing import describe
from atoll.reducers import REDUCERS, FLTrust, FoolsGold, Krum, NearestNeighbourMixing
from atoll.tree import Tree

BASE: dict[str, Any] = {
    "rounds": 1,
    "data": "digits",
    "partition": {"name": "iid", "clients": 9},
    "algorithm": {"name": "fedavg", "lr": 0.1},
}
SEEN: list[tuple[Stack, Tree]] = []


class Spy(FLTrust):
    """Keeps what it is given."""

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        own = tree.map(torch.clone, partial.updates.value)  # engines use their memory again
        SEEN.append((replace(partial, updates=partial.updates._replace(value=own)), state["root"]))
        return super().finish(partial, state, key)


class SpyWithoutRoot(Spy):
    def needs_root(self) -> bool:
        return False


def parsed(**more: Any) -> Experiment:
    return Experiment.parse({**BASE, **more})


def test_a_reducer_in_a_reducer_is_built_with_its_options_and_what_the_program_gives() -> None:
    inner = {"name": "bucketing", "inner": {"name": "foolsgold", "layers": ["w"]}}
    setup = set_up(parsed(reducer={"name": "nnm", "byzantine": 2, "inner": inner}), "cpu")
    assert isinstance(setup.reducer, NearestNeighbourMixing)
    assert setup.reducer.inner.inner == FoolsGold(population=9, layers=["w"])
    assert setup.experiment.reducer["inner"]["size"] == 2  # defaults are written out
    plain = set_up(parsed(reducer={"name": "nnm", "inner": "krum"}), "cpu")
    assert plain.reducer == NearestNeighbourMixing(Krum(1), 1)


@pytest.mark.parametrize(
    ("reducer", "words"),
    [
        ({"name": "krum", "byzantine": 4}, r"reducer\.byzantine: 4 of 9 clients are too many: .*byzantine = 3 or less"),
        ({"name": "nnm", "inner": {"name": "krum", "byzantine": 4}}, r"reducer\.inner\.byzantine: 4 of 9"),
        ({"name": "nnm", "inner": {"name": "krom"}}, r"reducer\.inner\.name: .*krum"),
        ({"name": "nnm"}, r"reducer\.inner"),
        ({"name": "krum", "byzantine": -1}, r"reducer\.byzantine: must be at least 0"),
        ("fltrust", r"'fltrust' compares updates to one .* such as server\.root = 0\.01"),
        ({"name": "bucketing", "inner": "zeno"}, r"server\.root = 0\.01"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_round(reducer: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        set_up(parsed(reducer=reducer), "cpu")


def test_a_cohort_whose_size_is_drawn_is_not_refused() -> None:
    cohort = {"name": "poisson", "probability": 0.5}
    assert set_up(parsed(reducer={"name": "krum", "byzantine": 4}, cohort=cohort), "cpu").reducer == Krum(4)
    with pytest.raises(ConfigError, match="1 of 4 clients are too many"):
        set_up(parsed(reducer="krum", cohort={"name": "fixed", "size": 4}), "cpu")


@pytest.mark.parametrize("name", sorted({*REDUCERS} - {"mean", "client_weights", "nnm", "arc", "bucketing"}))
def test_under_secure_sums_a_defence_is_refused_with_the_reason(name: str) -> None:
    entry = {"name": name, **({"max_norm": 1.0} if name == "norm_clipping" else {})}
    entry |= {"radius": 1.0} if name == "centred_clipping" else {}
    secure = {"protocol": "additive", "fixed_point": {"range": 1.0}}
    with pytest.raises(SpecError, match=f"'{name}' looks at every update, and with .secure. the server learns only"):
        set_up(parsed(reducer=entry, secure=secure), "cpu")


def test_the_server_holds_its_share_of_the_rows_and_is_in_no_cohort() -> None:
    plain = set_up(parsed(), "cpu")
    setup = set_up(parsed(reducer="fltrust", server={"root": 0.1}, cohort={"name": "fixed", "size": 9}), "cpu")
    assert (plain.population.size, setup.population.size) == (9, 10)
    root = set(setup.partition.of(9).tolist())
    assert len(root) == pytest.approx(0.1 * len(plain.partition.indices), abs=9)
    for i in range(9):
        assert set(setup.partition.of(i).tolist()) == set(plain.partition.of(i).tolist()) - root
    ids, how = setup.sampler.sample(setup.population.size, 0, torch.tensor([1, 2]))
    assert sorted(ids.tolist()) == list(range(9))
    assert how.population == 9


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"reducer": "median"}, "has no use for it"),
        ({"reducer": "fltrust", "algorithm": {"name": "centralised", "lr": 0.1}}, "pools all data"),
    ],
)
def test_data_of_the_server_that_nobody_uses_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        set_up(parsed(server={"root": 0.1}, **more), "cpu")


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_the_servers_update_is_what_a_client_with_its_rows_would_send(engine: str) -> None:
    x, y = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)).numpy(), torch.arange(60).numpy() % 2
    net = torch.nn.Linear(3, 2)
    table: dict[str, Any] = {"algorithm": {"name": "fedavg", "lr": 0.1}, "rounds": 2, "engine": engine}
    where = "tests.experiment.test_defence_setup:"
    parts = {name: range(20 * i, 20 * i + 20) for i, name in enumerate("abc")}
    clients = {name: list(rows) for name, rows in parts.items()}
    SEEN.clear()
    atoll.simulate(net, (x, y), clients=clients, reducer=f"{where}Spy", server={"root": 0.2}, **table)
    (first, root), (_, later) = SEEN
    assert len(first) == 3
    partition = with_root(parsed(server={"root": 0.2}), Partition.from_lists([*clients.values()]))
    given = {str(i): partition.of(i).tolist() for i in range(4)}
    SEEN.clear()
    atoll.simulate(net, (x, y), clients=given, reducer=f"{where}SpyWithoutRoot", **table)
    by_hand = tree.rows(SEEN[0][0].updates.value, 3)
    assert tree.map(torch.allclose, root, by_hand) == tree.map(lambda _: True, root)
    assert tree.digest(later) != tree.digest(root)


def test_the_record_says_whom_a_defence_believed(tmp_path: Path) -> None:
    atoll.run(parsed(rounds=2, reducer={"name": "multi_krum", "byzantine": 3}), out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "record.jsonl").read_text().splitlines()]
    for line in lines:
        said = line["diagnostics"]
        assert said["clients"] == list(range(9))
        assert len(said["chosen"]) == 6
        assert [said["clients"][i] for i, w in enumerate(said["weights"]) if w > 0] == said["chosen"]


def test_the_list_shows_what_a_defence_assumes() -> None:
    lines = {item.name: item.lines() for item in describe("reducers")}
    for name, builder in REDUCERS.items():
        if name not in ("mean", "client_weights"):
            assert lines[name][0] == f"Assumes: {builder.assumes}."
            assert builder.assumes
    assert lines["mean"] == []
