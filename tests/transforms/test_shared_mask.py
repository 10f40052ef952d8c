"""The same random entries of all clients: sums of messages are messages of sums."""

import pytest
import torch

from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Update
from atoll.errors import SpecError
from atoll.transforms.clip import ClipL2
from atoll.transforms.noise import GaussianNoise
from atoll.transforms.shared_mask import SharedMask
from atoll.transforms.weights import EqualWeights
from tests.support.compressing import normal

LIKE = {"w": torch.zeros(20, 15), "b": torch.zeros(7), "n": torch.zeros(())}
KEY = rng.key("unused")


def value(seed: int) -> tree.Tree:
    return {"w": normal(20, 15, seed=seed), "b": normal(7, seed=seed), "n": torch.tensor(float(seed))}


def sent(mask: SharedMask, x: tree.Tree, state: tree.Tree) -> tree.Tree:
    return mask.client(Update(x, torch.tensor(1.0)), mask.client_view(state), {}, KEY)[0].value


def arrived(mask: SharedMask, x: tree.Tree, state: tree.Tree) -> tuple[tree.Tree, tree.Tree]:
    one = torch.tensor(1.0)
    total, state = mask.server(Total(sent(mask, x, state), one, one), state, KEY)
    return total.value, state


def test_all_entries_are_the_update_itself() -> None:
    mask = SharedMask(1.0)
    found, _ = arrived(mask, value(3), mask.init(LIKE)[0])
    torch.testing.assert_close(found, value(3), atol=0, rtol=0)


def test_a_sum_of_messages_is_the_message_of_the_sum() -> None:
    mask = SharedMask(0.1)
    state, _ = mask.init(LIKE)
    both = tree.add(sent(mask, value(1), state), sent(mask, value(2), state))
    torch.testing.assert_close(both, sent(mask, tree.add(value(1), value(2)), state))
    assert [len(x) for x in tree.leaves(both)] == [30, 1, 1]


def test_entries_arrive_at_their_places_and_other_ones_in_the_next_round() -> None:
    mask = SharedMask(0.1)
    first, state = arrived(mask, value(1), mask.init(LIKE)[0])
    second, _ = arrived(mask, value(1), state)
    for found in (first, second):
        at = found["w"] != 0
        assert int(at.sum()) == 30
        torch.testing.assert_close(found["w"][at], 10 * value(1)["w"][at])
    assert not torch.equal(first["w"] != 0, second["w"] != 0)


@pytest.mark.slow
def test_over_many_rounds_it_is_right_on_average() -> None:
    mask, rounds = SharedMask(0.2), 3000
    state, total = mask.init(LIKE)[0], torch.zeros(7)
    for _ in range(rounds):
        found, state = arrived(mask, value(1), state)
        total += found["b"]
    spread = value(1)["b"].abs() * (7 / 2 - 1) ** 0.5 / rounds**0.5  # two of seven entries
    assert ((total / rounds - value(1)["b"]).abs() < 5 * spread).all()


def test_a_clip_before_it_still_bounds_what_is_sent_and_noise_goes_behind_it() -> None:
    chain = [EqualWeights(), ClipL2(0.5), SharedMask(0.3), GaussianNoise(1.0)]
    assert Chain(chain[:3]).bind(Spec())[1].l2 == 0.5
    Chain(chain).bind(Spec(cohort=10, expected=10))
    with pytest.raises(SpecError, match="put it before the noise"):
        Chain([*chain[:2], chain[3], chain[2]]).bind(Spec(cohort=10, expected=10))
