"""Membership attacks on runs: who was in, what the models say of it, and what must not be said."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import atoll
from atoll import privacy
from atoll.attacks.membership import audit
from atoll.attacks.membership.loss_threshold import FinishedRun, Scores, _seen, loss_scores, losses, took_part
from atoll.attacks.membership.random_half import Half, coins
from atoll.attacks.membership.shadow import lira_scores, plan
from atoll.attacks.membership_metrics import judge
from atoll.errors import ConfigError, DivergenceError, PartitionError, RecordError
from atoll.experiment import Experiment, make_partition
from atoll.runs import Run

RANDOM_LABELS = "tests.support.random_labels:random_labels"
HEART = {  # learns its examples by heart
    "rounds": 12,
    "data": {"name": RANDOM_LABELS},
    "partition": {"name": "iid", "clients": 12},
    "task": {"model": {"name": "mlp", "widths": [64]}},
    "local": {"epochs": 4, "batch": 10},
    "algorithm": {"name": "fedavg", "lr": 0.5},
    "evaluate": {"every": 100, "clients": 0},
    "engine": "vector",
}


def ran(folder: Path, **changes: Any) -> Run:
    return atoll.run({**HEART, **changes}, folder / "run", device="cpu")


@pytest.fixture(scope="module")
def by_heart(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return FinishedRun.open(ran(tmp_path_factory.mktemp("heart")).folder, "cpu")


@pytest.fixture(scope="module")
def shadowed(by_heart: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scores]:
    folder = tmp_path_factory.mktemp("shadowed")
    return folder, lira_scores(by_heart, "client", 4, 1, folder, "cpu")


@pytest.fixture(scope="module")
def few_drawn(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Some clients never come, of others not every row."""
    changes = {"rounds": 3, "cohort": {"name": "fixed", "size": 3}, "local": {"batch": 4, "max_steps": 2}}
    return FinishedRun.open(ran(tmp_path_factory.mktemp("few"), **changes).folder, "cpu")


def test_what_was_learnt_by_heart_is_found(by_heart: FinishedRun, tmp_path: Path) -> None:
    found = judge(*loss_scores(by_heart, "example")[:2], delta=1e-4)
    assert found.auc_interval[0] > 0.85
    assert found.epsilon_lower > 1
    for level, least in (("example", 0.9), ("client", 0.9)):
        scores = lira_scores(by_heart, level, 8, 2, tmp_path, "cpu")  # type: ignore[arg-type]
        found = judge(scores.members, scores.others, 1e-4)
        assert found.auc > least, level
        assert found.members + found.others == 2 * (240 if level == "example" else 12)


def test_a_model_that_was_never_trained_tells_nothing(tmp_path: Path) -> None:
    """Each interval leaves out 1/2 once in 1,000 times."""
    run = FinishedRun.open(ran(tmp_path, rounds=2, algorithm={"name": "fedavg", "lr": 1e-9}).folder, "cpu")
    scores = [loss_scores(run, "example"), *(lira_scores(run, u, 4, 3, tmp_path, "cpu") for u in ("example", "client"))]
    for members, others, _ in scores:
        found = judge(members, others, 1e-4, confidence=0.999)
        assert found.auc_interval[0] <= 0.5 <= found.auc_interval[1]
        assert found.epsilon_lower == 0


@pytest.mark.slow
def test_noise_keeps_the_bound_below_what_is_accounted(tmp_path: Path) -> None:
    """With noise the bound may be above the accounted epsilon once in 1,000 times; without it, it is."""
    chain = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}, {"name": "gaussian_noise", "noise_multiplier": 8.0}]
    event = privacy.PrivacyPlan(rounds=12, population=60, cohort=None, sampling="everyone").event(8.0)
    spent = privacy.Analytic().epsilon(event, 1e-3)
    bounds = []
    for transform in (chain, chain[:1]):
        there = tmp_path / str(len(transform))
        run = FinishedRun.open(ran(there, partition={"name": "iid", "clients": 60}, transform=transform).folder, "cpu")
        scores = lira_scores(run, "client", 4, 4, there, "cpu")
        bounds.append(judge(scores.members, scores.others, 1e-3, confidence=0.999).epsilon_lower)
    assert bounds[0] <= spent < bounds[1]


def test_losses_are_those_of_plain_torch(by_heart: FinishedRun) -> None:
    setup = by_heart.setup
    module = setup.task.original
    module.load_state_dict(by_heart.folder.model())
    data = setup.dataset.test
    assert data is not None
    with torch.no_grad():
        slow = F.cross_entropy(module.eval()(data["x"]), data["y"], reduction="none")
    assert losses(setup, data, by_heart.model()) == pytest.approx(slow.numpy(), rel=1e-4, abs=1e-6)


def test_members_are_the_rows_that_were_seen(few_drawn: FinishedRun) -> None:
    setup, seen = few_drawn.setup, set(_seen(few_drawn).tolist())
    drawn = torch.cat(took_part(few_drawn.record)).unique().tolist()
    held = {c: set(setup.training.of(c).tolist()) for c in range(12)}
    assert 3 <= len(drawn) < 12
    for c in range(12):
        rows = seen & held[c]
        times = sum(c in line["cohort"]["ids"] for line in few_drawn.record)
        assert (8 if c in drawn else 0) <= len(rows) <= 8 * times  # two batches of four of twenty rows


def test_clients_that_never_came_are_the_others(few_drawn: FinishedRun) -> None:
    scores = loss_scores(few_drawn, "client")
    drawn = torch.cat(took_part(few_drawn.record)).unique().tolist()
    assert (len(scores.members), len(scores.others)) == (len(drawn), 12 - len(drawn))
    setup = few_drawn.setup
    slow = [
        -losses(setup, setup.dataset.train, few_drawn.model(), setup.training.of(c)).mean()
        for c in range(12)
        if c not in drawn
    ]
    assert scores.others == pytest.approx(slow)


def test_held_out_examples_are_better_others_than_the_test_data(tmp_path: Path) -> None:
    run = FinishedRun.open(ran(tmp_path, rounds=1, evaluate={"holdout": 0.25}).folder, "cpu")
    scores = loss_scores(run, "example")
    assert (len(scores.members), len(scores.others)) == (180, 60)
    assert "held out" in scores.note
    parts = plan(run, "example", 4, 1, tmp_path)
    rows = run.setup.training.indices.unique()
    everyone = set(rows.tolist())
    for p in parts:
        assert make_partition(p.experiment, run.setup.dataset).digest() == p.half.digest()
        assert rows[torch.from_numpy(p.inside)].tolist() == sorted(p.half.indices.tolist())
    assert set(parts[1].half.indices.tolist()) | set(parts[2].half.indices.tolist()) == everyone


@pytest.mark.parametrize("level", ["example", "client"])
def test_everyone_is_in_exactly_half_of_the_shadows(level: Any) -> None:
    inside = np.stack([coins(500, 3, level, "shadow", i) for i in range(6)])
    assert (inside.sum(0) == 3).all()
    assert (inside[0] == ~inside[1]).all()
    target = coins(500, 3, level, "target", 0)
    assert 180 < target.sum() < 320  # a fair coin is outside once in a billion
    assert not (target == inside[0]).all()


@pytest.mark.parametrize("level", ["example", "client"])
def test_a_file_makes_the_same_half_as_the_plan(by_heart: FinishedRun, level: Any, tmp_path: Path) -> None:
    part = plan(by_heart, level, 4, 1, tmp_path)[2]
    again = Experiment.parse(json.loads(json.dumps(part.experiment.complete())))
    made = make_partition(again, by_heart.setup.dataset)
    assert made.digest() == part.half.digest()
    assert made.size == 12  # those who are left out are still there, with nothing
    whole, inside = by_heart.setup.training, part.inside
    for c in range(12):
        rows = whole.of(c).tolist()
        kept = [r for r in rows if inside[r]] if level == "example" else rows * bool(inside[c])
        assert made.of(c).tolist() == kept


def test_halves_differ_from_the_run_in_who_is_in_them_and_the_seed(by_heart: FinishedRun, tmp_path: Path) -> None:
    parts = plan(by_heart, "client", 4, 1, tmp_path)
    assert len({p.experiment.seed for p in parts}) == 5
    for p in parts:
        other = {k for k, v in p.experiment.complete().items() if by_heart.setup.experiment.complete().get(k) != v}
        assert other == {"partition", "seed", "label", "on_divergence", "evaluate"}


def test_what_is_trained_once_stays(by_heart: FinishedRun, shadowed: tuple[Path, Scores], tmp_path: Path) -> None:
    first = shadowed[1]
    shutil.copytree(shadowed[0], tmp_path, dirs_exist_ok=True)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.pt")}
    shutil.rmtree(tmp_path / "client" / "shadow-001")
    again = lira_scores(by_heart, "client", 4, 1, tmp_path, "cpu")
    after = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.pt")}
    assert [p.parent.name for p in before if before[p] != after[p]] == ["shadow-001"]
    assert again.members == pytest.approx(first.members, rel=1e-3, abs=1e-3)


def test_an_interrupted_audit_goes_on(by_heart: FinishedRun, shadowed: tuple[Path, Scores], tmp_path: Path) -> None:
    whole = shadowed[1]
    told: list[float] = []

    def stop(level: str, done: float, runs: int) -> None:
        told.append(done)
        if done > 0.5 * runs:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lira_scores(by_heart, "client", 4, 1, tmp_path / "cut", "cpu", stop)
    assert told
    again = lira_scores(by_heart, "client", 4, 1, tmp_path / "cut", "cpu")
    assert again.members == pytest.approx(whole.members, rel=1e-3, abs=1e-3)


def test_runs_that_cannot_be_stacked_go_one_by_one(by_heart: FinishedRun, tmp_path: Path) -> None:
    changes = {"rounds": 2, "local": {"epochs": 1, "batch": 10}}
    both = []
    for engine in ("vector", "loop"):
        run = FinishedRun.open(ran(tmp_path / engine, **changes, engine=engine).folder, "cpu")
        both.append(lira_scores(run, "example", 4, 1, tmp_path / engine, "cpu"))
    assert both[0].members == pytest.approx(both[1].members, rel=1e-2, abs=1e-2)


def test_numbers_that_are_no_classes_are_scored_by_their_loss(tmp_path: Path) -> None:
    data = {"name": RANDOM_LABELS, "kind": "numbers"}
    found = audit(ran(tmp_path, data=data, algorithm={"name": "fedavg", "lr": 0.05}).folder, level="example", shadows=4)
    by_name = {a["name"]: a for a in found["attacks"]}
    assert "by minus loss" in by_name["likelihood ratio"]["note"]
    assert by_name["loss threshold"]["auc"] > 0.55


def test_texts_are_scored_by_their_loss(tmp_path: Path) -> None:
    data = {"name": RANDOM_LABELS, "kind": "tokens"}
    model = {"name": "transformer_lm", "width": 8, "heads": 2, "layers": 1}
    run = ran(tmp_path, rounds=1, data=data, task={"model": model}, local={"max_steps": 1})
    found = audit(run.folder, shadows=4)
    assert {(a["name"], a["level"]) for a in found["attacks"]} == {
        ("loss threshold", "example"),
        ("likelihood ratio", "example"),
        ("likelihood ratio", "client"),
    }
    assert found["skipped"][0]["attack"] == "loss threshold, client"


@pytest.mark.parametrize(
    ("changes", "asked", "words"),
    [
        ({"data": {"name": RANDOM_LABELS, "test": False}}, ("loss", "example"), "no test data"),
        ({}, ("loss", "client"), "12 of 12 clients took part"),
        ({"algorithm": {"name": "local", "lr": 0.1}}, ("all", "both"), "keeps a part of the model"),
        ({"algorithm": {"name": "centralised", "lr": 0.1}}, ("loss", "client"), "all data is pooled"),
        ({"algorithm": {"name": "centralised", "lr": 0.1}}, ("lira", "client"), "all data is pooled"),
        ({"partition": {"name": "noise", "clients": 12, "level": 0.1}}, ("lira", "example"), "feature noise"),
        ({"rounds": 40, "cohort": {"name": "fixed", "size": 1}}, ("lira", "client"), "cohort: is so small"),
        ({"partition": {"name": "iid", "clients": 2}}, ("lira", "client"), "2 clients are too few"),
    ],
)
def test_what_cannot_be_attacked_is_refused(changes: Any, asked: Any, words: str, tmp_path: Path) -> None:
    run = ran(tmp_path, **{"rounds": 1, **changes})
    with pytest.raises((ConfigError, PartitionError), match=words):
        audit(run.folder, *asked, shadows=4)


def test_a_run_whose_clients_have_changed_is_refused(tmp_path: Path) -> None:
    run = ran(tmp_path, rounds=1)
    info = json.loads((run.folder / "run.json").read_text())
    info["partition"]["digest"] = "0" * 32
    (run.folder / "run.json").write_text(json.dumps(info))
    with pytest.raises(RecordError, match="cannot be made again"):
        FinishedRun.open(run.folder)


def test_a_recipe_that_diverges_on_halves_is_said_to(by_heart: FinishedRun, tmp_path: Path) -> None:
    data = {"name": RANDOM_LABELS, "kind": "numbers"}
    run = ran(tmp_path, rounds=2, data=data, algorithm={"name": "fedavg", "lr": 50.0}, on_divergence="drop")
    first = FinishedRun.open(run.folder, "cpu")
    parts = plan(first, "example", 4, 1, tmp_path / "audit")
    lira_scores(first, "example", 4, 1, tmp_path / "audit", "cpu")  # everyone is dropped: finite, and as it began
    broken = Run(parts[2].folder).params
    torch.save({k: v * float("nan") for k, v in broken.items()}, parts[2].folder / "model.pt")
    with pytest.raises(DivergenceError, match="shadow-001: on half of the data"):
        lira_scores(first, "example", 4, 1, tmp_path / "audit", "cpu")


def test_a_half_of_a_pooled_run_is_audited_by_example(tmp_path: Path) -> None:
    run = FinishedRun.open(ran(tmp_path, rounds=2, algorithm={"name": "centralised", "lr": 0.1}).folder, "cpu")
    scores = lira_scores(run, "example", 4, 1, tmp_path, "cpu")
    assert len(scores.members) + len(scores.others) == 240


def test_a_half_is_named_by_its_own_fields() -> None:
    part = Half({"name": "iid", "clients": 3}, 0, "client", "target", 0)
    assert part(torch.zeros(9, dtype=torch.int64), {}, 9, torch.zeros(2)).size == 3
