"""Who holds which rows."""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, create_model

from atoll import rng
from atoll.data import PARTITIONS, Partition, label_skew
from atoll.data.measures import label_counts, size_gini
from atoll.data.partition import Classes, Dirichlet, Iid, Natural, QuantityDirichlet, Shards
from atoll.errors import PartitionError

KEY = rng.key(0, "partition")
N = 600
LABELS = torch.arange(N) % 6
KEYS = {"site": torch.arange(N) // 50 * 3}  # 12 sites, numbered with gaps


def made(p, key=KEY, labels=LABELS):
    return p(labels, KEYS, N, key)


EVERY = [
    Iid(7),
    Dirichlet(7, 0.5),
    Dirichlet(60, 0.1, minimum=3, short="borrow"),
    QuantityDirichlet(7, 0.5),
    QuantityDirichlet(60, 0.1, minimum=3, short="borrow"),
    Classes(12, 2),
    Shards(7, 3),
    Natural(),
]


def rows_of(p):
    return [p.of(c).tolist() for c in range(p.size)]


@pytest.mark.parametrize("p", EVERY, ids=repr)
def test_every_row_has_exactly_one_owner(p):
    got = made(p)
    assert sorted(got.indices.tolist()) == list(range(N))
    assert got.left_out == 0
    assert int(got.sizes.min()) >= getattr(p, "minimum", 1)


@pytest.mark.parametrize("p", EVERY, ids=repr)
def test_a_partition_follows_its_key_and_nothing_else(p):
    assert rows_of(made(p)) == rows_of(made(p))
    assert made(p).digest() == made(p).digest()
    if not isinstance(p, Natural):
        assert rows_of(made(p)) != rows_of(made(p, rng.key(1)))


def test_every_builder_has_a_signature_that_is_a_strict_schema():
    for name, builder in PARTITIONS.items():
        options = inspect.signature(builder, eval_str=True).parameters.values()
        fields = {o.name: (o.annotation, ... if o.default is o.empty else o.default) for o in options}
        schema = create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **fields)
        assert schema.model_json_schema()["title"] == name
        assert inspect.getdoc(builder).splitlines()[0].endswith((".", ":"))


@given(examples=st.integers(1, 60), data=st.data())
def test_iid_sizes_differ_by_one_at_most(examples, data):
    clients = data.draw(st.integers(1, examples))
    p = Iid(clients)(None, {}, examples, KEY)
    assert p.size == clients
    assert int(p.sizes.max() - p.sizes.min()) <= 1
    assert sorted(p.indices.tolist()) == list(range(examples))


def test_one_client_gets_everything():
    for p in (Iid(1), Dirichlet(1, 0.5), QuantityDirichlet(1, 0.5), Classes(1, 6), Shards(1, 2)):
        assert sorted(made(p).of(0).tolist()) == list(range(N))


def test_a_large_alpha_is_an_even_split_of_every_class():
    held = label_counts(made(Dirichlet(10, 1e9)), LABELS)
    assert torch.equal(held.sum(0), torch.full((6,), 100))
    assert int((held - 10).abs().max()) <= 1


def test_a_small_alpha_is_more_skewed_than_a_large_one():
    skews = [
        label_skew(made(Dirichlet(10, a, short="borrow")), LABELS).total_variation for a in (0.05, 0.5, 5.0, 500.0)
    ]
    assert skews == sorted(skews, reverse=True)
    sizes = [size_gini(made(QuantityDirichlet(10, a, short="borrow")).sizes) for a in (0.05, 0.5, 5.0, 500.0)]
    assert sizes == sorted(sizes, reverse=True)


def test_the_shares_of_a_class_are_a_dirichlet_draw():
    # the share of client 0 in one class is Beta(alpha, (clients - 1) alpha); five standard errors over 300 keys
    alpha, clients = 0.5, 4
    labels = torch.zeros(1000, dtype=torch.int64)
    parts = [Dirichlet(clients, alpha, 1, "borrow")(labels, {}, 1000, rng.key(5, i)) for i in range(300)]
    share = torch.tensor([int(p.sizes[0]) / 1000 for p in parts])
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert abs(float(share.mean()) - 1 / clients) < 5 * (variance / 300) ** 0.5
    assert abs(float(share.var()) / variance - 1) < 0.4


def test_a_dirichlet_split_has_the_sizes_that_loops_deal_out():
    shares = rng.dirichlet(rng.fold(KEY, 3), torch.full((6, 7), 0.5, dtype=torch.float64)).numpy()
    held = label_counts(made(Dirichlet(7, 0.5, minimum=1)), LABELS)
    for k, share in enumerate(shares):
        exact = [float(s) * int((k == LABELS).sum()) for s in share]
        sizes = [int(x) for x in exact]
        for client in sorted(range(7), key=lambda c: int(exact[c]) - exact[c])[: int((k == LABELS).sum()) - sum(sizes)]:
            sizes[client] += 1
        assert held[:, k].tolist() == sizes


def test_sizes_of_the_published_profile_are_cut_by_floors_of_the_running_sum():
    (share,) = rng.dirichlet(rng.fold(KEY, 3), torch.full((1, 6), 2.0, dtype=torch.float64)).numpy()
    p = QuantityDirichlet(6, 2.0, profile="niid-bench")(None, {}, 1000, KEY)
    assert p.sizes.tolist() == [
        len(part) for part in np.split(np.arange(1000), (share.cumsum() * 1000).astype(int)[:-1])
    ]


def test_redrawing_keeps_a_draw_that_has_the_minimum():
    plain, strict = made(Dirichlet(10, 0.5, minimum=1)), made(Dirichlet(10, 0.5, minimum=40))
    assert int(plain.sizes.min()) < 40 <= int(strict.sizes.min())
    lucky = int(plain.sizes.min())
    assert rows_of(made(Dirichlet(10, 0.5, minimum=lucky))) == rows_of(plain)


def test_borrowing_changes_only_the_largest_and_the_short():
    short, full = made(Dirichlet(40, 0.1, 1, "borrow")), made(Dirichlet(40, 0.1, 5, "borrow"))
    before, after = short.sizes, full.sizes
    assert int(before.min()) < 5 == int(after.min())
    lenders = before > after
    assert lenders.any()
    assert int(after[lenders].min()) >= int(after[~lenders].max()) - 1


def test_minimums_that_no_draw_reaches_are_refused_with_advice():
    with pytest.raises(PartitionError, match=r"partition\.minimum: .* partition\.short = 'borrow'"):
        made(Dirichlet(100, 0.01))
    with pytest.raises(PartitionError, match=r"partition\.short = 'borrow'"):
        made(QuantityDirichlet(5, 0.05, minimum=100))


def test_requests_that_cannot_be_met_are_refused_at_once():
    with pytest.raises(PartitionError, match=r"partition\.clients: 601 clients .* there are 600\. Use at most 600"):
        made(Iid(N + 1))
    with pytest.raises(PartitionError, match="Use at most 300 clients"):
        made(Dirichlet(301, 1.0, minimum=2))
    with pytest.raises(PartitionError, match="Use at most 300 clients"):
        made(Shards(301, 2))
    with pytest.raises(PartitionError, match=r"partition\.per_client: 7 classes of 6\. Use at most 6"):
        made(Classes(10, 7))
    with pytest.raises(
        PartitionError, match=r"must be above 0 \(got -1\)\. For an even split use partition\.name = 'iid'"
    ):
        made(Dirichlet(10, -1))


@pytest.mark.parametrize("p", [Dirichlet(3, 1.0), Classes(3, 1), Shards(3)], ids=repr)
def test_splitting_by_class_without_classes_is_refused(p):
    with pytest.raises(PartitionError, match=r"this data has no classes\. Use 'iid'"):
        made(p, labels=None)


@pytest.mark.parametrize(("clients", "k"), [(6, 1), (12, 2), (10, 3), (9, 6)])
def test_every_client_holds_its_own_class_and_others_in_even_parts(clients, k):
    held = label_counts(made(Classes(clients, k)), LABELS)
    assert torch.equal((held > 0).sum(1), torch.full((clients,), k))
    assert all(held[c, c % 6] > 0 for c in range(clients))
    for column in held.T:
        owners = column[column > 0]
        assert int(owners.sum()) == 100
        assert int(owners.max() - owners.min()) <= 1


def test_the_other_classes_are_drawn_evenly():
    owned = torch.stack([label_counts(made(Classes(6, 2), rng.key(3, i)), LABELS)[0] > 0 for i in range(300)]).sum(0)
    assert int(owned[0]) == 300
    assert all(abs(int(n) - 60) < 5 * (300 * 0.2 * 0.8) ** 0.5 for n in owned[1:])


def test_classes_without_an_owner_are_left_out_and_counted():
    p = made(Classes(4, 1))
    assert p.left_out == 200
    assert set(LABELS[p.indices].tolist()) == {0, 1, 2, 3}


def test_a_client_whose_class_has_run_out_is_named():
    labels = torch.tensor([1, 0, 0, 0, 0, 0, 0, 0])  # one row for the four owners of class 1
    with pytest.raises(PartitionError, match=r"clients 3, 5, 7 would have no examples\. Use fewer clients"):
        Classes(8, 1)(labels, {}, 8, KEY)


def test_labels_with_gaps_are_numbered_anew():
    p = Classes(2, 1)(torch.tensor([5, 5, 9, 9]), {}, 4, KEY)
    assert sorted(map(sorted, rows_of(p))) == [[0, 1], [2, 3]]


def test_shards_give_few_classes_to_each_client():
    p = made(Shards(30, 2))
    held = label_counts(p, LABELS)
    assert set(p.sizes.tolist()) == {20}
    assert int((held > 0).sum(1).max()) <= 2
    assert set(held.flatten().tolist()) <= {0, 10, 20}


def test_natural_clients_keep_their_rows_in_order():
    assert rows_of(made(Natural("site"))) == [list(range(i, i + 50)) for i in range(0, N, 50)]


@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=20), minimum=st.integers(1, 12))
def test_small_natural_clients_are_merged_into_enough(sizes, minimum):
    key = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    if sum(sizes) < minimum:
        with pytest.raises(PartitionError, match="Use a smaller minimum"):
            Natural(minimum=minimum)(None, {"user": key}, len(key), KEY)
        return
    p = Natural(minimum=minimum)(None, {"user": key}, len(key), KEY)
    assert int(p.sizes.min()) >= minimum
    assert sorted(p.indices.tolist()) == list(range(len(key)))
    clients_of_user = [len({c for c in range(p.size) if set(p.of(c).tolist()) & set(rows.tolist())})
                       for rows in ((key == u).nonzero()[:, 0] for u in range(len(sizes)))]  # fmt: skip
    assert set(clients_of_user) == {1}  # nobody is torn apart
    assert p.size >= sum(s >= minimum for s in sizes)


def test_small_natural_clients_are_dropped_or_refused_on_request():
    key = {"user": torch.tensor([0, 0, 0, 1, 2, 2])}
    p = Natural(minimum=2, small="drop")(None, key, 6, KEY)
    assert rows_of(p) == [[0, 1, 2], [4, 5]]
    assert p.left_out == 1
    with pytest.raises(PartitionError, match="1 natural clients have fewer than 2 examples, the first is 1 with 1"):
        Natural(minimum=2, small="refuse")(None, key, 6, KEY)
    with pytest.raises(PartitionError, match=r"no client has 4 examples\. The largest has 3"):
        Natural(minimum=4, small="drop")(None, key, 6, KEY)


def test_natural_clients_need_a_key_that_exists():
    with pytest.raises(PartitionError, match=r"there is no key 'user'\. This data has 'site'"):
        made(Natural("user"))
    with pytest.raises(PartitionError, match="this data has no natural clients"):
        Natural()(LABELS, {}, N, KEY)
    with pytest.raises(PartitionError, match=r"say which key to use\. This data has 'a', 'b'"):
        Natural()(LABELS, {"a": LABELS, "b": LABELS}, N, KEY)


@pytest.mark.parametrize(
    ("lists", "options", "message"),
    [
        ([[0], [], [1], []], {}, "clients 1, 3 would have no examples"),
        ([[0], *([[]] * 7)], {}, "clients 1, 2, 3, 4, 5 and 2 more would have no examples"),
        ([[0, 5], [1]], {"examples": 5}, r"row 5 does not exist. Rows are 0\.\.4"),
        ([[0, -1]], {}, "row -1 does not exist"),
        ([[0, 2, 0], [1]], {}, "client 0 holds row 0 twice"),
        ([[0, 2, 2], [2]], {"overlap": True}, "client 0 holds row 2 twice"),
        ([[0, 2], [1], [2]], {}, "row 2 is held by clients 0, 2. If that is meant, pass overlap=True"),
        ([], {}, "no clients"),
    ],
)
def test_lists_that_are_no_partition_are_refused(lists, options, message):
    with pytest.raises(PartitionError, match=message):
        Partition.from_lists(lists, **options)


def test_lists_arrays_and_tensors_become_a_partition():
    p = Partition.from_lists([[3, 1], np.array([0]), torch.tensor([4])], examples=6)
    assert (p.size, p.sizes.tolist(), rows_of(p), p.left_out) == (3, [2, 1, 1], [[3, 1], [0], [4]], 2)
    shared = Partition.from_lists([[0, 1], [1, 2]], overlap=True)
    assert shared.pool().of(0).tolist() == [0, 1, 2]
    with pytest.raises(PartitionError, match=r"no client -1\. Clients are 0\.\.2"):
        p.of(-1)


def test_columns_that_do_not_fit_are_refused():
    rows = torch.arange(3)
    for offsets in ([0, 2], [1, 3], [0, 2, 1, 3], [0]):
        with pytest.raises(PartitionError, match=r"Use Partition\.from_lists"):
            Partition(torch.tensor(offsets), rows)
    with pytest.raises(PartitionError, match="int64"):
        Partition(torch.tensor([0, 3]), rows.float())


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=10), share=st.floats(0.01, 0.99))
def test_a_split_leaves_something_on_both_sides_wherever_it_can(sizes, share):
    p = Partition.from_lists(torch.arange(sum(sizes)).flip(0).split(sizes))
    rest, held = p.split(share, KEY)
    for c, n in enumerate(sizes):
        mine, kept, out = p.of(c).tolist(), rest.of(c).tolist(), held.of(c).tolist()
        assert sorted(kept + out) == sorted(mine)
        assert kept == [r for r in mine if r in kept]  # the order stays
        if n == 1:
            assert out == []
        else:
            assert 1 <= len(out) <= n - 1
            assert abs(len(out) - share * n) <= 1


def test_the_split_of_a_client_does_not_depend_on_the_others():
    p = Partition.from_lists([list(range(30)), list(range(30, 35)), list(range(40, 90))])
    alone = Partition.from_lists([list(range(30))])
    assert p.split(0.2, KEY)[1].of(0).tolist() == alone.split(0.2, KEY)[1].of(0).tolist()
    assert p.split(0.2, KEY)[1].of(0).tolist() != p.split(0.2, rng.key(9))[1].of(0).tolist()
    with pytest.raises(PartitionError, match=r"between 0 and 1 \(got 1\.0\)"):
        p.split(1.0, KEY)


def test_a_partition_comes_back_from_its_file(tmp_path):
    p = made(Dirichlet(7, 0.5))
    p.save(tmp_path / "p.npz")
    q = Partition.load(tmp_path / "p.npz")
    assert [f.name for f in tmp_path.iterdir()] == ["p.npz"]
    assert (q.digest(), q.provenance, q.left_out, rows_of(q)) == (p.digest(), p.provenance, p.left_out, rows_of(p))


def test_a_failed_save_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    made(Iid(3)).save(path)
    before = path.read_bytes()

    def full(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="disk full"):
        made(Iid(4)).save(path)
    assert path.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["p.npz"]


def test_a_file_that_is_no_partition_is_refused_and_never_unpickled(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.arange(3))
    np.savez(tmp_path / "evil.npz", offsets=np.array([{}], dtype=object), indices=np.arange(3), allow_pickle=True)
    (tmp_path / "text.npz").write_text("not an archive")
    for name in ("other", "evil", "text"):
        with pytest.raises(PartitionError, match="is not a saved partition"):
            Partition.load(tmp_path / f"{name}.npz")
    with pytest.raises(PartitionError, match="there is no file"):
        Partition.load(tmp_path / "none.npz")


def test_the_digest_tells_partitions_apart():
    p = Partition.from_lists([[0, 1], [2]])
    others = [
        Partition.from_lists([[0], [1, 2]]),
        Partition.from_lists([[1, 0], [2]]),
        Partition.from_lists([[0, 1], [2]], provenance="otherwise"),
        made(Iid(3)),
    ]
    assert len({x.digest() for x in [p, *others]}) == 5
    assert p.digest() == Partition.from_lists([[0, 1], [2]]).digest()


def test_alike_clients_have_no_skew_and_unlike_ones_have_all_of_it():
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    alike = label_skew(Partition.from_lists([[0, 1], [2, 3], [4, 5]]), labels)
    assert (alike.total_variation, alike.emd, alike.gini) == (0.0, 0.0, 0.0)
    apart = label_skew(made(Classes(6, 1)), LABELS)
    assert apart.total_variation == pytest.approx(5 / 6)
    assert apart.emd == pytest.approx(2 * 5 / 6)
    assert size_gini(torch.tensor([1, 3])) == pytest.approx(0.25)


def test_measures_agree_with_loops():
    p = made(Dirichlet(9, 0.3))
    q = [float((k == LABELS).double().mean()) for k in range(6)]
    far = [sum(abs(float((LABELS[p.of(c)] == k).double().mean()) - q[k]) for k in range(6)) for c in range(9)]
    n = p.sizes.tolist()
    gini = sum(abs(a - b) for a in n for b in n) / (2 * 9 * sum(n))
    skew = label_skew(p, LABELS)
    assert skew.total_variation == pytest.approx(sum(far) / 18)
    assert skew.emd == pytest.approx(sum(f * s for f, s in zip(far, n, strict=True)) / N)
    assert skew.gini == pytest.approx(gini)
