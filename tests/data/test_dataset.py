"""Data sets: what is refused, what notebooks may give, and the first sources."""

import inspect
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from pydantic import ConfigDict, create_model

from atoll import tree
from atoll.data import EMBEDDED, Dataset, Pixels, Population, Same
from atoll.data.partition import Natural
from atoll.errors import DataError

X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture(scope="module")
def built():
    return {name: build() for name, build in EMBEDDED.items()}


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_source_is_sound_and_the_same_each_time(name, built):
    data = built[name].check()
    assert data.digest() == EMBEDDED[name]().digest()
    assert data.test is not None
    batch = data.decode(tree.rows(data.train, slice(0, 4)))
    assert batch["x"].shape == (4, *data.inputs)
    assert batch["x"].dtype == (torch.int64 if data.kind == "next_token" else torch.float32)


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_source_has_a_signature_that_is_a_strict_schema(name):
    options = inspect.signature(EMBEDDED[name], eval_str=True).parameters.values()
    fields = {o.name: (o.annotation, o.default) for o in options}  # everything has a default
    schema = create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **fields)
    schema()
    assert inspect.getdoc(EMBEDDED[name]).splitlines()[0].endswith(".")


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_decoder_travels_and_does_the_same_under_vmap(name, built):
    data = built[name]
    decode = pickle.loads(pickle.dumps(data.decode))
    stacked = tree.rows(data.train, torch.arange(6).reshape(3, 2))
    looped = [decode(tree.rows(stacked, c))["x"] for c in range(3)]
    assert torch.equal(torch.vmap(decode)(stacked)["x"], torch.stack(looped))


def test_pixels_are_scaled_and_standardised_by_channel():
    x = torch.randint(0, 256, (5, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    got = Pixels(1 / 255, mean, std)({"x": x, "y": Y[:5], "mask": torch.ones(5)})
    wanted = (x.float() / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(got["x"], wanted)
    assert set(got) == {"x", "y", "mask"}
    assert torch.allclose(Pixels()({"x": x})["x"], x.float() / 255)
    assert Same()({"x": x})["x"] is x


def test_digits_stay_compact_and_split_evenly_in_every_class(built):
    d = built["digits"]
    assert (d.train["x"].dtype, d.inputs, d.outputs) == (torch.uint8, (1, 8, 8), 10)
    assert (d.examples, len(d.test["x"])) == (1438, 359)
    share = torch.bincount(d.test["y"]) / (torch.bincount(d.test["y"]) + torch.bincount(d.train["y"]))
    assert ((share - 0.2).abs() < 0.005).all()
    x = d.decode(d.train)["x"]
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)


def test_tables_are_standardised_with_training_statistics(built):
    for name, features in (("breast_cancer", 30), ("diabetes", 10)):
        d = built[name]
        assert d.inputs == (features,)
        assert torch.allclose(d.train["x"].mean(0), torch.zeros(features), atol=1e-5)
        assert torch.allclose(d.train["x"].std(0, correction=0), torch.ones(features), atol=1e-5)
        assert not torch.allclose(d.test["x"].mean(0), torch.zeros(features), atol=1e-3)
    y = built["diabetes"].train["y"]
    assert y.shape == (354, 1)
    assert float(y.mean()) == pytest.approx(0, abs=1e-6)


def test_synthetic_is_what_fedprox_defines(built):
    d = built["synthetic"]
    sizes = torch.bincount(d.keys["user"], minlength=30)
    assert (d.inputs, d.outputs, len(sizes)) == ((60,), 10, 30)
    assert int(sizes.min()) >= 40  # 80 % of at least 50
    assert abs(len(d.test["x"]) / (d.examples + len(d.test["x"])) - 0.2) < 0.005
    user = int(sizes.argmax())
    mine = d.train["x"][d.keys["user"] == user].double()
    wanted = torch.arange(1, 61, dtype=torch.float64) ** -1.2
    assert ((mine.var(0) / wanted - 1).abs() < 6 * math.sqrt(2 / len(mine))).all()
    small = EMBEDDED["synthetic"](users=4, dimensions=5, classes=3, largest=60)
    assert (small.inputs, small.outputs) == ((5,), 3)
    assert torch.bincount(small.keys["user"]).max() <= 48
    assert small.digest() != EMBEDDED["synthetic"](users=4, dimensions=5, classes=3, largest=60, seed=1).digest()


def test_a_linear_model_of_its_own_labels_every_synthetic_user(built):
    # labels are argmax(W x + b), so a linear model fits one user's training data nearly exactly
    from sklearn.linear_model import LogisticRegression

    d = EMBEDDED["synthetic"](users=3, dimensions=10, classes=4, largest=300)
    for user in range(3):
        rows = d.keys["user"] == user
        x, y = d.train["x"][rows].numpy(), d.train["y"][rows].numpy()
        if len(set(y)) > 1:
            assert LogisticRegression(C=1e4, max_iter=5000).fit(x, y).score(x, y) > 0.97


def test_alpha_and_beta_move_the_users_apart():
    def spread(**options):
        d = EMBEDDED["synthetic"](users=40, dimensions=20, largest=60, **options)
        means = torch.stack([d.train["x"][d.keys["user"] == u].mean(0).mean() for u in range(40)])
        return float(means.std())

    assert spread(beta=0.0) < spread(beta=1.0) < spread(beta=5.0)
    assert spread(alpha=0.0) == spread(alpha=5.0)  # alpha moves the models, not the inputs


def test_every_party_of_fcube_holds_two_opposite_octants(built):
    d = built["fcube"]
    assert (d.examples, len(d.test["x"]), d.outputs) == (4000, 1000, 2)
    for part in (d.train, d.test):
        assert torch.equal(part["y"], (part["x"][:, 0] <= 0).long())
    party, octant = d.keys["party"], d.keys["octant"]
    assert torch.bincount(party).tolist() == [1000] * 4
    held = [set(octant[party == p].tolist()) for p in range(4)]
    assert held == [{0b000, 0b111}, {0b001, 0b110}, {0b010, 0b101}, {0b011, 0b100}]
    assert torch.bincount(d.train["y"][party == 2]).tolist() == [500, 500]


def test_library_text_is_read_one_character_ahead(built):
    d = built["library_text"]
    x, y, document = d.train["x"], d.train["y"], d.keys["document"]
    assert (d.kind, d.inputs, x.shape[1]) == ("next_token", (40,), 40)
    assert torch.equal(x[:, 1:][y[:, :-1] >= 0], y[:, :-1][y[:, :-1] >= 0])
    follows = (document[1:] == document[:-1]).nonzero()[:, 0]
    assert torch.equal(y[follows, -1], x[follows + 1, 0])  # windows touch
    assert int(x.max()) == d.outputs - 1  # the vocabulary is that of the training windows
    assert 0 not in x[y >= 0]  # which know all their characters
    share = len(d.test["x"]) / (len(x) + len(d.test["x"]))
    assert abs(share - 0.2) < 0.03
    narrow = EMBEDDED["library_text"](window=16)
    assert narrow.inputs == (16,)
    assert len(narrow.train["x"]) > 2 * len(x)


def test_a_character_that_training_does_not_know_is_the_unknown_symbol(monkeypatch):
    from atoll.data.sources import library_text as build

    module = inspect.getmodule(build)
    monkeypatch.setattr(module, "_documents", lambda: ["abc" * 7 + "!", "ab"])
    d = build(window=4)
    assert d.outputs == 4  # a, b, c and the unknown
    assert d.train["x"][0].tolist() == [1, 2, 3, 1]
    assert d.train["x"][-1].tolist() == [1, 2, 0, 0]
    assert d.train["y"][-1].tolist() == [2, -100, -100, -100]
    assert d.test["x"].tolist() == [[3, 0, 0, 0]]
    assert d.test["y"].tolist() == [[0, -100, -100, -100]]  # the unknown is a target, the end is none
    assert d.keys["document"].tolist() == [0, 0, 0, 0, 0, 1]


def test_documents_become_clients(built):
    d = built["library_text"]
    p = Natural()(d.labels, d.keys, d.examples, torch.zeros(2, dtype=torch.int64))
    assert p.size == int(d.keys["document"].max()) + 1
    assert Population(p, 8).cohort(torch.arange(3), torch.zeros(2, dtype=torch.int64)).plan.shape[0] == 3


@pytest.mark.parametrize(
    ("x", "y", "kind", "outputs", "inputs"),
    [
        (X, Y, "classification", 3, (3,)),
        (X.numpy().astype(np.float64), Y.numpy().astype(np.int32), "classification", 3, (3,)),
        (X, Y > 1, "classification", 2, (3,)),
        (X, X[:, 0], "regression", 1, (3,)),
        (X, X[:, :2].numpy(), "regression", 2, (3,)),
        (Y.reshape(2, 3), Y.reshape(2, 3) + 1, "next_token", 4, (3,)),
        (Y.reshape(6, 1), Y, "classification", 3, (1,)),
        ([[1.0], [2.0]], [0, 1], "classification", 2, (1,)),
        (np.broadcast_to(np.float32(1), (4, 2)), np.arange(4)[::-1] % 2, "classification", 2, (2,)),
    ],
)
def test_the_kind_of_arrays_is_inferred(x, y, kind, outputs, inputs):
    d = Dataset.from_arrays(x, y)
    assert (d.kind, d.outputs, d.inputs) == (kind, outputs, inputs)
    assert d.train["x"].dtype == (torch.int64 if kind == "next_token" else torch.float32)
    assert d.train["y"].dtype == (torch.float32 if kind == "regression" else torch.int64)
    assert (d.labels is None) == (kind != "classification")


@pytest.mark.parametrize("shape", [(6, 5, 4), (6, 5, 4, 3), (6, 3, 5, 4)])
def test_images_stay_bytes_and_become_channels_first(shape):
    x = np.arange(math.prod(shape), dtype=np.uint8).reshape(shape)
    d = Dataset.from_arrays(x, Y)
    channels = 1 if len(shape) == 3 else 3
    assert d.train["x"].dtype == torch.uint8
    assert d.inputs == (channels, 5, 4)
    wanted = x[:, None] if len(shape) == 3 else x if shape[1] == 3 else x.transpose(0, 3, 1, 2)
    assert torch.allclose(d.decode(d.train)["x"], torch.from_numpy(wanted / 255).float())


def test_arrays_may_bring_a_test_set_keys_and_more_classes():
    d = Dataset.from_arrays(X, Y, test=(X[:2], Y[:2]), outputs=5, keys={"site": np.array([0, 0, 0, 1, 1, 1])})
    assert (d.outputs, len(d.test["x"]), d.keys["site"].tolist()) == (5, 2, [0, 0, 0, 1, 1, 1])
    assert Dataset.from_arrays(X, Y % 2, test=(X[:3], Y[:3])).outputs == 3  # a class that only the test set has


def spoilt(value):
    x = X.clone()
    x[2, 1] = x[4, 0] = x[4, 2] = value
    return x


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dataset.from_arrays(X[:0], Y[:0]), "train: has no examples"),
        (lambda: Dataset.from_arrays(X, Y, test=(X[:0], Y[:0])), "test: has no examples"),
        (lambda: Dataset.from_arrays(X[:5], Y), "x has 5 rows and y has 6"),
        (lambda: Dataset.from_arrays(spoilt(math.nan), Y), r"train\.x: 3 values are not finite, the first in row 2"),
        (lambda: Dataset.from_arrays(X, Y, test=(spoilt(-math.inf), Y)), r"test\.x: 3 values are not finite"),
        (lambda: Dataset.from_arrays(X, spoilt(math.nan)), r"train\.y: 3 values are not finite"),
        (lambda: Dataset.from_arrays(X, Y - 1), r"train\.y: -1 in row 0 is outside 0\.\.1\. Number them"),
        (lambda: Dataset.from_arrays(X, Y, outputs=2), r"train\.y: 2 in row 2 is outside 0\.\.1.*at least 3"),
        (lambda: Dataset.from_arrays(X, Y, test=(X, Y + 1), outputs=3), r"test\.y: 3 in row 2"),
        (lambda: Dataset.from_arrays(X, Y.float(), kind="classification"), "Use whole numbers"),
        (lambda: Dataset.from_arrays(X, Y, test=(X[:, :2], Y)), r"test\.x: rows have shape \(2,\), in train \(3,\)"),
        (lambda: Dataset.from_arrays(X, Y[:, None]), r"fit no kind\. Use one label for each example"),
        (lambda: Dataset.from_arrays(X, Y[:, None], kind="next_token"), "Use whole numbers with 2"),
        (lambda: Dataset.from_arrays(Y.reshape(2, 3), Y.reshape(2, 3) - 1), r"train\.y: -1 in row 0"),
        (lambda: Dataset.from_arrays(np.array(["a", "b"]), Y[:2]), "x: has dtype <U1. Give numbers"),
        (lambda: Dataset.from_arrays(3.0, Y), "x: is a single number"),
        (lambda: Dataset.from_arrays(X, Y, keys={"site": [0, 1]}), r"keys\['site'\]: not one client number for each"),
        (
            lambda: replace(Dataset.from_arrays(X, Y), inputs=(4,)).check(),
            r"inputs: \(4,\), but a decoded row has shape",
        ),
        (lambda: replace(Dataset.from_arrays(X, X), outputs=2).check(), r"train\.y: .*Use float32 \(n, 2\)"),
    ],
)
def test_data_that_cannot_be_used_is_refused_with_the_reason(make, message):
    with pytest.raises(DataError, match=message):
        make()


def test_targets_that_are_none_are_allowed_in_next_token_data():
    y = torch.tensor([[1, 2, -100], [0, -100, -100]])
    d = Dataset.from_arrays(torch.tensor([[0, 1, 2], [3, 0, 0]]), y)
    assert d.outputs == 4
    with pytest.raises(DataError, match="-100 in row 0"):
        Dataset.from_arrays(y, y)


def test_the_digest_tells_data_sets_apart():
    d = Dataset.from_arrays(X, Y)
    others = [Dataset.from_arrays(X + 1, Y), Dataset.from_arrays(X, Y.flip(0)), Dataset.from_arrays(X, Y, (X, Y))]
    assert len({x.digest() for x in [d, *others]}) == 4
    assert d.digest() == Dataset.from_arrays(X.clone(), Y).digest()
