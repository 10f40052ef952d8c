"""[secure]: what it adds to a chain, what cannot hold with it, and what is said of it."""

import re
from typing import Any

import pytest
from torch import nn

from atoll.core import transform_name
from atoll.errors import ConfigError
from atoll.experiment import Experiment, Setup, security_of, set_up
from atoll.reducers import Mean, SecureMean
from atoll.rounds import ProtocolSummation, Secured
from tests.support.summed_in_clear import SummedInClear

IN_CLEAR = "tests.support.summed_in_clear:SummedInClear"
BOUNDED: list[Any] = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
GIVEN: dict[str, Any] = {
    "rounds": 2,
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "transform": BOUNDED,
    "evaluate": {"clients": 0},
    "secure": {"protocol": "secagg"},
}
NORMED = {"model": {"name": f"{__name__}:normed"}, "batch_norm": "recompute"}
STEP = {"name": "fixed_point", "step": 1e-4}
PRIVUNIT = {"name": "privunit", "epsilon": 1.0}


def normed(inputs: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


def setup(**changes: Any) -> Setup:
    return set_up(Experiment.parse({k: v for k, v in {**GIVEN, **changes}.items() if v is not None}), "cpu")


def names(chain: Any) -> list[str]:
    return [transform_name(t) for t in chain.transforms]


# What it adds.


@pytest.mark.parametrize(
    ("written", "added"),
    [
        (BOUNDED, ["fixed_point", "secure_sum"]),
        ([*BOUNDED, STEP], ["secure_sum"]),
        ([*BOUNDED, STEP, {"name": "discrete_gaussian", "noise_multiplier": 1.0}], ["secure_sum"]),
        ([*BOUNDED, STEP, {"name": "skellam", "noise_multiplier": 1.0}, "secure_sum"], []),
        (["equal_weights", "adaptive_clip"], ["fixed_point", "secure_sum"]),  # its bit is a number of the sum
        (["equal_weights", {"name": "clip_per_layer", "max_norm": 1.0}], ["fixed_point", "secure_sum"]),
    ],
)
def test_what_a_secure_sum_needs_is_put_at_the_end_of_the_chain(written: list[Any], added: list[str]) -> None:
    built = setup(transform=written)
    assert names(built.chain)[len(written) :] == added
    assert built.chain.bind(built.spec())[1].domain == "modular"


def test_the_reducer_is_the_protocols_where_messages_are_real() -> None:
    assert isinstance(setup().reducer, SecureMean)
    assert isinstance(setup(secure={"protocol": "secagg", "mode": "cost"}).reducer, Mean)


def test_options_go_to_the_protocol_and_its_bits_are_the_sums() -> None:
    round = setup(
        secure={"protocol": {"name": IN_CLEAR, "trace": True}, "threshold": 5, "fixed_point": {"bits": 24}}
    ).round
    assert isinstance(round, Secured)
    assert isinstance(round.summation, ProtocolSummation)
    protocol = round.summation.protocol
    assert protocol.bits == 24
    assert protocol.least(6) == 5
    assert vars(protocol)["trace"] is True


def test_a_file_says_what_it_left_out() -> None:
    complete = Experiment.parse(GIVEN).complete()["secure"]
    assert complete["mode"] == "real"
    assert complete["fixed_point"] == {"bits": 32}
    assert complete["protocol"]["name"] == "secagg"
    assert complete["protocol"]["active_server"] is False
    assert not {"bits", "threshold", "insecure_seed"} & complete["protocol"].keys()


# What cannot hold.


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reducer": "median"}, "reducer.name: 'median' looks at every update"),
        ({"reducer": {"name": "trimmed_mean"}}, "reducer.name: 'trimmed_mean' looks at every update"),
        ({"reducer": {"name": "client_weights", "weights": {"0": 2.0}}}, "'client_weights' looks at every update"),
        (
            {"round": "gossip"},
            "secure: lets a server learn a sum and nothing else, and in this round there is no server",
        ),
        ({"algorithm": {"name": "centralised", "lr": 0.1}}, "centralised pools all data in one client"),
        ({"task": NORMED}, "task.batch_norm: 'recompute' reads statistics from every client past the protocol"),
        ({"cohort": {"name": "fixed_with_replacement", "size": 3}}, "drawn twice would be two parties"),
        ({"cohort": {"name": "poisson", "size": 3}}, "cohort.name = 'poisson' has no fixed number of them"),
        ({"transform": ["equal_weights"]}, "needs bounded updates: put clip_l2 before it"),
        ({"transform": BOUNDED[1:]}, "needs equal client weights: put equal_weights before it"),
        (
            {"transform": [*BOUNDED, {"name": "top_k", "share": 0.1}]},
            "transform.2: top_k under .secure. saves nothing: the places of its entries differ",
        ),
        (
            {"transform": [*BOUNDED, {"name": "rand_k", "share": 0.1}]},
            "every client draws its places from a key of its own",
        ),
        ({"transform": [*BOUNDED, "qsgd"]}, "qsgd under .secure. saves nothing: what it packs must be unpacked"),
        (
            {"transform": [*BOUNDED, {"name": "gaussian_noise", "noise_multiplier": 1.0}]},
            "discrete_gaussian or skellam",
        ),
        (
            {"transform": [*BOUNDED, {"name": "local_gaussian", "epsilon": 1.0, "delta": 1e-5}]},
            "goes with secure.protocol = 'shuffle'",
        ),
        (
            {"transform": [*BOUNDED, PRIVUNIT], "secure": {"protocol": "secagg", "fixed_point": {"range": 9.0}}},
            "goes with secure.protocol = 'shuffle'",
        ),
        ({"transform": [*BOUNDED, PRIVUNIT], "secure": {"protocol": "shuffle"}}, "Use fixed_point = { range = 31 }"),
        (
            {"transform": [*BOUNDED, PRIVUNIT, STEP], "secure": {"protocol": "shuffle"}},
            "fixed_point changes what the noise before it was measured for",
        ),
        (
            {
                "transform": [*BOUNDED, {"name": "gaussian_noise", "noise_multiplier": 1.0}],
                "secure": {"protocol": "shuffle", "fixed_point": {"range": 9.0}},
            },
            "discrete_gaussian or skellam",
        ),
        (
            {
                "transform": [*BOUNDED, {"name": "approximate_local", "epsilon": 1.0}],
                "secure": {"protocol": "shuffle", "fixed_point": {"range": 9.0}},
            },
            "discrete_gaussian or skellam",
        ),
        (
            {
                "transform": [*BOUNDED, {"name": "weak_dp", "max_norm": 1.0}],
                "secure": {"protocol": "shuffle", "fixed_point": {"range": 9.0}},
            },
            "discrete_gaussian or skellam",
        ),
        (
            {"partition": {"name": "iid", "clients": 1}, "secure": {"protocol": "shuffle"}},
            "secure.threshold: 2 clients must stay to the end, and a cohort has 1",
        ),
        ({"secure": {"protocol": "secagg", "fixed_point": {"range": 0.5}}}, "range: 0.5 is less than 1"),
        (
            {"secure": {"protocol": "secagg", "fixed_point": {"range": 1e30}}},
            "range: 1e+30 makes a step of 4.722e+21, and no number of an update is above 1",
        ),
        (
            {"transform": [*BOUNDED, PRIVUNIT], "secure": {"protocol": "shuffle", "fixed_point": {"range": 1e30}}},
            "range: 1e+30 makes a step of",
        ),
        (
            {"secure": {"protocol": "secagg", "fixed_point": {"bits": 8}}},
            "bits: 8 leave no room for the sum of 6 clients",
        ),
        (
            {"secure": {"protocol": "secagg", "threshold": 7}},
            "secure.threshold: 7 clients must stay to the end, and a cohort has 6",
        ),
        ({"secure": {"protocol": "additive", "threshold": 0.7}}, "secure.threshold: additive has no threshold"),
        ({"secure": {"protocol": "secag"}}, "secure.protocol.name: 'secag' is not known. Did you mean 'secagg'"),
        (
            {"secure": {"protocol": "collections:Counter"}},
            "gives a Counter. Derive it from atoll.protocols.SecureAggregation",
        ),
        (
            {"secure": {"protocol": "secagg", "treshold": 3}},
            "secure.treshold: is not an option of secure. Did you mean threshold",
        ),
        ({"secure": {"protocol": {"name": "paillier", "key_bits": 2050}}}, "key_bits: must be a multiple of 16"),
        (
            {"secure": {"protocol": {"name": "secagg", "bits": 20}}},
            "secure.protocol.bits: is not an option of secagg. Write it as secure.fixed_point.bits",
        ),
        (
            {"secure": {"protocol": {"name": "secagg", "threshold": 0.5}}},
            "secure.protocol.threshold: is not an option of secagg. Write it as secure.threshold",
        ),
        (
            {"secure": {"protocol": {"name": "additive", "threshold": 0.5}}},
            "secure.protocol.threshold: is not an option of additive. Write it as secure.threshold",
        ),
        (
            {"secure": {"protocol": {"name": "secagg", "active_server": True}, "threshold": 0.5}},
            "secure.threshold: 4 of 6 clients could be asked twice",
        ),
        (
            {"secure": {"protocol": {"name": "secagg_plus", "corrupt": 0.6, "dropout": 0.5}}},
            "secure.protocol.corrupt, secure.protocol.dropout: 0.6 and 0.5 leave nobody",
        ),
        (
            {"secure": {"protocol": "ckks", "fixed_point": {"bits": 46}}},
            "secure.fixed_point.bits: ckks would round sums of 6 clients",
        ),
        (
            {"secure": {"protocol": "secagg", "fixed_point": {"bits": 1}}},
            "secure.fixed_point.bits: must be at least 8 (got 1). Sums are modulo 2^bits: 32 is usual",
        ),
        (
            {"secure": {"protocol": "secagg", "fixed_point": {"bits": 64}}},
            "secure.fixed_point.bits: must be at most 48 (got 64). Sums are modulo 2^bits: 32 is usual",
        ),
        (
            {"secure": {"protocol": {"name": "additive", "splits": 1}}},
            "secure.protocol.splits: must be at least 2 (got 1). One part is the vector itself: use 2",
        ),
        (
            {"transform": [*BOUNDED, STEP], "secure": {"protocol": "secagg", "fixed_point": {"range": 1.0}}},
            "range: the step is that of fixed_point in transform",
        ),
        (
            {"transform": [*BOUNDED, STEP, {"name": "secure_sum", "bits": 30}]},
            "transform has secure_sum with bits = 30",
        ),
        (
            {"transform": [*BOUNDED, {"name": "fixed_point", "step": 1e-9}]},
            "Use bits = 34, or a larger fixed_point.step",
        ),
        (
            {"algorithm": {"name": "afl", "lr": 0.1}},
            "secure: what afl sends has places of each client's own (Traits.places_by_client), where the server would "
            "read it by name in any sum",
        ),
        ({"stop": {"patience": 2, "metric": "train_loss"}}, "stop.metric: 'train_loss' is measured at single clients"),
        (
            {"algorithm": {"name": "fedavg", "lr": {"name": "plateau", "start": 0.1, "metric": "train_loss"}}},
            "a schedule: 'train_loss' is measured at single clients",
        ),
    ],
)
def test_what_cannot_hold_is_refused_with_advice(changes: dict[str, Any], said: str) -> None:
    for special in "()+^":
        said = said.replace(special, f"\\{special}")
    with pytest.raises(ConfigError, match=said):
        setup(**changes)


@pytest.mark.parametrize(
    ("secure", "said"),
    [
        ({"protocol": "secagg", "dropout": 0.99}, "secure.dropout: about 100% of rounds will be void"),
        ({"protocol": "additive", "dropout": 0.1}, "secure.dropout: about 47% of rounds will be void"),
        ({"protocol": "secagg", "threshold": 2, "dropout": 0.1}, ""),
        ({"protocol": "secagg"}, ""),
    ],
)
def test_rounds_that_will_be_void_are_noted_before_the_run(secure: dict[str, Any], said: str) -> None:
    notes = [note for note in setup(secure=secure).notes if "will be void" in note]
    assert len(notes) == bool(said)
    assert all(said in note for note in notes)


@pytest.mark.parametrize("noise", ["discrete_gaussian", "skellam"])
def test_noise_in_shares_does_without_nobody(noise: str) -> None:
    private = [*BOUNDED, STEP, {"name": noise, "noise_multiplier": 1.0}]
    with pytest.raises(ConfigError, match=r"secure\.dropout: loses clients that were asked, and each adds a share"):
        setup(transform=private, secure={"protocol": "secagg", "dropout": 0.1})
    setup(transform=private)


@pytest.mark.parametrize("protocol", ["light_secagg", "shuffle", "paillier", "ckks"])
def test_noise_in_shares_needs_a_protocol_that_shows_nobody_more_than_the_sum(protocol: str) -> None:
    private = [*BOUNDED, STEP, {"name": "discrete_gaussian", "noise_multiplier": 1.0}]
    secure = {"protocol": protocol, "fixed_point": {"bits": 24}}
    setup(secure=secure, transform=[*BOUNDED, STEP])
    with pytest.raises(ConfigError, match=r"is measured for the sum alone. Use secagg, secagg_plus or additive"):
        setup(transform=private, secure=secure)


def test_noise_in_shares_goes_with_a_private_key_that_is_shared() -> None:
    private = [*BOUNDED, STEP, {"name": "discrete_gaussian", "noise_multiplier": 1.0}]
    setup(transform=private, secure={"protocol": {"name": "paillier", "key_holders": "shared"}})


@pytest.mark.parametrize("noise", [PRIVUNIT, {"name": "local_gaussian", "epsilon": 1.0, "delta": 1e-5}])
def test_a_shuffle_takes_local_randomisers(noise: dict[str, Any]) -> None:
    secure = {"protocol": "shuffle", "fixed_point": {"range": 20.0}}
    built = setup(transform=[*BOUNDED, noise], secure=secure)
    assert names(built.chain)[3:] == ["fixed_point", "secure_sum"]
    assert built.chain.bind(built.spec())[1].domain == "modular"


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SummedInClear, "needs", "no_such_package")
    with pytest.raises(ConfigError, match=r"needs no_such_package. Run `pip install 'atoll\[secure\]'`"):
        setup(secure={"protocol": IN_CLEAR})


# What is said of it.


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({"secure": None, "transform": None}, 1, "the server sees every client's update"),
        ({"secure": None, "algorithm": {"name": "centralised", "lr": 0.1}, "transform": None}, 0, "gathers all data"),
        ({"secure": None, "algorithm": {"name": "local", "lr": 0.1}, "transform": None}, 3, "clients send nothing"),
        ({"secure": None, "round": "gossip", "transform": None}, 1, "neighbours see each other's models"),
        (
            {"secure": None, "transform": [*BOUNDED, {"name": "local_gaussian", "epsilon": 1.0, "delta": 1e-5}]},
            1,
            "every client's update, each with the noise of local_gaussian",
        ),
        (
            {"secure": None, "transform": [*BOUNDED, {"name": "gaussian_noise", "noise_multiplier": 1.0}]},
            1,
            "the server sees every client's update",
        ),
        ({"secure": None, "transform": [*BOUNDED, STEP, "secure_sum"]}, 1, "but none was used: .secure. names one"),
        ({}, 2, "secagg: the server learns the sum"),
        ({"secure": {"protocol": IN_CLEAR}}, 1, "the server learns every vector"),
        ({"secure": {"protocol": "secagg", "mode": "cost"}}, 2, "no message was sent"),
        ({"secure": {"protocol": "secagg", "insecure_seed": True}}, 1, "^INSECURE: "),
    ],
)
def test_every_run_states_its_level_with_the_reason(changes: dict[str, Any], level: int, said: str) -> None:
    statement = security_of(setup(**changes))
    assert statement.level == level
    assert re.search(said, statement.reason)
    assert statement.server
    assert statement.clients


def test_noise_that_is_drawn_once_is_said_to_be() -> None:
    private = setup(transform=[*BOUNDED, STEP, {"name": "skellam", "noise_multiplier": 1.0}])
    assert "with the noise of skellam (drawn once here for the shares of all)" in security_of(private).server


def test_insecure_keys_and_two_parties_are_shouted_about() -> None:
    assert setup(secure={"protocol": "secagg", "insecure_seed": True}).notes[0].startswith("INSECURE: ")
    two = setup(partition={"name": "iid", "clients": 2}, secure={"protocol": "additive"})
    assert any("two parties" in note for note in two.notes)
    assert not setup().notes
