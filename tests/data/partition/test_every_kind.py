"""Every kind of partition: what holds for all of them, what each promises, and what is refused."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll import rng
from atoll.data import PARTITIONS, Partition
from atoll.data.partition import (
    Classes,
    Compose,
    Dirichlet,
    FCube,
    FixedPoints,
    Groups,
    Iid,
    LogNormal,
    Mixed,
    Pachinko,
    PowerLaw,
    UserDirichlet,
    Vertical,
    VerticalPartition,
)
from atoll.errors import PartitionError
from atoll.experiment import build
from atoll.testing import check_partition
from tests.support.paths import ROOT

KEY = rng.key(0, "partition")
COARSE = (0, 0, 0, 1, 1, 1, 2, 2)


def compose(*of: dict[str, Any]) -> Compose:
    return Compose(of)


DIRICHLET = {"name": "dirichlet", "clients": 6, "alpha": 0.5}

# For every name: entries that must hold on any labels of 8 classes and 240 rows or more.
ENTRIES: dict[str, list[dict[str, Any]]] = {
    "iid": [{"clients": 7}],
    "dirichlet": [
        {"clients": 5, "alpha": 0.5},
        {"clients": 20, "alpha": 0.1, "minimum": 5, "short": "borrow"},
        {"clients": 5, "alpha": 0.5, "profile": "niid-bench"},
    ],
    "designed": [{"clients": 6, "emd": 0.7}],
    "quantity_dirichlet": [{"clients": 5, "alpha": 1.0}, {"clients": 5, "alpha": 1.0, "profile": "niid-bench"}],
    "classes": [{"clients": 8, "per_client": 3}],
    "shards": [{"clients": 10, "per_client": 2}],
    "natural": [{"by": "site"}, {"by": "site", "clients": 5}],
    "power_law": [{"clients": 9, "exponent": 1.5, "minimum": 3}],
    "lognormal": [{"clients": 9, "sigma": 1.0, "minimum": 3}],
    "poisson": [{"mean": 9.0}, {"mean": 0.5}, {"mean": 9.0, "clients": 12}],
    "fixed": [{"clients": 12, "points": 20}, {"clients": 3, "points": 20}],
    "user_dirichlet": [
        {"clients": 12, "points": 20},
        {"clients": 12, "points": 20, "profile": "pfl-research"},
        {"clients": 4, "points": 9, "alpha": 2.0},
    ],
    "pachinko": [{"clients": 12, "points": 20, "coarse": list(COARSE)}, {"clients": 4, "points": 9}],
    "niid_mixed": [{"clients": 8, "alpha": 2.0}, {"clients": 11, "alpha": 2.0}],
    "groups": [{"clients": 9, "groups": 3}, {"clients": 9, "groups": 2, "alpha": 0.1, "short": "borrow"}],
    "noise": [{"clients": 7, "level": 0.1}, {"clients": 7, "level": 0.1, "profile": "niid-bench"}],
    "fcube": [{}, {"clients": 8}],
    "compose": [
        {"of": [DIRICHLET, {"name": "power_law", "exponent": 0.5, "minimum": 9}]},
        {"of": [{"name": "natural", "by": "site"}, {"name": "noise", "level": 0.2}]},
        {"of": [{"name": "iid", "clients": 6}, {"name": "fixed", "points": 20}, {"name": "noise", "level": 0.2}]},
    ],
}
CASES = [(name, entry) for name, entries in ENTRIES.items() for entry in entries]
COVERING = {  # these give every row to somebody
    "iid", "dirichlet", "designed", "quantity_dirichlet", "classes", "shards", "natural", "power_law", "lognormal",
    "niid_mixed", "groups", "noise", "fcube",
}  # fmt: skip


def partitioner(name: str, entry: dict[str, Any]) -> Callable[..., Partition]:
    return build(PARTITIONS, {"name": name, **entry}, where="partition")


def data(examples: int, seed: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Labels of 8 classes, nearly even, in no order, and the natural keys that the partitions above ask for."""
    labels = (torch.arange(examples) % 8)[rng.permutation(rng.key("labels", seed), examples)]
    octant = rng.bits(rng.key("octants", seed), (examples,)) % 8
    sites = torch.arange(examples) // 12
    return labels, {"site": sites, "octant": octant, "coarse": torch.tensor(COARSE)[labels]}


LABELS, KEYS = data(240)


def made(p: Callable[..., Partition], key: torch.Tensor = KEY, examples: int = 240) -> Partition:
    labels, keys = (LABELS, KEYS) if examples == 240 else data(examples)
    return p(labels, keys, examples, key)


def rows_of(p: Partition) -> list[list[int]]:
    return [p.of(c).tolist() for c in range(p.size)]


def same(a: Partition, b: Partition) -> bool:
    return a.digest() == b.digest()


# what holds for all


def test_no_partition_is_forgotten():
    assert set(ENTRIES) == set(PARTITIONS)


@pytest.mark.parametrize(("name", "entry"), CASES)
@given(examples=st.integers(240, 400), seed=st.integers(0, 1000))
@settings(max_examples=4, deadline=None, derandomize=True)
def test_rows_are_dealt_out_once_and_nobody_has_nothing(name, entry, examples, seed):
    labels, keys = data(examples, seed)
    p = partitioner(name, entry)(labels, keys, examples, rng.key(seed))
    assert len(torch.unique(p.indices)) == len(p.indices)
    assert len(p.indices) + p.left_out == examples
    assert 0 <= int(p.indices.min()) <= int(p.indices.max()) < examples
    assert int(p.sizes.min()) >= entry.get("minimum", 1)
    if name in COVERING:
        assert p.left_out == 0
    if "clients" in entry:
        assert p.size == entry["clients"]
    if "points" in entry:
        assert set(p.sizes.tolist()) == {entry["points"]}


@pytest.mark.parametrize(("name", "entry"), CASES)
def test_the_key_decides_and_nothing_else(name, entry):
    p = partitioner(name, entry)
    first = made(p)
    torch.manual_seed(3)
    np.random.seed(3)
    torch.randn(7)
    made(Iid(5), rng.key(9))  # other draws before it
    states = torch.get_rng_state(), np.random.get_state()
    labels, keys = LABELS.clone(), {k: v.clone() for k, v in reversed(KEYS.items())}
    assert same(first, p(labels, keys, 240, KEY.clone()))
    assert torch.equal(states[0], torch.get_rng_state())  # and it draws from no other
    assert str(states[1]) == str(np.random.get_state())
    if entry == {"by": "site"} or "natural" in str(entry):
        assert rows_of(first) == rows_of(made(p, rng.key(1)))
    else:
        assert rows_of(first) != rows_of(made(p, rng.key(1)))


@pytest.mark.parametrize(("name", "entry"), CASES)
def test_every_partition_comes_back_from_its_file(name, entry, tmp_path):
    p = made(partitioner(name, entry))
    p.save(tmp_path / "p.npz")
    q = Partition.load(tmp_path / "p.npz")
    assert same(p, q)
    assert (q.fresh, q.noise is None, q.groups is None) == (p.fresh, p.noise is None, p.groups is None)


@pytest.mark.parametrize(("name", "entry"), [case for case in CASES if "natural" not in str(case)])
def test_every_partition_passes_the_conformance_kit(name, entry):
    labels = rng.bits(rng.key("labels"), (240,)) % 8  # as there
    keys = {"octant": rng.bits(rng.key("octants"), (240,)) % 8, "coarse": torch.tensor(COARSE)[labels]}
    built = partitioner(name, entry)
    assert check_partition(lambda y, k, n, key: built(y, {**k, **keys}, n, key))


def test_noise_groups_and_profile_are_part_of_the_digest(tmp_path):
    plain = made(Iid(7))
    found = {plain.digest()}
    for change in ({"noise": torch.ones(7)}, {"noise": torch.zeros(7)}, {"groups": torch.zeros(7, dtype=torch.int64)}):
        found.add(Partition(plain.offsets, plain.indices, plain.provenance, **change).digest())
    found.add(Partition(plain.offsets, plain.indices, plain.provenance, noise=torch.ones(7), fresh=True).digest())
    assert len(found) == 5
    wide = Dirichlet(3, 1e6), Dirichlet(3, 1e6, profile="niid-bench")
    assert len({made(p).digest() for p in wide}) == 2
    with pytest.raises(PartitionError, match=r"noise has shape \(3,\)\. Give one for each client"):
        Partition(plain.offsets, plain.indices, noise=torch.ones(3))


def test_a_split_keeps_noise_and_groups():
    p = made(Groups(9, 3, short="borrow", minimum=4))
    rest, held = p.split(0.25, KEY)
    assert torch.equal(rest.groups, p.groups)
    assert torch.equal(held.groups, p.groups)
    noise = made(partitioner("noise", ENTRIES["noise"][1])).split(0.25, KEY)[1]
    assert noise.fresh
    assert noise.noise is not None


# vertical


def test_columns_and_rows_are_cut_among_parties():
    v = Vertical(parties=3, overlap=0.5)(10, 101, KEY)
    assert sorted(v.columns.indices.tolist()) == list(range(10))
    assert sorted(v.columns.sizes.tolist()) == [3, 3, 4]
    assert len(v.aligned()) == 50
    everyone = set(v.aligned().tolist())
    own = [set(v.rows.of(p).tolist()) - everyone for p in range(3)]
    assert sorted(map(len, own)) == [17, 17, 17]
    assert set().union(*own, everyone) == set(range(101))
    assert v.digest() == Vertical(parties=3, overlap=0.5)(10, 101, KEY).digest()
    assert v.digest() != Vertical(parties=3, overlap=0.5)(10, 101, rng.key(1)).digest()


def test_shares_of_columns_and_their_order():
    v = Vertical(shares=(3.0, 1.0), shuffle=False)(8, 10, KEY)
    assert [v.columns.of(p).tolist() for p in range(2)] == [[0, 1, 2, 3, 4], [5, 6, 7]]  # one each, then 3 to 1
    assert v.rows.of(0).tolist() == v.rows.of(1).tolist() == list(range(10))


def test_a_vertical_partition_comes_back_from_its_file(tmp_path):
    v = Vertical(overlap=0.3)(6, 50, KEY)
    v.save(tmp_path / "v.npz")
    assert VerticalPartition.load(tmp_path / "v.npz").digest() == v.digest()
    made(Iid(3)).save(tmp_path / "p.npz")
    for name in ("p", "none"):
        with pytest.raises(PartitionError, match="vertical: "):
            VerticalPartition.load(tmp_path / f"{name}.npz")


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (lambda: Vertical(5)(3, 10, KEY), "vertical.parties: 5 parties for 3 columns. Use at most 3."),
        (lambda: Vertical(3, shares=(1.0, 2.0))(9, 10, KEY), "vertical.shares: 2 shares for 3 parties."),
        (lambda: Vertical(overlap=0.01)(9, 10, KEY), "vertical.overlap: 0.01 of 10 examples is no row in common."),
        (lambda: VerticalPartition.from_lists([[0], [1]], [[0]]), "vertical: columns for 2 parties and rows for 1."),
        (lambda: VerticalPartition.from_lists([[0], [1]], [[0], [0]], 2), "vertical: there is no party 2."),
    ],
)  # fmt: skip
def test_vertical_requests_that_cannot_be_met_are_refused(wish, message):
    with pytest.raises(PartitionError, match=re.escape(message)):
        wish()


# refusals

REFUSED = [
    (
        FixedPoints(13, 20),
        "partition.clients: 13 clients of at least 20 need 260 examples, and there are 240. Use at most 12 clients.",
    ),
    (
        UserDirichlet(13, 20),
        "partition.clients: 13 clients of at least 20 need 260 examples, and there are 240. Use at most 12 clients.",
    ),
    (
        Pachinko(13, 20),
        "partition.clients: 13 clients of at least 20 need 260 examples, and there are 240. Use at most 12 clients.",
    ),
    (
        PowerLaw(241),
        "partition.clients: 241 clients of at least 1 need 241 examples, and there are 240. Use at most 240 clients.",
    ),
    (
        LogNormal(25, minimum=10),
        "partition.clients: 25 clients of at least 10 need 250 examples, and there are 240. Use at most 24 clients.",
    ),
    (
        Groups(3, 4),
        "partition.groups: 4 groups of 3 clients. Use at most 3.",
    ),
    (
        Groups(100, 4, alpha=0.01),
        "partition.minimum: ",
    ),
    (
        Mixed(7),
        "partition.clients: 7 clients for 8 classes of two owners each. Use at least 8 clients and two "
        "classes, or partition.name = 'classes'.",
    ),
    (
        Mixed(200, 0.01),
        "Use a larger alpha, fewer clients, or a smaller minimum.",
    ),
    (
        FCube(6),
        "partition.clients: must be a multiple of 4 (got 6). Use 4.",
    ),
    (
        Dirichlet(3, 0.0),
        "partition.alpha: must be above 0 (got 0.0). For an even split use partition.name = 'iid'.",
    ),
    (
        Classes(8, 9),
        "partition.per_client: 9 classes of 8. Use at most 8.",
    ),
    (
        compose(),
        "partition.of: is empty. Example: of = [{ name = 'iid', clients = 10 }, { name = 'noise', level = 0.1 }]",
    ),
    (
        compose({"name": "dirichlt"}),
        "partition.of.0.name: 'dirichlt' is not a partition that can be composed. Did you mean 'dirichlet'?",
    ),
    (
        compose({"clients": 3}),
        "partition.of.0.name: 'None' is not a partition that can be composed.",
    ),
    (
        compose({"name": "compose"}),
        "partition.of.0.name: 'compose' is not a partition that can be composed.",
    ),
    (
        compose({"name": "iid"}),
        "partition.of.0.clients: Field required (got None). Options: clients.",
    ),
    (
        compose({"name": "iid", "clients": "3"}),
        "partition.of.0.clients: Input should be a valid integer (got '3'). Options: clients.",
    ),
    (
        compose({"name": "iid", "clients": 3, "alpha": 1}),
        "partition.of.0.alpha: Extra inputs are not permitted (got 1). Options: clients.",
    ),
    (
        compose(DIRICHLET, {"name": "noise", "clients": 7, "level": 0.1}),
        "partition.of.1.clients: 7 clients on top of 6. Leave it out: the first entry says how many.",
    ),
    (
        compose(DIRICHLET, {"name": "classes", "per_client": 2}),
        "partition.of.1.name: 'classes' cannot stand on top of another partition. Put it first, or use a "
        "size law ('quantity_dirichlet', 'power_law', 'lognormal', 'poisson', 'fixed') or 'noise'.",
    ),
    (
        compose({"name": "natural", "by": "site"}, {"name": "power_law"}),
        "partition.of.1.name: 'power_law' cannot change the sizes of 'natural', whose rows belong to "
        "their clients. Use partition.of.0.minimum, or 'noise'.",
    ),
    (
        compose({"name": "classes", "clients": 8, "per_client": 1}, {"name": "power_law"}),
        "partition.of.1: the sizes do not fit the classes: client ",
    ),
]


@pytest.mark.parametrize(("wish", "message"), REFUSED, ids=[repr(wish)[:60] for wish, _ in REFUSED])
def test_what_cannot_be_is_refused_with_the_reason(wish, message):
    with pytest.raises(PartitionError, match=re.escape(message)):
        made(wish)


@pytest.mark.parametrize("name", ["designed", "user_dirichlet", "pachinko", "niid_mixed", "groups"])
def test_splitting_by_class_without_classes_is_refused(name):
    with pytest.raises(
        PartitionError, match=rf"partition\.name = '{name}': splits by class, and this data has no classes"
    ):
        partitioner(name, ENTRIES[name][0])(None, KEYS, 240, KEY)


def test_data_without_octants_is_no_cube():
    with pytest.raises(PartitionError, match=r"this data has no key 'octant'\. Use data\.name = 'fcube'"):
        FCube()(LABELS, {}, 240, KEY)


# the pages

PAGES = ROOT / "docs" / "partitions"


@pytest.mark.parametrize("name", [*PARTITIONS, "vertical"])
def test_every_partition_has_a_page_with_its_options_and_its_pictures(name):
    page = (PAGES / f"{name}.md").read_text()
    options = inspect.signature(PARTITIONS.get(name, Vertical)).parameters
    assert all(f"| `{option}` |" in page for option in options)
    assert f"({name}.md)" in (PAGES / "README.md").read_text()
    shown = re.findall(r"!\[.+?\]\((\S+\.png)\)", page)
    assert shown or name == "vertical"
    assert all((PAGES / picture).stat().st_size < 40_000 for picture in shown)


def test_no_picture_is_left_over():
    shown = "".join(page.read_text() for page in PAGES.glob("*.md"))
    assert all(f"({picture.name})" in shown for picture in PAGES.glob("*.png"))
