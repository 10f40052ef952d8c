"""Secure sums in a hierarchy: of the clients of every edge, or of the edges of a level."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll.algorithms.fedavg import FedAvg
from atoll.clock import Timeline
from atoll.core import Chain
from atoll.errors import ConfigError
from atoll.experiment import Experiment, security_of, set_up
from atoll.protocols import Course, rehearse
from atoll.records import RunFolder
from atoll.rounds import ProtocolSummation
from atoll.rounds.hierarchical_names import hierarchical
from atoll.runs import virtual_time
from atoll.testing import check_round
from atoll.testing.assertions import distance
from atoll.testing.harness import federation
from atoll.testing.problems import flat, quadratics
from atoll.transforms import TRANSFORMS, FixedPointFor, SecureSum
from tests.support.marks import slow
from tests.support.summed_in_clear import SummedInClear

IN_CLEAR = "tests.support.summed_in_clear:SummedInClear"
BOUNDED: list[Any] = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
SECONDS = {"client": 0.2, "server": 0.1}
TABLE: dict[str, Any] = {"protocol": IN_CLEAR, "seconds": SECONDS}
EDGES = {"name": "hierarchical", "edges": [3]}
ABOVE = {**EDGES, "level_transforms": [BOUNDED]}
GIVEN: dict[str, Any] = {
    "rounds": 4,
    "engine": "vector",
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 12},
    "task": {"model": "linear"},
    "local": {"batch": 16, "max_steps": 2},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "transform": BOUNDED,
    "round": EDGES,
    "evaluate": {"clients": 0, "every": 4},
    "checkpoint": {"every": 1},
}
REGIONS = {"name": "hierarchical", "edges": [5, 3], "rounds": [2, 1], "level_transforms": [[], BOUNDED]}
LAYERS = (TRANSFORMS["equal_weights"](), TRANSFORMS["clip_l2"](0.3))


def run(folder: Path, secure: dict[str, Any] | None, **changes: Any) -> atoll.Run:
    return atoll.run({**GIVEN, **changes, **({} if secure is None else {"secure": secure})}, folder)


def models(run: atoll.Run) -> list[str]:
    return [line["model"] for line in run.history]


def lines(run: atoll.Run) -> list[dict[str, Any]]:
    return RunFolder(run.folder).record()


def summation(mode: str, most: int, dropout: float = 0.0, seed: int = 5) -> ProtocolSummation:
    protocol = SummedInClear(bits=20)
    course = rehearse(protocol) if dropout else Course(3, 1)
    encoded = lambda chain: Chain((*chain.transforms, FixedPointFor(20), SecureSum(20)))  # noqa: E731
    return ProtocolSummation(protocol, mode, most, dropout, seed, course, protocol, encoded)  # type: ignore[arg-type]


# What it becomes.


@pytest.mark.parametrize("clock", [slow(None), {"seconds_per_step": 0.1, "dropout": 0.1}])
def test_one_edge_is_the_central_secure_round_bit_for_bit(clock: Any, tmp_path: Path) -> None:
    """With who is lost and which rounds are void, with bytes up, and in virtual time."""
    more = {} if clock is None else {"clock": clock}
    secure = {**TABLE, "dropout": 0.3}
    one = {"name": "hierarchical", "edges": [1]}
    central, edge = (run(tmp_path / str(i), secure, round=x, rounds=3, **more) for i, x in enumerate(("central", one)))
    assert models(central) == models(edge)
    for a, b in zip(lines(central), lines(edge), strict=True):
        for name in ("asked", "in_sum", "lost_ids", "lost_steps", "void", "up", "down"):
            assert a["secure"].get(name) == b["secure"].get(name)
        assert b["diagnostics"]["traffic"]["clients"]["up"] == round(a["secure"]["asked"] * a["secure"]["up"])
        if clock is not None:
            assert a["clock"]["end"] == pytest.approx(b["clock"]["end"])
    assert any(line["secure"].get("lost") for line in lines(central))


def params(made: Any) -> Any:
    return flat(made.server["params"])


@pytest.mark.parametrize("edges", [[2], slow([3, 2])])
def test_sums_of_clients_are_the_plain_ones_to_the_step_of_the_fixed_point(edges: list[int]) -> None:
    problem, round = quadratics(), hierarchical(6, edges)
    secret, counts = Chain((*LAYERS, FixedPointFor(20), SecureSum(20))), {"cohort": 6 // edges[0]}
    rounds = [round.summed_by(summation(mode, 6 // edges[0]), 0) for mode in ("real", "cost")]
    plain = federation(problem, FedAvg(problem.task, 0.1), round=round, chain=Chain(LAYERS))
    real, cost = (federation(problem, FedAvg(problem.task, 0.1), round=x, chain=secret, counts=counts) for x in rounds)
    step = real.program.chain.transforms[2].step  # type: ignore[attr-defined]
    for number in range(1, 5):
        for made in (plain, real, cost):
            made.run(range(6))
        assert torch.equal(params(real), params(cost))
        assert 0 < float((params(plain) - params(real)).abs().max()) < number * step
    assert step < 1e-5


@pytest.mark.parametrize(("edges", "level"), [([4, 2], 1), slow([3], 1), slow([4, 2], 2)])
def test_sums_of_edges_are_the_plain_ones_to_the_step(edges: list[int], level: int) -> None:
    problem = quadratics()
    lists = [list(LAYERS) if i + 1 == level else [] for i in range(len(edges))]
    round = hierarchical(6, edges, [2, 1][: len(edges)], level_transforms=lists, numbers=8)
    most = round.parties(level, None) or 0
    rounds = [round, *(round.summed_by(summation(mode, most), level) for mode in ("real", "cost"))]
    plain, real, cost = (federation(problem, FedAvg(problem.task, 0.1), round=x) for x in rounds)
    chain: Any = real.round.transforms.chains[level - 1]  # type: ignore[attr-defined]
    step = chain.transforms[2].step
    for number in range(1, 4):
        for made in (plain, real, cost):
            made.run(range(6))
        assert torch.equal(params(real), params(cost))
        assert 0 < float((params(plain) - params(real)).abs().max()) < 3 * number * step
    assert step < 1e-5


# The contract.


@pytest.mark.parametrize("level", [0, slow(1), slow(2)])
def test_it_does_what_a_round_must(level: int) -> None:
    lists = [list(LAYERS) if i + 1 == level else [] for i in range(2)]
    round = hierarchical(6, [4, 2] if level else [2, 1], level_transforms=lists, numbers=8)
    secured = round.summed_by(summation("cost", 3, 0.2), level)
    assert secured is not None
    assert "both halves of every transform" in check_round(secured)


@pytest.mark.parametrize(
    ("secure", "round"),
    [
        (TABLE, {**EDGES, "rounds": [2]}),
        ({**TABLE, "level": 1}, ABOVE),
        slow({**TABLE, "level": 2}, REGIONS),
    ],
    ids=["clients", "edges", "regions"],
)  # fmt: skip
def test_a_modelled_run_has_the_bits_of_a_real_one_and_a_resumed_one_too(
    secure: dict[str, Any], round: dict[str, Any], tmp_path: Path
) -> None:
    secure = {**secure, "dropout": 0.3, "threshold": 0.4}
    transform = BOUNDED if "level" not in secure else []
    more = {"round": round, "transform": transform, "rounds": 3}
    real, cost = (run(tmp_path / mode, {**secure, "mode": mode}, **more) for mode in ("real", "cost"))
    assert models(real) == models(cost)
    names = ("asked", "in_sum", "lost_ids", "lost_steps", "sums", "void_sums", "void")
    facts = [[{k: x["secure"].get(k) for k in names} for x in lines(r)] for r in (real, cost)]
    assert facts[0] == facts[1]
    assert any(x["lost_ids"] for x in facts[0])
    part = tmp_path / "part"
    run(part, {**secure, "mode": "real"}, **{**more, "rounds": 1})
    resumed = atoll.run({**GIVEN, **more, "secure": {**secure, "mode": "real"}}, part, resume=True)
    assert models(resumed) == models(real)


@pytest.mark.slow
@pytest.mark.parametrize("secure", [{"protocol": "secagg"}, {"protocol": "secagg", "level": 1}])
def test_a_real_protocol_has_the_bits_of_one_in_clear(secure: dict[str, Any], tmp_path: Path) -> None:
    more = {"round": ABOVE if "level" in secure else EDGES}
    ends = [models(run(tmp_path / str(i), {**secure, **x}, **more)) for i, x in enumerate(({}, {"protocol": IN_CLEAR}))]
    assert ends[0] == ends[1]


# Who is lost.


def test_an_edge_below_its_threshold_has_no_sum_and_the_others_go_on(tmp_path: Path) -> None:
    """Three edges of four clients, two of which must stay in each."""
    made = run(tmp_path / "a", {**TABLE, "dropout": 0.45}, rounds=6)
    voids = []
    for line in lines(made):
        said, ids = line["secure"], np.array(line["cohort"]["ids"])
        lost = dict(zip(said.get("lost_ids", []), said.get("lost_steps", []), strict=True))
        expected = []
        for edge in range(3):
            clients = range(4 * edge, 4 * edge + 4)
            if sum(c not in lost for c in clients) >= 2:
                expected += [c for c in clients if lost.get(c, 9) > 2]
        assert sorted(ids.tolist()) == expected
        assert said["in_sum"] == len(expected)
        voids.append(said["void_sums"])
        assert said["sums"] == 3
    assert max(voids) > 0
    assert min(voids) < 3


@pytest.mark.parametrize(
    "more",
    [
        {"cohort": {"name": "fixed", "size": 2}, "partition": {**GIVEN["partition"], "clients": 8}},
        slow({"secure": {"dropout": 0.75}}),
        slow({"round": {**EDGES, "rounds": [2]}, "secure": {"dropout": 0.75}}),
    ],
    ids=["a cohort too small", "dropout", "turns"],
)
def test_a_turn_without_anybody_in_any_sum_leaves_the_model_as_it_is(more: dict[str, Any], tmp_path: Path) -> None:
    """With a real protocol, which is not for nobody; modelled, the same."""
    table = {"protocol": "secagg", "threshold": 0.5, "seconds": SECONDS, **more.get("secure", {})}
    options: dict[str, Any] = {"round": {**EDGES, "edges": [2]}, "rounds": 6, **more}
    options.pop("secure", None)
    real, cost = (run(tmp_path / mode, {**table, "mode": mode}, **options) for mode in ("real", "cost"))
    assert models(real) == models(cost)
    names = ("in_sum", "void", "void_sums", "sums")
    said = [[{k: x["secure"].get(k) for k in names} for x in lines(r)] for r in (real, cost)]
    assert said[0] == said[1]
    before = [None, *models(real)]
    empty = [i for i, line in enumerate(lines(real)) if line["secure"].get("void")]
    assert empty
    assert all(before[i + 1] == before[i] for i in empty if i)


def test_one_edge_of_which_nobody_stays_goes_on_as_the_central_round_does(tmp_path: Path) -> None:
    secure = {**TABLE, "threshold": 0.5, "dropout": 0.8}
    rounds = ("central", {"name": "hierarchical", "edges": [1]})
    central, edge = (run(tmp_path / str(i), secure, round=x) for i, x in enumerate(rounds))
    assert models(central) == models(edge)
    void = [[bool(line["secure"].get("void")) for line in lines(r)] for r in (central, edge)]
    assert void[0] == void[1]
    assert any(line["secure"]["in_sum"] == 0 for line in lines(central))


def test_what_an_edge_sends_that_is_lost_is_not_in_the_sum(tmp_path: Path) -> None:
    """By hand: the mean over the edges whose vectors arrived, each clipped, from the record of who was lost."""
    problem = quadratics()
    round = hierarchical(6, [3], level_transforms=[list(LAYERS)], numbers=8)
    by = summation("real", 3, 0.35, 1)
    secure, alone = (federation(problem, FedAvg(problem.task, 0.1), round=x) for x in (round.summed_by(by, 1), round))
    kinds = set()
    for number in range(4):
        before = flat(secure.server["params"])
        alone.state = {**alone.state, "server": secure.server}
        attendance = by.attendance(number, torch.arange(3), 3)
        here = [e for e in range(3) if attendance.trains[e]]
        changes = []
        for e in here:  # a round of that edge alone is its clipped mean change
            alone.number, alone.state = number, {**alone.state, "server": secure.server}
            alone.run(range(2 * e, 2 * e + 2))
            changes.append(flat(alone.server["params"]) - before)
        secure.run(range(6))
        moved = flat(secure.server["params"]) - before
        expected = sum(changes) / len(changes) if changes else torch.zeros_like(before)
        assert float((moved - expected).abs().max()) < 1e-5
        kinds.add((attendance.void, len(here)))
    assert {True, False} == {void for void, _ in kinds}
    assert (False, 2) in kinds


# Bytes, time and what is said.


def test_bytes_of_the_level_are_the_protocols(tmp_path: Path) -> None:
    tables = (None, {**TABLE, "level": 1})
    plain, secure = (run(tmp_path / str(x is None), x, round=ABOVE, rounds=1, transform=[]) for x in tables)
    before, line = lines(plain)[0], lines(secure)[0]
    said, traffic = line["secure"], line["diagnostics"]["traffic"]
    assert said["asked"] == 3
    assert traffic["clients"] == before["diagnostics"]["traffic"]["clients"]
    assert traffic["level_1"]["up"] == round(3 * said["up"])
    assert traffic["level_1"]["down"] == before["diagnostics"]["traffic"]["level_1"]["down"] + round(3 * said["down"])
    assert line["bytes"]["up"] == traffic["clients"]["up"] + traffic["level_1"]["up"]
    assert secure.info["secure"]["level"] == 1


@pytest.mark.parametrize(("level", "more"), [slow(None, 0.3 + 2 * 2 * 0.05), (1, 0.3 + 2 * 2 * 0.01)])
def test_a_protocol_takes_virtual_time_at_its_level(level: int | None, more: float, tmp_path: Path) -> None:
    """Its seconds, then the server's, and two more ways there and back: of phones, or of the links between edges."""
    clock = {"seconds_per_step": 0.1, "latency_ms": 50.0}
    table = TABLE if level is None else {**TABLE, "level": level}
    round = {**(EDGES if level is None else ABOVE), "link_latency_ms": [10.0]}
    layers = BOUNDED if level is None else []
    more_options = {"round": round, "clock": clock, "transform": layers, "rounds": 2}
    plain, secure = (run(tmp_path / str(x is None), x, **more_options) for x in (None, table))
    ends = [r.history[0]["clock"]["end"] for r in (plain, secure)]
    assert ends[1] - ends[0] == pytest.approx(more, abs=2e-3)
    if level is None:
        first = Timeline.from_line(RunFolder(secure.folder).times()[0])
        file = {**GIVEN, "round": round, "clock": clock, "rounds": 2, "secure": table}
        assert virtual_time(set_up(Experiment.parse(file)), first).total == pytest.approx(
            secure.history[-1]["clock"]["end"]
        )


@pytest.mark.slow
def test_noise_at_the_edge_goes_with_a_secure_sum_above(tmp_path: Path) -> None:
    noise = [*BOUNDED, {"name": "gaussian_noise", "noise_multiplier": 1.0}]
    made = run(tmp_path / "a", {**TABLE, "level": 1}, transform=noise, round=ABOVE, rounds=2)
    plain = run(tmp_path / "b", None, transform=noise, round=ABOVE, rounds=2)
    assert made.info["privacy"]["client"]["epsilon"] == plain.info["privacy"]["client"]["epsilon"]
    assert made.info["privacy"]["client"]["holds"] is True
    assert 0 < distance(made.params, plain.params) < 1e-6


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({"secure": {"protocol": "secagg"}}, 2, "secagg: every edge learns the sum .* at least 3 of 4, of its own"),
        (
            {"secure": {"protocol": "secagg", "level": 1}, "round": ABOVE},
            1,
            "every edge sees its own clients' updates; between edges of level 1 and above, secagg",
        ),
        ({"secure": {"protocol": "secagg", "insecure_seed": True}}, 1, "^INSECURE"),
    ],
)
def test_the_statement_says_who_sees_what(changes: dict[str, Any], level: int, said: str) -> None:
    statement = security_of(set_up(Experiment.parse({**GIVEN, **changes})))
    assert statement.level == level
    assert re.search(said, statement.reason)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"secure": {**TABLE, "level": 1}}, r"level_transforms\.0: .* needs bounded updates: put clip_l2"),
        ({"secure": {**TABLE, "level": 2}, "round": ABOVE}, r"secure\.level: 2, and there are 1 levels of edges"),
        ({"secure": {**TABLE, "level": 1}, "round": "central"}, r"secure\.level: 1 is a level of edges"),
        ({"round": {**EDGES, "edges": [12]}}, r"secure: hides one among .* edge 0 sums what a single client sends"),
        (
            {"secure": {**TABLE, "level": 1}, "round": {**ABOVE, "edges": [1]}},
            r"secure: hides one among .* the server sums what a single edge of level 1 sends",
        ),
        ({"secure": {**TABLE, "threshold": 3}}, r"secure\.threshold: 3 would be for every sum, .* threshold = 0\.7"),
        ({"transform": BOUNDED[:1]}, r"needs bounded updates: put clip_l2 before it"),
        ({"reducer": "median"}, r"reducer\.name: 'median' looks at every update"),
        (
            {
                "transform": [
                    *BOUNDED,
                    {"name": "fixed_point", "step": 1e-3},
                    {"name": "skellam", "noise_multiplier": 1.0},
                ]
            },
            r"transform: with noise on updates edges whose sums .* secure\.level = 1",
        ),
    ],
)
def test_what_cannot_hold_is_refused_with_advice(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        set_up(Experiment.parse({**GIVEN, "secure": TABLE, **more}))


@pytest.mark.slow
def test_a_robust_reducer_in_every_edge_goes_with_a_secure_sum_of_edges(tmp_path: Path) -> None:
    made = run(tmp_path / "a", {**TABLE, "level": 1}, reducer="median", round=ABOVE, transform=[], rounds=1)
    assert lines(made)[0]["secure"]["in_sum"] == 3
