"""Sums by a protocol in a run: the plain sum's bits, whoever is lost leaves no trace, and too few make a round void."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.experiment import Experiment
from atoll.protocols import PROTOCOLS
from atoll.records import RunFolder
from atoll.runs import run_together, why_not_stackable
from tests.support.marks import slow_but

IN_CLEAR = "tests.support.summed_in_clear:SummedInClear"
BOUNDED = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
STEP = 2.0**-27  # the finest at which 12 clients with lengths up to 1 stay within 32 bits
GIVEN: dict[str, Any] = {
    "rounds": 4,
    "engine": "vector",
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 12},
    "task": {"model": "linear"},
    "local": {"batch": 16, "max_steps": 3},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "transform": BOUNDED,
    "evaluate": {"clients": 0},
    "checkpoint": {"every": 1},
}
SIX = {"cohort": {"name": "fixed", "size": 6}}
LOSING = {"protocol": IN_CLEAR, "dropout": 0.3}


def run(folder: Path, secure: dict[str, Any] | None = None, **changes: Any) -> atoll.Run:
    return atoll.run({**GIVEN, **changes, **({"secure": secure} if secure else {})}, folder)


def models(run: atoll.Run) -> list[str]:
    return [line["model"] for line in run.history]


def lines(run: atoll.Run) -> list[dict[str, Any]]:
    return [line["secure"] for line in RunFolder(run.folder).record()]


def in_sum(run: atoll.Run) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """(rounds, 12): whose update is in the sum, as the lines say: who was lost at step 3 had sent its vector at 2."""
    found = np.ones((len(run.history), 12), bool)
    for there, line in zip(found, lines(run), strict=True):
        early = [id for id, step in zip(line.get("lost_ids", []), line.get("lost_steps", []), strict=True) if step <= 2]
        there[early] = False
        there &= not line.get("void")
    return found


# What a sum is.


@pytest.mark.parametrize("protocol", slow_but([IN_CLEAR, *PROTOCOLS], IN_CLEAR, "secagg"))
def test_a_secure_sum_is_the_sum_of_the_same_chain_bit_for_bit(protocol: str, tmp_path: Path) -> None:
    chain = [*BOUNDED, {"name": "fixed_point", "step": STEP}, {"name": "secure_sum", "bits": 32}]
    plain = run(tmp_path / "plain", transform=chain)
    secure = run(tmp_path / "secure", {"protocol": protocol})
    assert plain.history[0]["settings"] == secure.history[0]["settings"]  # the step as well
    assert models(plain) == models(secure)
    assert len(set(models(plain))) == 4
    assert [line["in_sum"] for line in lines(secure)] == [12] * 4


@pytest.mark.parametrize("protocol", slow_but([IN_CLEAR, *PROTOCOLS], "secagg"))
def test_a_modelled_run_has_the_model_of_a_real_one(protocol: str, tmp_path: Path) -> None:
    secure = {"protocol": protocol, "dropout": 0.15}
    real, cost = run(tmp_path / "real", secure, **SIX), run(tmp_path / "cost", {**secure, "mode": "cost"}, **SIX)
    assert models(real) == models(cost)
    facts = [[{k: v for k, v in line.items() if k not in COSTS} for line in lines(r)] for r in (real, cost)]
    assert facts[0] == facts[1]
    assert any(line.get("lost") for line in lines(real))


COSTS = ("up", "down", "seconds")


@pytest.mark.slow
def test_a_model_of_costs_says_that_it_is_one_and_comes_near(tmp_path: Path) -> None:
    real, cost = (run(tmp_path / mode, {"protocol": "secagg", "mode": mode}) for mode in ("real", "cost"))
    assert "cost_model" not in real.info["secure"]
    model = cost.info["secure"]["cost_model"]
    assert model["clients"] == 12
    assert model["runs"] > 4
    assert any("no message was sent" in note for note in cost.info["notes"])
    counted, predicted = lines(real)[0], lines(cost)[0]
    assert predicted["up"] == pytest.approx(counted["up"], rel=0.01)
    assert predicted["down"] == pytest.approx(counted["down"], rel=0.01)
    assert predicted["seconds"]["client"] == pytest.approx(counted["seconds"]["client"], rel=0.9)


def test_bytes_are_the_protocols_and_the_models(tmp_path: Path) -> None:
    plain, secure = run(tmp_path / "plain"), run(tmp_path / "secure", {"protocol": "secagg"})
    line = lines(secure)[0]
    assert secure.history[0]["bytes"]["up"] == round(12 * line["up"])
    assert secure.history[0]["bytes"]["down"] == plain.history[0]["bytes"]["down"] + round(12 * line["down"])
    assert 12 * 650 * 4 < secure.history[0]["bytes"]["up"] < 12 * 650 * 8  # residues of 32 bits, packed


@pytest.mark.parametrize("noise", ["discrete_gaussian", "skellam"])
def test_noise_in_shares_costs_what_it_costs_without_a_protocol(noise: str, tmp_path: Path) -> None:
    """And the models are the same: the protocol changes what is seen, and no number."""
    chain = [*BOUNDED, {"name": "fixed_point", "step": 1e-3}, {"name": noise, "noise_multiplier": 1.0}]
    plain = run(tmp_path / "plain", transform=[*chain, "secure_sum"], rounds=2)
    secure = run(tmp_path / "secure", {"protocol": "secagg"}, transform=chain, rounds=2)
    assert models(plain) == models(secure)
    promised = [r.info["privacy"]["client"] for r in (plain, secure)]
    assert promised[0]["holds"] is True
    assert promised[0] == promised[1]


# Who is lost.


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_who_is_lost_before_its_vector_might_as_well_not_have_been_asked(algorithm: str, tmp_path: Path) -> None:
    """Neither its update nor what it keeps; who is lost after its vector is in the sum."""
    learner = {"algorithm": {"name": algorithm, "lr": 0.1}}
    lost = run(tmp_path / "lost", {**LOSING, "fixed_point": {"bits": 32, "range": 1.0}}, **learner)
    there = in_sum(lost)
    steps = {step for line in lines(lost) for step in line.get("lost_steps", [])}
    assert steps == {1, 2, 3}
    others = run(
        tmp_path / "others",
        cohort={"name": "available", "trace": there.T.astype(int).tolist()},
        transform=[*BOUNDED, {"name": "fixed_point", "step": STEP}],
        **learner,
    )
    assert models(lost) == models(others)
    for line, came in zip(RunFolder(lost.folder).record(), there, strict=True):
        assert line["cohort"]["ids"] == np.flatnonzero(came).tolist()
        assert line["secure"]["in_sum"] == came.sum()


def test_a_round_below_the_threshold_is_void(tmp_path: Path) -> None:
    """Nothing is applied, and nothing is lost: control variates are those of the rounds that were made."""
    secure = {**LOSING, "threshold": 9}
    void = run(tmp_path / "void", secure, algorithm={"name": "scaffold", "lr": 0.1}, rounds=6)
    below = [bool(line.get("void")) for line in lines(void)]
    assert below == [12 - line.get("lost", 0) < 9 for line in lines(void)]
    assert True in below
    assert False in below
    before = [void.info["model"]["initial"], *models(void)]
    for i, is_void in enumerate(below):
        assert (before[i + 1] == before[i]) == is_void or i == 0
        assert (void.history[i]["cohort"]["size"] == 0) == is_void
    assert void.info["secure"]["void"] == sum(below)


def test_a_void_round_costs_what_was_sent_until_then(tmp_path: Path) -> None:
    for line in lines(run(tmp_path / "void", {**LOSING, "threshold": 12})):
        assert line["void"] == (line.get("lost", 0) > 0)
        assert line["up"] > 0


def test_one_who_may_not_be_lost_ends_the_round_of_all(tmp_path: Path) -> None:
    """Additive sharing does without nobody once parts were sent."""
    shared = run(tmp_path / "additive", {"protocol": {"name": "additive", "splits": 3}, "dropout": 0.1}, rounds=6)
    below = [bool(line.get("void")) for line in lines(shared)]
    assert below == [line.get("lost", 0) > 0 for line in lines(shared)]
    assert {True, False} == set(below)


def test_no_engine_chunk_or_stack_loses_others(tmp_path: Path) -> None:
    vector, loop = run(tmp_path / "vector", LOSING), run(tmp_path / "loop", LOSING, engine="loop")
    chunks = run(tmp_path / "chunks", LOSING, engine={"name": "vector", "chunk": 5})
    facts = [[{k: v for k, v in line.items() if k != "seconds"} for line in lines(r)] for r in (vector, loop, chunks)]
    assert facts[0] == facts[1] == facts[2]
    files = [Experiment.parse({**GIVEN, "secure": LOSING, "seed": seed}) for seed in (0, 1)]
    stacked = run_together(files, [tmp_path / "s0", tmp_path / "s1"])
    assert in_sum(stacked[0]).tolist() == in_sum(vector).tolist()
    assert in_sum(stacked[1]).tolist() != in_sum(vector).tolist()
    assert models(stacked[0]) == models(vector)


def test_runs_with_other_protocols_are_no_stack() -> None:
    files = [Experiment.parse({**GIVEN, "secure": {**LOSING, "dropout": dropout}}) for dropout in (0.1, 0.2)]
    why = why_not_stackable([files[0], files[1]])
    assert why == "secure.dropout: differs, but stacked runs must agree: they share one protocol."
    assert str(why_not_stackable([Experiment.parse(GIVEN), files[0]])).startswith("secure.protocol: differs")
    assert why_not_stackable([files[0], files[0]]) is None


# Resuming.


@pytest.mark.parametrize("mode", ["real", "cost"])
def test_a_resumed_run_has_the_same_models_though_its_keys_are_others(mode: str, tmp_path: Path) -> None:
    file = {**GIVEN, **SIX, "secure": {"protocol": "secagg", "dropout": 0.3, "threshold": 0.3, "mode": mode}}
    whole = atoll.run(file, tmp_path / "whole")
    atoll.run({**file, "rounds": 2}, tmp_path / "part")
    resumed = atoll.run(file, tmp_path / "part", resume=True)
    assert models(resumed) == models(whole)
    assert any(line.get("lost") for line in lines(whole)[:2])
    assert resumed.info["secure"]["lost"] == whole.info["secure"]["lost"] == sum(x.get("lost", 0) for x in lines(whole))
    if mode == "cost":  # fitted once: the rounds of a resumed run cost what those before did
        assert len({line["up"] for line in lines(resumed) if not line.get("lost")}) == 1


# With a clock.


def test_a_protocol_takes_virtual_time(tmp_path: Path) -> None:
    clock = {"seconds_per_step": 0.01, "up_mbps": 1.0, "down_mbps": 10.0, "latency_ms": 50.0}
    plain = run(tmp_path / "plain", clock=clock, rounds=2, **SIX)
    secure = run(tmp_path / "secure", {"protocol": "secagg"}, clock=clock, rounds=2, **SIX)
    unclocked = run(tmp_path / "unclocked", {"protocol": "secagg"}, rounds=2, **SIX)
    assert models(secure) == models(unclocked)
    (first,) = RunFolder(secure.folder).times()[:1]
    assert first["overhead"][4] == 3  # four answers: three more ways there and back
    assert min(first["encrypted"]) > 3 * 2 * 0.05
    assert first["up"] == pytest.approx(lines(secure)[0]["up"], rel=0.01)
    assert secure.history[0]["clock"]["end"] > plain.history[0]["clock"]["end"] + 0.3
    assert "overhead" not in RunFolder(plain.folder).times()[0]


def test_who_is_late_counts_towards_the_threshold(tmp_path: Path) -> None:
    """It is of all that were asked: half of twelve, and not half of those that came in time."""
    clocked = run(tmp_path / "run", {"protocol": IN_CLEAR}, clock={"seconds_per_step": 0.01, "dropout": 0.5}, rounds=8)
    came = [line["asked"] for line in lines(clocked)]
    assert [bool(line.get("void")) for line in lines(clocked)] == [n < 6 for n in came]
    assert min(came) < 6 <= max(came)


@pytest.mark.slow
def test_a_shuffled_run_says_which_share_of_numbers_was_cut(tmp_path: Path) -> None:
    """Laplace's noise of scale 1 is beyond 1.5 in 22 % of numbers. Both modes send the same reports."""
    clip = {"name": "clip_l1", "max_norm": 1.0}
    noisy = {"transform": ["equal_weights", clip, {"name": "local_laplace", "epsilon": 2.0}], "rounds": 2}
    shares = {}
    for mode in ("real", "cost"):
        secure = {"protocol": "shuffle", "mode": mode, "fixed_point": {"range": 1.5}}
        made = run(tmp_path / mode, secure, **noisy)
        shares[mode] = [line["diagnostics"]["clamped"] for line in RunFolder(made.folder).record()]
    assert shares["real"] == shares["cost"]
    assert shares["real"] == pytest.approx([np.exp(-1.5)] * 2, abs=0.03)


@pytest.mark.slow
def test_a_round_waits_for_who_decrypts_real_and_by_a_cost_model(tmp_path: Path) -> None:
    """Two of twelve decrypt: what they take is in the record apart, and the round lasts at least as long."""
    for mode in ("real", "cost"):
        secure = {"protocol": "ckks", "mode": mode}
        made = run(tmp_path / mode, secure, rounds=1, clock={"seconds_per_step": 0.0})
        line = RunFolder(made.folder).record()[0]
        assert line["secure"]["seconds"]["role"] > line["secure"]["seconds"]["client"] / 2
        timed = made.history[0]["clock"]
        assert timed["end"] - timed["start"] > line["secure"]["seconds"]["role"] / 10  # a model of a busy machine
