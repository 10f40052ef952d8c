"""A model that an algorithm owns beside the one it learns, named in its entry and built for the data."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll import rng, tree
from atoll.errors import ConfigError
from atoll.experiment import GIVEN, Experiment, schema, set_up
from atoll.records import RunFolder
from atoll.runs import RunLoop, run_together, why_not_stackable
from atoll.testing import check_algorithm
from atoll.testing.assertions import distance
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "examples"))
from distillation import Distillation

TEACHER = {"name": "mlp", "widths": [32]}


def experiment(teacher: Any = TEACHER, **changes: Any) -> dict[str, Any]:
    algorithm = {"name": "distillation:Distillation", "lr": 0.1, **({} if teacher is None else {"teacher": teacher})}
    return {
        "rounds": 3,
        "data": "digits",
        "partition": {"name": "iid", "clients": 4},
        "cohort": {"name": "fixed", "size": 3},
        "task": {"model": "linear"},
        "local": {"max_steps": 4},
        "algorithm": algorithm,
        "engine": "vector",
        "evaluate": {"clients": 0},
        **changes,
    }


def server_of(run: atoll.Run) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(run.folder / "checkpoint.pt", weights_only=True)["parts"]["round"]["server"]
    return state


def test_the_teacher_has_the_shapes_of_the_data_and_weights_of_its_own_key() -> None:
    teachers = []
    for seed in (0, 0, 1):
        setup = set_up(Experiment.parse(experiment(seed=seed)), "cpu")
        server = setup.algorithm.init(setup.model, rng.key("server"))
        assert {k: tuple(v.shape) for k, v in server["teacher"]["params"].items() if k.endswith("weight")} == {
            "hidden.0.weight": (32, 64),
            "head.weight": (10, 32),
        }
        teachers.append(tree.digest(server["teacher"]))
    assert teachers[0] == teachers[1] != teachers[2]


def test_a_teacher_of_the_same_entry_as_the_model_is_drawn_apart() -> None:
    alike = set_up(Experiment.parse(experiment(task={"model": TEACHER})), "cpu")
    server = alike.algorithm.init(alike.model, rng.key("server"))
    assert distance(server["params"], server["teacher"]["params"]) > 0.5


def test_it_learns_and_travels_like_the_rest(tmp_path: Path) -> None:
    runs = {e: atoll.run(experiment(engine=e), tmp_path / e) for e in ("loop", "vector")}
    loop, vector = (server_of(run) for run in runs.values())
    assert distance(loop, vector) < 1e-5
    setup = set_up(Experiment.parse(experiment()), "cpu")
    first = setup.algorithm.init(setup.model, rng.key("server"))
    assert distance(loop["teacher"]["params"], first["teacher"]["params"]) > 1e-3
    plain = atoll.run(experiment(algorithm={"name": "fedavg", "lr": 0.1}), tmp_path / "plain")
    traffic = [run.history[0]["bytes"]["up"] for run in (runs["vector"], plain)]
    numbers = [tree.count(x) for x in (first["params"], first["teacher"]["params"])]
    extra = (traffic[0] - traffic[1]) / 3 - 4 * numbers[1]
    assert 0 < extra < 200, "the teacher's numbers, and its names in the header"


def test_a_model_that_imitates_is_closer_to_its_teacher_than_one_that_does_not() -> None:
    problem = set_up(Experiment.parse(experiment()), "cpu")
    batch = {**tree.rows(problem.dataset.decode(problem.dataset.train), torch.arange(16)), "mask": torch.ones(16)}
    gaps = []
    for mu in (0.0, 50.0):
        made = Distillation(problem.task, problem.second_models[0], lr=0.02, mu=mu)
        server = made.init(problem.model, rng.key("server"))
        carry = made.start(server, {})
        for step in range(20):
            carry = made.step(carry, server, {}, {**batch, "key": rng.key(step)})
        logits = [
            task.logits(model["params"], model["buffers"], batch, training=False).softmax(-1)
            for task, model in ((problem.task, carry), (problem.second_models[0], carry["teacher"]))
        ]
        gaps.append(float((logits[0] - logits[1]).norm()))
    assert gaps[1] < 0.5 * gaps[0]


class GoneError(Exception):
    """What a test stops a run with."""


def test_a_resumed_run_goes_on_with_the_same_teacher(tmp_path: Path) -> None:
    given = experiment(checkpoint={"every": 1})

    def gone(done: int, rounds: int, line: object) -> None:
        if done == 2:
            raise GoneError

    with pytest.raises(GoneError):
        atoll.run(given, tmp_path / "gone", watch=gone)
    resumed, whole = atoll.run(given, tmp_path / "gone", resume=True), atoll.run(given, tmp_path / "whole")
    assert tree.digest(server_of(resumed)) == tree.digest(server_of(whole))
    assert resumed.history[-1]["model"] == whole.history[-1]["model"]


def test_seeds_run_as_one_stack_and_other_widths_do_not(tmp_path: Path) -> None:
    given = [Experiment.parse(experiment(seed=seed)) for seed in (0, 1)]
    stacked = run_together(given, [tmp_path / f"{e.seed}" for e in given])
    for e, run in zip(given, stacked, strict=True):
        alone = atoll.run(e, tmp_path / "alone" / f"{e.seed}")
        assert distance(server_of(run), server_of(alone)) < 1e-4
    wider = Experiment.parse(experiment({"name": "mlp", "widths": [33]}))
    assert str(why_not_stackable([given[0], wider])).startswith("algorithm.teacher: differs")


@pytest.mark.parametrize(
    ("teacher", "words"),
    [
        (None, r"algorithm.teacher: is missing; .*Distillation needs it. Example: teacher = {.*mlp"),
        (3, r"algorithm.teacher: must be a name or a table with a name \(got 3\)"),
        ("mpl", r"algorithm.teacher.name: 'mpl' is not known. Did you mean 'mlp'\?"),
        ({"name": "mlp", "width": [8]}, r"algorithm.teacher.width: is not an option of mlp. Did you mean widths\?"),
        ({"name": "mlp", "inputs": [8]}, "algorithm.teacher.inputs: is not an option of mlp"),
        ({"name": "mlp", "widths": [0]}, "algorithm.teacher.widths.0: must be at least 1"),
    ],
)
def test_a_teacher_that_cannot_be_is_refused_before_the_data_is_read(teacher: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Experiment.parse(experiment(teacher))


@pytest.mark.parametrize("teacher", ["char_lstm", f"{__name__}:too_few"])
def test_a_teacher_that_does_not_go_with_the_data_is_refused_by_its_own_name(teacher: str) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.teacher") as refused:
        set_up(Experiment.parse(experiment(teacher)), "cpu")
    assert "task.model" not in str(refused.value)


def too_few(inputs: tuple[int, ...], outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs - 3))


def test_dropout_in_the_teacher_alone_gets_keys_too(tmp_path: Path) -> None:
    given = experiment({**TEACHER, "dropout": 0.5})
    loop, vector = (server_of(atoll.run({**given, "engine": e}, tmp_path / e)) for e in ("loop", "vector"))
    assert distance(loop, vector) < 1e-5
    drawing, still = (set_up(Experiment.parse(e), "cpu") for e in (given, experiment()))
    assert RunLoop(drawing, RunFolder(tmp_path / "drawing")).own.data.keyed
    assert not RunLoop(still, RunFolder(tmp_path / "still")).own.data.keyed


def test_what_a_teacher_reads_of_examples_is_not_covered_by_noise_on_gradients() -> None:
    private = {"max_steps": 4, "privacy": {"max_norm": 1.0, "epsilon": 8.0, "delta": 1e-5}}
    with pytest.raises(ConfigError, match=r"local.privacy: the algorithm reads"):
        set_up(Experiment.parse(experiment(local=private, cohort="everyone")), "cpu")


@pytest.mark.slow
def test_the_kit_gives_a_second_model_and_a_file_sees_a_model() -> None:
    assert "same on every engine and in every chunk" in check_algorithm(Distillation)
    assert schema(Distillation, GIVEN["algorithms"])["teacher"].words == "a model"
