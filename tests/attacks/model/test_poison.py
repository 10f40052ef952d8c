"""What attackers train on, and what their success is measured on."""

import pytest
import torch

from atoll import rng
from atoll.attacks.model import Backdoor, DistributedBackdoor, EdgeCase, LabelFlip, LabelSwap, Neurotoxin
from atoll.core import AdversaryView, Attack, Examples
from atoll.data import Dataset
from atoll.errors import ConfigError

KEY = rng.key("poison")
CLASSES = 5


def examples(n: int = 50) -> Examples:
    x = (rng.uniform(rng.key("x"), (n, 1, 8, 8)) * 100).to(torch.uint8)
    return Examples({"x": x, "y": torch.arange(n) % CLASSES}, CLASSES, 200.0)


def nobody(n: int = 50) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.int64)


@pytest.mark.parametrize(
    "attack",
    [
        LabelFlip(fraction=0),
        LabelSwap(fraction=0),
        Backdoor(fraction=0),
        DistributedBackdoor(fraction=0),
        Neurotoxin(fraction=0),
    ],
)
def test_a_fraction_of_zero_poisons_nothing(attack: Attack) -> None:
    poison = attack.poison(examples(), nobody(), KEY)
    assert len(poison.places) == len(poison.columns["y"]) == 0


def test_flipped_labels_count_from_the_other_end() -> None:
    data = examples()
    poison = LabelFlip().poison(data, nobody(), KEY)
    assert poison.places.tolist() == list(range(50))
    assert torch.equal(poison.columns["y"], 4 - data.columns["y"])
    assert torch.equal(poison.columns["x"], data.columns["x"])
    probe = LabelFlip().probe(data, KEY)
    assert len(probe["y"]) == 40  # the middle class is its own opposite


def test_a_fraction_is_about_that_share_of_rows() -> None:
    poison = LabelFlip(fraction=0.3).poison(examples(5000), nobody(5000), KEY)
    assert 0.27 < len(poison.places) / 5000 < 0.33


def test_swapped_labels_are_those_of_one_class() -> None:
    data = examples()
    poison = LabelSwap(source=3, target=1).poison(data, nobody(), KEY)
    assert (data.columns["y"][poison.places] == 3).all()
    assert len(poison.places) == 10
    assert (poison.columns["y"] == 1).all()
    assert len(LabelSwap(source=3, target=1).probe(data, KEY)["y"]) == 10


def test_a_trigger_is_white_in_its_place_and_nowhere_else() -> None:
    data = examples()
    poison = Backdoor(target=2, size=2, fraction=1.0).poison(data, nobody(), KEY)
    assert (poison.columns["x"][:, :, 5:7, 5:7] == 200).all()
    rest = torch.ones(8, 8, dtype=torch.bool)
    rest[5:7, 5:7] = False
    assert torch.equal(poison.columns["x"][:, 0][:, rest], data.columns["x"][:, 0][:, rest])
    assert (poison.columns["y"] == 2).all()


def test_a_probe_has_no_examples_of_the_wanted_class() -> None:
    data = examples()
    probe = Backdoor(target=2).probe(data, KEY)
    assert len(probe["y"]) == 40
    assert (probe["x"][:, :, 5:7, 5:7] == 200).all()
    assert (probe["y"] == 2).all()


def test_each_attacker_has_a_part_of_the_trigger_and_the_probe_has_all() -> None:
    data, attacker = examples(), torch.arange(50) % 4
    attack = DistributedBackdoor(parts=4, size=2, fraction=1.0)
    x = attack.poison(data, attacker, KEY).columns["x"]
    places = [(0, slice(0, 2)), (0, slice(3, 5)), (2, slice(0, 2)), (2, slice(3, 5))]
    for part, (row, columns) in enumerate(places):
        white = (x[:, 0, row, columns] == 200).all(1)
        assert torch.equal(white, attacker == part)
        assert (attack.probe(data, KEY)["x"][:, 0, row, columns] == 200).all()


def test_a_trigger_on_features_is_drawn_on_the_last_of_them() -> None:
    data = Examples({"x": torch.zeros(6, 5), "y": torch.arange(6) % 2}, 2, 9.0)
    assert Backdoor(size=2, fraction=1.0).poison(data, nobody(6), KEY).columns["x"][0].tolist() == [0, 0, 0, 9, 9]


def seen(own: torch.Tensor, cohort: int) -> AdversaryView:
    return AdversaryView(torch.arange(len(own)), own, own[:0], cohort)


def test_model_replacement_is_the_cohort_over_the_attackers() -> None:
    own = rng.normal(KEY, (2, 7))
    assert torch.allclose(Backdoor().craft(seen(own, 10), {}, KEY)[0], 5.0 * own)
    assert torch.equal(Backdoor(boost=1.0).craft(seen(own, 10), {}, KEY)[0], own)
    assert not Backdoor(boost=1.0).crafts
    # the mean of the cohort is then the attackers' model, if the others have converged
    honest = torch.zeros(8, 7)
    sent = torch.cat([Backdoor().craft(seen(own, 10), {}, KEY)[0], honest])
    assert torch.allclose(sent.mean(0), own.mean(0), atol=1e-6)


def test_neurotoxin_leaves_alone_what_the_model_moves_most_in() -> None:
    attack = Neurotoxin(mask=0.3)
    own = torch.ones(2, 10)
    first, state = attack.craft(seen(own, 5), attack.init(10), KEY)
    assert torch.equal(first, own)  # nothing is known yet
    state = attack.observe(torch.tensor([0.0, 9, 1, -8, 2, 0.5, 7, 0.1, 0.2, 0.3]), state)
    rows, _ = attack.craft(seen(own, 5), state, KEY)
    assert (rows == 0).nonzero()[:, 1].unique().tolist() == [1, 3, 6]
    assert torch.equal(Neurotoxin(mask=0.0).craft(seen(own, 5), state, KEY)[0], own)


def pictures() -> Dataset:
    x = (rng.uniform(rng.key("pictures"), (40, 1, 16, 16)) * 255).to(torch.uint8)
    return Dataset("pictures", "classification", {"x": x, "y": torch.arange(40) % 4}, None, (1, 16, 16), 4)


def test_edge_cases_are_pictures_from_elsewhere_in_the_size_of_the_data() -> None:
    data, attack = examples(), EdgeCase(source=pictures(), target=3, fraction=1.0)
    poison = attack.poison(data, nobody(), KEY)
    assert poison.columns["x"].shape == data.columns["x"].shape
    assert poison.columns["x"].dtype == torch.uint8
    assert (poison.columns["y"] == 3).all()
    probe = attack.probe(data, KEY)
    assert len(probe["y"]) == 20
    trained = {tuple(row) for row in poison.columns["x"].reshape(50, -1).tolist()}
    assert not trained & {tuple(row) for row in probe["x"].reshape(20, -1).tolist()}  # the other half


def test_edge_cases_keep_their_brightness() -> None:
    white = Dataset("white", "classification", {"x": torch.full((4, 3, 6, 6), 50.0), "y": torch.zeros(4).long()}, None,
                    (3, 6, 6), 1)  # fmt: skip
    poison = EdgeCase(source=white, fraction=1.0).poison(examples(), nobody(), KEY)
    assert (poison.columns["x"] == 200).all()


@pytest.mark.parametrize(
    ("attack", "data", "words"),
    [
        (Backdoor(target=5), examples(), "attack.target: there is no class 5. Classes are 0..4."),
        (Backdoor(size=8), examples(), "attack.size: the trigger needs 9 x 9 numbers"),
        (DistributedBackdoor(size=4), examples(), "attack.size: the trigger needs 3 x 9 numbers"),
        (LabelSwap(source=1, target=1), examples(), r"attack.target: is attack.source \(1\)"),
        (Backdoor(), Examples({"x": torch.zeros(3, 4).long(), "y": torch.zeros(3).long()}, 2, 0.0), "words or several"),
        (EdgeCase(source=pictures(), category=4), examples(), "attack.category: there is no class 4"),
    ],
)
def test_what_cannot_be_poisoned_is_refused_with_advice(attack: Attack, data: Examples, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        attack.poison(data, nobody(len(data.columns["y"])), KEY)
