"""Several statistics under one noise: each has its bound, and its own noise by its share of the sensitivity."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

import atoll
from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Transform, Update
from atoll.errors import AtollError, ConfigError, SpecError
from atoll.privacy.events import Gaussian
from atoll.transforms.clip import ClipL1, ClipL2
from atoll.transforms.integers import FixedPoint
from atoll.transforms.joint import JointClip
from atoll.transforms.noise import GaussianNoise, LaplaceNoise
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree
from tests.support.sums import summed

KEY = rng.key("joint")
NOISE = {"name": "gaussian_noise", "noise_multiplier": 0.1}
BOUNDS, SHARES = {"delta": 0.4, "control": 0.1}, {"delta": 0.8, "control": 0.2}
numbers = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=6)
bounds = st.floats(1e-3, 1e3)


def update(delta: list[float], control: list[float], weight: float = 1.0) -> Update:
    value = {"delta": {"w": torch.tensor(delta)}, "buffers": {}, "control": {"w": torch.tensor(control)}}
    return Update(value, torch.tensor(weight))


def chain(*layers: Transform, spec: Spec | None = None) -> Chain:
    return Chain((EqualWeights(), *layers)).bind(spec or Spec())[0]


def through(made: Chain, updates: list[Update]) -> Tree:
    """What the algorithm gets of these clients."""
    state, memory = made.init(updates[0].value)
    sent = [made.client(u, state, memory, KEY)[0] for u in updates]
    value = tree.map(lambda *xs: torch.stack(xs), *(u.value for u in sent))
    total = summed(Update(value, torch.stack([u.weight for u in sent])))
    return made.server(total, state, KEY)[0].value


@given(numbers, numbers, bounds, bounds, st.floats(0.01, 0.99))
def test_every_group_keeps_its_bound_and_the_whole_is_no_longer_than_one(
    delta: list[float], control: list[float], b1: float, b2: float, share: float
) -> None:
    joint = JointClip({"delta": b1, "control": b2}, {"delta": share, "control": 1 - share})
    sent = joint.bind(Spec())[0].client(update(delta, control), {}, {}, KEY)[0].value
    for name, x, b, s in (("delta", delta, b1, share), ("control", control, b2, 1 - share)):
        given = np.array(x, dtype=np.float64)
        clipped = given * min(1.0, b / max(np.linalg.norm(given), 1e-30))
        assert np.allclose(sent[name]["w"].double().numpy(), clipped * s**0.5 / b, rtol=1e-5, atol=1e-30)
    assert float(tree.norm(sent)) <= 1 + 1e-6


def test_the_server_gets_the_sum_of_the_clipped_groups() -> None:
    """By hand: (3, 4) to length 0.4 is (0.24, 0.32), (0.1, 0) stays; the controls 0.05 and -9 become 0.05 and -0.1."""
    found = through(
        chain(JointClip(BOUNDS, SHARES)), [update([3.0, 4.0], [0.05], 7.0), update([0.1, 0.0], [-9.0], 2.0)]
    )
    assert found["delta"]["w"].tolist() == pytest.approx([0.34, 0.32], rel=1e-5)  # a clip stays 4e-6 below its bound
    assert found["control"]["w"].tolist() == pytest.approx([-0.05], rel=1e-5)
    assert found["buffers"] == {}


def test_half_precision_and_tiny_bounds_keep_the_whole_within_one() -> None:
    joint = JointClip(BOUNDS, SHARES)
    for i in range(50):
        x = rng.normal(rng.key(i), (200,))
        given = Update({"delta": {"w": x.half()}, "control": {"w": (3 * x[:20]).half()}}, torch.ones(()))
        sent = joint.client(given, {}, {}, KEY)[0].value
        assert np.linalg.norm(np.concatenate([x.double().numpy() for x in tree.leaves(sent)])) <= 1.0
    tiny = JointClip({"rest": 1e-30}, {"rest": 1.0})
    assert float(tree.norm(tiny.client(update([1e-23, 1e-24], [0.0]), {}, {}, KEY)[0].value)) <= 1.0


def test_one_group_of_everything_is_plain_clipping() -> None:
    updates = [update([3.0, 4.0], [0.5]), update([0.1, 0.0], [0.02])]
    joint = through(chain(JointClip({"rest": 0.7}, {"rest": 1.0}), GaussianNoise(1.3)), updates)
    plain = through(chain(ClipL2(0.7), GaussianNoise(1.3)), updates)
    for name in ("delta", "control"):
        assert torch.allclose(joint[name]["w"], plain[name]["w"], rtol=1e-5)


def test_the_noise_of_every_group_is_that_of_its_share() -> None:
    """20,000 draws of a deviation: five standard errors are 2.5 %; a false alarm in 1.7 million keys, for each group.

    1 / z^2 = sum of 1 / z_i^2 then holds within 5 %, and one event Gaussian(z) counts all groups.
    """
    z = 1.3
    made = chain(JointClip(BOUNDS, SHARES), GaussianNoise(z))
    assert made.events() == [Gaussian(z)]
    state, memory = made.init(update([0.0], [0.0]).value)
    one = made.client(update([0.0], [0.0]), state, memory, KEY)[0]
    total = Total(one.value, torch.ones(()), torch.ones(()))

    def server(k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        value = made.server(total, state, rng.fold(KEY, k))[0].value
        return value["delta"]["w"][0], value["control"]["w"][0]

    noise = [x.double().numpy() for x in vmap(server)(torch.arange(20_000))]
    found = [np.std(x) / bound for x, bound in zip(noise, BOUNDS.values(), strict=True)]
    for measured, share in zip(found, SHARES.values(), strict=True):
        assert measured == pytest.approx(z / share**0.5, rel=0.025)
    assert sum(f**-2 for f in found) == pytest.approx(z**-2, rel=0.05)
    assert abs(np.mean(noise[0])) < 5 * 0.4 * z / 0.8**0.5 / 20_000**0.5
    assert abs(np.corrcoef(*noise)[0, 1]) < 5 / 20_000**0.5


def test_integers_and_a_secure_sum_may_follow() -> None:
    spec = Spec(cohort=2, size=3)
    updates = [update([3.0, 4.0], [0.05]), update([0.1, 0.0], [-9.0])]
    found = through(chain(JointClip(BOUNDS, SHARES), FixedPoint(1e-6), spec=spec), updates)
    assert found["delta"]["w"].tolist() == pytest.approx([0.34, 0.32], abs=1e-5)
    assert found["control"]["w"].tolist() == pytest.approx([-0.05], abs=1e-5)


@pytest.mark.parametrize(
    ("limits", "shares", "message"),
    [
        ({}, {}, r"joint_clip\.max_norms: is empty\. Name groups"),
        ({"a": 0.0}, {"a": 1.0}, r"joint_clip\.max_norms\.a: must be above 0 and finite \(got 0\.0\)"),
        ({"a": float("inf")}, {"a": 1.0}, r"joint_clip\.max_norms\.a: must be above 0 and finite"),
        ({"a": 1.0, "b": 1.0}, {"a": 1.5, "b": -0.5}, r"joint_clip\.shares\.b: must be above 0"),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}, "'b' has a max_norm and no share. Give every group both"),
        ({"a": 1.0}, {"a": 0.5, "b": 0.5}, "'b' has a share and no max_norm"),
        ({"a": 1.0, "b": 1.0}, {"a": 0.5, "b": 0.4}, r"must add up to 1 \(got 0\.9\)"),
        ({"a": 1.0, "b": 1.0}, {"a": 0.5, "b": 0.7}, r"must add up to 1 \(got 1\.2\)"),
    ],
)
def test_bounds_and_shares_that_make_no_sense_are_refused(
    limits: dict[str, float], shares: dict[str, float], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        JointClip(limits, shares).bind(Spec())


def test_groups_that_are_not_there_are_refused() -> None:
    like = update([0.0], [0.0]).value
    with pytest.raises(ConfigError, match=r"joint_clip\.max_norms: no tensor is called 'loss'\. There are delta/w"):
        JointClip({"loss": 1.0, "rest": 1.0}, {"loss": 0.5, "rest": 0.5}).init(like)
    with pytest.raises(ConfigError, match=r"'control/w' has no bound\. Add one for it, or one for 'rest'"):
        JointClip({"delta": 1.0}, {"delta": 1.0}).init(like)
    with pytest.raises(ConfigError, match="no tensor is left for 'rest'"):  # its share would be lost
        JointClip({**BOUNDS, "rest": 1.0}, {"delta": 0.5, "control": 0.4, "rest": 0.1}).init(like)


def test_it_stands_before_real_noise_and_knows_no_l1() -> None:
    joint = JointClip(BOUNDS, SHARES)
    with pytest.raises(SpecError, match="put it before the noise"):
        chain(ClipL2(1.0), GaussianNoise(1.0), joint)
    with pytest.raises(SpecError, match="put it before fixed_point"):
        chain(ClipL2(1.0), FixedPoint(0.1), joint, spec=Spec(cohort=2, size=3))
    with pytest.raises(SpecError, match="a scale of its own for every group"):
        chain(ClipL1(1.0), joint, LaplaceNoise(1.0))


def simulate(out: Path, engine: Any, algorithm: str, **options: Any) -> atoll.Run:
    x = rng.normal(rng.key("x"), (120, 6))
    torch.manual_seed(0)
    return atoll.simulate(
        torch.nn.Linear(6, 2), (x, (x[:, 0] > 0).long()), clients=[list(range(10 * c, 10 * c + 10)) for c in range(12)],
        algorithm={"name": algorithm, "lr": 0.5}, rounds=3, cohort=5, batch=5, evaluate={"clients": 0}, engine=engine,
        out=out, transforms=["equal_weights", {"name": "joint_clip", **options}, NOISE],
    )  # fmt: skip


@pytest.mark.parametrize(("algorithm", "second", "bound"), [("scaffold", "control", 0.5), ("adafedprox", "loss", 3.0)])
def test_a_run_with_two_statistics_is_the_same_on_every_engine(
    algorithm: str, second: str, bound: float, tmp_path: Path
) -> None:
    options = {"max_norms": {"delta": 0.4, second: bound}, "shares": {"delta": 0.9, second: 0.1}}
    truth = simulate(tmp_path / "loop", "loop", algorithm, **options)
    for i, engine in enumerate([{"name": "vector"}, {"name": "vector", "chunk": 2}]):
        other = simulate(tmp_path / str(i), engine, algorithm, **options)
        assert float(tree.norm(tree.sub(other.params, truth.params)) / tree.norm(truth.params)) < 1e-5


def test_a_statistic_that_nobody_bounded_ends_the_run_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"'control/.*' has no bound"):
        simulate(tmp_path / "run", "loop", "scaffold", max_norms={"delta": 0.4}, shares={"delta": 1.0})
