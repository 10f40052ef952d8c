"""What each kind of partition promises: sizes, classes, statistics."""

import numpy as np
import pytest
import torch
from scipy.stats import poisson

from atoll import rng
from atoll.data import Partition, label_skew
from atoll.data.measures import label_counts, size_gini
from atoll.data.partition import (
    Compose,
    Dirichlet,
    FCube,
    FixedPoints,
    Groups,
    LogNormal,
    Mixed,
    Natural,
    Pachinko,
    PoissonLengths,
    PowerLaw,
    QuantityDirichlet,
    UserDirichlet,
)
from atoll.data.partition.assign import counts_by_largest_remainder
from atoll.data.partition.fill import fill, luck_of
from atoll.data.partition.resize import _scaled
from atoll.data.sources import fcube
from atoll.errors import PartitionError
from atoll.rng import host

KEY = rng.key(0, "partition")
COARSE = (0, 0, 0, 1, 1, 1, 2, 2)
DIRICHLET = {"name": "dirichlet", "clients": 6, "alpha": 0.5}


def compose(*of):
    return Compose(of)


def data(examples: int, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Labels of 8 classes, nearly even, in no order, and the natural keys that the partitions above ask for."""
    labels = (torch.arange(examples) % 8)[rng.permutation(rng.key("labels", seed), examples)]
    octant = rng.bits(rng.key("octants", seed), (examples,)) % 8
    sites = torch.arange(examples) // 12
    return labels, {"site": sites, "octant": octant, "coarse": torch.tensor(COARSE)[labels]}


LABELS, KEYS = data(240)


def made(p, key: torch.Tensor = KEY, examples: int = 240) -> Partition:
    labels, keys = (LABELS, KEYS) if examples == 240 else data(examples)
    return p(labels, keys, examples, key)


def rows_of(p: Partition) -> list[list[int]]:
    return [p.of(c).tolist() for c in range(p.size)]


# profiles


def test_capped_clients_get_no_more_once_they_hold_their_share():
    labels = torch.arange(6000) % 6
    p = Dirichlet(10, 0.3, profile="niid-bench")(labels, {}, 6000, KEY)
    held = label_counts(p, labels).numpy()
    before = held.cumsum(1) - held
    assert (held[before >= 600] <= 1).all()  # nothing but what rounding leaves to the last
    assert held.sum() == 6000
    assert int(p.sizes.min()) >= 10
    plain = Dirichlet(10, 0.3)(labels, {}, 6000, KEY)
    assert size_gini(p.sizes) < size_gini(plain.sizes)


def test_the_cap_is_what_plain_loops_do():
    labels, N = torch.arange(900) % 3, 5
    p = Dirichlet(N, 0.5, profile="niid-bench")(labels, {}, 900, KEY)
    for attempt in range(100):
        batch = [0] * N
        held = []
        for share in rng.dirichlet(rng.fold(KEY, 3 + attempt), torch.full((3, N), 0.5, dtype=torch.float64)).numpy():
            share = np.array([s * (n < 900 / N) for s, n in zip(share, batch, strict=True)])
            cuts = (np.cumsum(share / share.sum()) * 300).astype(int)[:-1]
            held.append([len(part) for part in np.split(np.arange(300), cuts)])
            batch = [n + m for n, m in zip(batch, held[-1], strict=True)]
        if min(batch) >= 10:
            break
    assert label_counts(p, labels).T.tolist() == held


def test_the_profile_asks_for_ten_examples():
    for wish in (Dirichlet(12, 0.3, profile="niid-bench"), QuantityDirichlet(12, 0.5, profile="niid-bench")):
        assert int(made(wish, examples=4800).sizes.min()) >= 10
    with pytest.raises(PartitionError, match="25 clients of at least 10 need 250 examples"):
        made(Dirichlet(25, 1.0, profile="niid-bench"))


# clients that differ by luck alone


def test_rounding_favours_no_place_and_is_off_by_less_than_one():
    shares = host.dirichlet(KEY, 0.1, (50, 20))
    totals = np.arange(50) * 13
    counts = counts_by_largest_remainder(shares, totals)
    order = host.permutation(KEY, 20)
    assert (counts_by_largest_remainder(shares[:, order], totals) == counts[:, order]).all()
    assert (counts.sum(1) == totals).all()
    assert (np.abs(counts - shares * totals[:, None]) < 1).all()


def test_new_sizes_favour_no_place():
    old = counts_by_largest_remainder(host.dirichlet(KEY, 2.0, (5, 8)), np.full(5, 200))
    sizes, order = np.array([90, 70, 60, 50, 40, 30, 20, 11]), host.permutation(KEY, 8)
    assert (_scaled(old[:, order], sizes[order], "") == _scaled(old, sizes, "")[:, order]).all()


@pytest.mark.parametrize(
    "wish",
    [
        Dirichlet(10, 0.1, minimum=1, short="borrow"),
        Groups(10, 10, alpha=0.1, minimum=1, short="borrow"),
    ],
    ids=lambda wish: type(wish).__name__,
)
def test_clients_of_a_dirichlet_draw_are_exchangeable(wish):
    """Over seeds, every place has the same mean of classes held and of cells with a single row."""
    labels, draws = torch.arange(1000) % 5, 150
    held = np.stack([label_counts(wish(labels, {}, 1000, rng.key(s)), labels).numpy() for s in range(draws)])
    for measured in ((held > 0).sum(2), (held == 1).sum(2), held.sum(2)):
        means, error = measured.mean(0), measured.std() / np.sqrt(draws)
        assert (np.abs(means - means.mean()) < 4.5 * error).all(), means


# size laws


def test_power_law_sizes_fall_with_the_rank():
    p = PowerLaw(50, exponent=1.2, minimum=4)(None, {}, 50_000, KEY)
    sizes = np.sort(p.sizes.numpy())[::-1] - 4
    slope = np.polyfit(np.log(np.arange(1, 51)), np.log(sizes), 1)[0]
    assert slope == pytest.approx(-1.2, abs=0.02)
    assert int(p.sizes.sum()) == 50_000
    even = PowerLaw(50, exponent=0)(None, {}, 50_000, KEY)
    assert set(even.sizes.tolist()) == {1000}


def test_lognormal_sizes_have_the_deviation_asked_for():
    # the deviation of 1,000 normal numbers has a standard error of sigma / sqrt(2,000): five of them are 0.11
    p = LogNormal(1000, sigma=1.0, minimum=50)(None, {}, 2_000_000, KEY)
    logs = np.log(p.sizes.numpy() - 50.0)
    assert logs.std() == pytest.approx(1.0, abs=0.12)
    assert set(LogNormal(10, sigma=0.0)(None, {}, 1000, KEY).sizes.tolist()) == {100}


def test_poisson_lengths_have_the_mean_and_the_variance():
    # five standard errors: sqrt(16 / 3,000) for the mean, 16 sqrt(2 / 3,000) and a little for the variance
    p = PoissonLengths(16)(None, {}, 50_000, KEY)
    sizes = p.sizes[:-1].double()  # the last takes what is left
    assert abs(p.size - 50_000 / 16) < 5 * (50_000 / 16**2) ** 0.5
    assert float(sizes.mean()) == pytest.approx(16, abs=5 * (16 / 3000) ** 0.5)
    assert float(sizes.var()) == pytest.approx(16, abs=5 * 16 * (2 / 3000) ** 0.5 + 0.2)
    few = PoissonLengths(0.5)(None, {}, 5000, KEY).sizes.double()
    assert int(few.min()) == 1
    assert float(few.mean()) == pytest.approx(0.5 / (1 - np.exp(-0.5)), abs=0.05)  # given that none is 0


def test_poisson_lengths_are_the_quantiles_of_their_draws():
    u = host.uniform(rng.fold(KEY, 0), np.arange(2000))
    for mean in (0.5, 16.0, 300.0):
        none = np.exp(-mean)
        wanted = poisson.ppf(none + u * (1 - none), mean)  # given that it is not 0
        assert PoissonLengths(mean, clients=2000)(None, {}, 1_000_000, KEY).sizes.tolist() == wanted.tolist()


def test_a_poisson_mean_above_all_rows_is_refused_before_anything_is_drawn():
    with pytest.raises(PartitionError, match=r"partition\.mean: is 1e\+20 examples for a client, and there are 40"):
        PoissonLengths(1e20, clients=4)(None, {}, 40, KEY)


def test_the_number_of_poisson_clients_may_be_given():
    p = PoissonLengths(16, clients=100)(None, {}, 5000, KEY)
    assert p.size == 100
    assert p.left_out == 5000 - len(p.indices) > 0
    everyone = PoissonLengths(16)(None, {}, 5000, KEY)
    assert p.sizes.tolist() == everyone.sizes[:100].tolist()
    with pytest.raises(PartitionError, match=r"clients of 16 examples in the mean need \d+, and there are 240"):
        made(PoissonLengths(16, clients=100))


def test_fixed_points_leave_the_rest_out():
    p = FixedPoints(10, 20)(None, {}, 1000, KEY)
    assert (set(p.sizes.tolist()), p.left_out) == ({20}, 800)


# a mixture for every client


def user_chances(alpha: float, clients: int, classes: int = 4) -> np.ndarray:
    labels = torch.arange(40_000) % classes
    p = UserDirichlet(clients, 50, alpha)(labels, {}, 40_000, KEY)
    return label_counts(p, labels).numpy() / 50


def test_user_proportions_are_dirichlet_draws():
    # p of one class: mean 1/K, variance (1/K)(1 - 1/K)/(K alpha + 1), and p(1-p)/50 more from counting 50 rows.
    # 400 clients; five standard errors (the variance's from a Beta's kurtosis, below 3.5): a false alarm below 1e-6
    for alpha in (0.1, 1.0):
        share = user_chances(alpha, 400)[:, 0]
        var = 0.25 * 0.75 / (4 * alpha + 1)
        var += (0.25 * 0.75 - var) / 50
        assert abs(share.mean() - 0.25) < 5 * (var / 400) ** 0.5
        assert abs(share.var() / var - 1) < 5 * (2.5 / 400) ** 0.5


@pytest.mark.parametrize("profile", ["reddi", "pfl-research"])
def test_classes_that_run_out_are_not_drawn_any_more(profile):
    labels, _ = data(1000)
    p = UserDirichlet(20, 50, 0.1, profile)(labels, {}, 1000, KEY)  # every row is used
    assert p.left_out == 0
    assert set(p.sizes.tolist()) == {50}
    held = label_counts(p, labels)
    assert float((held[:5].max(1).values).float().mean()) > 25  # the first have what they want


def test_both_profiles_agree_as_long_as_nothing_runs_out():
    labels = torch.arange(10_000) % 4
    held = [
        label_counts(UserDirichlet(20, 50, 1.0, p)(labels, {}, 10_000, KEY), labels) for p in ("reddi", "pfl-research")
    ]
    assert torch.equal(*held)


def test_filling_is_drawing_one_by_one():
    """The quick way, against a loop over single draws, on the same luck."""
    want = np.array([[0.7, 0.2, 0.1], [0.5, 0.5, 0.0], [0.1, 0.1, 0.8], [0.2, 0.2, 0.6]])
    totals = np.array([9, 20, 11])

    def chances(c, left):
        p = want[c] * left
        return p / p.sum() if p.sum() else left / left.sum()

    found = fill(chances, 10, totals, 4, KEY)
    left = totals.copy()
    for c in range(4):
        tries, luck, taken = 0, list(luck_of(KEY, np.array([c]), 10)[0]), np.zeros(3, int)
        while luck:
            k = int(np.searchsorted(np.cumsum(chances(c, start := left > 0)), luck[0], side="right"))
            while luck and left[k]:
                left[k] -= 1
                taken[k] += 1
                luck.pop(0)
                if luck:
                    k = int(np.searchsorted(np.cumsum(chances(c, start)), luck[0], side="right"))
            if luck:
                tries += 1
                luck = list(luck_of(rng.fold(KEY, tries), np.array([c]), len(luck))[0])
        assert taken.tolist() == found[:, c].tolist()
    assert found.sum() == 40


def test_pachinko_clients_have_few_coarse_classes_and_in_them_all_fine_ones():
    # alpha 0.1 over 20 coarse classes, beta 10 over 5 fine ones in each: CIFAR-100's shape
    labels = torch.arange(50_000) % 100
    p = Pachinko(100, 100, coarse=tuple(k // 5 for k in range(100)))(labels, {}, 50_000, KEY)
    held = label_counts(p, labels).reshape(100, 20, 5).numpy()
    top = np.sort(held.sum(2), 1)[:, ::-1]
    assert top[:, :3].sum(1).mean() > 75  # three coarse classes have most of a client
    largest = held[np.arange(100), held.sum(2).argmax(1)]
    assert (largest > 0).mean() > 0.95  # and of the largest every fine class is there
    flat = Pachinko(100, 100, alpha=1e5, beta=1e5, coarse=tuple(k // 5 for k in range(100)))(labels, {}, 50_000, KEY)
    assert label_skew(flat, labels).total_variation < label_skew(p, labels).total_variation / 1.5


def test_pachinko_reads_the_tree_from_the_data_or_from_the_file():
    assert rows_of(made(Pachinko(5, 10))) == rows_of(made(Pachinko(5, 10, coarse=COARSE)))
    with pytest.raises(PartitionError, match="does not say which classes belong together"):
        Pachinko(5, 10)(LABELS, {}, 240, KEY)
    with pytest.raises(PartitionError, match="has 2 entries, and there is a class 7"):
        made(Pachinko(5, 10, coarse=(0, 1)))
    with pytest.raises(PartitionError, match=r"class \d has several coarse classes"):
        Pachinko(5, 10)(LABELS, {"coarse": torch.arange(240) % 2}, 240, KEY)


# mixtures of skews


def test_mixed_clients_have_two_classes_and_classes_two_owners():
    labels = torch.arange(2000) % 10
    for seed in range(5):
        held = label_counts(Mixed(10, 0.5)(labels, {}, 2000, rng.key(seed)), labels) > 0
        assert (held.sum(1) <= 2).all()
        assert (held.sum(0) <= 2).all()
        assert (held.sum(1) == 2).float().mean() > 0.6  # unless a share is rounded to nothing
    twice = label_counts(Mixed(20, 5.0)(labels, {}, 2000, KEY), labels) > 0
    assert set(twice.sum(0).tolist()) == {4}
    assert all(twice[c, c % 10] for c in range(20))


def test_mixed_shares_are_those_of_two_owners():
    # of two owners with Dirichlet(alpha) one has a Beta(alpha, alpha) share: variance 1 / (4 (2 alpha + 1))
    labels = torch.arange(10_000) % 10
    held = [label_counts(Mixed(10, 0.5)(labels, {}, 10_000, rng.key(seed)), labels) for seed in range(30)]
    share = torch.stack([h[c, c] for h in held for c in range(10)]).double() / 1000
    assert abs(float(share.mean()) - 0.5) < 5 * (0.125 / 300) ** 0.5
    assert float(share.var()) == pytest.approx(0.125, abs=5 * 0.125 * (2 / 300) ** 0.5)


def test_groups_are_unlike_and_their_clients_are_alike():
    labels = torch.arange(6000) % 6
    p = Groups(12, 4, alpha=0.2, within=1000.0)(labels, {}, 6000, KEY)
    assert p.groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    held = label_counts(p, labels).double()
    shares = held / held.sum(1, keepdim=True)
    apart = (shares[:, None] - shares).abs().sum(2)
    together = p.groups[:, None] == p.groups
    inside, across = float(apart[together].max()), float(apart[~together].min())
    assert inside < 0.3 < across
    apart = Groups(12, 4, alpha=1e6, within=0.3)(labels, {}, 6000, KEY)
    sums = torch.stack([label_counts(apart, labels)[apart.groups == g].sum(0) for g in range(4)])
    assert int((sums - 250).abs().max()) <= 3  # groups alike
    assert label_skew(apart, labels).total_variation > 0.2  # clients not


def test_uneven_groups_differ_by_one_client():
    assert torch.bincount(made(Groups(10, 4, short="borrow")).groups).tolist() == [3, 3, 2, 2]


def test_sizes_on_top_of_labels_keep_both():
    labels = torch.arange(20_000) % 10
    first = {"name": "dirichlet", "clients": 20, "alpha": 0.5}
    law = {"name": "power_law", "exponent": 1.0, "minimum": 50}
    p = compose(first, law)(labels, {}, 20_000, KEY)
    plain = Dirichlet(20, 0.5)(labels, {}, 20_000, rng.fold(KEY, 0))
    wanted = PowerLaw(20, 1.0, 50)(None, {}, 20_000, rng.fold(KEY, 2)).sizes
    assert int((p.sizes - wanted).abs().max()) <= 10 + 0.02 * int(wanted.max())
    held, before = label_counts(p, labels), label_counts(plain, labels)
    assert not bool(((held > 0) & (before == 0)).any())  # nobody has a class that it did not have
    assert held.sum(0).tolist() == [2000] * 10
    skew, was = label_skew(p, labels), label_skew(plain, labels)
    assert skew.effective_classes == pytest.approx(was.effective_classes, rel=0.35)
    assert skew.gini == pytest.approx(size_gini(wanted), abs=0.02)


def test_fedprox_mnist_is_two_classes_with_log_normal_sizes():
    labels = torch.arange(60_000) % 10
    first = {"name": "classes", "clients": 1000, "per_client": 2}
    p = compose(first, {"name": "lognormal", "sigma": 1.0, "minimum": 10})(labels, {}, 60_000, KEY)
    assert int((label_counts(p, labels) > 0).sum(1).max()) <= 2
    assert int(p.sizes.min()) >= 8
    assert size_gini(p.sizes) > 0.3


def test_noise_on_top_of_any_leaves_the_rows_alone():
    p = made(compose(DIRICHLET, {"name": "noise", "level": 0.1, "profile": "niid-bench"}))
    assert rows_of(p) == rows_of(made(Dirichlet(6, 0.5), rng.fold(KEY, 0)))
    assert p.fresh
    assert p.noise.tolist() == pytest.approx([0.02 * i for i in range(6)])


# feature skew


def test_fcube_parties_have_two_octants_that_mirror_each_other():
    p = made(FCube())
    for c in range(4):
        octants = set(KEYS["octant"][p.of(c)].tolist())
        assert octants == {c, 7 - c}
    eight = made(FCube(8))
    assert {o for c in (0, 1) for o in KEYS["octant"][eight.of(c)].tolist()} == {0, 7}
    assert abs(int(eight.sizes[0] - eight.sizes[1])) <= 1


def test_fcube_is_the_partition_of_the_fcube_data():
    cube = fcube(200)
    p = FCube()(cube.labels, cube.keys, cube.examples, KEY)
    held = {frozenset(p.of(c).tolist()) for c in range(4)}
    assert held == {frozenset((cube.keys["party"] == c).nonzero()[:, 0].tolist()) for c in range(4)}


# natural clients, dealt


def test_natural_clients_can_be_dealt_into_fewer():
    p = made(Natural("site", clients=6))
    assert p.size == 6
    for site in range(20):
        rows = set((KEYS["site"] == site).nonzero()[:, 0].tolist())
        assert sum(bool(rows & set(mine)) for mine in rows_of(p)) == 1
    assert sorted(p.sizes.tolist()) == [36, 36, 36, 36, 48, 48]
    with pytest.raises(PartitionError, match="21 clients of 20 natural ones"):
        made(Natural("site", clients=21))
    dropped = Natural("site", minimum=12, small="drop", clients=2)
    got = dropped(None, {"site": torch.tensor([0] * 12 + [1] * 3 + [2] * 12)}, 27, KEY)
    assert (got.sizes.tolist(), got.left_out) == ([12, 12], 3)


# statistics of the plain draw


def test_dirichlet_shares_of_a_class_have_the_variance_of_a_beta():
    # 20 clients x 50 keys of Beta(a, 19 a): each side five standard errors, so false alarms below 1e-5 in all
    labels = torch.zeros(10_000, dtype=torch.int64)
    for alpha in (0.3, 3.0):
        parts = [Dirichlet(20, alpha, 1, "borrow")(labels, {}, 10_000, rng.key(7, i)) for i in range(50)]
        share = torch.stack([p.sizes for p in parts]).double() / 10_000
        variance = 0.05 * 0.95 / (20 * alpha + 1)
        assert float(share.mean()) == pytest.approx(0.05, abs=1e-9)
        kurtosis = float(((share - 0.05) ** 4).mean() / share.var() ** 2)
        assert float(share.var()) == pytest.approx(variance, rel=5 * ((kurtosis - 1) / 1000) ** 0.5)
