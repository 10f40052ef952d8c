import pytest
import torch

from atoll.attacks.leakage.labels import label_accuracy, label_counts, recovered_labels, sign_rule
from atoll.attacks.leakage.pixels import Pixels01
from atoll.errors import ConfigError
from tests.support.leaking import leaked


@pytest.mark.parametrize(
    "algorithm", [{"name": "fedsgd", "lr": 0.1}, {"name": "fedavg", "lr": 0.1}], ids=lambda a: a["name"]
)
def test_the_sign_rule_is_exact_for_one_example(algorithm: dict[str, object]) -> None:
    seen = leaked(60, algorithm=algorithm)
    found = recovered_labels(seen, Pixels01.of(seen.setup))
    assert torch.equal(found, seen.victims.y)


def test_one_class_alone_is_pushed_up() -> None:
    seen = leaked(20)
    push = -seen.target["head.bias"]
    assert ((push > 0).sum(1) == 1).all()
    assert torch.equal(sign_rule(push), seen.victims.y[:, 0, 0])


@pytest.mark.parametrize("local", [{"batch": 0}, {"batch": 4, "epochs": 3}], ids=["one step", "three epochs"])
def test_classes_of_a_batch_are_counted(local: dict[str, int]) -> None:
    name = "fedsgd" if local == {"batch": 0} else "fedavg"
    seen = leaked(20, 8, local=local, algorithm={"name": name, "lr": 0.1})
    found = recovered_labels(seen, Pixels01.of(seen.setup)).reshape(20, -1)
    right = label_accuracy(found, seen.victims.y.reshape(20, -1), seen.victims.held.reshape(20, -1))
    assert float(right.mean()) > 0.9


def test_counts_are_those_whose_pushes_add_up() -> None:
    chances = torch.tensor([0.2, 0.5, 0.2, 0.1])
    pushes = torch.eye(4) - chances
    counts = torch.tensor([[3, 0, 1, 1], [0, 0, 0, 5], [2, 2, 1, 0]])
    push = counts.float() / 5 @ pushes
    assert torch.equal(label_counts(push, pushes, torch.tensor([5, 5, 5])), counts)


def test_labels_found_are_counted_as_often_as_they_are_there() -> None:
    held = torch.tensor([[True, True, True], [True, True, False]])
    found = label_accuracy(torch.tensor([[1, 1, 2], [0, 3, 3]]), torch.tensor([[1, 2, 2], [3, 3, 0]]), held)
    assert found.tolist() == pytest.approx([2 / 3, 1 / 2])


def test_without_classes_there_are_no_labels() -> None:
    seen = leaked(2, data="diabetes", partition={"name": "iid", "clients": 8}, task={"model": "linear"})
    with pytest.raises(ConfigError, match="labels are recovered where examples have classes"):
        recovered_labels(seen, Pixels01(0, 1))
