"""Runs whose clients randomise what they send, and whose shuffle hides whose each report is."""

import math
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.experiment import Experiment, Setup, security_of, set_up
from atoll.privacy import Approximate, Composed, NotPrivate, Pld, Pure, Rdp, Shuffled, shuffled
from atoll.privacy.run.request import Crowd
from atoll.privacy.run.round_events import in_crowd, round_event
from tests.support.summed_in_clear import SummedInClear

CLIENTS, ROUNDS = 150, 3
DELTA = 0.1 / CLIENTS
CLIP = ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}]
PRIVUNIT = {"name": "privunit", "epsilon": 0.5}
SHUFFLE: dict[str, Any] = {"protocol": "shuffle", "threshold": CLIENTS, "fixed_point": {"range": 40.0}}
GIVEN: dict[str, Any] = {
    "rounds": ROUNDS,
    "engine": "vector",
    "data": "digits",
    "partition": {"name": "iid", "clients": CLIENTS},
    "task": {"model": "linear"},
    "local": {"batch": 16},
    "algorithm": {"name": "fedavg", "lr": 0.5},
    "transform": [*CLIP, PRIVUNIT],
    "evaluate": {"clients": 0},
    "checkpoint": {"every": 1},
    "secure": SHUFFLE,
}


def file(secure: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {**GIVEN, "secure": {**SHUFFLE, **(secure or {})}, **changes}


def in_clear(**changes: Any) -> dict[str, Any]:
    return {k: v for k, v in {**GIVEN, **changes}.items() if k != "secure"}


def setup(given: dict[str, Any]) -> Setup:
    return set_up(Experiment.parse(given), "cpu")


def foretold(given: dict[str, Any]) -> dict[str, Any]:
    """What the whole run would say of privacy."""
    built = setup(given)
    account = built.listeners(lambda number: built.chain.bind(built.spec()))[0]
    for _ in range(built.experiment.rounds):
        account.add(built.chain.bind(built.spec())[0], built.participation)  # type: ignore[union-attr]
    block: dict[str, Any] = account.summary({})["client"]
    return block


def by_hand(reports: int, rounds: int = ROUNDS, local: float = 0.5) -> float:
    event = shuffled(Pure(local), reports, DELTA / (2 * rounds))
    return Pld().epsilon(Composed(((event, rounds),)), DELTA)


# What is claimed.


def test_rounds_cost_what_their_shuffles_cost_composed_by_hand() -> None:
    block = foretold(file())
    assert block["epsilon"] == by_hand(CLIENTS)
    assert block["delta"] == DELTA
    assert block["epsilon"] < 0.8 * foretold(in_clear())["epsilon"]
    assert block["mechanism"] == "privunit, by shuffling"
    assert any("the mix and the server do not collude" in said for said in block["assumed"])
    assert foretold(in_clear())["mechanism"] == "privunit"


def test_the_crowd_is_as_small_as_the_threshold_lets_it_become() -> None:
    costs = [foretold(file({"threshold": n, "dropout": 0.2}))["epsilon"] for n in (CLIENTS - 30, 0.5)]
    assert costs == [by_hand(CLIENTS - 30), by_hand(CLIENTS // 2 + 1)]
    assert by_hand(CLIENTS) < costs[0] < costs[1]


def test_sampling_is_not_counted_on_top_of_shuffling() -> None:
    hundred = {"cohort": {"name": "fixed", "size": 100}}
    block = foretold(file({"threshold": 100}, **hundred))
    assert block["epsilon"] == by_hand(100)
    assert any("no amplification is known for Shuffled under this sampling" in said for said in block["assumed"])


@pytest.mark.parametrize(
    ("secure", "changes"),
    [
        ({"threshold": None}, {}),  # two reports are no crowd
        ({"threshold": 2}, {"partition": {"name": "iid", "clients": 2}}),
        ({"insecure_seed": True}, {}),  # whoever knows the seed can undo the order
        ({}, {"transform": [*CLIP, {"name": "local_gaussian", "epsilon": 0.5, "delta": 1e-6}]}),  # is not pure
        ({}, {"transform": [*CLIP, {"name": "privunit", "epsilon": 9.0}]}),
    ],
)
def test_where_a_shuffle_gains_nothing_the_local_epsilon_stands(
    secure: dict[str, Any], changes: dict[str, Any]
) -> None:
    given = file(secure, **changes)
    given["secure"] = {k: v for k, v in given["secure"].items() if v is not None}
    block, plain = foretold(given), foretold(in_clear(**changes))
    assert block["epsilon"] == plain["epsilon"]
    assert block["mechanism"] == plain["mechanism"]
    assert not any("amplified by" in said for said in block["assumed"])


def test_no_amplification_is_claimed_for_a_mechanism_beside_another() -> None:
    crowd, local = Crowd(10_000, 1e-6), Pure(1.0)
    assert in_crowd([local], crowd) == [Shuffled(local, 10_000, 1e-6)]
    assert in_crowd([local, local], crowd) == [local, local]
    assert in_crowd([Approximate(1.0, 1e-6)], crowd) == [Approximate(1.0, 1e-6)]
    assert in_crowd([local], None) == [local]


def test_a_crowd_does_not_hide_that_a_client_was_left_out() -> None:
    built = setup(file())
    chain, crowd = built.chain.bind(built.spec())[0], Crowd(CLIENTS, 1e-6)
    assert round_event(chain, built.participation, 0, crowd) != round_event(chain, built.participation, 0)
    assert isinstance(round_event(chain, built.participation, 1, crowd), NotPrivate)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (file({"threshold": 2}), "secure.threshold: shuffling 2 reports at least gains nothing over privunit"),
        (
            file(transform=[*CLIP, {"name": "local_gaussian", "epsilon": 0.5, "delta": 1e-6}]),
            "local_gaussian: no amplification by shuffling is claimed for it",
        ),
        (file(), "secure.fixed_point.range = 40: numbers that noise takes beyond it are cut"),
    ],
)
def test_whoever_runs_it_is_told(given: dict[str, Any], said: str) -> None:
    assert any(note.startswith(said) for note in setup(given).notes)


def test_where_it_gains_something_there_is_no_advice_to_gain_more() -> None:
    assert not any(note.startswith("secure.threshold") for note in setup(file()).notes)


def test_strangers_code_that_shuffles_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SummedInClear, "shuffles", lambda self: True)
    name = "tests.support.summed_in_clear:SummedInClear"
    assert any(name in said for said in foretold(file({"protocol": name}))["assumed"])


def test_the_server_is_said_to_see_reports_with_noise() -> None:
    assert security_of(setup(file())).server.endswith("Every vector has the noise of privunit")


@pytest.mark.parametrize("accountant", ["pld", "prv", "rdp"])
def test_any_accountant_that_composes_local_mechanisms_composes_shuffles(accountant: str) -> None:
    cost = foretold(file(privacy={"accountant": accountant}))["epsilon"]
    assert 0.99 * by_hand(CLIENTS) < cost < ROUNDS * 0.5
    if accountant == "rdp":
        event = shuffled(Pure(0.5), CLIENTS, DELTA / (2 * ROUNDS))
        assert cost == Rdp().epsilon(Composed(((event, ROUNDS),)), DELTA)


def test_a_budget_ends_the_run_before_it_is_overspent() -> None:
    budget = by_hand(CLIENTS, ROUNDS) * 0.8
    built = setup(file(privacy={"budget": budget}))
    account: Any = built.listeners(lambda number: built.chain.bind(built.spec()))[0]
    chain, made = built.chain.bind(built.spec())[0], 0
    while account.affords(chain, built.participation) is None:
        account.add(chain, built.participation)
        made += 1
    assert made == 2
    assert account.ledger.epsilon() <= budget


# What is run.


def test_both_modes_and_a_resumed_run_have_the_same_models_and_the_same_account(tmp_path: Path) -> None:
    given = file({"threshold": 100, "dropout": 0.1})

    def watch(done: int, rounds: int, entry: Any) -> None:
        if done == 2:
            raise KeyboardInterrupt

    real = atoll.run(given, tmp_path / "real")
    cost = atoll.run(file({"threshold": 100, "dropout": 0.1, "mode": "cost"}), tmp_path / "cost")
    with pytest.raises(KeyboardInterrupt):
        atoll.run(given, tmp_path / "cut", watch=watch)
    resumed = atoll.run(given, tmp_path / "cut", resume=True)
    for other in (cost, resumed):
        assert [line["model"] for line in other.history] == [line["model"] for line in real.history]
        assert other.info["privacy"] == real.info["privacy"]
        assert [line["privacy"] for line in other.history] == [line["privacy"] for line in real.history]
    assert real.info["privacy"]["client"]["epsilon"] == by_hand(100)
    assert len({line["model"] for line in real.history}) == ROUNDS


def test_lines_of_a_record_are_never_below_what_was_spent(tmp_path: Path) -> None:
    run = atoll.run(file({"mode": "cost"}), tmp_path / "run")
    share = DELTA / (2 * ROUNDS)
    event = shuffled(Pure(0.5), CLIENTS, share)
    for n, line in enumerate(run.history, 1):
        assert line["privacy"]["epsilon"] >= Pld().epsilon(Composed(((event, n),)), DELTA) - 1e-9
        assert math.isfinite(line["privacy"]["epsilon"])


def test_a_wide_range_cuts_nothing_and_a_narrow_one_does(tmp_path: Path) -> None:
    """Against the same randomiser without residues: they differ by rounding alone, unless numbers are cut."""
    plain = atoll.run(in_clear(rounds=1), tmp_path / "plain").model()
    wide, narrow = (
        atoll.run(file({"mode": "cost", "fixed_point": {"range": r}}, rounds=1), tmp_path / str(r)).model()
        for r in (40.0, 0.01)
    )
    weights = [next(iter(m.state_dict().values())).flatten() for m in (plain, wide, narrow)]
    assert (weights[0] - weights[1]).abs().max() < 1e-5
    assert (weights[0] - weights[2]).abs().max() > 1e-3
