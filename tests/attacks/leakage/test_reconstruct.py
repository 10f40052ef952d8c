from dataclasses import replace
from typing import Any

import pytest
import torch

from atoll.attacks.leakage import one_attack
from atoll.attacks.leakage.batch_norm import expected_statistics, statistics_of
from atoll.attacks.leakage.matching import Matching, total_variation
from atoll.attacks.leakage.observe import Observed
from atoll.attacks.leakage.one_attack import AttackOptions, attack
from atoll.attacks.leakage.pixels import Pixels01
from atoll.attacks.leakage.recipes import RECIPES
from atoll.attacks.leakage.reconstruct import Inversion, Reconstruction, reconstruct
from atoll.attacks.leakage.simulate import stacked
from atoll.core import functional
from atoll.errors import ConfigError
from atoll.experiment import Experiment
from tests.support.leaking import BASE, leaked

NORM: dict[str, Any] = {"model": {"name": "examples.attacks.conv_net:ConvNet", "norm": "batch", "width": 4}}

NUMBERS = {"data": "diabetes", "partition": {"name": "iid", "clients": 8}, "task": {"model": "linear"}}
DP_SGD = {"batch": 4, "privacy": {"noise_multiplier": 1.0, "max_norm": 1.0, "delta": 1e-4}}


def made(seen: Observed, method: str, steps: int, **how: Any) -> Reconstruction:
    return reconstruct(seen, Inversion(RECIPES[method], steps, **how), Pixels01.of(seen.setup), lambda n, of: None)


def error(seen: Observed, found: Reconstruction) -> float:
    """Of the victim in the middle: L-BFGS without a line search, as DLG has it, leaps away from one or another."""
    return float(((found.x - seen.victims.x[:, 0]) ** 2).flatten(1).mean(1).median())


@pytest.mark.parametrize(("method", "steps"), [("dlg", 300), ("dlg_lbfgs", 120), ("idlg", 300), ("inverting", 200)])
def test_every_recipe_finds_single_examples(method: str, steps: int) -> None:
    seen = leaked(6)
    begun, found = made(seen, method, 1), made(seen, method, steps)
    assert error(seen, found) < 0.01 < 0.1 < error(seen, begun)
    settled = found.distance < 0.02
    assert settled.sum() >= (6 if method != "dlg_lbfgs" else 4)
    assert torch.equal(found.labels[settled], seen.victims.y[settled, 0])


@pytest.mark.parametrize("method", ["dlg", "inverting", "gradinversion"])
def test_a_stack_of_victims_is_every_victim_alone(method: str) -> None:
    seen = leaked(5, 2, clients=2)
    whole, alone = (made(seen, method, 4, stack=n) for n in (5, 1))
    torch.testing.assert_close(whole.x, alone.x, atol=1e-4, rtol=1e-4)
    last = made(seen.part(slice(4, 5)), method, 4)
    torch.testing.assert_close(whole.x[4:], last.x, atol=1e-4, rtol=1e-4)


def test_the_same_seed_is_the_same_attack_and_another_one_is_not() -> None:
    seen = leaked(2)
    assert torch.equal(made(seen, "idlg", 3).x, made(seen, "idlg", 3).x)
    assert not torch.equal(made(seen, "idlg", 3).x, made(seen, "idlg", 3, seed=1).x)


def test_unrolled_with_one_epoch_it_is_the_attack_on_the_gradient() -> None:
    gradient = leaked(4)
    change = leaked(4, algorithm={"name": "fedavg", "lr": 0.1})
    torch.testing.assert_close(change.target["head.weight"], -0.1 * gradient.target["head.weight"])
    one, other = made(gradient, "idlg", 20), made(change, "idlg", 20)
    torch.testing.assert_close(one.x, other.x, atol=5e-3, rtol=0)
    torch.testing.assert_close(one.distance, other.distance, rtol=2e-2, atol=1e-5)


def test_through_several_epochs_the_updates_are_unrolled() -> None:
    seen = leaked(4, algorithm={"name": "fedavg", "lr": 0.1}, local={"batch": 0, "epochs": 4})
    assert error(seen, made(seen, "inverting", 120)) < 0.02


def test_nothing_matches_better_than_the_truth() -> None:
    seen = leaked(3, 2)
    for name in ("dlg", "inverting"):
        matching = Matching(seen.simulation, replace(RECIPES[name], tv=0.0))
        evidence = {"target": seen.target, "work": seen.work(), "weights": seen.weights}
        judge = stacked(lambda free, y, e, m=matching: m.distance(free[0], y, e))  # type: ignore[misc]
        gradient, value = judge((seen.victims.x,), seen.victims.y, evidence)
        assert float(value.abs().max()) < 1e-5
        assert float(gradient[0].abs().max()) < 1e-2
        assert (judge((seen.victims.x.flip(-1),), seen.victims.y, evidence)[1] > 0.01).all()


def test_total_variation_is_the_mean_step_between_neighbours() -> None:
    x = torch.tensor([[0.0, 1.0, 3.0], [0.0, 1.0, 3.0]])
    assert float(total_variation(x[None, None])) == pytest.approx(1.5)


@pytest.mark.parametrize("known", ["running", "sent"])
def test_statistics_that_a_client_sends_are_those_of_its_batch(known: Any) -> None:
    seen = leaked(3, 4, task=NORM)
    expected = expected_statistics(seen, known)
    with functional(), torch.no_grad():
        true = torch.func.vmap(statistics_of(seen))(seen.victims.x, seen.victims.y)
    near = [torch.allclose(expected[name], x, atol=1e-4, rtol=1e-3) for name, x in true.items()]
    assert all(near) == (known == "sent")


def test_of_batches_gradinversion_uses_the_statistics() -> None:
    seen = leaked(3, 2, task=NORM)
    blind = reconstruct(
        seen,
        Inversion(replace(RECIPES["gradinversion"], batch_norm=0.0), 20),
        Pixels01.of(seen.setup),
        lambda n, of: None,
    )
    told = made(seen, "gradinversion", 20, statistics="sent")
    assert not torch.equal(blind.x, told.x)


@pytest.mark.slow
def test_a_wrong_belief_about_batch_norm_does_not_match() -> None:
    seen = leaked(3, 1, task=NORM)
    right, wrong = made(seen, "inverting", 60), made(seen, "inverting", 60, batch_norm="frozen")
    assert (right.distance < wrong.distance).all()


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        (NUMBERS, {}, "needs classes"),
        ({"algorithm": {"name": "scaffold", "lr": 0.1}}, {"round": 2}, "keeps something with its clients"),
        ({"algorithm": {"name": "fedavg", "lr": 0.1}, "local": DP_SGD}, {}, "gradients are noisy inside"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changes: Any, options: Any, words: str) -> None:
    how = AttackOptions("inverting", victims=2, steps=2, **options)
    with pytest.raises(ConfigError, match=words):
        attack(Experiment.parse({**BASE, **changes}), how, "cpu")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "magic"}, "there is no 'magic'. Use fc, dlg"),
        ({"victims": 0}, "--victims: must be 1 or more"),
        ({"images": 0}, "--images: must be 1 or more"),
        ({"share": 0.0}, "--share: must be above 0"),
    ],
)
def test_mistakes_are_refused_before_anything_is_done(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        attack(Experiment.parse(BASE), AttackOptions(**options), "cpu")


@pytest.mark.slow
def test_an_attacker_who_does_not_unroll_takes_all_for_one_step() -> None:
    one = leaked(3, 2, algorithm={"name": "fedavg", "lr": 0.1})
    torch.testing.assert_close(one.in_one_step().target["head.weight"], one.target["head.weight"])
    assert torch.equal(one.in_one_step().victims.plan, one.victims.plan)
    many = leaked(3, 2, algorithm={"name": "fedavg", "lr": 0.5}, local={"batch": 1, "epochs": 6})
    right, naive = made(many, "inverting", 80), made(many.in_one_step(), "inverting", 80)
    assert many.in_one_step().victims.steps.tolist() == [[1]] * 3
    assert float(right.distance.mean()) < float(naive.distance.mean())


TEXT = {"data": "library_text", "partition": {"name": "natural"}, "rounds": 1, "local": {"max_steps": 1}}
TEXT |= {"algorithm": {"name": "fedavg", "lr": 0.5}, "cohort": {"name": "fixed", "size": 4}}
REGRESSION = {"data": "diabetes", "partition": {"name": "iid", "clients": 8}, "rounds": 1}
REGRESSION |= {"algorithm": {"name": "fedavg", "lr": 0.1}}
PICTURES = {**REGRESSION, "data": "digits"}


@pytest.mark.parametrize(
    ("raw", "options", "words"),
    [
        *(({**TEXT}, {"method": m}, "library_text is text") for m in ("fc", "labels", "property", "dlg", "inverting")),
        *(
            (REGRESSION, {"method": m}, "needs classes, and diabetes has none. Use --method fc")
            for m in ("property", "labels", "idlg")
        ),
        (PICTURES, {"method": "property", "label": 12}, "--property: there is no class 12. Classes are 0 to 9"),
        (PICTURES, {"method": "property", "label": -1}, "--property: there is no class -1"),
    ],
)
def test_data_that_an_attack_cannot_take_are_refused_before_anything_is_played(
    raw: Any, options: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_attack, "observe", None)
    with pytest.raises(ConfigError, match=words):
        attack(Experiment.parse(raw), AttackOptions(**options), "cpu")
