"""Local optimizers equal torch.optim, step for step."""

import itertools
from typing import Any

import pytest
import torch

from atoll import tree
from atoll.algorithms.optimizers import OPTIMIZERS, SGD, Decayed, Momentum, adam, adamw, sgd
from atoll.core import extract, inject
from atoll.testing.assertions import shapes
from atoll.tree import Tree

LR = 0.05
TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}

SGDS = [
    {"momentum": m, "nesterov": n, "weight_decay": w}
    for m, n, w in itertools.product([0.0, 0.9], [False, True], [0.0, 0.1])
    if m or not n
]
ADAMS = [
    {"b1": b1, "b2": b2, "eps": eps, "weight_decay": w}
    for b1, b2, eps, w in itertools.product([0.9, 0.0], [0.999, 0.9], [1e-8, 1e-3], [0.0, 0.1])
]
CASES = [("sgd", o) for o in SGDS] + [("adam", o) for o in ADAMS] + [("adamw", o) for o in ADAMS]


def params_and_gradients(steps: int) -> tuple[Tree, list[Tree]]:
    draw = torch.Generator().manual_seed(3)
    shapes: dict[str, tuple[int, ...]] = {"w": (4, 3), "b": (3,), "deep": (2, 2, 2), "scalar": ()}
    like = [{k: torch.randn(s, generator=draw) for k, s in shapes.items()} for _ in range(steps + 1)]
    return like[0], like[1:]


def by_torch(name: str, options: dict[str, Any], params: Tree, gradients: list[Tree]) -> list[Tree]:
    leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
    options = dict(options)
    if name != "sgd":
        options["betas"] = (options.pop("b1"), options.pop("b2"))
    optimizer = TORCH[name](list(leaves.values()), lr=LR, **options)
    found = []
    for g in gradients:
        for k, p in leaves.items():
            p.grad = g[k].clone()
        optimizer.step()
        found.append({k: p.detach().clone() for k, p in leaves.items()})
    return found


@pytest.mark.parametrize(("name", "options"), CASES)
def test_twenty_steps_equal_those_of_torch(name: str, options: dict[str, Any]) -> None:
    params, gradients = params_and_gradients(20)
    optimizer = OPTIMIZERS[name](**options)
    state, ours = optimizer.init(params), params
    for g, truth in zip(gradients, by_torch(name, options, params, gradients), strict=True):
        ours, state = optimizer.step(ours, g, state, LR)
        for k in truth:
            torch.testing.assert_close(ours[k], truth[k], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_settings_as_tensors_change_nothing(name: str, options: dict[str, Any]) -> None:
    params, gradients = params_and_gradients(5)
    plain = OPTIMIZERS[name](**options)
    as_data = inject(plain, extract(plain))
    a = b = params
    s = t = plain.init(params)
    for g in gradients:
        a, s = plain.step(a, g, s, LR)
        b, t = as_data.step(b, g, t, torch.tensor(LR))
    for k in a:
        torch.testing.assert_close(a[k], b[k], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_step_leaves_its_inputs_alone_and_keeps_structure(name: str, options: dict[str, Any]) -> None:
    params, (g, *_) = params_and_gradients(1)
    optimizer = OPTIMIZERS[name](**options)
    state = optimizer.init(params)
    before = tree.digest({"p": params, "g": g, "s": state})
    new, kept = optimizer.step(params, g, state, LR)
    assert before == tree.digest({"p": params, "g": g, "s": state})
    assert (shapes(new), shapes(kept)) == (shapes(params), shapes(state))


def test_structure_follows_from_what_is_asked_for() -> None:
    assert sgd() == SGD()
    assert sgd(momentum=0.9) == Momentum(0.9)
    assert sgd(weight_decay=0.1) == Decayed(SGD(), 0.1)
    assert adam().init({"w": torch.ones(2)}).keys() == {"m", "v", "t"}
    assert adamw(weight_decay=0.0).init({"w": torch.ones(2)}).keys() == {"m", "v", "t"}


def test_every_registered_optimizer_is_compared_with_torch() -> None:
    assert set(OPTIMIZERS) == {name for name, _ in CASES}, "an optimizer without a case above"
