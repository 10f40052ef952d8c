from typing import Any

import pytest
import torch

import atoll
from atoll import rng, tree
from atoll.attacks.leakage.observe import observe
from atoll.attacks.leakage.victims import choose
from atoll.core import functional
from atoll.errors import ConfigError
from tests.support.leaking import BASE, federation, leaked

FEDAVG = {"algorithm": {"name": "fedavg", "lr": 0.1}}
UNROLLED: list[dict[str, Any]] = [
    {},
    {**FEDAVG, "local": {"batch": 2, "epochs": 3, "shuffle": False}},
    {"algorithm": {"name": "fedprox", "lr": 0.1, "mu": 0.1}, "local": {"batch": 3, "epochs": 2, "shuffle": False}},
    {"algorithm": {"name": "fednova", "lr": 0.1}, "local": {"batch": 3, "shuffle": False}},
    {"algorithm": {"name": "scaffold", "lr": 0.1}, "local": {"batch": 3, "shuffle": False}},
]


def simulated(seen: Any) -> Any:
    v = seen.victims
    with functional(), torch.no_grad():
        return torch.func.vmap(seen.simulation.mean)(v.x, v.y, seen.work(), seen.weights)


@pytest.mark.parametrize("changes", UNROLLED, ids=lambda c: c.get("algorithm", BASE["algorithm"])["name"])
@pytest.mark.parametrize("clients", [1, 2])
def test_simulating_the_true_examples_gives_the_update_that_was_seen(changes: dict[str, Any], clients: int) -> None:
    ragged = {"partition": {"name": "quantity_dirichlet", "clients": 60, "alpha": 0.5, "short": "borrow", "minimum": 1}}
    seen = leaked(10, 5, clients, **{**ragged, **changes})
    assert int(seen.victims.examples.min()) < 3 < int(seen.victims.examples.max())
    for mine, theirs in zip(tree.leaves(simulated(seen)), tree.leaves(seen.target), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-6, rtol=2e-4)


def test_what_is_seen_of_all_clients_is_what_the_server_applies(tmp_path: Any) -> None:
    raw = {**BASE, **FEDAVG, "rounds": 1, "local": {"batch": 8, "epochs": 2}}
    seen = observe(federation(None, **{k: raw[k] for k in ("algorithm", "local", "rounds")}), 60)
    ran = atoll.run(raw, tmp_path / "run", device="cpu", progress=False)
    shares = seen.weights[:, 0] / seen.weights.sum()
    for name, delta in seen.target.items():
        after = seen.simulation.sent["params"][name] + torch.tensordot(shares, delta, dims=1)
        torch.testing.assert_close(after, ran.params[name], atol=1e-6, rtol=1e-5)


def test_rounds_before_the_attacked_one_are_played(tmp_path: Any) -> None:
    setup = federation(None)
    first, third = observe(setup, 1, number=1), observe(setup, 1, number=3)
    ran = atoll.run({**BASE, "rounds": 2}, tmp_path / "run", device="cpu", progress=False)
    began, sent = (seen.simulation.sent["params"]["head.weight"] for seen in (first, third))
    assert not torch.equal(began, sent)
    assert torch.equal(sent, ran.params["head.weight"])


def test_of_a_mean_of_clients_only_the_mean_is_seen() -> None:
    alone, pairs = leaked(6), leaked(3, clients=2)
    assert torch.equal(alone.victims.ids.reshape(3, 2), pairs.victims.ids)
    for one, two in zip(tree.leaves(alone.target), tree.leaves(pairs.target), strict=True):
        assert len(two) == 3
        torch.testing.assert_close(one.reshape(3, 2, *one.shape[1:]).mean(1), two)


def test_transforms_are_in_what_is_seen() -> None:
    sparse = leaked(transform=[{"name": "top_k", "share": 0.1}])
    kept = sum(int((leaf != 0).sum()) for leaf in tree.leaves(sparse.target))
    assert kept <= 0.12 * sum(leaf.numel() for leaf in tree.leaves(sparse.target))
    clipped = leaked(transform=["equal_weights", {"name": "clip_l2", "max_norm": 0.01}])
    lengths = sum((leaf.flatten(1) ** 2).sum(1) for leaf in tree.leaves(clipped.target)) ** 0.5
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.01), rtol=1e-3, atol=0)


def test_noise_of_the_server_is_in_what_it_releases_and_not_in_what_arrives() -> None:
    noisy = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}, {"name": "gaussian_noise", "noise_multiplier": 5.0}]
    setup = federation(1, cohort={"name": "fixed", "size": 5}, transform=noisy)
    plain = observe(setup, 2, 5).target["head.bias"]
    released = observe(setup, 2, view="released").target["head.bias"]
    assert released.shape == plain.shape
    assert float((released - plain).std()) == pytest.approx(1.0, rel=0.5)  # 5 x 1 / 5 clients
    assert not torch.equal((released - plain)[0], (released - plain)[1])


def test_under_secure_sums_there_is_only_the_sum_of_the_cohort() -> None:
    clip = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
    secret: Any = {"cohort": {"name": "fixed", "size": 5}, "transform": clip}
    secret["secure"] = {"protocol": "secagg", "mode": "cost"}
    seen = leaked(3, 1, **secret)
    open_ = leaked(3, 1, 5, **{k: v for k, v in secret.items() if k != "secure"})
    assert seen.weights.shape == (3, 5)
    torch.testing.assert_close(seen.target["head.weight"], open_.target["head.weight"], atol=1e-3, rtol=1e-2)
    with pytest.raises(ConfigError, match="summed in secret, so all that is seen is of 5 clients"):
        leaked(3, 1, 1, **secret)


def test_victims_are_the_rounds_own_cohort_first() -> None:
    cohort = torch.tensor([7, 3, 9])
    ids = choose(cohort, 20, 4, 2, rng.key(0))
    assert ids.reshape(-1)[:3].tolist() == [7, 3, 9]
    assert len(set(ids.reshape(-1).tolist())) == 8
    assert choose(cohort, 11, 9, 2, rng.key(0)).shape == (5, 2)
    with pytest.raises(ConfigError, match="needs as many, and there are 11"):
        choose(cohort, 11, 1, 12, rng.key(0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": {"name": "centralised", "lr": 0.1}}, "all data is pooled, so no client sends"),
        ({"round": "gossip", "algorithm": {"name": "fedavg", "lr": 0.1}}, "there is no server"),
    ],
)
def test_what_sends_no_update_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        leaked(**changes)


def test_a_round_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--round: must be 1 to 3 \(got 4\)"):
        observe(federation(1), 2, number=4)
