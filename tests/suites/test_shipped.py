"""The suites that come with the package: every cell is an experiment, and every published one is met or excused."""

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import atoll
from atoll.experiment import Experiment, set_up
from atoll.records.published import published_figure, published_table, published_tables
from atoll.rounds import ROUNDS
from atoll.suites import expand, read
from tests.support.marks import slow_but
from tests.support.other_models import OTHER_MODELS

FOLDER = resources.files("atoll") / "suites" / "shipped"
SUITES = sorted(f.name.removesuffix(".toml") for f in FOLDER.iterdir() if f.name.endswith(".toml"))
SIZES = ("full", "smoke")
ALWAYS_THERE = ("digits", "synthetic", "fcube")
ABOUT_A_VALUE = ("grid", "published_grid", "quirk", "stands_for", "trials", "why", "let")


class Place(NamedTuple):
    block: str
    path: dict[str, str]
    base: dict[str, Any]
    last: dict[str, Any]  # the table of the value on the last axis
    stands_for: str

    @property
    def name(self) -> str:
        return "/".join(self.path.values())


@cache
def suite(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text())


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables key by key; a table of another name replaces what was there."""
    return {**below, **{k: _joined(below.get(k), v) for k, v in above.items()}}


def _joined(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) and not isinstance(new, dict):
        return new
    old, new = ({"name": x} if isinstance(x, str) else x for x in (old, new))
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return new if "name" in old and new.get("name", old["name"]) != old["name"] else merged(old, new)


@cache
def places(name: str, size: str = "full") -> list[Place]:
    found = suite(name)
    changes = found.get("size", {}).get(size, {})
    blocks = [b for b in found["block"] if b["name"] in changes.get("blocks", [b["name"]])]
    made = [place for block in blocks for place in _products(found, block, changes.get("base", {}))]
    only = changes.get("only", ["*"])
    for pattern in only:
        assert any(fnmatchcase(p.name, pattern) for p in made), f"{name}, {size}: {pattern} matches nothing"
    return [p for p in made if any(fnmatchcase(p.name, pattern) for pattern in only)]


def _products(found: dict[str, Any], block: dict[str, Any], last: dict[str, Any]) -> Iterator[Place]:
    values, axes = found["value"], found["axes"]
    for pick in itertools.product(*(block.get(axis, list(values[axis])) for axis in axes)):
        base = merged(found["base"], block.get("base", {}))
        tables = [values[axis][value] for axis, value in zip(axes, pick, strict=True)]
        for one in tables:
            base = merged(base, {k: v for k, v in one.items() if k not in ABOUT_A_VALUE})
        base = filled(base, {k: number for one in tables for k, number in one.get("let", {}).items()})
        stands_for = "/".join(one.get("stands_for", value) for one, value in zip(tables, pick, strict=True))
        yield Place(block["name"], dict(zip(axes, pick, strict=True)), merged(base, last), tables[-1], stands_for)


def filled(part: Any, numbers: Mapping[str, Any]) -> Any:
    """Numbers in place of the words that name them."""
    if isinstance(part, dict):
        return {k: filled(v, numbers) for k, v in part.items()}
    return numbers[part[1:]] if isinstance(part, str) and part.startswith("$") else part


def put(base: dict[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    for key in reversed(dotted.split(".")):
        value = {key: value}
    return merged(base, value)


def get(base: Mapping[str, Any], dotted: str) -> Any:
    for key in dotted.split("."):
        base = base[key]
    return base


def trials(place: Place) -> Iterator[dict[str, Any]]:
    for key in ("grid", "published_grid"):
        grid = place.last.get(key, {})
        for point in itertools.product(*grid.values()):
            yield dict(zip(grid, point, strict=True))


def test_all_suites_are_there() -> None:
    wanted = {"niid-bench", "pfl-cifar10", "fedml-linear", "oarf-horizontal", "shakespeare", "sixty-seconds"}
    private = {"pfl-cifar10-dp", "oarf-dp", "digits-dp"}
    traffic = {"oarf-communication", "oarf-hybrid", "fedeval-efficiency"}
    secure = {"oarf-secure", "fedeval-secure"}
    assert wanted | private | traffic | secure | {"faults", "byzantine-grid"} <= set(SUITES)
    assert {"fedml-decentralised", "async-against-sync", "personal", "beyond-the-star"} <= set(SUITES)


@pytest.mark.parametrize("size", slow_but(SIZES, "smoke"))
@pytest.mark.parametrize("name", SUITES)
def test_every_cell_with_every_setting_is_an_experiment(name: str, size: str) -> None:
    assert places(name, size)
    for place in places(name, size):
        for settings in ({}, *trials(place)):
            base = place.base
            for dotted, value in settings.items():
                base = put(base, dotted, value)
            Experiment.parse({**base, "seed": 1})


@pytest.mark.parametrize("name", SUITES)
def test_every_method_has_as_many_trials_the_usual_setting_first(name: str) -> None:
    found = suite(name)
    for place in places(name):
        grid = place.last.get("grid", {})
        points = list(itertools.product(*grid.values()))
        assert len(set(points)) == len(points) == (found["trials"] if found["trials"] > 1 else 1), place.name
        for dotted, values in grid.items():
            usual = Experiment.parse(place.base).complete()
            assert get(usual, dotted) == values[0], place.name


@pytest.mark.parametrize("name", SUITES)
def test_methods_of_a_row_have_the_same_data_and_clients(name: str) -> None:
    for size in SIZES:
        seen: dict[tuple[str, ...], Any] = {}
        for place in places(name, size):
            e = Experiment.parse(place.base)
            row = (place.block, *list(place.path.values())[:-1])
            assert seen.setdefault(row, (e.data, e.partition, e.task, e.rounds)) == (
                e.data,
                e.partition,
                e.task,
                e.rounds,
            )


@pytest.mark.parametrize("name", [n for n in SUITES if suite(n).get("reference")])
def test_every_published_cell_is_run_or_excused(name: str) -> None:
    found = suite(name)
    excuses = {m["cells"]: m["why"] for m in found["missing"]}
    apart = {b["name"] for b in found["block"] if b.get("reference") == ""}
    names = {n for place in places(name) if place.block not in apart for n in (place.stands_for, place.name)}
    run = [dict(zip(found["axes"], n.split("/"), strict=True)) for n in names]
    used = set()
    for entry in published_table(found["reference"]).entries:
        if entry.metric == found["metric"]:
            published = "/".join(entry.at.get(axis, "*") for axis in found["axes"])
            matching = {pattern for pattern in excuses if fnmatchcase(published, pattern)}
            assert any(entry.at.items() <= path.items() for path in run) != bool(matching), published
            used |= matching
    assert used == set(excuses), "an excuse for nothing"


@pytest.mark.parametrize(
    ("name", "blocks", "without"),
    [
        ("niid-bench", ("fcube", "tabular", "pictures"), 5),  # four cells are illegible, SCAFFOLD's stands there twice
        ("pfl-cifar10", ("cifar10",), 4),  # SCAFFOLD was not run IID; right and scrambled, right and as published
        ("oarf-horizontal", ("algorithms",), 0),
        ("pfl-cifar10-dp", ("cifar10",), 16),  # banded noise was published for FedAvg alone, SCAFFOLD not IID
        ("oarf-dp", ("privacy",), 11),  # two of six budgets have numbers, for the pictures alone
        ("oarf-communication", ("compression",), 9),  # reviews are others'; packed positions and full feedback are ours
        ("fedeval-efficiency", ("mnist",), 0),
        ("oarf-secure", ("classification",), 3),  # of secret sharing rounds, seconds and overheads are published
    ],
)
def test_labels_are_those_of_the_published_table(name: str, blocks: tuple[str, ...], without: int) -> None:
    found = suite(name)
    cells = [p for p in places(name) if p.block in blocks]
    paths = [dict(zip(p.path, p.stands_for.split("/"), strict=True)) for p in cells]
    missed = [p for p in paths if published_figure(found["reference"], p, found["metric"]) is None]
    assert len(missed) == without


def test_the_studies_of_niid_bench_are_not_compared_with_its_table() -> None:
    studies = [p for p in places("niid-bench") if p.block in ("parties", "epochs", "batches", "models")]
    assert studies
    assert all(published_figure("niid_bench_table3", dict(p.path)) is None for p in studies)


@pytest.mark.parametrize("name", SUITES)
def test_a_quirk_stands_for_a_value_beside_it_and_says_what_is_wrong(name: str) -> None:
    for values in suite(name)["value"].values():
        for value in values.values():
            assert ("quirk" in value) == ("stands_for" in value)
            assert value.get("stands_for", next(iter(values))) in values


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_says_what_it_is(name: str) -> None:
    found = suite(name)
    assert found["title"]
    assert len(found["about"]) > 50
    assert found.get("reference") in {None, *published_tables()}
    assert found["tuning"] in ("validation", "paper", "none")
    assert not any(set("/*?") & set(value) for values in found["value"].values() for value in values)
    assert len({b["name"] for b in found["block"]}) == len(found["block"])


def test_niid_bench_has_the_published_settings() -> None:
    cells = {p.name: Experiment.parse(p.base) for p in places("niid-bench") if p.block != "parties"}
    usual = cells["fmnist/dirichlet(0.5)/fedavg"]
    assert (usual.rounds, usual.local.epochs, usual.local.batch, usual.cohort) == (50, 10, 64, {"name": "everyone"})
    assert usual.partition == {**usual.partition, "clients": 10, "alpha": 0.5, "profile": "niid-bench"}  # type: ignore[dict-item]
    assert usual.algorithm["lr"] == 0.01
    assert usual.algorithm["optimizer"] == {
        "name": "sgd",
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 1e-5,
    }
    assert [cells[f"fcube/{p}/fedavg"].partition["clients"] for p in ("iid", "synthetic")] == [4, 4]  # type: ignore[index]
    assert cells["mnist/iid/fedavg"].partition == {"name": "iid", "clients": 10}
    parties = [Experiment.parse(p.base) for p in places("niid-bench") if p.block == "parties"]
    assert {(e.rounds, e.cohort["share"], e.partition["clients"]) for e in parties} == {(500, 0.1, 100)}  # type: ignore[index]


def offline() -> list[Any]:
    """One cell of each set that is always there, for every suite and size."""
    found = {}
    for name, size in itertools.product(SUITES, SIZES):
        for place in places(name, size):
            data = place.base["data"] if isinstance(place.base["data"], str) else place.base["data"]["name"]
            if data in ALWAYS_THERE:
                found[name, size, data, place.path.get("partition", "")] = place
    marks = {size: pytest.mark.slow if size == "full" else () for size in SIZES}
    return [pytest.param(place, id="-".join(key), marks=marks[key[1]]) for key, place in found.items()]


@pytest.mark.parametrize("place", offline())
def test_data_model_and_clients_go_together(place: Place) -> None:
    made = set_up(Experiment.parse(place.base), "cpu")
    assert made.partition.size >= 4


RUN = [
    ("niid-bench", "fcube/synthetic/scaffold (as published)"),
    ("niid-bench", "fcube/iid/fedprox"),
    ("fedml-linear", "synthetic(1,1)/fedadam"),
    ("fedml-decentralised", "digits, mlp/torus/choco, top 10 %"),
    ("sixty-seconds", "noise(0.5)/moon"),
    ("sixty-seconds", "dirichlet(0.1)/feddyn"),
]


@pytest.mark.parametrize(("name", "cell"), RUN)
def test_two_rounds_of_a_cell_run_and_are_measured(name: str, cell: str, tmp_path: Path) -> None:
    place = next(p for p in places(name) if p.name == cell)
    quick = {"rounds": 2, "local": {"epochs": 1, "max_steps": 5}, "evaluate": {"every": 1}, "engine": "loop"}
    run = atoll.run(merged(place.base, quick), tmp_path / "run")
    assert 0 < run.history[-1][suite(name)["metric"]] <= 1


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("size", slow_but(SIZES, "smoke"))
def test_the_command_expands_a_suite_as_the_simple_merge_does(name: str, size: str) -> None:
    expanded = {p.key: p for p in expand.places(read(name).at(size))}
    simple = {(p.block, p.name): p for p in places(name, size)}
    assert list(expanded) == list(simple)
    for key, place in simple.items():
        ours = Experiment.parse({**expanded[key].base, "seed": 0})
        assert ours == Experiment.parse({**place.base, "seed": 0}), key
        assert (expanded[key].stands_for or expanded[key].name) == place.stands_for


def test_faults_asks_for_every_kind_of_fault_at_several_strengths() -> None:
    clocks = [Experiment.parse(p.base).clock for p in places("faults")]
    tables = [clock.model_dump(exclude_none=True) for clock in clocks if clock is not None]
    assert {t["dropout"] for t in tables if "dropout_correlation" in t} == {0, 0.2, 0.4, 0.6, 0.8}
    assert {t["dropout"] for t in tables if "dropout_by_labels" in t} == {0, 0.2, 0.4, 0.6, 0.8}
    assert len({t["deadline"] for t in tables if "deadline" in t}) == 5


def test_every_round_and_every_method_with_other_models_has_a_row_somewhere() -> None:
    files = [Experiment.parse(place.base) for name in SUITES for place in places(name)]
    assert set(ROUNDS) - {file.round["name"] for file in files} == set()
    named = {method["algorithm"]["name"] for method in OTHER_MODELS.values()} | {"mimelite"}
    assert named - {file.algorithm["name"] for file in files} == set()


def test_where_models_are_the_clients_own_some_clients_are_measured() -> None:
    """Else a cell has no accuracy at all: central metrics are the mean over clients' models."""
    partial = []
    for place in places("fedml-algorithms"):
        experiment = Experiment.parse(place.base)
        if set_up(experiment, device="cpu").algorithm.traits().partial:
            assert experiment.evaluate.clients != 0, place.name
            partial.append(place.name)
    assert partial == ["gkt/fedgkt", "gkt/no transfer"]
