"""TensorFlow Federated's HDF5 files, and the columns of Hugging Face."""

import sys

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from atoll.data.formats import FILES
from atoll.data.formats.python_columns import Reading, from_columns
from atoll.errors import DataError

DRAW = np.random.default_rng(0)


def write(path, clients):
    with h5py.File(path, "w") as file:
        examples = file.create_group("examples", track_order=True)  # as written: the reader sorts
        for client, fields in clients.items():
            group = examples.create_group(client)
            for name, values in fields.items():
                group.create_dataset(name, data=values)
    return path


def characters(n):
    return DRAW.integers(0, 256, (n, 28, 28), dtype=np.uint8)


def emnist(n, label):
    x = characters(n)
    return x, {"pixels": (x / 255).astype(np.float32), "label": np.full(n, label, np.int32)}


def test_federated_emnist_is_kept_in_bytes_by_writer(tmp_path):
    (x1, one), (x2, two), (_, three) = emnist(3, 61), emnist(2, 5), emnist(1, 7)
    write(tmp_path / "fed_emnist_train.h5", {"f9": two, "f1": one})
    write(tmp_path / "fed_emnist_test.h5", {"f0": three, "f9": two})
    d = FILES["tff_emnist"](path=tmp_path)
    assert np.array_equal(d.train["x"][:, 0], np.concatenate([x1, x2]))
    assert d.train["x"].dtype == torch.uint8
    assert (d.train["y"].tolist(), d.keys["client"].tolist()) == ([61, 61, 61, 5, 5], [0, 0, 0, 1, 1])
    assert d.test["client"].tolist() == [2, 1, 1]
    assert (d.inputs, d.outputs) == ((1, 28, 28), 62)
    write(tmp_path / "fed_emnist_digitsonly_train.h5", {"a": two, "b": three})
    write(tmp_path / "fed_emnist_digitsonly_test.h5", {"a": three})
    assert FILES["tff_emnist"](path=tmp_path, digits=True).outputs == 10


def test_federated_cifar100_has_clients_and_a_hierarchy(tmp_path):
    x = DRAW.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    fields = {"image": x, "label": np.array([0, 99, 5, 5]), "coarse_label": np.array([4, 19, 0, 0])}
    write(tmp_path / "fed_cifar100_train.h5", {"0": fields, "1": {k: v[:1] for k, v in fields.items()}})
    write(tmp_path / "fed_cifar100_test.h5", {"t": fields})
    d = FILES["tff_cifar100"](path=tmp_path)
    assert np.array_equal(d.train["x"][:4], x.transpose(0, 3, 1, 2))
    assert (d.train["y"].tolist(), d.keys["coarse"].tolist()) == ([0, 99, 5, 5, 0], [4, 19, 0, 0, 4])
    assert (d.keys["client"].tolist(), d.test["client"].tolist(), d.outputs) == ([0, 0, 0, 0, 1], [2] * 4, 100)


def posts(*texts):
    return {
        "tokens": np.array([t.encode() for t in texts], dtype=h5py.string_dtype()),
        "tags": np.array([b"python|c++"] * len(texts), dtype=h5py.string_dtype()),
        "title": np.array([b"how to"] * len(texts), dtype=h5py.string_dtype()),
    }


def test_stackoverflow_is_read_one_word_ahead(tmp_path):
    write(tmp_path / "stackoverflow_train.h5", {"00001": posts("use a list", "a b c d e f"), "00002": posts("a list")})
    write(tmp_path / "stackoverflow_test.h5", {"00002": posts("a new list"), "00003": posts("use it")})
    d = FILES["tff_stackoverflow"](path=tmp_path, length=4)
    # 2 <BOS>, 3 <EOS>, then by frequency: a list b c d use; only the first four words of a sentence count
    assert d.train["x"].tolist() == [[2, 9, 4, 5], [2, 4, 6, 7], [2, 4, 5, 3]]
    assert d.train["y"].tolist() == [[9, 4, 5, 3], [4, 6, 7, 8], [4, 5, 3, -100]]
    assert d.test["x"].tolist() == [[2, 4, 1, 5], [2, 9, 1, 3]]
    assert (d.kind, d.outputs, d.keys["client"].tolist(), d.test["client"].tolist()) == (
        "next_token",
        10,
        [0, 0, 1],
        [1, 2],
    )
    small = FILES["tff_stackoverflow"](path=tmp_path, length=4, clients=1, per_client=1, test_clients=1, vocabulary=6)
    assert (small.examples, len(small.test["x"]), small.outputs) == (1, 1, 6)
    every = FILES["tff_stackoverflow"](path=tmp_path, length=4, clients="all", per_client="all", test_clients="all")
    assert every.digest() == d.digest()
    assert FILES["tff_stackoverflow"](path=tmp_path, field="title").outputs == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"pixels": np.zeros((2, 28, 27), np.float32)},
            r"client 'a': pixels has rows of shape \(28, 27\), not \(28, 28\)",
        ),
        ({"label": np.zeros(3, np.int32)}, r"client 'a': its fields have different lengths \(2, 3\)"),
        ({"label": np.array([0, 62])}, r"client 'a', label: has labels that are none of 0\.\.61"),
        ({"label": np.array([0.5, 1.0])}, r"has labels that are none of"),
        ({"pixels": np.full((2, 28, 28), np.nan, np.float32)}, r"its pixels are not multiples of 1/255"),
        ({"pixels": np.full((2, 28, 28), 2.0, np.float32)}, r"its pixels are not multiples of 1/255"),
        ({"pixels": np.full((2, 28, 28), 0.501, np.float32)}, r"its pixels are not multiples of 1/255"),
        ({"pixels": None}, r"client 'a': has no field 'pixels'; it has 'label'"),
    ],
)
def test_hdf5_that_is_not_what_tff_writes_is_refused_with_the_client(change, message, tmp_path):
    fields = {k: v for k, v in {**emnist(2, 1)[1], **change}.items() if v is not None}
    for part in ("train", "test"):
        write(tmp_path / f"fed_emnist_{part}.h5", {"a": fields})
    with pytest.raises(DataError, match=message):
        FILES["tff_emnist"](path=tmp_path)


def test_hdf5_that_is_cut_short_or_another_file_is_refused(tmp_path):
    path = write(tmp_path / "fed_emnist_train.h5", {"a": emnist(2, 1)[1]})
    write(tmp_path / "fed_emnist_test.h5", {"a": emnist(2, 1)[1]})
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"not hdf5"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"fed_emnist_train\.h5: is no HDF5 file, or damaged or cut short"):
            FILES["tff_emnist"](path=tmp_path)
    with h5py.File(path, "w") as file:
        file["other"] = 1
    with pytest.raises(DataError, match=r"has no group 'examples'; it has 'other'"):
        FILES["tff_emnist"](path=tmp_path)
    write(path, {})
    with pytest.raises(DataError, match="has no examples"):
        FILES["tff_emnist"](path=tmp_path)


def test_a_forged_size_takes_no_memory(tmp_path):
    for part in ("train", "test"):
        with h5py.File(tmp_path / f"fed_emnist_{part}.h5", "w") as file:
            group = file.create_group("examples/a")
            group.create_dataset("pixels", (1 << 40, 28, 28), "f4", chunks=(1, 28, 28))  # nothing is written
            group.create_dataset("label", (1 << 40,), "i4", chunks=(1 << 10,))
    with pytest.raises(DataError, match=r"would take [\d,.]+ GiB, and this machine has"):
        FILES["tff_emnist"](path=tmp_path)


@pytest.mark.parametrize(
    ("name", "package", "extra"), [("tff_emnist", "h5py", "hdf5"), ("huggingface", "datasets", "huggingface")]
)
def test_a_missing_package_is_named_with_its_extra(name, package, extra, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    (tmp_path / "fed_emnist_train.h5").write_bytes(b"")
    with pytest.raises(
        DataError, match=rf"needs {package}, which is not installed\. Run: pip install 'atoll\[{extra}\]'"
    ):
        FILES[name](path=str(tmp_path) if name == "huggingface" else tmp_path)


def read(train, test=None, **options):
    return from_columns("toy", train, test, Reading(**{"test_share": 0.0, **options}))


def test_columns_of_images_become_bytes():
    arrays = DRAW.integers(0, 256, (3, 5, 4, 3), dtype=np.uint8)
    columns = {"img": [Image.fromarray(a) for a in arrays], "label": [0, 1, 0], "who": ["b", "a", "b"]}
    d = read(columns, client=("who",))
    assert np.array_equal(d.train["x"], arrays.transpose(0, 3, 1, 2))
    assert (d.inputs, d.keys["who"].tolist(), d.train["y"].tolist()) == ((3, 5, 4), [1, 0, 1], [0, 1, 0])
    assert read(columns, image="img", client=("who",), size=8, grey=True).inputs == (1, 8, 8)
    columns["img"][1] = Image.new("RGB", (9, 9))
    with pytest.raises(DataError, match=r"the images differ in size \(5 x 4 and 9 x 9 pixels\)\. Set size"):
        read(columns, client=("who",))


def test_columns_of_text_become_tokens():
    d = read(
        {"text": ["Good good day", "bad day"], "label": ["pos", "neg"]},
        {"text": ["new day"], "label": ["neg"]},
        length=2,
    )
    assert d.train["x"].tolist() == [[2, 2], [3, 4]]  # good is twice, bad and day once among the first two words
    assert (d.test["x"].tolist(), d.vocabulary) == ([[1, 4]], 5)
    assert (d.classes, d.test["y"].tolist(), d.inputs) == (("neg", "pos"), [0], (2,))
    assert d.decode(d.train)["x"].dtype == torch.int64


def test_columns_of_numbers_and_lists_stand_side_by_side():
    columns = {"age": [1, 3], "vector": [[0.0, 1.0], [2.0, 5.0]], "label": [0.5, 1.5]}
    d = read(columns)
    assert d.train["x"].tolist() == [[-1, -1, -1], [1, 1, 1]]
    assert (d.kind, d.train["y"].tolist()) == ("regression", [[0.5], [1.5]])
    assert read(columns, features=("age",)).inputs == (1,)


def test_a_test_part_or_a_share_is_held_out():
    columns = {"a": list(range(20)), "label": [0, 1] * 10}
    d = read(columns, {"a": [100], "label": [1]})
    assert (d.examples, len(d.test["x"])) == (20, 1)
    assert torch.bincount(read(columns, test_share=0.2).test["y"]).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("columns", "test", "options", "message"),
    [
        ({"a": [1, 2], "lable": [0, 1]}, None, {}, r"data\.label: there is no column 'label'\. Did you mean 'lable'\?"),
        ({"a": [1, 2], "label": [0, 1]}, None, {"client": ("b",)}, r"data\.client: there is no column 'b'"),
        (
            {"a": ["x", "y"], "b": ["x", "y"], "label": [0, 1]},
            None,
            {},
            r"say which columns to learn from.*texts: 'a', 'b'",
        ),
        ({"a": [1, 2], "label": [0, 1]}, None, {"text": "a", "features": ("a",)}, r"data\.features: text is given too"),
        ({"a": [1, [2]], "label": [0, 1]}, None, {}, r"column 'a' is not numbers, or lists of one length"),
        ({"a": [1, None], "label": [0, 1]}, None, {}, r"column 'a' has values that are missing or not finite"),
        ({"a": [1, 2], "label": [0, None]}, None, {}, r"1 of 2 values are missing"),
        (
            {"a": [1, 2], "label": [0, 1]},
            {"a": [1, 2], "label": [-1, -1]},
            {},
            r"data\.test: 2 rows have -1 in 'label': their label is not told\. Set test to another split",
        ),
    ],
)
def test_columns_that_cannot_be_used_are_refused(columns, test, options, message):
    with pytest.raises(DataError, match=message):
        read(columns, test, **options)
