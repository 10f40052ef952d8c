"""`atoll compare`: paired tests of two sides, and where two runs part."""

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll import records as results
from atoll.analysis.compare import SettingRuns, compare, match, opened
from atoll.analysis.compare.load_side import SeedRun, Side
from atoll.analysis.diff import must_agree, parting, words
from atoll.analysis.diff.gaps import gaps, same
from atoll.analysis.diff.lines import compared
from atoll.data import Partition
from atoll.data.partition import Iid
from atoll.errors import ConfigError, RecordError
from atoll.records import Cell, Results, Trace
from tests.support.shell import Shell, shell

BASE: dict[str, Any] = {
    "rounds": 4,
    "data": "digits",
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.5},
    "cohort": {"name": "fixed", "size": 4},
    "task": {"model": "linear"},
    "local": {"max_steps": 3},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "loop",
}

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Run BASE with changes, each once."""
    place = tmp_path_factory.mktemp("runs")
    made: dict[str, Path] = {}

    def run(**changes: Any) -> Path:
        key = json.dumps(changes, sort_keys=True)
        if key not in made:
            made[key] = atoll.run({**BASE, **changes}, place / str(len(made))).folder
        return made[key]

    return run


def altered(folder: Path, to: Path, round: int, **changes: Any) -> Path:
    """A copy of a run with a line of its record changed by hand."""
    shutil.copytree(folder, to)
    lines = [json.loads(line) for line in (to / "record.jsonl").read_text().splitlines()]
    lines[round - 1] |= changes
    (to / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return to


def said(a: Path, b: Path) -> str:
    return "\n".join(words(parting(a, b)))


# --------------------------------------------------------------------------------------------- where two runs part


def test_two_runs_of_one_experiment_are_the_same(ran: Make, tmp_path: Path) -> None:
    a, b = ran(), atoll.run(BASE, tmp_path / "b").folder
    assert must_agree(a, b)
    found = parting(a, b)
    assert not found.parted
    assert found.paired is True
    assert words(found)[0].startswith("The same: all 4 rounds")


class Convolution(torch.nn.Sequential):
    """Stacked over clients it is a product of patches, which adds up in another order."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        image = torch.nn.Unflatten(1, (1, 8, 8)) if len(inputs) == 1 else torch.nn.Identity()
        found = torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, outputs)
        super().__init__(image, *found)


NOISY = {"task": {"model": f"{__name__}:Convolution"}}


def test_another_engine_is_float_noise_in_the_first_round_and_both_are_what_their_records_say(ran: Make) -> None:
    a, b = ran(**NOISY), ran(**NOISY, engine="vector")
    assert must_agree(a, b)
    found = parting(a, b)
    assert found.lines.model == 1
    assert found.replay is not None
    assert found.replay.agrees == (None, None)
    first = found.replay.first
    assert first is not None
    cohort = json.loads((a / "record.jsonl").read_text().splitlines()[0])["cohort"]["ids"]
    assert first.client == cohort[0]
    assert (first.clients, first.of, first.reasons) == (4, 4, ())
    assert first.noise
    assert all(0 < (gap.relative or 0) < 1e-5 for gap in first.tensors)
    assert {gap.tensor for gap in first.tensors} <= {f"delta/{i}.{kind}" for i in (1, 4) for kind in ("weight", "bias")}
    assert "Float noise" in said(a, b)


def test_clients_that_agree_and_are_added_up_in_another_order_are_noise_of_the_server(ran: Make) -> None:
    ragged = {"local": {"batch": 8, "epochs": 1}}  # so that the stack trains clients in another order than the loop
    a, b = ran(**ragged), ran(**ragged, engine={"name": "vector", "chunk": 2})
    found = parting(a, b)
    assert found.replay is not None
    first = found.replay.first
    assert first is not None
    assert (first.client, first.clients, first.of, first.noise) == (None, 0, 4, True)
    assert {gap.tensor for gap in first.tensors} <= {"params/head.weight", "params/head.bias"}


@pytest.mark.parametrize("engine", ["threads", {"name": "vector", "chunk": 3}])
@pytest.mark.parametrize("changes", [{}, {"algorithm": {"name": "scaffold", "lr": 0.1}}, {"reducer": "median"}])
def test_to_look_over_an_engines_shoulder_changes_no_bit(
    ran: Make, tmp_path: Path, engine: Any, changes: dict[str, Any]
) -> None:
    a = ran(engine=engine, **changes)
    found = parting(a, altered(a, tmp_path / "b", 3, model="0" * 40))
    assert found.replay is not None
    assert (found.replay.round, found.replay.parted, found.replay.agrees) == (3, False, (None, 3))


def test_a_metric_changed_by_hand_is_named_and_a_replay_says_whose_it_is(ran: Make, tmp_path: Path) -> None:
    a = ran()
    found = parting(a, altered(a, tmp_path / "b", 2, accuracy=0.99))
    assert found.lines.model is None
    assert found.lines.first is not None
    assert (found.lines.first.round, found.lines.first.key, found.lines.first.b) == (2, "accuracy", 0.99)
    text = "\n".join(words(found))
    assert "all models are the same: accuracy is 0." in text
    assert f"Run again, A has {found.lines.first.a} there, as its record says." in text
    assert f"Run again, B has {found.lines.first.a} there, which is not what its record says." in text


def test_seconds_are_not_looked_at(ran: Make, tmp_path: Path) -> None:
    a = ran()
    assert not parting(a, altered(a, tmp_path / "b", 2, seconds={"train": 1e6})).parted


def test_a_model_that_no_replay_has_cannot_be_reproduced(ran: Make, tmp_path: Path) -> None:
    a = ran()
    b = altered(a, tmp_path / "b", 3, model="0" * 40)
    info = json.loads((b / "run.json").read_text())
    info["versions"]["torch"], info["hardware"]["cpu"] = "1.0", "an abacus"
    (b / "run.json").write_text(json.dumps(info))
    found = parting(a, b)
    assert found.lines.model == 3
    assert found.replay is not None
    assert (found.replay.parted, found.replay.round, found.replay.agrees) == (False, 3, (None, 3))
    text = "\n".join(words(found))
    assert "cannot be reproduced on this machine" in text
    assert "Run again, B is not what its record says from round 3 on." in text
    assert "hardware.cpu" in text
    assert "an abacus (B)" in text
    assert "versions.torch" in text


def test_a_schedule_that_leaves_the_other_parts_in_its_round_with_the_setting_named(ran: Make) -> None:
    a = ran()
    b = ran(algorithm={"name": "fedavg", "lr": {"name": "step", "start": 0.1, "every": 2, "factor": 0.5}})
    assert not must_agree(a, b)
    found = parting(a, b)
    assert found.lines.model == 3
    assert found.paired is True
    assert found.replay is not None
    first = found.replay.first
    assert first is not None
    assert first.reasons == ("setting algorithm.lr: 0.1 in A, 0.05 in B",)
    assert not first.noise
    assert first.client is not None
    assert first.tensors[0].relative == pytest.approx(0.5, abs=0.2)  # half the step, less what the gradients changed


@dataclass(frozen=True)
class Moved:
    """Equal parts, but client 2 has lost its last row."""

    def __call__(self, labels: Any, keys: Any, examples: int, key: Any) -> Partition:
        even = Iid(4)(labels, keys, examples, key)
        return Partition.from_lists([even.of(c).tolist()[: -1 if c == 2 else None] for c in range(4)])


@dataclass(frozen=True)
class Even:
    """Equal parts."""

    def __call__(self, labels: Any, keys: Any, examples: int, key: Any) -> Partition:
        return Partition.from_lists([Iid(4)(labels, keys, examples, key).of(c).tolist() for c in range(4)])


def test_one_client_with_other_rows_is_the_first_client(ran: Make) -> None:
    rest: dict[str, Any] = {"cohort": "everyone", "local": {"batch": 0}}
    a, b = (ran(partition=f"{__name__}:{name}", **rest) for name in ("Even", "Moved"))
    found = parting(a, b)
    assert found.partition is False
    assert found.paired is False
    assert found.lines.model == 1
    assert found.replay is not None
    first = found.replay.first
    assert first is not None
    assert (first.client, first.clients, first.of) == (2, 1, 4)
    assert first.reasons[0].startswith("client 2's examples: other rows, or another order (")
    assert "weight" in {gap.tensor for gap in first.tensors}


def csv(path: Path, change: Mapping[tuple[int, int], float] = {}) -> Path:
    """Twelve rows of three clients; (client, row of it) may be given another first feature."""
    rng = np.random.default_rng(0)
    lines = ["who,x0,x1,y"]
    for c in range(3):
        for r in range(8):
            x0, x1 = rng.normal(size=2).round(3)
            lines.append(f"c{c},{change.get((c, r), x0)},{x1},{'even' if r % 2 else 'odd'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_one_clients_data_changed_in_a_file_is_found_and_the_column_named(tmp_path: Path) -> None:
    def run(name: str, change: Mapping[tuple[int, int], float]) -> Path:
        data = {"name": "csv", "label": "y", "client": "who", "standardise": "none", "test_share": 0.0}
        data |= {"path": str(csv(tmp_path / f"{name}.csv", change))}
        rest = {"partition": {"name": "natural", "by": "who"}, "cohort": "everyone"}
        return atoll.run({**BASE, **rest, "data": data}, tmp_path / name).folder

    found = parting(run("a", {}), run("b", {(1, 3): 9.0}))
    assert found.partition is True  # who holds which row is the same: what the row says is not
    assert list(found.settings) == ["data.path"]
    assert found.replay is not None
    first = found.replay.first
    assert first is not None
    assert (found.lines.model, first.client, first.clients, first.of) == (1, 1, 1, 3)
    assert first.reasons[0].startswith("client 1's examples, column x: at most ")
    assert not first.noise


def test_a_server_that_takes_another_step_is_told_from_clients_that_do(ran: Make) -> None:
    a, b = ran(), ran(algorithm={"name": "fedavg", "lr": 0.1, "server_lr": 0.9})
    found = parting(a, b)
    assert found.replay is not None
    first = found.replay.first
    assert first is not None
    assert first.client is None
    assert first.reasons == ("setting algorithm.server_lr: 1 in A, 0.9 in B",)
    assert {gap.tensor for gap in first.tensors} == {"params/head.weight", "params/head.bias"}
    assert "sends back the same bits; the server makes another model" in said(a, b)


def test_client_state_that_differs_is_named(ran: Make) -> None:
    """The first option of SCAFFOLD keeps something else than the second: models part one round after memories do."""
    both = [{"name": "scaffold", "lr": 0.1, "option": option} for option in ("I", "II")]
    a, b = (ran(algorithm=algorithm, cohort="everyone") for algorithm in both)
    found = parting(a, b)
    assert found.lines.model == 2
    assert found.replay is not None
    assert found.replay.first is not None
    text = " ".join(found.replay.first.reasons)
    assert "sent, control" in text
    assert f"client {found.replay.first.client}'s state, algorithm/" in text


def test_a_replay_goes_on_from_a_checkpoint_that_is_early_enough(tmp_path: Path) -> None:
    class StopError(Exception): ...

    def stop(done: int, rounds: int, line: Any) -> None:
        if done == 5:
            raise StopError

    with pytest.raises(StopError):
        atoll.run({**BASE, "rounds": 6, "checkpoint": {"every": 2}}, tmp_path / "a", watch=stop)
    b = altered(tmp_path / "a", tmp_path / "b", 5, model="0" * 40)
    before = {p.name: p.read_bytes() for p in b.iterdir()}
    found = parting(tmp_path / "a", b)
    assert found.replay is not None
    assert found.replay.began == (4, 4)
    assert (found.replay.round, found.replay.parted, found.replay.agrees) == (5, False, (None, 5))
    assert {p.name: p.read_bytes() for p in b.iterdir()} == before  # a replay leaves the runs alone


def test_a_checkpoint_from_after_the_parting_is_not_used(ran: Make, tmp_path: Path) -> None:
    a = ran()
    found = parting(a, altered(a, tmp_path / "b", 4, model="0" * 40))  # the last round, where the checkpoint is
    assert found.replay is not None
    assert (found.replay.began, found.replay.round, found.replay.agrees) == ((0, 0), 4, (None, 4))


def test_a_replay_that_parts_before_the_records_do_is_looked_at_there(ran: Make, tmp_path: Path) -> None:
    """B's record claims A's models until round 3, but its experiment has another lr."""
    a, other = ran(), ran(algorithm={"name": "fedavg", "lr": 0.2})
    b = tmp_path / "b"
    shutil.copytree(other, b)
    (b / "checkpoint.pt").unlink()
    lines = [(folder / "record.jsonl").read_text().splitlines() for folder in (a, other)]
    (b / "record.jsonl").write_text("\n".join([*lines[0][:2], *lines[1][2:]]) + "\n")
    found = parting(a, b)
    assert found.lines.model == 3
    assert found.replay is not None
    assert (found.replay.round, found.replay.agrees) == (1, (None, 1))
    assert found.replay.first is not None
    assert found.replay.first.reasons == ("setting algorithm.lr: 0.1 in A, 0.2 in B",)
    assert "they part in round 1 already" in "\n".join(words(found))


THREADS: list[int] = []


class Counting(torch.nn.Linear):
    """Notes how many threads compute it."""

    def __init__(self, inputs: tuple[int, ...], outputs: int) -> None:
        super().__init__(math.prod(inputs), outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        THREADS.append(torch.get_num_threads())
        return super().forward(x.flatten(1))


def test_a_replay_has_the_threads_of_the_run_and_gives_them_back(ran: Make, tmp_path: Path) -> None:
    a = ran(task={"model": f"{__name__}:Counting"})
    b = altered(a, tmp_path / "b", 1, model="0" * 40)
    info = json.loads((b / "run.json").read_text())
    info["hardware"]["threads"] = 2
    (b / "run.json").write_text(json.dumps(info))
    THREADS.clear()
    before = torch.get_num_threads(), torch.random.get_rng_state()
    parting(a, b)
    assert set(THREADS) == {1, 2}
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.random.get_rng_state(), before[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"round": "gossip", "cohort": "everyone"},
        {"cohort": {"name": "poisson", "probability": 0.1}},  # in some rounds nobody comes
        {"cohort": {"name": "fixed_with_replacement", "size": 8}},
        {
            "transform": [
                "equal_weights",
                {"name": "clip_l2", "max_norm": 0.1},
                {"name": "gaussian_noise", "noise_multiplier": 0.1},
            ]
        },
        {"algorithm": {"name": "fedper", "lr": 0.1}, "task": {"model": {"name": "mlp", "widths": [8]}}},
    ],
)
def test_any_kind_of_round_can_be_run_again(ran: Make, changes: dict[str, Any]) -> None:
    algorithm = {"name": "fedavg", **changes.get("algorithm", {})}
    a, b = (ran(**{**changes, "algorithm": {**algorithm, "lr": lr}}) for lr in (0.1, 0.2))
    found = parting(a, b)
    assert found.lines.model is not None
    assert found.replay is not None
    assert (found.replay.round, found.replay.agrees) == (found.lines.model, (None, None))
    first = found.replay.first
    assert first is not None
    assert first.reasons == ("setting algorithm.lr: 0.1 in A, 0.2 in B",)
    assert first.client is not None
    assert first.clients == first.of > 0


def test_another_seed_is_not_paired(ran: Make) -> None:
    found = parting(ran(), ran(seed=1), "setup")
    assert (found.paired, found.partition, found.initial, found.lines.cohorts) == (False, False, False, False)
    assert list(found.settings) == ["seed"]


def test_runs_given_from_python_are_compared_by_their_records(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)).astype("float32"), np.arange(40) % 2

    def run(name: str, lr: float) -> Path:
        algorithm = {"name": "fedavg", "lr": lr}
        return atoll.simulate(
            lambda: torch.nn.Linear(3, 2),
            (x, y),
            clients={"name": "iid", "clients": 2},
            algorithm=algorithm,
            rounds=2,
            out=tmp_path / name,
        ).folder

    found = parting(run("a", 0.1), run("b", 0.2))
    assert found.replay is None
    assert found.paired is None
    assert "was given from Python" in "\n".join(words(found))


def test_a_shorter_run_is_the_same_as_far_as_it_goes() -> None:
    lines = [{"round": r, "model": str(r), "cohort": {"ids": [1]}} for r in (1, 2, 3)]
    found = compared(lines, lines[:2])
    assert (found.model, found.first, found.rounds, found.same) == (None, None, (3, 2), False)


def test_gaps_are_bits_and_their_size() -> None:
    one = {"w": torch.tensor([1.0, float("nan"), float("inf"), 0.0])}
    assert gaps(one, {"w": one["w"].clone()}) == []
    zero = gaps({"w": torch.tensor([0.0])}, {"w": torch.tensor([-0.0])})
    assert [(g.largest, g.relative, g.noise) for g in zero] == [(0.0, 0.0, True)]
    wild = gaps(one, {"w": torch.tensor([1.0, 2.0, float("inf"), 0.0])})
    assert (wild[0].largest, wild[0].noise) == (math.inf, False)
    ends = gaps({"w": torch.tensor([math.inf, 1.0])}, {"w": torch.tensor([math.inf, 1.5])})
    assert ends[0].largest == 0.5
    assert gaps(one, {"v": one["w"]})[0].largest is None
    assert gaps({"w": torch.zeros(2)}, {"w": torch.zeros(3)})[0].largest is None
    near, far = (gaps({"w": torch.tensor([1.0])}, {"w": torch.tensor([1.0 + d])})[0] for d in (1e-4, 1e-3))
    assert (near.noise, far.noise) == (True, False)  # half of float32's digits: 3.5e-4
    assert not gaps({"n": torch.tensor([10_000_000])}, {"n": torch.tensor([10_000_001])})[0].noise  # whole numbers
    assert not same(torch.zeros(1), torch.zeros(1, dtype=torch.float64))


# ----------------------------------------------------------------------------------------------------- paired tests


def trace(seed: int, value: float, **more: Any) -> Trace:
    made = Trace(seed, f"digest-{seed}", (1, 2), (0.0, value), (1.0, 2.0), (1.0, 2.0), partition=f"p{seed}")
    return replace(made, **more)


def suite(table: Mapping[str, Sequence[float]], higher: bool = True, metric: str = "accuracy") -> Results:
    """Cells by name, such as digits/iid/fedavg, with a value for each seed from 0."""
    axes = ("data", "partition", "algorithm")
    cells = [
        Cell("main", dict(zip(axes, name.split("/"), strict=True)), tuple(trace(s, v) for s, v in enumerate(values)))
        for name, values in table.items()
    ]
    return Results("mine", "Mine", "full", metric, higher, axes, tuple(cells))


OURS = {
    "digits/iid/fedavg": [0.91, 0.93, 0.92, 0.95],
    "digits/skew/fedavg": [0.80, 0.78, 0.82, 0.79],
    "adult/iid/fedavg": [0.70, 0.71, 0.70, 0.72],
}
THEIRS = {
    "digits/iid/fedavg": [0.90, 0.90, 0.91, 0.92],
    "digits/skew/fedavg": [0.70, 0.75, 0.71, 0.69],
    "adult/iid/fedavg": [0.70, 0.71, 0.70, 0.721],
}


def test_a_side_compared_with_itself_is_equal() -> None:
    side = Side("x", results=suite(OURS))
    found = compare(side, side)
    assert [(r.difference.mean, r.difference.half, r.p_equal, r.verdict) for r in found.rows] == [
        (0, 0, 1, "equal")
    ] * 3
    assert [(t.p, t.ahead) for t in found.totals] == [(1.0, (0, 3, 0))]
    assert found.left_out == ()


def test_the_numbers_are_those_of_scipy() -> None:
    from scipy import stats

    found = compare(Side("a", results=suite(OURS)), Side("b", results=suite(THEIRS)))
    assert [row.name for row in found.rows] == ["digits/iid", "digits/skew", "adult/iid"]
    for row, a, b in zip(found.rows, OURS.values(), THEIRS.values(), strict=True):
        d = np.array(a) - np.array(b)
        test = stats.ttest_rel(a, b).confidence_interval()
        assert (row.difference.low, row.difference.high) == (pytest.approx(test.low), pytest.approx(test.high))
        assert (row.a, row.b, row.seeds) == (pytest.approx(np.mean(a)), pytest.approx(np.mean(b)), (0, 1, 2, 3))
        belief = stats.t(3, d.mean(), d.std(ddof=1) / 2)
        chances = belief.sf(0.01), belief.cdf(0.01) - belief.cdf(-0.01), belief.cdf(-0.01)
        assert (row.p_a, row.p_equal, row.p_b) == tuple(pytest.approx(p) for p in chances)
    assert [row.verdict for row in found.rows] == ["undecided", "a", "equal"]
    assert found.rows[0].settled == 6  # from the doctest of atoll.stats
    means = [np.mean(list(t.values()), axis=1) for t in (OURS, THEIRS)]
    assert found.totals[0].p == pytest.approx(stats.wilcoxon(*means, method="exact").pvalue)
    assert (found.totals[0].ahead, found.totals[0].smallest) == ((2, 0, 1), 0.25)


def test_where_less_is_better_the_sides_change_places() -> None:
    a, b = (suite(t, higher=False, metric="loss") for t in (OURS, THEIRS))
    found = compare(Side("a", results=a), Side("b", results=b), rope=0.01)
    assert [row.verdict for row in found.rows] == ["undecided", "b", "equal"]
    assert found.totals[0].ahead == (1, 0, 2)


def test_methods_have_a_test_each_and_holm_corrects_them() -> None:
    ours = {**OURS, **{k.replace("fedavg", "fedprox"): v for k, v in THEIRS.items()}}
    theirs = {k: [x - 0.05 for x in v] for k, v in ours.items()}
    found = compare(Side("a", results=suite(ours)), Side("b", results=suite(theirs)))
    assert [(t.method, t.rows, t.p, t.holm) for t in found.totals] == [
        ("fedavg", 3, 0.25, 0.5),
        ("fedprox", 3, 0.25, 0.5),
    ]


def test_one_method_against_another_of_the_same_suite_is_compared_row_by_row() -> None:
    both = suite({**OURS, **{k.replace("fedavg", "scaffold"): v for k, v in THEIRS.items()}})
    found = compare(Side("a", results=both, pick="fedavg"), Side("b", results=both, pick="scaffold"))
    assert [row.name for row in found.rows] == ["digits/iid", "digits/skew", "adult/iid"]
    assert found.differing == {"algorithm": ("fedavg", "scaffold")}
    apart = compare(Side("a", results=suite(OURS)), Side("b", results=suite(THEIRS)))
    assert found.rows == apart.rows


def test_only_what_ran_to_its_end_on_the_same_clients_makes_a_pair() -> None:
    a = suite({"d/p/m": [0.1, 0.2, 0.3, math.nan, 0.5, 0.6]})
    b = suite({"d/p/m": [0.1, 0.2, 0.3, 0.4, 0.5]})
    runs = list(b.cells[0].runs)
    runs[0], runs[1] = replace(runs[0], partition="other"), replace(runs[1], status="interrupted")
    b = replace(b, cells=(replace(b.cells[0], runs=tuple(runs)),))
    found = compare(Side("a", results=a), Side("b", results=b))
    assert found.rows[0].seeds == (2, 4)
    assert found.left_out == (
        "all: seed 0: the clients hold other examples in A than in B",
        "all: seed 1: B did not run to its end (interrupted)",
        "all: seed 3: not finite in A",
        "all: seed 5: only in A",
    )


def test_one_pair_has_a_difference_and_no_verdict() -> None:
    one, other = (suite({"d/p/m": [value]}) for value in (0.5, 0.4))
    row = compare(Side("a", results=one), Side("b", results=other)).rows[0]
    assert (row.difference.mean, row.difference.half, row.p_a, row.verdict) == (
        pytest.approx(0.1),
        None,
        None,
        "one pair",
    )


def test_a_metric_that_is_no_share_has_a_rope_in_proportion() -> None:
    one, other = (suite({"d/p/m": v}, higher=False, metric="perplexity") for v in ([100.0, 110.0], [90.0, 100.0]))
    assert compare(Side("a", results=one), Side("b", results=other)).rows[0].rope == pytest.approx(1.0)


Values = st.lists(st.floats(0, 1), min_size=1, max_size=6)


@given(Values, Values)
def test_to_swap_the_sides_swaps_everything(a: list[float], b: list[float]) -> None:
    x, y = (Side(name, results=suite({"d/p/m": v})) for name, v in (("x", a), ("y", b)))
    one, other = compare(x, y).rows[0], compare(y, x).rows[0]
    assert len(one.seeds) == min(len(a), len(b))
    assert one.difference.mean == -other.difference.mean
    assert (one.p_a, one.settled) == (other.p_b, other.settled)
    assert {one.verdict, other.verdict} in ({"a", "b"}, {"equal"}, {"undecided"}, {"one pair"})


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=12))
def test_every_run_is_in_a_pair_or_left_out(runs: list[tuple[int, int, bool]]) -> None:
    sides: list[list[SettingRuns]] = []
    for side in (True, False):
        by_row: dict[int, dict[int, SeedRun]] = {row: {} for row in range(3)}
        for row, seed, mine in runs:
            if mine is side:
                by_row[row][seed] = SeedRun(seed, 0.5, "p")
        sides.append([SettingRuns({"row": row}, tuple(own.values())) for row, own in by_row.items()])
    found = match(*sides)
    have = [{(s.place["row"], r.seed) for s in side for r in s.runs} for side in sides]
    paired = {(row.place["row"], seed) for row in found.rows for seed in row.seeds}
    assert paired == have[0] & have[1]
    left = {
        (int(t[4]), int(s)) for t in found.left_out for s in t.split("seed")[1].split(":")[0].strip("s ").split(",")
    }
    assert left == have[0] ^ have[1]


# ------------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def sh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return shell(tmp_path, monkeypatch, capsys, 160)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two algorithms, two partitions, two seeds."""
    axes = {"algorithm": ["fedavg", "fedavgm"], "partition.alpha": [0.1, 10.0], "seeds": 2}
    axes["algorithm"] = [{"name": name, "lr": 0.1} for name in ("fedavg", "fedavgm")]
    raw = {**BASE, "rounds": 2, "sweep": axes}
    return atoll.sweep.run(raw, tmp_path_factory.mktemp("swept") / "grid").folder


def test_two_methods_of_a_sweep_are_compared_by_what_else_varies(swept: Path, sh: Shell) -> None:
    done = sh(f"compare {swept}@fedavg {swept}@fedavgm --json out/found.json")
    assert (done.code, done.err) == (0, "")
    assert "alpha=0.1" in done.out
    assert "algorithm.name fedavg / fedavgm" in done.out
    assert "Wilcoxon over rows, all rows" in done.out
    found = json.loads(Path("out/found.json").read_text())["comparison"]
    assert [(row["name"], row["seeds"]) for row in found["rows"]] == [("alpha=0.1", [0, 1]), ("alpha=10", [0, 1])]
    by_hand = [json.loads((c / "record.jsonl").read_text().splitlines()[-1])["accuracy"]
               for c in sorted(swept.glob("cells/fedavg,alpha=0.1,*"))]  # fmt: skip
    assert found["rows"][0]["a"] == pytest.approx(np.mean(by_hand))


def test_folders_of_runs_and_patterns_are_sides_too(swept: Path, sh: Shell) -> None:
    whole = sh(f"compare {swept} {swept / 'cells'}").out
    assert whole.count("equal") >= 4
    by_pattern = sh(f"compare '{swept}/cells/fedavg,*' '{swept}/cells/fedavgm,*'").out
    by_method = sh(f"compare {swept}@fedavg {swept}@fedavgm").out
    assert by_pattern.splitlines()[:8] == by_method.splitlines()[:8]


def test_suites_are_compared_from_their_files(sh: Shell, tmp_path: Path) -> None:
    results.write_results(suite(OURS), tmp_path / "a" / "results.json")
    results.write_results(suite(THEIRS), tmp_path / "b.json")
    done = sh("compare a b.json --rope 0.02")
    assert done.code == 0
    assert "digits/" in done.out  # the rest may be folded
    assert "A better" in done.out


def test_two_runs_are_told_apart_and_the_exit_status_says_so(ran: Make, sh: Shell) -> None:
    a, other = ran(), ran(algorithm={"name": "fedavg", "lr": 0.2})
    noisy, stacked = ran(**NOISY), ran(**NOISY, engine="vector")
    assert (sh(f"compare {a} {a} --same").code, sh(f"compare {noisy} {stacked} --same --json f.json").code) == (0, 1)
    assert json.loads(Path("f.json").read_text())["parting"]["replay"]["first"]["clients"] == 4
    assert "A - B" not in sh(f"compare {noisy} {stacked}").out  # they should be equal: no test of chance
    done = sh(f"compare {a} {other}")
    assert done.code == 0
    assert "The models part in round 1, the first." in done.out
    assert "algorithm.lr (0.1 / 0.2)" in done.out
    assert "Paired: data the same, partition the same, initial model the same, cohorts the same." in done.out
    assert "that takes --same" in done.out
    assert "One pair says nothing about chance" in done.out
    assert "First client" in sh(f"compare {a} {other} --same").out
    assert "initial model not known" in sh(f"compare {a} {other} --no-replay").out


def test_mistakes_are_said_plainly(ran: Make, swept: Path, sh: Shell, tmp_path: Path) -> None:
    done = sh("compare a b c")
    assert (done.code, "takes two sides (got 3)" in done.err) == (2, True)
    assert "nowhere: is not there, or holds no runs" in sh(f"compare {ran()} nowhere").err
    assert "Algorithms: fedavg, fedavgm" in sh(f"compare {swept}@fedprox {swept}@fedavg").err
    assert "--same: is for two runs" in sh(f"compare {swept} {swept} --same").err
    assert "--rope: must be 0 or above" in sh(f"compare {swept} {swept} --rope -1").err
    results.write_results(suite(OURS), tmp_path / "a.json")
    assert "hold one metric (here accuracy; asked for: loss)" in sh("compare a.json a.json --metric loss").err
    results.write_results(suite({"x/y/z": [0.1]}), tmp_path / "b.json")
    apart = sh("compare a.json b.json")
    assert apart.code == 1
    assert "nothing to pair" in apart.err
    with pytest.raises(RecordError, match="Methods: fedavg"):
        compare(opened("a.json@nobody"), opened("a.json"))
    results.write_results(suite(OURS, metric="loss"), tmp_path / "c.json")
    with pytest.raises(ConfigError, match="one metric"):
        compare(opened("a.json"), opened("c.json"))
