"""Choosing the fastest engine: a rule for dense models, else engines whose speed we set, on a clock of their own."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms.scaffold import Scaffold
from atoll.core import Engine, Pending, Request, Train, Trained
from atoll.engines import ENGINES, Loop, Threads, Vector, autotune, choice, cpu_threads, make, small
from atoll.engines.autotune import fastest, is_dense, measure
from atoll.engines.capture import Captured
from atoll.engines.malloc import KEPT_BYTES
from atoll.tasks.models import MODELS
from atoll.testing.harness import Federation, federation
from atoll.testing.problems import network
from tests.support.stateless_engine import StatelessEngine
from tests.tasks.test_models import build

DENSE = {"linear", "logistic", "mlp", "gan", "gkt"}
CONVOLUTION = nn.Conv2d(1, 1, 1)


class Time:
    """A clock that only work moves."""

    def __init__(self) -> None:
        self.now = 1e4

    def perf_counter(self) -> float:
        return self.now


class Paced(StatelessEngine):
    """Takes so many seconds for each call, by the number of the call; the last one again and again."""

    name = "paced"

    def __init__(self, clock: Time, *seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.notes = []
        self.seen: list[Train] = []

    def submit(self, request: Request) -> Pending[Any]:
        assert isinstance(request, Train)
        self.clock.now += self.seconds[min(len(self.seen), len(self.seconds) - 1)]
        self.seen.append(request)
        return Pending.done(cast(Trained, None))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr(autotune, "time", clock)
    return clock


def made() -> Federation:
    problem = network()
    return federation(problem, Scaffold(problem.task, 0.1, population=6))


def trial(clients: int = 64) -> Train:
    return made().request([i % 6 for i in range(clients)])


# ------------------------------------------------------------------------------------------------------------ the rule


@pytest.mark.parametrize("name", MODELS)
def test_of_the_models_that_come_with_atoll_these_are_dense(name: str) -> None:
    assert is_dense(build(name)) == (name in DENSE)


@pytest.mark.parametrize("options", [{"widths": []}, {"dropout": 0.5}, {"init": "niid"}])
def test_a_perceptron_is_dense_whatever_its_options(options: dict[str, Any]) -> None:
    assert is_dense(build("mlp", **options))


class Strange(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)


class StrangeLinear(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("model", "dense"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(2, 2), nn.GELU(), nn.LayerNorm(2), nn.Dropout(0.5)), True),
        (nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.Sequential()), True),
        (nn.Sequential(nn.Linear(2, 2), nn.PReLU()), False),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), False),
        (nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2)), False),
        (nn.MultiheadAttention(4, 2), False),
        (nn.TransformerEncoderLayer(4, 2), False),
        (nn.LSTM(2, 2), False),
        (Strange(), False),  # nobody knows what its forward does
        (StrangeLinear(2, 2), False),
        (nn.Sequential(Strange()), False),
    ],
)
def test_dense_is_nothing_but_dense_layers_and_functions_of_single_numbers(model: nn.Module, dense: bool) -> None:
    assert is_dense(model) == dense


# -------------------------------------------------------------------------------------------------------- a measurement


def test_the_faster_of_two_is_picked_and_the_note_says_what_was_measured(clock: Time) -> None:
    engines = {"slow": Paced(clock, 0.064), "fast": Paced(clock, 0.032)}
    assert fastest(engines, trial()) == ("fast", "measured: slow 4 ms, fast 2 ms (a client's first 4 steps)")
    assert fastest(dict(reversed(engines.items())), trial())[0] == "fast"


def test_of_two_that_are_as_good_the_first_stays(clock: Time) -> None:
    """Runs of one experiment should not differ in their last bits for nothing."""
    assert fastest({"first": Paced(clock, 0.104), "second": Paced(clock, 0.1)}, trial())[0] == "first"
    assert fastest({"first": Paced(clock, 0.106), "second": Paced(clock, 0.1)}, trial())[0] == "second"


def test_what_an_engine_makes_in_its_first_turn_does_not_count(clock: Time) -> None:
    engines = {"captures": Paced(clock, 0.9, 0.01), "does not": Paced(clock, 0.1)}
    assert measure(engines, trial()) == pytest.approx({"captures": 0.01 / 16, "does not": 0.1 / 16})


def test_a_stack_is_measured_with_its_steps_captured_as_they_are_in_a_run() -> None:
    problem = replace(network().only(3), batch=1)
    one = federation(problem, Scaffold(problem.task, 0.1, population=1), Vector)
    measure({"vector": one.engine}, one.request([0]))
    assert isinstance(one.engine, Vector)
    (program,) = one.engine._stacked.values()
    assert isinstance(program.step, Captured)
    assert program.step.graphs


def test_a_machine_that_is_busy_for_most_of_the_time_does_not_decide(clock: Time) -> None:
    engines = {"disturbed": Paced(clock, 0.9, 0.5, 0.01, 0.5), "not": Paced(clock, 0.1)}
    assert fastest(engines, trial())[0] == "disturbed"


def test_engines_take_turns(clock: Time) -> None:
    order: list[str] = []

    class Told(Paced):
        def submit(self, request: Request) -> Pending[Any]:
            order.append(str(self.seconds[0]))
            return super().submit(request)

    measure({"a": Told(clock, 0.1), "b": Told(clock, 0.2), "c": Told(clock, 0.3)}, trial())
    assert order == ["0.1", "0.2", "0.3"] * 4


@pytest.mark.parametrize("seconds", [1e-6, 1e-2, 0.5, 10.0])
def test_a_measurement_is_short_and_everybody_has_a_turn_that_counts(clock: Time, seconds: float) -> None:
    engines = {n: Paced(clock, seconds) for n in ("vector", "threads", "loop")}
    began = clock.now
    found = measure(engines, trial())
    assert found == pytest.approx(dict.fromkeys(engines, seconds / 16))
    assert clock.now - began <= max(3.0 + 3 * seconds, 6 * seconds) + 1e-6
    assert all(2 <= len(e.seen) <= 4 for e in engines.values())


def test_engines_are_tried_on_a_few_clients_and_steps_and_nothing_is_kept_of_it(clock: Time) -> None:
    engine = Paced(clock, 0.1)
    measure({"a": engine}, trial(64))
    assert {(len(r.ids), r.max_steps, r.client_state) for r in engine.seen} == {(16, 4, "read")}
    few = trial(3)
    measure({"a": engine}, few)
    assert torch.equal(engine.seen[-1].ids, few.ids)


def test_a_small_piece_of_a_request_without_a_common_server_has_those_clients_rows() -> None:
    whole = made().request([3, 1, 2])
    own = {"w": torch.arange(6.0).reshape(3, 2)}
    each = Train(whole.program, whole.settings, own, {}, whole.ids, whole.key, whole.order, per_client=True)
    piece = small(each, 2, 1)
    assert piece.sent["w"].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert piece.ids.tolist() == [3, 1]


# -------------------------------------------------------------------------------------------------------- real engines


def picked(name: str) -> Any:
    """As if this engine had been the fastest."""
    return patch.object(autotune, "measure", lambda engines, _: {n: 1.0 if n == name else 9.0 for n in engines})


def chosen(asked: str, model: nn.Module) -> Any:
    ours = made()
    engine = ours.engine
    assert isinstance(engine, Loop)
    return make(ENGINES[asked](), engine.data, engine.store, 100, ours.request([4, 0, 2]), model)


@pytest.mark.parametrize(("name", "kind"), [("vector", Vector), ("threads", Threads), ("loop", Loop)])
def test_the_engine_that_was_the_fastest_is_made(name: str, kind: type[Engine]) -> None:
    with picked(name):
        engine = chosen("auto", CONVOLUTION)
    assert type(engine) is kind
    assert engine.choice()["name"] == name
    assert engine.notes[0].startswith("measured: vector ")


@pytest.mark.parametrize("asked", ["vector", "threads", "loop"])
def test_an_engine_asked_for_by_name_is_not_measured(asked: str) -> None:
    with patch.object(choice, "fastest", pytest.fail):
        engine = chosen(asked, CONVOLUTION)
    assert engine.name == asked
    assert engine.notes == ["chosen by name"]


def test_dense_models_are_a_stack_without_a_measurement() -> None:
    with patch.object(choice, "fastest", pytest.fail):
        engine = chosen("auto", nn.Linear(2, 2))
    assert (engine.name, engine.chunk) == ("vector", 100)
    assert engine.notes[0].startswith("dense layers of many clients are batched products: one stack")


# ------------------------------------------------------------------------------- a stack that the allocator keeps


def dense(parameters: int, asked: str = "auto", device: str = "cpu", **options: Any) -> Vector:
    """The engine for a layer of so many numbers, where memory alone would allow a million clients at a time."""
    ours = made()
    data = replace(ours.engine.data, device=torch.device(device))
    with patch.object(choice, "_refusal", lambda *_: None):
        engine = make(ENGINES[asked](**options), data, ours.store, 1_000_000, trial(), nn.Linear(parameters, 1))
    assert isinstance(engine, Vector)
    return engine


@pytest.mark.parametrize("asked", ["auto", "vector"])
@pytest.mark.parametrize("parameters", [1000, 20_000, 131_000])
def test_no_tensor_of_a_dense_stack_is_so_large_that_its_pages_go_back(asked: str, parameters: int) -> None:
    width = choice._width(made().engine.data, trial())
    chunk = dense(parameters, asked).chunk
    numbers = 4 * parameters * width  # bytes of a client's batch, more than of its weights
    assert chunk * numbers < KEPT_BYTES <= (chunk + 1) * numbers + 4096 or chunk == 1_000_000
    assert (chunk == 1_000_000) == (KEPT_BYTES // numbers < 64)


def test_a_stack_of_few_wide_clients_is_not_cut() -> None:
    assert dense(10_000_000).chunk == 1_000_000


def test_a_chunk_asked_for_is_not_cut() -> None:
    assert dense(1000, chunk=1_000_000).chunk == 1_000_000


def test_on_a_gpu_memory_alone_bounds_the_stack() -> None:
    assert dense(1000, device="meta").chunk == 1_000_000


def test_a_measurement_by_real_engines_names_one_of_them_and_writes_no_client_state() -> None:
    ours = made()
    engine = ours.engine
    assert isinstance(engine, Loop)
    found = make(ENGINES["auto"](workers=1), engine.data, engine.store, 100, ours.request([4, 0, 2]), CONVOLUTION)
    assert found.name in ("vector", "threads", "loop")
    assert all(word in found.notes[0] for word in ("measured: vector", "threads", "loop", "ms"))
    assert not ours.store.touched.any()


@pytest.mark.parametrize(
    ("model", "measured"), [({"name": "mlp", "widths": [8], "dropout": 0.2}, False), ("cnn", True)]
)
def test_a_run_measures_only_what_no_rule_decides(tmp_path: Path, model: Any, measured: bool) -> None:
    """The rule looks at the model as it was given: a task puts layers of its own in the place of dropout."""
    given = {
        "rounds": 1,
        "data": "digits",
        "partition": {"name": "iid", "clients": 50},
        "cohort": {"name": "fixed", "size": 2},
        "task": {"model": model},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "evaluate": {"clients": 0},
    }
    with picked("threads"):
        run = atoll.run(given, tmp_path / "run", device="cpu")
    assert run.info["engine"]["name"] == ("threads" if measured else "vector")
    assert run.info["engine"]["reason"].startswith("measured:" if measured else "dense layers")


@pytest.mark.parametrize(("wide", "threads"), [(2, 1), (400_000, None)])
@pytest.mark.parametrize("asked", ["auto", "vector"])
def test_small_dense_stacks_compute_on_one_thread_and_large_ones_on_all(
    asked: str, wide: int, threads: int | None
) -> None:
    engine = chosen(asked, nn.Sequential(nn.Linear(2, wide), nn.Linear(wide, 2)))
    assert isinstance(engine, Vector)
    assert engine.threads == threads


def test_convolutions_compute_on_all_threads_however_few_their_parameters_are() -> None:
    engine = chosen("vector", CONVOLUTION)
    assert isinstance(engine, Vector)
    assert engine.threads is None


def test_a_stack_leaves_the_number_of_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    with cpu_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        with cpu_threads(None):
            assert torch.get_num_threads() == before + 1
        with cpu_threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
