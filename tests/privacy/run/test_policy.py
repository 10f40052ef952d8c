"""What would reach a private model past the noise: refused, or said to be public, or the run has no epsilon."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import atoll
from atoll import tree
from atoll.cli.check import estimate
from atoll.core import resolve
from atoll.data import Dataset
from atoll.data.formats import FILES
from atoll.errors import ConfigError, DivergenceError
from atoll.experiment import Experiment, set_up
from atoll.privacy import ACCOUNTANTS, Composed, Gaussian, Sampled
from atoll.privacy.run import plan_privacy
from atoll.schedules import Schedule

CLIP = {"name": "clip_l2", "max_norm": 0.5}
NOISE = {"name": "gaussian_noise", "noise_multiplier": 2.0}
BASE: dict[str, Any] = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "iid", "clients": 20},
    "cohort": {"name": "poisson", "size": 10},
    "algorithm": {"name": "fedavg", "lr": 0.2},
    "task": {"model": "linear"},
    "engine": {"name": "vector"},
    "evaluate": {"every": 1, "clients": 0},
    "transform": ["equal_weights", CLIP, NOISE],
}
PEOPLE = 8


def told(run: atoll.Run) -> dict[str, Any]:
    found: dict[str, Any] = run.info["privacy"]["client"]
    return found


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """Rows of eight people; those of the first are multiplied by `by`."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(PEOPLE * 6, 2, generator=draw)
    y = (x[:, 0] > 0).long()

    def write(by: float = 1.0, name: str = "people.csv", gap: bool = False) -> Path:
        lines = ["who,a,b,colour,y"]
        for i, ((a, b), label) in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
            scale = by if i < 6 else 1.0
            cell = "" if gap and i == 7 else f"{b * scale}"
            lines.append(f"{i // 6},{a * scale},{cell},{'red' if i % 3 else 'blue'},{label}")
        path = tmp_path / name
        path.write_text("\n".join(lines))
        return path

    return write


def of_file(path: Path, /, data: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    entry = {"name": "csv", "path": str(path), "label": "y", "client": "who", "test_share": 0.0, "exclude": ["colour"]}
    return {
        **BASE,
        "data": {**entry, **(data or {})},
        "partition": {"name": "natural", "by": "who"},
        "cohort": {"name": "poisson", "size": 4},
        **more,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "means and deviations of all training rows .* standardise = 'none'"),
        ({"exclude": ["a", "b"]}, "categories of all training rows .* exclude to the columns of text"),
        ({"standardise": "none", "missing": "mean"}, "means in place of missing values .* missing = 'zero' or 'drop'"),
    ],
    ids=["means", "categories", "fills"],
)
@pytest.mark.parametrize("where", ["transform", "local"])
def test_statistics_of_all_rows_in_a_file_are_refused(
    options: dict[str, Any], message: str, where: str, table: Callable[..., Path]
) -> None:
    path = table(gap="missing" in options)
    private: dict[str, Any] = {"transform": [], "local": {"privacy": {"max_norm": 1.0, "noise_multiplier": 1.0}}}
    with pytest.raises(ConfigError, match=message):
        set_up(Experiment.parse(of_file(path, options, **(private if where == "local" else {}))))


def test_statistics_may_be_said_to_be_public_and_the_report_says_so(table: Callable[..., Path], tmp_path: Path) -> None:
    run = atoll.run(of_file(table(), privacy={"public_statistics": True}), tmp_path / "run")
    assert told(run)["holds"]
    assert (
        "public: means and deviations of the training rows, with which examples were prepared" in told(run)["assumed"]
    )
    plain = {k: v for k, v in of_file(table()).items() if k != "transform"}
    assert "privacy" not in atoll.run(plain, tmp_path / "plain").info  # nobody is asked where nothing is promised


def own_table(path: str) -> Dataset:
    return replace(FILES["csv"](path=Path(path), label="y", client="who", exclude=("colour",)), name="own")


def test_data_of_ones_own_is_refused_as_files_are(table: Callable[..., Path]) -> None:
    data = {"name": f"{__name__}:own_table", "path": str(table())}
    with pytest.raises(
        ConfigError, match=r"means and deviations of all training rows .* Prepare the data beforehand, or"
    ):
        set_up(Experiment.parse({**of_file(table()), "data": data}))


def test_named_data_sets_say_what_they_were_prepared_with(tmp_path: Path) -> None:
    run = atoll.run({**BASE, "data": "breast_cancer"}, tmp_path / "cancer")
    assert any("public: means and deviations" in note for note in told(run)["assumed"])
    run = atoll.run(BASE, tmp_path / "digits")  # pixels by a constant
    assert not any("public" in note for note in told(run)["assumed"])


@pytest.mark.parametrize("seed", range(3))
def test_one_client_of_a_file_moves_the_sum_by_its_bound_and_no_more(
    seed: int, table: Callable[..., Path], tmp_path: Path
) -> None:
    models = []
    for name, by in (("same", 1.0), ("far", 1e4)):
        data = {"standardise": "none"}
        run = atoll.run(of_file(table(by, f"{name}.csv"), data, rounds=1, seed=seed), tmp_path / name)
        models.append(run.params)
    moved = float(tree.norm(tree.sub(*models))) * 4 / 0.5  # in bounds
    assert moved <= 2 * (1 + 1e-5)


@pytest.mark.parametrize(
    ("name", "options", "fitted"),
    [
        ("csv", {}, "means and deviations, categories"),
        ("csv", {"standardise": "none"}, "categories"),
        ("csv", {"standardise": "none", "exclude": ["colour"]}, ""),
        ("csv", {"standardise": "none", "exclude": ["colour"], "missing": "zero"}, ""),
        (
            "csv",
            {"exclude": ["colour"], "missing": "median"},
            "means and deviations, medians in place of missing values",
        ),
    ],
)
def test_a_data_set_knows_what_of_all_rows_is_in_each(
    name: str, options: dict[str, Any], fitted: str, table: Callable[..., Path]
) -> None:
    path = table(gap="missing" in options)
    assert FILES[name](path=path, label="y", client="who", **options).fitted == fitted


def federation(**more: Any) -> atoll.Run:
    """Four clients, the first of which has numbers beyond all measure if it is `bad`."""
    torch.manual_seed(0)
    x = torch.randn(40, 3)
    x[:10] = 3e38 if more.pop("bad") else 0.0
    y = (x[:, 0] > 0).long()
    clients = [list(range(i, i + 10)) for i in range(0, 40, 10)]
    model = nn.Linear(3, 2)
    options = {"rounds": 1, "engine": "vector", "evaluate": {"clients": 0}, "on_divergence": "drop", "seed": 3}
    return atoll.simulate(
        model, (x, y), clients=clients, algorithm={"name": "fedavg", "lr": 0.1}, **{**options, **more}
    )


@pytest.mark.parametrize(
    "noise",
    [
        {"name": "local_gaussian", "epsilon": 1.0, "delta": 1e-4},
        {"name": "local_laplace", "epsilon": 1.0},
        {"name": "privunit", "epsilon": 4.0},
    ],
    ids=lambda n: str(n["name"]),
)
def test_who_is_left_out_of_local_noise_ends_the_guarantee(noise: dict[str, Any]) -> None:
    clip = {"name": "clip_l1" if "laplace" in noise["name"] else "clip_l2", "max_norm": 0.5}
    chain = ["equal_weights", clip, noise]
    assert told(federation(bad=False, transforms=chain))["holds"]
    said = told(federation(bad=True, transforms=chain))
    assert not said["holds"]
    assert "were left out, and their clients' noise with them" in said["why"]
    assert "epsilon" not in said


@pytest.mark.parametrize("here", [[0], [0, 1], [0, 1, 2, 3]])
def test_who_is_left_out_of_a_trace_still_counts_for_the_mean(here: list[int], tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("\n".join("1" if client in here else "0" for client in range(4)))
    loud = ["equal_weights", {"name": "clip_l2", "max_norm": 1e-7}, {"name": "gaussian_noise", "noise_multiplier": 1e7}]
    runs = [
        federation(bad=bad, transforms=loud, cohort={"name": "available", "trace": str(path)}) for bad in (False, True)
    ]
    assert [len(run.history[0].get("dropped", [])) for run in runs] == [0, 1]
    torch.testing.assert_close(runs[0].params, runs[1].params, atol=2e-6, rtol=1e-6)


def test_a_run_that_a_client_ends_has_no_epsilon(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError):
        federation(bad=True, transforms=["equal_weights", CLIP, NOISE], on_divergence="stop", out=tmp_path / "run")
    said = json.loads((tmp_path / "run" / "run.json").read_text())["privacy"]["client"]
    assert not said["holds"]
    assert "a client's update was not finite" in said["why"]
    assert "epsilon" not in said


@dataclass(frozen=True)
class Peek(Schedule):
    """A learning rate from what a line says."""

    start: float
    name: str = "cohort"

    def value(self, round: int, history: Any) -> float:
        return self.start + float(len(str(history[-1][self.name]))) if history else self.start


SEEN: list[set[str]] = []


@dataclass(frozen=True)
class Sly(Schedule):
    """Looks at everything there is, without asking for it by name."""

    start: float

    def value(self, round: int, history: Any) -> float:
        SEEN.extend(set(dict(line.items())) for line in history)
        return self.start

    def finished(self, history: Any) -> bool:
        SEEN.extend(set(dict(line.items())) for line in history)
        return False


@pytest.mark.parametrize("name", ["cohort", "privacy", "train_loss", "clients", "bytes", "dropped"])
def test_a_schedule_that_reads_what_comes_from_clients_is_refused(name: str) -> None:
    setup = set_up(Experiment.parse(BASE))
    peeking = replace(setup, algorithm=replace(setup.algorithm, lr=Peek(0.1, name)))
    with pytest.raises(ConfigError, match=f"schedule Peek: '{name}' is read from the clients"):
        plan_privacy(peeking, ["loss", "accuracy"])


@pytest.mark.parametrize("local", [False, True], ids=["client", "example"])
def test_a_schedule_sees_nothing_of_clients_even_if_it_does_not_ask(local: bool, tmp_path: Path) -> None:
    SEEN.clear()
    more = {"transform": [], "local": {"privacy": {"max_norm": 1.0, "noise_multiplier": 1.0}}} if local else {}
    lr = {"name": f"{__name__}:Sly", "start": 0.1}
    atoll.run({**BASE, "algorithm": {"name": "fedavg", "lr": lr}, **more}, tmp_path / "run")
    assert set.union(set(), *SEEN) == {"round", "settings", "loss", "accuracy"}
    SEEN.clear()
    atoll.run({**BASE, "algorithm": {"name": "fedavg", "lr": lr}, "transform": []}, tmp_path / "plain")
    assert "train_loss" in set.union(*SEEN)


def test_a_run_that_ends_by_what_it_measures_counts_all_its_rounds(tmp_path: Path) -> None:
    stop = {"patience": 1, "metric": "accuracy", "threshold": 1.0}
    run = atoll.run({**BASE, "cohort": "everyone", "rounds": 9, "stop": stop}, tmp_path / "run")
    assert run.status.startswith("stopped early")
    assert len(run.history) < 9
    said = told(run)
    one = Sampled(Gaussian(2.0), "everyone", 20, 20)
    whole = ACCOUNTANTS["analytic"].epsilon(Composed(((one, 9),)), said["delta"])
    assert said["epsilon"] == pytest.approx(whole)
    assert said["rounds"] == len(run.history)
    assert "all 9 rounds count" in said["assumed"][-1]
    within = {"budget": 0.9 * whole}
    run = atoll.run({**BASE, "cohort": "everyone", "rounds": 9, "stop": stop, "privacy": within}, tmp_path / "within")
    assert told(run)["epsilon"] == within["budget"]  # the budget would have ended it


def test_examples_of_a_run_that_ends_by_what_it_measures_count_all_its_rounds(tmp_path: Path) -> None:
    private = {"transform": [], "local": {"privacy": {"max_norm": 1.0, "noise_multiplier": 2.0}}}
    stop = {"patience": 1, "metric": "accuracy", "threshold": 1.0}
    short = atoll.run({**BASE, **private, "rounds": 9, "stop": stop}, tmp_path / "short").info["privacy"]["example"]
    whole = atoll.run({**BASE, **private, "rounds": 9}, tmp_path / "whole").info["privacy"]["example"]
    assert short["rounds"] < whole["rounds"] == 9
    assert short["epsilon"] == whole["epsilon"]
    assert "all 9 rounds count" in short["assumed"][-1]


@dataclass(frozen=True)
class Quitter(Schedule):
    """Ends the run by what it measured, without asking for it by name."""

    start: float

    def value(self, round: int, history: Any) -> float:
        return self.start

    def finished(self, history: Any) -> bool:
        return sum(1 for line in history for name, value in line.items() if name == "accuracy" and value > 0) == 2


@pytest.mark.parametrize(
    "lr", [{"name": "plateau", "patience": 1, "stop": 1, "threshold": 9.0}, {}], ids=["own", "sly"]
)
def test_a_rate_that_ends_the_run_counts_all_rounds(lr: dict[str, Any], tmp_path: Path) -> None:
    rate = {"name": f"{__name__}:Quitter", "start": 0.1, **lr}
    run = atoll.run({**BASE, "rounds": 9, "algorithm": {"name": "fedavg", "lr": rate}}, tmp_path / "short")
    assert len(run.history) < 9
    whole = atoll.run({**BASE, "rounds": 9}, tmp_path / "whole")
    assert told(run)["epsilon"] == told(whole)["epsilon"]
    assert "rounds count" not in str(told(whole)["assumed"])


def test_noise_must_not_follow_what_is_measured() -> None:
    def chain(schedule: dict[str, Any]) -> dict[str, Any]:
        return {**BASE, "transform": ["equal_weights", CLIP, {**NOISE, "noise_multiplier": schedule}]}

    with pytest.raises(ConfigError, match="gaussian_noise: its schedule follows what the run measures"):
        set_up(Experiment.parse(chain({"name": "plateau", "start": 1.0})))
    with pytest.raises(ConfigError, match="gaussian_noise: its schedule follows what the run measures"):
        set_up(Experiment.parse(chain({"name": f"{__name__}:Sly", "start": 1.0})))
    setup = set_up(Experiment.parse(chain({"name": "step", "start": 2.0, "every": 1, "factor": 0.5})))
    assert resolve(setup.chain, 1, []).transforms[-1].noise_multiplier == 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"privacy": {"budget": 0.01}}, "privacy.budget: 0.01 is less than one round costs"),
        ({"algorithm": {"name": "centralised", "lr": 0.1}}, "centralised pools all data in one client"),
        ({"algorithm": {"name": "fedper", "lr": 0.1}}, "fedper sends nothing of this model"),
        ({"transform": ["equal_weights", CLIP, {**NOISE, "delta": 1e-3}]}, "Use privacy.delta = 0.001"),
        (
            {
                "transform": [],
                "privacy": {"delta": 1e-5},
                "local": {"privacy": {"max_norm": 1.0, "noise_multiplier": 1.0}},
            },
            "privacy.delta: 1e-05 is for noise on updates",
        ),
    ],
    ids=["budget", "pooled", "nothing sent", "delta", "delta of examples"],
)
def test_what_makes_no_sense_together_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        set_up(Experiment.parse({**BASE, **change}))


def test_a_check_says_when_the_budget_ends_the_run(tmp_path: Path) -> None:
    experiment = {**BASE, "rounds": 40, "privacy": {"budget": 2.0}}
    said = io.StringIO()
    estimate(Experiment.parse(experiment), "cpu", Console(file=said, width=500))
    run = atoll.run(experiment, tmp_path / "run")
    assert 1 < len(run.history) < 40
    assert f"the budget, epsilon 2, ends it after {len(run.history)} of 40 rounds" in said.getvalue()
