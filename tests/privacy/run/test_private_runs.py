"""Runs with an epsilon: what is asked is kept, what is said is true, and nothing is said where nothing holds."""

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import atoll
from atoll.cli.check import estimate
from atoll.core import Chain, Participation, Spec, Total, Transform
from atoll.errors import AtollError, ConfigError
from atoll.experiment import Experiment, set_up
from atoll.privacy import ACCOUNTANTS, Composed, Gaussian, NotPrivate, Sampled
from atoll.privacy.run.account import Account
from atoll.privacy.run.round_events import round_event, sampled_event
from atoll.records.run_folder import RunFolder
from atoll.runs import run_together
from atoll.transforms import TRANSFORMS, GaussianNoise
from tests.support.marks import slow

BASE: dict[str, Any] = {
    "rounds": 6,
    "data": "digits",
    "partition": {"name": "iid", "clients": 60},
    "cohort": {"name": "poisson", "size": 12},
    "algorithm": {"name": "fedavg", "lr": 0.2},
    "local": {"batch": 8},
    "task": {"model": "linear"},
    "evaluate": {"every": 3, "clients": 0},
    "engine": {"name": "vector"},
    "checkpoint": {"every": 2},
}


def noisy(*noise: Any, **more: Any) -> dict[str, Any]:
    return {**BASE, "transform": ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}, *noise], **more}


def gaussian(**options: Any) -> dict[str, Any]:
    return {"name": "gaussian_noise", **options}


def block(run: atoll.Run) -> dict[str, Any]:
    found: dict[str, Any] = run.info["privacy"]
    return found


@pytest.mark.parametrize(
    ("how", "event"),
    [
        (Participation("everyone", 9, size=9), ("everyone", 9, 9, 1)),
        (Participation("fixed", 9, size=3), ("without_replacement", 9, 3, 1)),
        (Participation("fraction", 9, size=3), ("without_replacement", 9, 3, 1)),
        (Participation("fixed", 9, size=9), ("everyone", 9, 9, 1)),
        (Participation("fixed_with_replacement", 9, size=12, replacement=True), ("with_replacement", 9, 12, 1)),
        (Participation("poisson", 10, probability=0.3), ("poisson", 10, 3, 1)),
        (Participation("poisson", 10, probability=1.0), ("everyone", 10, 10, 1)),
        (Participation("cyclic", 9, size=2, min_separation=4), ("cyclic", 9, 2, 4)),
        (Participation("cyclic_poisson", 10, probability=0.5, min_separation=5), ("cyclic_poisson", 10, 1, 5)),
        (Participation("available", 9), ("any", 9, 9, 1)),
    ],
    ids=lambda x: getattr(x, "scheme", None),
)
def test_every_sampler_has_its_own_event(how: Participation, event: tuple[Any, ...]) -> None:
    found = sampled_event([Gaussian(1.0)], how)
    assert isinstance(found, Sampled)
    assert (found.scheme, found.population, found.cohort, found.min_separation) == event


def test_a_sampler_without_known_amplification_is_accounted_without_any() -> None:
    trace = sampled_event([Gaussian(2.0)], Participation("available", 100))
    rounds = Composed(((trace, 5),))
    plain = Composed(((Gaussian(2.0), 5),))
    assert ACCOUNTANTS["analytic"].epsilon(rounds, 1e-5) == ACCOUNTANTS["analytic"].epsilon(plain, 1e-5)


@pytest.mark.parametrize(
    ("noise", "more", "accountant"),
    [
        (gaussian(epsilon=3.0, delta=1e-3), {}, "pld"),
        (gaussian(epsilon=3.0, delta=1e-3), {"privacy": {"accountant": "rdp"}}, "rdp"),
        slow(gaussian(epsilon=9.0, delta=1e-3), {"cohort": {"name": "fixed", "size": 12}}, "rdp"),
        (gaussian(epsilon=3.0, delta=1e-3), {"cohort": "everyone"}, "analytic"),
        (gaussian(epsilon=3.0, delta=1e-3), {"cohort": {"name": "fixed_with_replacement", "size": 12}}, "analytic"),
        (
            {"name": "banded_noise", "epsilon": 3.0, "delta": 1e-3},
            {"cohort": {"name": "cyclic", "size": 12, "min_separation": 3}},
            "analytic",
        ),
        ({"name": "tree_noise", "epsilon": 3.0, "delta": 1e-3}, {"cohort": "everyone"}, "analytic"),
    ],
    ids=["poisson", "rdp", "fixed", "everyone", "replacement", "banded", "tree"],
)
def test_an_epsilon_in_the_file_is_kept_by_the_run(
    noise: dict[str, Any], more: dict[str, Any], accountant: str, tmp_path: Path
) -> None:
    run = atoll.run(noisy(noise, **more), tmp_path / "run")
    said = block(run)["client"]
    assert said["holds"]
    assert said["accountant"] == accountant
    assert 0.95 * noise["epsilon"] <= said["epsilon"] <= noise["epsilon"]
    assert said["calibrated"] == {"epsilon": noise["epsilon"], "delta": 1e-3}
    assert (said["delta"], said["unit"], said["rounds"]) == (1e-3, "client", 6)
    lines = [entry["privacy"]["epsilon"] for entry in run.history]
    assert lines == sorted(lines)
    assert said["epsilon"] * (1 - 1e-6) <= lines[-1] <= 1.01 * said["epsilon"]
    assert all(entry["privacy"]["snr"] > 0 for entry in run.history)
    assert not any("diagnostics" in entry for entry in run.history)  # not what the sum was before the noise


def test_other_mechanisms_take_an_epsilon_too(tmp_path: Path) -> None:
    chain = [
        "equal_weights",
        {"name": "clip_l2", "max_norm": 0.5},
        {"name": "fixed_point", "step": 0.001},
        {"name": "skellam", "epsilon": 20.0, "delta": 1e-3},
    ]
    run = atoll.run({**BASE, "cohort": {"name": "fixed", "size": 12}, "transform": chain}, tmp_path / "run")
    assert 15 <= block(run)["client"]["epsilon"] <= 20


@pytest.mark.parametrize(
    ("experiment", "kind", "line"),
    [
        (noisy(gaussian(noise_multiplier=1.5), rounds=8), "client", "epsilon"),
        (
            {**BASE, "rounds": 8, "local": {"batch": 8, "privacy": {"max_norm": 1.0, "noise_multiplier": 1.0}}},
            "example",
            "example_epsilon",
        ),
    ],
    ids=["clients", "examples"],
)
def test_a_run_that_is_killed_has_said_what_it_had_spent_by_its_checkpoint(
    experiment: dict[str, Any], kind: str, line: str, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []

    def watch(done: int, rounds: int, entry: Any) -> None:
        seen.append(json.loads((tmp_path / "run" / "run.json").read_text()))  # as kill -9 would leave it

    run = atoll.run(experiment, tmp_path / "run", watch=watch)
    told = [info["privacy"][kind] for info in seen]
    assert [t["rounds"] for t in told] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert {info["status"] for info in seen} == {"running"}
    for made in (2, 4, 6):
        assert told[made]["accountant"] == "quick bound"
        assert told[made]["epsilon"] == pytest.approx(run.history[made - 1]["privacy"][line], rel=1e-4)
    assert block(run)[kind]["accountant"] != "quick bound"


def test_a_run_without_an_account_writes_its_info_twice_and_for_a_new_best_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    monkeypatch.setattr(RunFolder, "write_info", lambda self, info: written.append(info["status"]))
    with pytest.raises(AtollError):  # there is no run.json to read the outcome from
        atoll.run(BASE, tmp_path / "run")
    assert written == ["running", "running", "finished"]  # measured in rounds 3 and 6, checkpointed after 2, 4 and 6


def test_a_resumed_run_keeps_its_account(tmp_path: Path) -> None:
    experiment = noisy(gaussian(noise_multiplier=1.5), rounds=8)

    def watch(done: int, rounds: int, entry: Any) -> None:
        if done == 5:
            raise KeyboardInterrupt

    whole = atoll.run(experiment, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        atoll.run(experiment, tmp_path / "cut", watch=watch)
    resumed = atoll.run(experiment, tmp_path / "cut", resume=True)
    assert block(resumed) == block(whole)
    assert [e["privacy"] for e in resumed.history] == [e["privacy"] for e in whole.history]


def test_training_stops_before_the_budget_is_overspent(tmp_path: Path) -> None:
    run = atoll.run(
        noisy(gaussian(noise_multiplier=4.0), rounds=50, cohort="everyone", privacy={"budget": 2.0}), tmp_path
    )
    said = block(run)["client"]
    rounds = len(run.history)
    assert run.status.startswith("stopped early: one more round would cost more than the privacy budget")
    assert said["epsilon"] <= 2.0
    assert said["budget"] == 2.0
    assert 1 < rounds < 50
    one = Sampled(Gaussian(4.0), "everyone", 60, 60)
    assert ACCOUNTANTS["analytic"].epsilon(Composed(((one, rounds + 1),)), said["delta"]) > 2.0


def test_rescaled_noise_is_simulation_only(tmp_path: Path) -> None:
    simulate = {"simulate": {"population": 1_000_000, "sampling": "poisson"}}
    run = atoll.run(noisy(gaussian(epsilon=2.0, delta=1e-6, noise_cohort=1000), privacy=simulate), tmp_path)
    said = block(run)
    assert not said["client"]["holds"]
    assert "epsilon" not in said["client"]
    assert "Simulation only" in said["client"]["why"]
    assert said["simulates"]["label"] == "simulation only"
    assert 1.9 <= said["simulates"]["epsilon"] <= 2.0
    assert all("epsilon" not in e["privacy"] and "simulated_epsilon" in e["privacy"] for e in run.history)


def test_a_run_without_a_mechanism_says_nothing_of_privacy(tmp_path: Path) -> None:
    run = atoll.run({**BASE, "rounds": 1}, tmp_path)
    assert "privacy" not in run.info
    assert "privacy" not in run.history[0]


def test_no_noise_is_no_privacy(tmp_path: Path) -> None:
    said = block(atoll.run(noisy(gaussian(noise_multiplier=0.0), rounds=1), tmp_path))["client"]
    assert said["holds"] is False
    assert "epsilon" not in said


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        (noisy(gaussian(epsilon=-1.0, delta=1e-3)), "transform.2.epsilon: must be above 0"),
        (noisy(gaussian(epsilon=1.0, delta=1.5)), "transform.2.delta: must be below 1"),
        (noisy(gaussian(epsilon=1.0, delta=0.02)), "gaussian_noise.delta: 0.02 is above 1 / clients"),
        (noisy(gaussian(noise_multiplier=1.0), privacy={"delta": 0.5}), "privacy.delta: 0.5 is above 1 / clients"),
        (
            noisy(gaussian(epsilon=1.0, delta=1e-3), privacy={"delta": 1e-4}),
            "privacy.delta: 0.0001, and",
        ),
        (noisy(gaussian(epsilon=1.0)), "gaussian_noise.delta: is missing"),
        (noisy(gaussian(delta=1e-3)), "gaussian_noise.epsilon: is missing"),
        (noisy(gaussian(epsilon=1.0, delta=1e-3, noise_multiplier=1.0)), "has a noise_multiplier and an epsilon"),
        (noisy(gaussian()), "needs noise_multiplier, or epsilon and delta"),
        (noisy(gaussian(epsilon=1e-9, delta=1e-9)), "no noise multiplier up to 2"),
        (noisy(gaussian(epsilon=2.0, delta=1e-6, noise_cohort=1000)), "how large it is was not said"),
        ({**BASE, "privacy": {"budget": 1.0}}, "nothing in transform adds noise"),
        (
            noisy(gaussian(noise_multiplier=1.0), privacy={"accountant": "prv"}, cohort={"name": "fixed", "size": 5}),
            "prv",
        ),
        ({**BASE, "transform": [gaussian(epsilon=1.0, delta=1e-3)]}, "put clip_l2 before it"),
        (
            {**BASE, "transform": [{"name": "clip_l2", "max_norm": 1.0}, gaussian(epsilon=1.0, delta=1e-3)]},
            "needs equal client weights",
        ),
        (
            noisy(gaussian(noise_multiplier=1.0), stop={"patience": 2, "metric": "train_loss", "better": "lower"}),
            "stop.metric: 'train_loss' is read from the clients, which the noise on updates does not cover",
        ),
    ],
    ids=lambda x: None if isinstance(x, dict) else x[:40],
)
def test_what_cannot_hold_is_refused_before_anything_runs(experiment: dict[str, Any], message: str) -> None:
    with pytest.raises(AtollError, match=message.replace("(", r"\(")):
        set_up(Experiment.parse(experiment))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x))


def test_statistics_past_the_noise_are_refused() -> None:
    data = torch.randn(40, 4), torch.randint(0, 3, (40,))
    chain = ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}, gaussian(noise_multiplier=1.0)]
    with pytest.raises(ConfigError, match="past the noise"):
        atoll.simulate(
            Normed(),
            data,
            data,
            clients=list(torch.arange(40).split(10)),
            algorithm={"name": "fedavg", "lr": 0.1},
            rounds=1,
            transform=chain,
            task={"batch_norm": "recompute"},
        )


def test_a_noisy_sum_is_divided_by_the_clients_that_were_to_come() -> None:
    came = Total({"x": torch.ones(3)}, torch.tensor(7.0), torch.tensor(7.0), invited=8)
    for expected, denominator in ((10.0, 10), (None, 8)):  # fixed, or said by a trace, with whom was left out
        noise, _ = GaussianNoise(0.0).bind(Spec(l2=1.0, equal_weights=True, expected=expected))
        released, _ = noise.server(came, noise.init({"x": torch.zeros(3)})[0], torch.tensor([1, 2]))
        assert released.mean()["x"].tolist() == pytest.approx([1 / denominator] * 3)
        assert noise.releases(invited=8)  # whether or not anybody could be used
        assert noise.releases(invited=0) == (expected is not None)


def test_a_sum_that_may_wrap_around_has_no_signal_to_noise_ratio(tmp_path: Path) -> None:
    integers = {"name": "fixed_point", "step": 0.001}, {"name": "discrete_gaussian", "noise_multiplier": 0.2}
    for name, last in (("plain", ()), ("modular", ({"name": "secure_sum", "bits": 20},))):
        run = atoll.run(noisy(*integers, *last, rounds=1, cohort={"name": "fixed", "size": 5}), tmp_path / name)
        assert ("snr" in run.history[0]["privacy"]) == (name == "plain")


def test_a_round_to_which_nobody_came_adds_its_noise(tmp_path: Path) -> None:
    seldom = noisy(gaussian(noise_multiplier=1.0), rounds=3, cohort={"name": "poisson", "probability": 1e-9})
    run = atoll.run(seldom, tmp_path)
    assert [e["cohort"]["size"] for e in run.history] == [0, 0, 0]
    assert len({e["model"] for e in run.history}) == 3
    assert math.isfinite(block(run)["client"]["epsilon"])


def test_a_bound_that_finds_itself_does_not_learn_how_many_came(tmp_path: Path) -> None:
    chain = ["equal_weights", {"name": "adaptive_clip", "initial_max_norm": 0.5}, gaussian(noise_multiplier=0.5)]
    seldom = {**BASE, "rounds": 8, "cohort": {"name": "poisson", "probability": 0.02}, "transform": chain}
    run = atoll.run(seldom, tmp_path)
    assert min(e["cohort"]["size"] for e in run.history) == 0
    assert all(bool(torch.isfinite(v).all()) for v in run.params.values())
    seen: list[float] = []

    class Curious(Transform):
        def server(self, total: Total, state: Any, key: torch.Tensor) -> Any:
            seen.append(float(total.weight))
            return total, state

    came = Total({"x": torch.ones(3)}, torch.tensor(7.0), torch.tensor(7.0), invited=7)
    chain, _ = Chain((Curious(), GaussianNoise(1.0))).bind(Spec(l2=1.0, equal_weights=True, expected=10.0))
    chain.server(came, chain.init({"x": torch.zeros(3)})[0], torch.tensor([1, 2]))
    assert seen == [10.0]


def test_clients_that_are_left_out_take_their_share_of_shared_noise_with_them() -> None:
    names = [("fixed_point", {"step": 0.01}), ("discrete_gaussian", {"noise_multiplier": 2.0})]
    layers = [
        TRANSFORMS["equal_weights"](),
        TRANSFORMS["clip_l2"](max_norm=1.0),
        *(TRANSFORMS[n](**o) for n, o in names),
    ]
    chain, _ = Chain(tuple(layers)).bind(Spec(cohort=10, size=5, rounds=3))
    how = Participation("fixed", 100, size=10)
    assert isinstance(round_event(chain, how, 0), Sampled)
    assert isinstance(round_event(chain, how, 2), NotPrivate)


def test_an_account_enters_every_round_as_it_was_drawn_whatever_the_last_one_was() -> None:
    """Events of a round like the last one are remembered: one that differs in anything has its own."""
    setup = set_up(Experiment.parse(noisy(gaussian(noise_multiplier=1.0), rounds=9)), "cpu")
    chain = setup.chain.bind(setup.spec())[0]
    account = next(x for x in setup.listeners(lambda _: (chain, setup.spec())) if isinstance(x, Account))
    noisier = Chain((*chain.transforms[:-1], replace(chain.transforms[-1], noise_multiplier=2.0)))
    some, fewer = Participation("poisson", 60, probability=0.2), Participation("poisson", 60, probability=0.1)
    rounds = [(chain, some, 0), (chain, some, 0), (chain, fewer, 0), (noisier, fewer, 0), (noisier, fewer, 2)]
    for made in rounds:
        account.add(*made)
    entered = [event for event, count in account.ledger.parts for _ in range(count)]
    assert entered == [round_event(*made) for made in rounds]


@pytest.mark.slow
def test_runs_that_differ_in_epsilon_run_as_one_stack(tmp_path: Path) -> None:
    cells = [Experiment.parse(noisy(gaussian(epsilon=e, delta=1e-3), rounds=3)) for e in (1.0, 8.0)]
    both = run_together(cells, [tmp_path / "0", tmp_path / "1"])
    assert both[0].info["engine"]["together"] == 2
    for cell, run in zip(cells, both, strict=True):
        alone = atoll.run(cell, tmp_path / f"alone-{cell.digest()[:6]}")
        assert block(alone) == block(run)
        for k, v in alone.params.items():
            assert torch.allclose(v, run.params[k], atol=1e-5)


def test_privacy_of_examples_is_said_beside_that_of_clients(tmp_path: Path) -> None:
    table = {"max_norm": 1.0, "epsilon": 8.0, "delta": 1e-3, "sampling": "shuffled"}
    both = noisy(gaussian(epsilon=4.0, delta=1e-3), local={"batch": 8, "privacy": table}, rounds=3)
    alone = {**both, "transform": []}
    for number, experiment in enumerate((both, alone)):
        run = atoll.run(experiment, tmp_path / str(number))
        said = block(run)
        assert ("client" in said) is (experiment is both)
        assert said["example"]["unit"] == "example"
        assert 7 <= said["example"]["epsilon"] <= 8
        assert [e["privacy"].get("epsilon") is not None for e in run.history] == [experiment is both] * 3
        assert run.history[-1]["privacy"]["example_epsilon"] >= said["example"]["epsilon"] * (1 - 1e-9)


AUDITED = noisy(gaussian(noise_multiplier=2.0), rounds=4, cohort="everyone", privacy={"canaries": 600, "delta": 1e-3})


def test_canaries_in_a_run_show_less_than_is_accounted(tmp_path: Path) -> None:
    said = block(atoll.run(AUDITED, tmp_path))
    audit = said["audit"]
    assert (audit["canaries"], audit["confidence"], audit["delta"]) == (600, 0.95, 1e-3)
    assert 0.3 < audit["epsilon_lower"] < said["client"]["epsilon"]


def test_noise_that_is_silently_halved_is_caught_by_the_audit_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = GaussianNoise.server

    def halved(self: GaussianNoise, *args: Any) -> Any:
        return right(replace(self, noise_multiplier=self.noise_multiplier / 2), *args)

    monkeypatch.setattr(GaussianNoise, "server", halved)
    said = block(atoll.run(AUDITED, tmp_path))
    assert said["audit"]["epsilon_lower"] > said["client"]["epsilon"]


def test_a_resumed_audit_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    def watch(done: int, rounds: int, entry: Any) -> None:
        if done == 3:
            raise KeyboardInterrupt

    whole = atoll.run(AUDITED, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        atoll.run(AUDITED, tmp_path / "cut", watch=watch)
    assert block(atoll.run(AUDITED, tmp_path / "cut", resume=True)) == block(whole)


def test_what_a_run_will_cost_is_said_before_it_is_made(tmp_path: Path) -> None:
    experiment = Experiment.parse(noisy(gaussian(epsilon=3.0, delta=1e-3)))
    console = Console(file=io.StringIO(), width=200)
    estimate(experiment, "cpu", console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert re.search(r"epsilon 2\.99\d+ at delta 0\.001 after all rounds \(client level, add-or-remove, pld\)", said)
