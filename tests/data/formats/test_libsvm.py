"""LibSVM's text: sparse rows, dense or held as they are, the same numbers either way."""

import bz2
import gzip
import pickle
import sys

import numpy as np
import pytest
import torch

import atoll
from atoll import tree
from atoll.data.formats import FILES
from atoll.data.formats.decoders import Sparse
from atoll.errors import DataError

MODULE = sys.modules[FILES["libsvm"].__module__]
A9A = "-1 3:1 11:1 14:1\n+1 5:1 7:1 14:1\n-1 5:0.5 6:-2e-1\n"


@pytest.fixture
def write(tmp_path):
    def written(content, name="a9a"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
def test_indices_count_from_one_and_labels_become_classes(pack, write):
    d = FILES["libsvm"](path=write(pack(A9A.encode())), test_share=0.0)
    wanted = torch.zeros(3, 14)
    wanted[0, [2, 10, 13]] = wanted[1, [4, 6, 13]] = 1
    wanted[2, 4], wanted[2, 5] = 0.5, -0.2
    assert torch.equal(d.decode(d.train)["x"], wanted)
    assert (d.train["y"].tolist(), d.outputs, d.classes, d.inputs) == ([0, 1, 0], 2, ("-1", "1"), (14,))


def test_a_test_file_may_use_fewer_features_or_more(write):
    test = write("+1 16:2\n-1 1:3\n", "a9a.t")
    d = FILES["libsvm"](path=write(A9A), test=test)
    assert d.inputs == (16,)
    assert d.test["x"].nonzero().tolist() == [[0, 15], [1, 0]]
    assert d.test["y"].tolist() == [1, 0]
    assert FILES["libsvm"](path=write(A9A), test=test, features=123).inputs == (123,)
    with pytest.raises(DataError, match=r"data\.features: 15 is less than the largest index in a9a, 16"):
        FILES["libsvm"](path=write(A9A), test=test, features=15)


def rows_of(n, features, held, seed=0):
    draw = np.random.default_rng(seed)
    lines, dense = [], np.zeros((n, features), np.float32)
    for i in range(n):
        places = np.sort(draw.choice(features, draw.integers(1, held + 1), replace=False))
        dense[i, places] = draw.normal(size=len(places)).astype(np.float32)
        pairs = " ".join(f"{p + 1}:{dense[i, p]:.9g}" for p in places)
        lines.append(f"{'+1' if dense[i].sum() > 0 else '-1'} {pairs} # row {i}\n")
    return "".join(lines), dense


def test_wide_rows_are_held_sparse_and_decode_to_the_same(write, monkeypatch):
    text, dense = rows_of(40, 5000, 9)
    whole = FILES["libsvm"](path=write(text), test_share=0.0, features=5000)
    monkeypatch.setattr(MODULE, "_DENSE", 0)
    d = FILES["libsvm"](path=write(text), test_share=0.0, features=5000)
    assert d.decode == Sparse(5000)
    assert d.train["slots"].dtype == torch.int16
    assert tree.nbytes(d.train) < 0.02 * tree.nbytes(whole.train)
    assert torch.equal(d.decode(d.train)["x"], torch.from_numpy(dense))
    assert torch.equal(whole.decode(whole.train)["x"], torch.from_numpy(dense))
    stacked = tree.rows(d.train, torch.arange(12).reshape(3, 4))
    decode = pickle.loads(pickle.dumps(d.decode))
    assert torch.equal(torch.vmap(decode)(stacked)["x"], torch.from_numpy(dense[:12]).reshape(3, 4, -1))


def test_the_width_of_rcv1_is_held_in_what_is_not_zero(write):
    text, dense = rows_of(1500, 47_236, 80)
    d = FILES["libsvm"](path=write(text), features=47_236)
    assert (d.inputs, d.decode) == ((47_236,), Sparse(47_236))
    assert d.train["slots"].dtype == torch.int32
    assert tree.nbytes(d.train) < 1_500 * 80 * 9
    assert len(d.test["x"]) == 300
    kept = d.decode(tree.rows(d.train, slice(0, 5)))["x"]
    assert all(any(np.array_equal(row, other) for other in dense) for row in kept.numpy())


def test_a_sparse_set_is_learned_from(write, tmp_path, monkeypatch):
    monkeypatch.setattr(MODULE, "_DENSE", 0)
    text, _ = rows_of(400, 300, 20)
    run = atoll.run(
        {
            "rounds": 30,
            "data": {"name": "libsvm", "path": str(write(text))},
            "partition": {"name": "iid", "clients": 4},
            "algorithm": {"name": "fedavg", "lr": 1.0},
            "engine": "vector",
            "task": {"model": {"name": "logistic"}},
            "evaluate": {"every": 30},
        },
        out=tmp_path / "run",
        device="cpu",
    )
    assert run.final["accuracy"] > 0.75


def test_labels_may_be_many_classes_or_numbers(write):
    d = FILES["libsvm"](path=write("7 1:1\n1 1:2\n3 1:3\n"), test_share=0.0)
    assert (d.train["y"].tolist(), d.outputs) == ([2, 0, 1], 3)
    d = FILES["libsvm"](path=write("0.5 1:1\n1.5 1:2\n"), test_share=0.0)
    assert (d.kind, d.train["y"].tolist()) == ("regression", [[0.5], [1.5]])
    d = FILES["libsvm"](path=write("1 1:1\n2 1:2\n"), kind="regression", test_share=0.0)
    assert d.train["y"].tolist() == [[1], [2]]


def test_a_row_of_zeros_is_a_row(write):
    d = FILES["libsvm"](path=write("1\n-1 2:1\n"), test_share=0.0)
    assert d.train["x"].tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:2\nyes 1:2\n", r"a9a: line 2: the label 'yes' is no finite number\. Write: label index:value"),
        ("1 1:2\n1,2 1:2\n", r"line 2: the label '1,2' is no finite number"),
        ("nan 1:2\n", r"line 1: the label 'nan' is no finite number"),
        ("1 1:2\n1 0:1\n", r"line 2: the index 0 is not allowed: they count from 1"),
        ("1 1:2\n\n1 5:1 3:1\n", r"line 3: the index 3 follows 5: they must rise"),
        ("1 3:1 3:1\n", r"line 1: the index 3 follows 3"),
        ("1 4000000000:1\n", r"line 1: the index 4000000000 is too large"),
        ("1 20000000:1\n", r"line 1: the index 20000000 is too large"),
        ("1 1:x\n", r"line 1: '1:x' is no index:value with a finite value"),
        ("1 1:1 2:nan\n", r"line 1: '2:nan' is no index:value with a finite value"),
        ("1 1:1e40\n", r"line 1: '1:1e40' is no index:value with a finite value"),
        ("1 age:1\n", r"line 1: 'age:1' is no index:value"),
        ("1 7\n", r"line 1: '7' is no index:value"),
        ("", r"a9a: has no rows"),
        (b"1 1:1\n\xff 1:1\n", r"a9a: line 2 "),
        ("1 1:1\n1 2:1\n", r"one value only \(1\.0\), so there is nothing to learn"),
    ],
)
def test_a_line_that_is_wrong_is_named(text, message, write):
    with pytest.raises(DataError, match=message):
        FILES["libsvm"](path=write(text))


def test_a_packed_file_that_is_cut_short_is_refused(write):
    packed = bz2.compress(rows_of(200, 50, 9)[0].encode())
    with pytest.raises(DataError, match=r"a9a\.bz2: is damaged or cut short"):
        FILES["libsvm"](path=write(packed[: len(packed) // 2], "a9a.bz2"))
