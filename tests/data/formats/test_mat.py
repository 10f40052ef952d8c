"""MATLAB's files: our reader of the part that data sets use agrees with scipy's, and steps over the rest."""

import struct
import zlib

import numpy as np
import pytest
from scipy.io import loadmat, savemat
from scipy.sparse import eye

from atoll.data.formats.mat import read_mat
from atoll.errors import DataError

DTYPES = ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (4, 5), (2, 3, 4), (0, 3)])
def test_arrays_are_those_that_scipy_reads(packed, shape, tmp_path):
    draw = np.random.default_rng(0)
    arrays = {d: draw.integers(0, 100, shape).astype(d) for d in DTYPES}
    savemat(tmp_path / "a.mat", arrays, do_compression=packed)
    ours, theirs = read_mat(tmp_path / "a.mat", "f8"), loadmat(tmp_path / "a.mat")
    for name in DTYPES:
        assert ours[name].dtype == theirs[name].dtype
        assert np.array_equal(ours[name], theirs[name])


def test_structs_are_dicts_and_the_rest_is_stepped_over(tmp_path):
    inner = {"images": np.eye(3, dtype=np.uint8), "labels": np.arange(3.0)}
    other = {"text": "hello", "cell": np.array([1, "a"], object), "sparse": eye(3), "complex": np.ones(2) * 1j}
    savemat(tmp_path / "a.mat", {**other, "dataset": {"train": inner, "mapping": "words"}})
    found = read_mat(tmp_path / "a.mat", "dataset")
    assert set(found) == {"dataset"}
    assert np.array_equal(found["dataset"]["train"]["images"], np.eye(3))
    assert found["dataset"]["train"]["labels"].tolist() == [[0, 1, 2]]
    assert found["dataset"]["mapping"] is None


def element(kind, data, order="<"):
    return struct.pack(f"{order}II", kind, len(data)) + data + bytes(-len(data) % 8)


def array(data, order="<", flags=6, shape=(2, 2), stored=9):
    """One matrix called "x", element by element."""
    head = element(6, struct.pack(f"{order}II", flags, 0), order) + element(5, struct.pack(f"{order}ii", *shape), order)
    return element(14, head + element(1, b"x", order) + element(stored, data, order), order)


def mat(body, order="<"):
    mark = b"\x00\x01IM" if order == "<" else b"\x01\x00MI"
    return b"MATLAB 5.0 MAT-file".ljust(124) + mark + body


@pytest.mark.parametrize("order", "<>")
def test_both_byte_orders_are_read(order, tmp_path):
    values = np.array([1.0, 2.0, 3.0, 4.0], f"{order}f8")
    (tmp_path / "a.mat").write_bytes(mat(array(values.tobytes(), order), order))
    assert read_mat(tmp_path / "a.mat", "x")["x"].tolist() == [[1.0, 3.0], [2.0, 4.0]]  # by columns


BODIES = {
    "more than there is": (array(bytes(32), shape=(2**31 - 1, 2**31 - 1)), "has 4 numbers"),
    "less than none": (array(bytes(32), shape=(-1, 4)), "has no shape"),
    "an element that is longer than the file": (struct.pack("<II", 14, 2**32 - 1), "does not fit in the rest"),
    "a packed one that ends early": (element(15, zlib.compress(array(bytes(32)))[:-9]), "ends early"),
    "a packed one that is none": (element(15, b"nothing"), "is damaged"),
    "fractions in a byte": (array(bytes(32), flags=9), "whole numbers are stored as float64"),
    "a piece of a number": (array(bytes(31)), "are no float64 numbers"),
    "a type nobody knows": (array(bytes(32), stored=99), "type 99 in place of numbers"),
    "a struct of nothing": (array(b"", flags=2, stored=5), "in place of"),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_damaged_is_refused_with_the_reason(name, tmp_path):
    body, words = BODIES[name]
    (tmp_path / "a.mat").write_bytes(mat(body))
    with pytest.raises(DataError, match=words):
        read_mat(tmp_path / "a.mat", "x")


def test_a_packed_array_may_not_unpack_to_more_than_the_memory(tmp_path, monkeypatch):
    (tmp_path / "a.mat").write_bytes(mat(element(15, zlib.compress(bytes(1 << 20)))))
    monkeypatch.setattr("os.sysconf", lambda name: 100)  # 100 pages of 100 bytes
    with pytest.raises(DataError, match="would take"):
        read_mat(tmp_path / "a.mat", "x")


def test_structs_in_structs_come_to_an_end(tmp_path):
    deep: dict = {"x": np.ones(1)}
    for _ in range(30):
        deep = {"a": deep}
    savemat(tmp_path / "a.mat", {"dataset": deep})
    found = read_mat(tmp_path / "a.mat", "dataset")["dataset"]
    for _ in range(7):
        found = found["a"]
    assert found == {"a": None}
