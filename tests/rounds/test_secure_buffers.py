"""Secure sums of a FedBuff buffer: those in it are the protocol's cohort, and scale their updates themselves."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.clock import RoundParts, Timeline
from atoll.core import Chain, Spec, Update
from atoll.errors import ConfigError
from atoll.experiment import Experiment, security_of, set_up
from atoll.protocols import Course, SecureAggregation, rehearse
from atoll.records import RunFolder
from atoll.reducers import StalenessDiscount
from atoll.rounds import PlainSummation, ProtocolSummation, StaleUpdates
from atoll.rounds.asynchronous import Asynchronous
from atoll.rounds.asynchronous_names import asynchronous, fedbuff
from atoll.runs import drive, on_promises, run_together, virtual_time
from atoll.testing import check_round, check_transform
from atoll.testing.assertions import distance
from atoll.testing.harness import federation
from atoll.testing.problems import flat, network, quadratics
from atoll.transforms import TRANSFORMS, FixedPointFor, SecureSum
from atoll.wire import EMPTY_BYTES
from tests.rounds.test_asynchronous import GIVEN as PLAIN
from tests.rounds.test_asynchronous import LR, timed
from tests.support.marks import slow
from tests.support.summed_in_clear import SummedInClear

IN_CLEAR = "tests.support.summed_in_clear:SummedInClear"
BOUNDED: list[Any] = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
SECONDS = {"client": 0.2, "server": 0.1}
SECURE_TABLE: dict[str, Any] = {"protocol": IN_CLEAR, "seconds": SECONDS}
LOSSY = {**SECURE_TABLE, "dropout": 0.35, "threshold": 3}
UNEVEN = {"seconds_per_step": 0.1, "latency_ms": 50.0, "slowness": {"low": 1.0, "high": 9.0}}
BUFFER = {"name": "fedbuff", "concurrency": 6, "buffer": 4}
GIVEN = {**PLAIN, "round": BUFFER, "transform": BOUNDED, "local": {"batch": 16, "max_steps": 3}}
LAYERS = (TRANSFORMS["equal_weights"](), TRANSFORMS["clip_l2"](0.3))


def run(folder: Path, secure: dict[str, Any] | None = None, **changes: Any) -> atoll.Run:
    return atoll.run({**GIVEN, "secure": secure or SECURE_TABLE, **changes}, folder)


@pytest.fixture(scope="module")
def lossy(tmp_path_factory: pytest.TempPathFactory) -> atoll.Run:
    """Real messages among phones of very different pace, of which some are lost in the protocol."""
    return run(tmp_path_factory.mktemp("lossy"), LOSSY, clock=UNEVEN)


def models(run: atoll.Run) -> list[str]:
    return [line["model"] for line in run.history]


def lines(run: atoll.Run) -> list[dict[str, Any]]:
    return RunFolder(run.folder).record()


def summation(mode: str, dropout: float = 0.0, protocol: SecureAggregation | None = None) -> ProtocolSummation:
    """Of three clients; not begun, so that it takes no virtual time."""
    protocol = protocol or SummedInClear(bits=20)
    course = rehearse(protocol) if dropout else Course(3, 1)
    return ProtocolSummation(protocol, mode, 3, dropout, 5, course, protocol, lambda chain: chain)  # type: ignore[arg-type]


def federated(round: Asynchronous, by: Any, problem: Any = None) -> Any:
    """A federation in this round with its sums made so."""
    problem = problem or quadratics()
    chain: tuple[Any, ...] = LAYERS
    if not isinstance(by, PlainSummation):
        chain = (*LAYERS, *round.before_sums(), FixedPointFor(20), SecureSum(20))
        round = round.summed_by(by, 0)  # type: ignore[assignment]
    return federation(problem, FedAvg(problem.task, LR), round=round, chain=Chain(chain), counts={"cohort": 3})


# What it becomes.


@pytest.mark.parametrize("dropout", [0.3, slow(0.0)])
def test_a_buffer_of_all_who_are_equally_fast_is_the_synchronous_secure_round_bit_for_bit(
    dropout: float, tmp_path: Path
) -> None:
    """Whoever is lost in the protocol, too, and which rounds are void. With s(t) = 1 written as a power, to the step:
    one transform more, and numbers are rounded with other draws."""
    secure = {**SECURE_TABLE, "dropout": dropout, "threshold": 8}
    whole = {"name": "fedbuff", "concurrency": 12, "buffer": 12}
    rounds: list[Any] = ["central", {**whole, "staleness": "constant"}, whole]
    more = {"clock": {"seconds_per_step": 0.1}, "rounds": 3}
    runs = [run(tmp_path / str(i), secure, **more, round=x) for i, x in enumerate(rounds)]
    assert models(runs[0]) == models(runs[1])
    assert 0 < distance(runs[0].params, runs[2].params) < 4 * 2.0**-27 + 1e-6
    facts = [[{k: v for k, v in x["secure"].items() if k != "seconds"} for x in lines(r)] for r in runs]
    assert facts[0] == facts[1] == facts[2]
    assert any(x.get("lost") for x in facts[0]) == bool(dropout)


def test_it_is_the_plain_step_of_fedbuff_to_the_step_of_the_fixed_point() -> None:
    """In both modes, which have the same bits; and updates that nobody scales would be far away."""
    ways = (PlainSummation(), summation("real"), summation("cost"))
    plain, real, cost = (federated(timed(fedbuff(4, 3)), by) for by in ways)
    unscaled = federated(timed(fedbuff(4, 3, "constant")), ways[2])
    step, stale = real.program.chain.transforms[3].step, 0
    for number in range(1, 9):
        outcomes = [made.run(range(6)) for made in (plain, real, cost, unscaled)]
        assert all(outcome.ids.tolist() == outcomes[0].ids.tolist() for outcome in outcomes)
        assert torch.equal(params(real), params(cost))
        assert 0 < float((params(plain) - params(real)).abs().max()) < number * step
        stale = max(stale, int(outcomes[1].diagnostics["staleness"]["max"]))
    assert stale > 1
    assert step < 1e-5
    assert float((params(unscaled) - params(real)).abs().max()) > 100 * step


def params(made: Any) -> Any:
    return flat(made.server["params"])


def test_clients_scale_by_what_the_reducer_would() -> None:
    discount = StalenessDiscount("hinge", 0.7, 2.0)
    value = {"delta": {"w": torch.tensor([4.0, -2.0])}, "buffers": {}}
    for stale in (0.0, 2.0, 5.0):
        by = 1.0 if stale <= 2 else 1 / (1 + 0.7 * (stale - 2))
        update = Update(value, torch.ones(()), staleness=torch.tensor(stale))
        sent, _ = StaleUpdates(discount).client(update, {}, {}, torch.zeros(2))
        assert sent.value["delta"]["w"].tolist() == pytest.approx([4.0 * by, -2.0 * by])
    bounded = Spec(l2=1.0, equal_weights=True)
    assert StaleUpdates(discount).bind(bounded)[1] == bounded
    check_transform(StaleUpdates(discount))


# The contract.


def test_it_does_what_a_round_must() -> None:
    """With the modelled sum: chains of the kit are of real numbers, which a protocol does not take."""
    round = timed(asynchronous(4, 3, window=9.0)).summed_by(summation("cost", 0.2), 0)
    assert round is not None
    assert "both halves of every transform" in check_round(round)


def test_a_round_with_real_messages_can_be_played_again() -> None:
    made = federated(timed(fedbuff(4, 3)), summation("real", 0.3), network())
    for number in range(3):
        before, ctx, key = tree.digest(made.state), made.context(range(6)), rng.key("again", number)
        play = partial(made.round.run, ctx, made.state, key)
        ends = [drive(on_promises(play), made.engine)[0] for _ in range(2)]
        assert tree.digest(ends[0]) == tree.digest(ends[1])
        assert tree.digest(made.state) == before
        made.run(range(6))


# Modes, and who is lost.


@pytest.mark.parametrize("protocol", [IN_CLEAR, slow("secagg"), slow("light_secagg")])
def test_a_modelled_run_has_the_bits_of_a_real_one(protocol: str, lossy: atoll.Run, tmp_path: Path) -> None:
    secure = {**LOSSY, "protocol": protocol}
    real = lossy if protocol == IN_CLEAR else run(tmp_path / "real", secure, clock=UNEVEN)
    cost = run(tmp_path / "cost", {**secure, "mode": "cost"}, clock=UNEVEN)
    assert models(real) == models(cost)
    assert RunFolder(real.folder).times() == RunFolder(cost.folder).times()
    names = ("asked", "in_sum", "lost_ids", "void")
    facts = [[{k: x["secure"].get(k) for k in names} for x in lines(r)] for r in (real, cost)]
    assert facts[0] == facts[1]
    assert any(x["lost_ids"] for x in facts[0])
    assert max(x["diagnostics"]["staleness"]["max"] for x in lines(real)) > 0


def test_who_is_lost_in_the_protocol_is_not_in_the_sum_and_too_few_make_a_step_void(lossy: atoll.Run) -> None:
    seen = set()
    before = [lossy.info["model"]["initial"], *models(lossy)]
    for number, line in enumerate(lines(lossy)):
        said = line["secure"]
        early = [i for i, at in zip(said.get("lost_ids", []), said.get("lost_steps", []), strict=True) if at <= 2]
        void = said["asked"] - said.get("lost", 0) < 3
        assert said.get("void", False) == void
        assert line["cohort"]["size"] == said["in_sum"] == (0 if void else said["asked"] - len(early))
        assert not set(early) & set(line["cohort"]["ids"])
        assert sum(line["diagnostics"]["staleness"]["histogram"]) == said["in_sum"]
        assert line["clock"]["counted"] == said["asked"]
        if number:
            assert (before[number + 1] == before[number]) == void
        seen.add((void, bool(early)))
    assert {void for void, _ in seen} == {True, False}
    assert (False, True) in seen
    assert lossy.info["secure"]["void"] == sum(bool(x["secure"].get("void")) for x in lines(lossy))


def test_a_step_that_the_window_ends_has_a_sum_of_those_who_came_or_none(tmp_path: Path) -> None:
    """The threshold is of a full buffer: half of four."""
    short = {"name": "asynchronous", "concurrency": 5, "buffer": 4, "window": 0.15}
    made = run(tmp_path / "a", round=short, rounds=10)
    asked = [line["secure"]["asked"] for line in lines(made)]
    assert [bool(line["secure"].get("void")) for line in lines(made)] == [n < 2 for n in asked]
    assert {0, 1} & set(asked)
    assert max(asked) > 2


def test_a_resumed_run_goes_on_with_the_same_bits(lossy: atoll.Run, tmp_path: Path) -> None:
    run(tmp_path / "part", LOSSY, clock=UNEVEN, rounds=5)
    resumed = atoll.run({**GIVEN, "secure": LOSSY, "clock": UNEVEN}, tmp_path / "part", resume=True)
    assert models(resumed) == models(lossy)
    assert RunFolder(resumed.folder).times() == RunFolder(lossy.folder).times()
    assert resumed.info["secure"]["lost"] == lossy.info["secure"]["lost"]


@pytest.mark.slow
def test_a_stack_of_runs_is_each_of_them(tmp_path: Path) -> None:
    alone = run(tmp_path / "alone")
    files = [Experiment.parse({**GIVEN, "secure": SECURE_TABLE, "seed": seed}) for seed in (0, 1)]
    together = run_together(files, [tmp_path / "0", tmp_path / "1"])
    assert RunFolder(together[0].folder).times() == RunFolder(alone.folder).times()
    assert models(together[0]) == models(alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"attack": {"name": "sign_flip", "share": 0.2}},
        {"server": {"ema": 0.9}},
        {"engine": "loop", "algorithm": {"name": "fedadam", "lr": 0.1, "server_lr": 0.01}},
        {"transform": ["equal_weights", "adaptive_clip"]},
    ],
)
def test_other_parts_of_a_file_go_on_working(more: dict[str, Any], tmp_path: Path) -> None:
    ends = [models(run(tmp_path / mode, {**LOSSY, "mode": mode}, **more)) for mode in ("real", "cost")]
    assert ends[0] == ends[1]


# Bytes and time.


def test_bytes_are_those_of_the_protocol_beside_models_and_a_word_of_every_client(lossy: atoll.Run) -> None:
    for line in lines(lossy):
        said, reports = line["secure"], line["secure"]["asked"]
        assert line["bytes"]["up"] == round(reports * said["up"]) + reports * EMPTY_BYTES
        models_sent = line["bytes"]["down"] - round(reports * said["down"])
        assert reports * 650 * 4 < models_sent < reports * (650 * 4 + 300)


def test_a_step_is_made_when_the_protocol_is_over_and_nobody_is_asked_meanwhile(lossy: atoll.Run) -> None:
    """All wait for the slowest of the buffer: its seconds, three ways there and back; then for the server."""
    times = RunFolder(lossy.folder).times()
    for line, later in pairwise(times):
        full = max(line["start"], *line["arrived"])
        assert line["end"] == pytest.approx(full + max(line["joint"]) + SECONDS["server"])
        assert all(0.2 + 6 * 0.05 <= x <= 9 * 0.2 + 6 * 0.05 + 1e-6 for x in line["joint"])
        assert later["start"] == line["end"]
        assert not any(full < began < line["end"] for began in later["began"])
    parts = RoundParts.of(Timeline.from_line(times[0]))
    assert parts.encrypt == pytest.approx(sum(times[0]["joint"]) / 4)
    whole = sum(times[0]["end"] - began for began in times[0]["began"]) / 4
    spent = parts.receive + parts.train + parts.compress + parts.encrypt + parts.send + parts.idle
    assert spent == pytest.approx(whole)


def test_who_comes_back_during_a_protocol_is_first_in_the_next_buffer(lossy: atoll.Run) -> None:
    """It is in one step, once, before anybody who comes later."""
    early = 0
    for line in RunFolder(lossy.folder).times()[1:]:
        early += sum(at < line["start"] for at in line["arrived"])
        assert len(set(line["ids"])) == len(line["ids"]) == 4
    assert early > 0


def test_a_forecast_is_the_time_that_a_run_takes(lossy: atoll.Run) -> None:
    first = Timeline.from_line(RunFolder(lossy.folder).times()[0])
    setup = set_up(Experiment.parse({**GIVEN, "secure": LOSSY, "clock": UNEVEN}))
    assert virtual_time(setup, first).total == pytest.approx(lossy.history[-1]["clock"]["end"])


# What is said, and what is refused.


def test_the_statement_is_that_of_the_protocol_among_those_of_a_buffer() -> None:
    setup = set_up(Experiment.parse({**GIVEN, "secure": {"protocol": "secagg"}}))
    statement = security_of(setup)
    assert statement.level == 2
    assert "at least 3 of 4" in statement.reason
    assert any(note.startswith("secure.seconds: ") for note in setup.notes)
    said = set_up(Experiment.parse({**GIVEN, "secure": SECURE_TABLE}))
    assert not any(note.startswith("secure.seconds: ") for note in said.notes)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"round": {"name": "fedasync"}}, r"secure: hides a client .* with round\.buffer = 1 .* buffer of 3 or more"),
        ({"round": {**BUFFER, "buffer": 1}}, r"secure: hides a client .* with round\.buffer = 1"),
        ({"round": {"name": "asynchronous", "window": 1.0}}, r"secure: .* a window alone .* Add round\.buffer"),
        ({"transform": BOUNDED[:1]}, r"needs bounded updates: put clip_l2 before it"),
        ({"secure": {**SECURE_TABLE, "threshold": 5}}, r"secure\.threshold: 5 clients must stay .* a cohort has 4"),
        ({"secure": {"protocol": "shuffle"}}, r"secure\.protocol: with shuffle .* Use round\.staleness = 'constant'"),
        ({"reducer": "median"}, r"reducer\.name: 'median' looks at every update"),
        (
            {"transform": [*BOUNDED, {"name": "gaussian_noise", "noise_multiplier": 1.0}]},
            "discrete_gaussian or skellam",
        ),
        (
            {
                "clock": {"seconds_per_step": 0.1},
                "transform": [
                    *BOUNDED,
                    {"name": "fixed_point", "step": 1e-3},
                    {"name": "skellam", "noise_multiplier": 1.0},
                ],
                "secure": {"protocol": "secagg"},
            },
            r"round\.name: fewer clients than a buffer holds may be in a step",
        ),
    ],
)
def test_what_cannot_hold_is_refused_with_advice(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        set_up(Experiment.parse({**GIVEN, "secure": SECURE_TABLE, **more}))


@pytest.mark.slow
def test_a_shuffle_of_updates_that_are_not_scaled_is_allowed(tmp_path: Path) -> None:
    made = run(tmp_path / "a", {**SECURE_TABLE, "protocol": "shuffle"}, round={**BUFFER, "staleness": "constant"})
    assert [line["secure"]["in_sum"] for line in lines(made)] == [4] * 8


def test_the_file_s_own_fixed_point_comes_after_the_discount() -> None:
    own = [*BOUNDED, {"name": "fixed_point", "step": 2.0**-27}]
    chain = set_up(Experiment.parse({**GIVEN, "transform": own, "secure": SECURE_TABLE})).chain
    names = [type(t).__name__ for t in chain.transforms]
    assert names == ["EqualWeights", "ClipL2", "StaleUpdates", "FixedPoint", "SecureSum"]
