"""Feature noise: as much as asked for, the same on every engine, once for a row or at every access."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from atoll import rng, tree
from atoll.data import Dataset, Partition
from atoll.data.partition import FeatureNoise, Iid, noisy
from atoll.errors import PartitionError

KEY = rng.key(0, "partition")


def noisy_data(profile: str, level: float = 0.04, clients: int = 4) -> tuple[Dataset, Dataset, Partition]:
    """1,200 grey images of 1 x 6 x 6 pixels, plain and as four clients see them."""
    x = (rng.bits(rng.key("x"), (1200, 1, 6, 6)) % 256).to(torch.uint8)
    plain = Dataset.from_arrays(x, torch.arange(1200) % 8, test=(x[:50], torch.arange(50) % 8))
    p = FeatureNoise(clients, level, profile)(plain.labels, {}, 1200, KEY)
    return plain, noisy(plain, p, rng.key("noise")).check(), p


def seen(data: Dataset, rows: torch.Tensor, key: torch.Tensor | None = None) -> torch.Tensor:
    more = {} if key is None else {"key": key}
    return data.training_decode({**tree.rows(data.train, rows), **more})["x"]


@pytest.mark.parametrize(("profile", "wanted"), [
    ("paper", [(0.04 * i / 4) ** 0.5 for i in (1, 2, 3, 4)]),
    ("niid-bench", [0.04 * i / 3 for i in (0, 1, 2, 3)]),
])  # fmt: skip
def test_noise_has_the_deviation_of_its_client(profile, wanted):
    plain, data, p = noisy_data(profile)
    assert p.noise.tolist() == pytest.approx(wanted)
    for c in range(4):
        z = seen(data, p.of(c), rng.key(5)) - seen(plain, p.of(c))
        # 10,800 numbers: five standard errors of the mean and of the deviation
        assert abs(float(z.mean())) <= 5 * wanted[c] / 10_800**0.5 + 1e-9
        assert float(z.std()) == pytest.approx(wanted[c], rel=5 / (2 * 10_800) ** 0.5, abs=1e-9)
        if wanted[c]:
            assert float((z**4).mean() / (z**2).mean() ** 2) == pytest.approx(3, abs=5 * (24 / 10_800) ** 0.5)


def test_noise_is_not_clamped():
    _, data, p = noisy_data("paper", level=1.0)
    x = seen(data, p.of(3))
    assert float(x.min()) < -0.5
    assert float(x.max()) > 1.5


def test_the_noise_of_the_paper_belongs_to_the_row():
    _, data, _ = noisy_data("paper")
    rows = torch.tensor([3, 700, 44, 3])
    all_at_once = seen(data, rows, rng.key(1))
    one_by_one = torch.cat([seen(data, row[None], rng.key(2)) for row in rows])
    assert torch.equal(all_at_once, one_by_one)
    assert torch.equal(all_at_once[0], all_at_once[3])
    assert torch.equal(all_at_once, data.decode(tree.rows(data.train, rows))["x"])  # where it is measured too
    assert data.augment is None  # so that no key is made for it


def test_the_noise_of_the_code_is_drawn_at_every_access():
    plain, data, p = noisy_data("niid-bench")
    rows = p.of(3)[:50]
    first, again, other = (seen(data, rows, rng.key(k)) - seen(plain, rows) for k in (1, 1, 2))
    assert torch.equal(first, again)
    assert abs(float(torch.corrcoef(torch.stack([first.flatten(), other.flatten()]))[0, 1])) < 0.12  # five in 1,800
    assert data.augment is not None  # so that there is a key


def test_the_test_set_is_clean_or_seen_by_every_client():
    plain, data, _ = noisy_data("paper")
    assert data.test is plain.test
    plain, data, p = noisy_data("niid-bench")
    assert len(data.test["y"]) == 4 * 50
    assert torch.equal(data.test["y"], plain.test["y"].repeat(4))
    zeros = {"key": torch.zeros(2, dtype=torch.int64)}
    z = data.decode({**data.test, **zeros})["x"] - plain.decode(plain.test)["x"].repeat(4, 1, 1, 1)
    deviations = z.reshape(4, -1).std(1)
    assert deviations.tolist() == pytest.approx(p.noise.tolist(), rel=5 / (2 * 1800) ** 0.5, abs=1e-9)


@pytest.mark.parametrize("profile", ["paper", "niid-bench"])
def test_noise_is_the_same_on_every_engine(profile):
    _, data, _ = noisy_data(profile)
    rows = rng.permutation(rng.key(0), 1200)[:60].reshape(6, 10)
    keys = torch.stack([rng.key(c) for c in range(6)])

    def one(mine, key):
        return data.training_decode({**tree.rows(data.train, mine), "key": key})["x"]

    loop = torch.stack([one(rows[c], keys[c]) for c in range(6)])
    stacked = torch.func.vmap(one)
    assert torch.equal(loop, stacked(rows, keys))
    captured = make_fx(stacked)(rows.flip(0), keys.flip(0))
    assert torch.equal(loop, captured(rows, keys))


def test_decoding_takes_the_extra_columns_away():
    _, data, _ = noisy_data("paper")
    assert set(data.decode(tree.rows(data.train, slice(0, 2)))) == {"x", "y"}
    assert data.inputs == (1, 6, 6)


def test_without_noise_nothing_changes_and_tokens_have_none():
    plain, _, p = noisy_data("paper")
    assert noisy(plain, Iid(4)(None, {}, 1200, KEY), KEY) is plain
    tokens = torch.zeros((1200, 5), dtype=torch.int64)
    text = Dataset.from_arrays(tokens, tokens, kind="next_token", name="letters")
    with pytest.raises(PartitionError, match=r"noise needs inputs that are numbers, and those of 'letters' are tokens"):
        noisy(text, p, KEY)


def test_quick_bits_are_fair_and_rows_stand_alone():
    # 256,000 words: a bit is set 128,000 times, give or take 253; five of these, 32 bits: a false alarm below 2e-5
    words = rng.quick_bits(KEY, torch.arange(1000), 256)
    for bit in range(32):
        assert abs(int(((words >> bit) & 1).sum()) - 128_000) < 5 * 253
    z = rng.quick_normal(KEY, torch.arange(1000), 255)
    for a, b in ((z[:, 1:], z[:, :-1]), (z[1:], z[:-1]), (z, rng.quick_normal(rng.key(1), torch.arange(1000), 255))):
        assert abs(float((a * b).mean())) < 5 / 254_000**0.5
    assert torch.equal(rng.quick_normal(KEY, torch.tensor([7]), 255)[0], z[7])
    assert torch.equal(rng.quick_bits(tuple(KEY.tolist()), torch.arange(3), 9), rng.quick_bits(KEY, torch.arange(3), 9))
