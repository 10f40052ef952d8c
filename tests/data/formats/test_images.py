"""Images in binary files and in folders: read as they were written, refused when they are not what they claim."""

import bz2
import gzip
import struct

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from atoll.data.formats import FILES
from atoll.data.formats.idx import read_idx
from atoll.errors import DataError

DRAW = np.random.default_rng(0)


def idx_bytes(array, code=8):
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


def pictures(n, *shape):
    return DRAW.integers(0, 256, (n, *shape), dtype=np.uint8)


def write_idx(folder, n=6, side=28, train="train", test="t10k", pack=bytes, suffix="", classes=3, first=0):
    found = {}
    for part, count in ((train, n), (test, n // 2)):
        x, y = pictures(count, side, side), (np.arange(count) % classes + first).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(pack(idx_bytes(x)))
        (folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx_bytes(y)))
        found[part] = x, y
    return found


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz"), (bz2.compress, ".bz2")])
def test_idx_files_are_read_packed_or_not(pack, suffix, tmp_path):
    found = write_idx(tmp_path, pack=pack, suffix=suffix)
    d = FILES["idx"](path=tmp_path)
    assert (d.kind, d.inputs, d.outputs) == ("classification", (1, 28, 28), 3)
    assert d.train["x"].dtype == torch.uint8
    for part, columns in (("train", d.train), ("t10k", d.test)):
        assert np.array_equal(columns["x"][:, 0], found[part][0])
        assert columns["y"].tolist() == found[part][1].tolist()
    assert float(d.decode(d.train)["x"].max()) <= 1


def test_idx_files_may_have_a_prefix_a_point_and_no_test_part(tmp_path):
    x, y = pictures(4, 5, 7), np.array([0, 1, 1, 0], np.uint8)
    (tmp_path / "k-train-images.idx3-ubyte").write_bytes(idx_bytes(x))
    (tmp_path / "k-train-labels.idx1-ubyte").write_bytes(idx_bytes(y))
    d = FILES["idx"](path=tmp_path, prefix="k-", transpose=True)
    assert d.test is None
    assert np.array_equal(d.train["x"][:, 0], x.transpose(0, 2, 1))
    with pytest.raises(DataError, match=r"has no train-images-idx3-ubyte or train-images\.idx3-ubyte .*original names"):
        FILES["idx"](path=tmp_path)


@pytest.mark.parametrize(("code", "dtype"), [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")])
def test_every_type_of_the_idx_format_is_read(code, dtype, tmp_path):
    array = np.arange(-6 if dtype != "u1" else 0, 6 if dtype != "u1" else 12).astype(dtype).reshape(3, 4)
    (tmp_path / "a").write_bytes(idx_bytes(array, code))
    found = read_idx(tmp_path / "a")
    assert found.dtype.isnative
    assert np.array_equal(found, array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89PNG\r\n", r"is no idx file: it starts with 0x89504e47\. Use the \.\.\.-ubyte files"),
        (b"\0\0", r"is cut short: the start of an idx file needs 4 bytes, and there are 2"),
        (b"\0\0\x08\x03\0\0", r"the idx header needs 12 bytes, and there are 2"),
        (b"\0\0\x07\x01\0\0\0\x01x", r"is no idx file"),
        (
            idx_bytes(np.zeros((2, 3), np.uint8))[:-1],
            r"shape \(2, 3\), as its header says, needs 6 bytes, and there are 5",
        ),
        (idx_bytes(np.zeros((2, 3), np.uint8)) + b"x", r"goes on behind an array of shape \(2, 3\)"),
        (struct.pack(">HBB3I", 0, 14, 3, *[2**32 - 1] * 3), r"needs 633,825,299,[\d,]+ bytes, and there are 0"),
        (
            gzip.compress(struct.pack(">HBB2I", 0, 8, 2, 2**31, 2**31), mtime=0),
            r"needs 4,611,686,018,427,387,904 bytes",
        ),
    ],
)
def test_an_idx_file_that_claims_what_it_does_not_hold_is_refused(content, message, tmp_path):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "a")


def test_images_and_labels_must_belong_together(tmp_path):
    write_idx(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(5, np.uint8)))
    with pytest.raises(DataError, match=r"has 5 labels for the 6 images of train-images-idx3-ubyte"):
        FILES["idx"](path=tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros((6, 1), np.uint8)))
    with pytest.raises(DataError, match="Labels are whole numbers with one axis"):
        FILES["idx"](path=tmp_path)


def emnist_mat(folder, split="byclass", **changes):
    """As EMNIST's authors wrote it: 784 pixels column by column, structs inside structs."""
    images = pictures(5, 28, 28)
    part = {
        "images": images.transpose(0, 2, 1).reshape(5, 784),
        "labels": np.array([[0], [61], [10], [36], [0]], np.uint8) % (62 if split == "byclass" else 26)
        + (split == "letters"),
        "writers": np.array([[3000], [7], [3000], [7], [42]], np.uint16),
        **changes,
    }
    test = {**part, "images": part["images"][:2], "labels": part["labels"][:2]}
    if "writers" in part:
        test["writers"] = np.array([[42], [99]], np.uint16)
    savemat(folder / f"emnist-{split}.mat", {"dataset": {"train": part, "test": test, "mapping": np.zeros((62, 2))}})
    return images


def test_emnist_matlab_files_bring_their_writers(tmp_path):
    images = emnist_mat(tmp_path)
    for path in (tmp_path, tmp_path / "emnist-byclass.mat"):
        d = FILES["emnist"](path=path)
        assert (d.inputs, d.outputs, d.name) == ((1, 28, 28), 62, "emnist-byclass")
        assert np.array_equal(d.train["x"][:, 0], images)  # turned upright
        assert d.train["y"].tolist() == [0, 61, 10, 36, 0]
        assert d.keys["writer"].tolist() == [2, 0, 2, 0, 1]
        assert d.test["writer"].tolist() == [1, 3]  # the same numbers, and a new one


def test_emnist_letters_count_from_one_in_the_files_and_from_zero_here(tmp_path):
    emnist_mat(tmp_path, "letters")
    d = FILES["emnist"](path=tmp_path, split="letters")
    assert d.outputs == 26
    assert d.train["y"].tolist() == [0, 61 % 26, 10, 36 % 26, 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((5, 783), np.uint8)}, r"train\.images is uint8 of shape \(5, 783\)"),
        ({"labels": np.zeros((4, 1), np.uint8)}, r"train\.labels has 4 numbers for 5 images"),
        ({"labels": np.full((5, 1), 62, np.uint8)}, r"label 62 in row 0 is outside 0\.\.61 of the split 'byclass'"),
        ({"writers": np.zeros((3, 1), np.uint8)}, r"train\.writers has 3 numbers for 5 images"),
    ],
)
def test_an_emnist_file_that_is_not_emnist_is_refused(changes, message, tmp_path):
    emnist_mat(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        FILES["emnist"](path=tmp_path)


def test_a_matlab_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "emnist-byclass.mat"
    emnist_mat(tmp_path)
    whole = path.read_bytes()
    for content in (
        b"",
        b"hello",
        whole[:1000],
        whole[:200] + bytes(64) + whole[264:],
        b"MATLAB 7.3 MAT-file" + bytes(600),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"emnist-byclass\.mat: "):
            FILES["emnist"](path=tmp_path)
    savemat(path, {"other": np.zeros(3)})
    with pytest.raises(DataError, match=r"has no 'dataset'\. It has 'other'"):
        FILES["emnist"](path=tmp_path)
    savemat(path, {"dataset": np.zeros(3)})
    with pytest.raises(DataError, match="does not hold the structs"):
        FILES["emnist"](path=tmp_path)


@pytest.mark.parametrize("how", ["text", "idx"])
def test_emnist_idx_files_take_writers_from_a_file_beside_them(how, tmp_path):
    (tmp_path / "gzip").mkdir()
    found = write_idx(
        tmp_path / "gzip", train="emnist-digits-train", test="emnist-digits-test", pack=gzip.compress, suffix=".gz"
    )
    d = FILES["emnist"](path=tmp_path, split="digits")
    assert d.keys == {}
    assert np.array_equal(d.train["x"][:, 0], found["emnist-digits-train"][0].transpose(0, 2, 1))
    assert d.outputs == 10
    ids = np.array([5, 5, 900, 2, 2, 2], ">i4")
    path = tmp_path / "writers"
    path.write_bytes(idx_bytes(ids, 12) if how == "idx" else "\n".join(map(str, ids)).encode())
    assert FILES["emnist"](path=tmp_path, split="digits", writers=path).keys["writer"].tolist() == [1, 1, 2, 0, 0, 0]


def test_writers_that_do_not_fit_are_refused(tmp_path):
    write_idx(tmp_path, train="emnist-digits-train", test="emnist-digits-test")
    path = tmp_path / "writers.txt"
    path.write_text("1\n2\n")
    with pytest.raises(DataError, match="has 2 writers for 6 training images"):
        FILES["emnist"](path=tmp_path, split="digits", writers=path)
    path.write_text("1\nme\n")
    with pytest.raises(DataError, match=r"line 2 is no whole number \('me'\)"):
        FILES["emnist"](path=tmp_path, split="digits", writers=path)


def cifar_record(labels, image):
    return bytes(labels) + image.tobytes()


def write_cifar10(folder, each=3):
    x, y = pictures(5 * each, 3, 32, 32), DRAW.integers(0, 10, 5 * each)
    records = [cifar_record([label], image) for label, image in zip(y, x, strict=True)]
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(b"".join(records[i * each : (i + 1) * each]))
    (folder / "test_batch.bin").write_bytes(b"".join(records[:2]))
    return x, y


def test_cifar10_batches_are_read_in_their_order(tmp_path):
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    x, y = write_cifar10(inner)
    for path in (tmp_path, inner):
        d = FILES["cifar10_binary"](path=path)
        assert np.array_equal(d.train["x"], x)
        assert d.train["y"].tolist() == y.tolist()
        assert np.array_equal(d.test["x"], x[:2])
        assert (d.inputs, d.outputs, d.train["x"].dtype) == ((3, 32, 32), 10, torch.uint8)


def test_cifar100_has_two_labels_and_the_coarse_one_is_a_key(tmp_path):
    x, coarse, fine = pictures(4, 3, 32, 32), [19, 0, 3, 3], [99, 4, 5, 0]
    for name in ("train.bin", "test.bin"):
        rows = zip(coarse, fine, x, strict=True)
        (tmp_path / name).write_bytes(b"".join(cifar_record([c, f], image) for c, f, image in rows))
    d = FILES["cifar100"](path=tmp_path)
    assert np.array_equal(d.train["x"], x)
    assert (d.train["y"].tolist(), d.keys["coarse"].tolist(), d.outputs) == (fine, coarse, 100)
    d = FILES["cifar100"](path=tmp_path, labels="coarse")
    assert (d.train["y"].tolist(), d.outputs) == (coarse, 20)


def test_the_pickled_versions_of_cifar_are_not_opened(tmp_path):
    for name in ("data_batch_1", "batches.meta", "train", "meta"):
        (tmp_path / name).write_bytes(b"cos\nsystem\n(S'echo no'\ntR.")
    with pytest.raises(DataError, match=r"are pickles: reading one may run anything.*cifar-10-binary\.tar\.gz"):
        FILES["cifar10_binary"](path=tmp_path)
    with pytest.raises(DataError, match=r"are pickles.*cifar-100-binary\.tar\.gz"):
        FILES["cifar100"](path=tmp_path)


def test_cifar_files_that_are_cut_short_spoilt_or_absent_are_refused(tmp_path):
    write_cifar10(tmp_path)
    batch = tmp_path / "data_batch_3.bin"
    whole = batch.read_bytes()
    for content, message in (
        (whole[:-1], r"data_batch_3\.bin: has 9,218 bytes, which are no whole records of 3,073"),
        (b"", r"has 0 bytes"),
        (b"\x0a" + whole[1:], r"record 0 has the label 10, outside 0\.\.9"),
        (whole[:3073], r"the batches differ in length \(data_batch_1.bin 3, data_batch_2.bin 3, data_batch_3.bin 1"),
    ):
        batch.write_bytes(content)
        with pytest.raises(DataError, match=message):
            FILES["cifar10_binary"](path=tmp_path)
    batch.unlink()
    with pytest.raises(DataError, match=r"has no data_batch_3\.bin"):
        FILES["cifar10_binary"](path=tmp_path)


def write_svhn(folder, **changes):
    x, y = pictures(4, 32, 32, 3), np.array([[10], [1], [9], [10]], np.uint8)
    for part in ("train", "test", "extra"):
        savemat(folder / f"{part}_32x32.mat", {"X": x.transpose(1, 2, 3, 0), "y": y, **changes}, do_compression=True)
    return x


def test_svhn_calls_zero_ten(tmp_path):
    x = write_svhn(tmp_path)
    d = FILES["svhn"](path=tmp_path)
    assert d.train["y"].tolist() == [0, 1, 9, 0]
    assert np.array_equal(d.train["x"], x.transpose(0, 3, 1, 2))
    assert FILES["svhn"](path=tmp_path, extra=True).examples == 8
    assert (d.inputs, d.outputs) == ((3, 32, 32), 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"X": np.zeros((32, 32, 4), np.uint8)}, r"X is uint8 of shape \(32, 32, 4\)"),
        ({"X": np.zeros((32, 32, 3, 4))}, r"X is float64"),
        ({"y": np.zeros((3, 1))}, r"has 3 labels for 4 images"),
        ({"y": np.array([[1], [0], [1], [1]])}, r"label 0 of image 1 is outside 1\.\.10"),
    ],
)
def test_an_svhn_file_that_is_not_svhn_is_refused(changes, message, tmp_path):
    write_svhn(tmp_path, **changes)
    with pytest.raises(DataError, match=message):
        FILES["svhn"](path=tmp_path)


def save(path, array, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return array


def test_a_folder_for_each_class_is_read_in_order(tmp_path):
    cats = [save(tmp_path / "cat" / f"{i}.png", pictures(6, 5, 3)[:, :, :]) for i in range(2)]
    dogs = [save(tmp_path / "dog" / f"{i}.png", pictures(6, 5, 3)) for i in range(2)]
    (tmp_path / "notes.txt").write_text("not an image")
    d = FILES["images"](path=tmp_path, test_share=0.0)
    assert (d.inputs, d.outputs, d.classes, d.train["y"].tolist()) == ((3, 6, 5), 2, ("cat", "dog"), [0, 0, 1, 1])
    assert np.array_equal(d.train["x"], np.stack([*cats, *dogs]).transpose(0, 3, 1, 2))
    assert d.train["x"].dtype == torch.uint8


def test_train_and_test_folders_are_kept_apart_and_clients_may_be_folders(tmp_path):
    for part in ("train", "test"):
        for client in ("art", "photo"):
            for k, kind in enumerate(("cat", "dog")):
                save(tmp_path / part / client / kind / "a.png", np.full((4, 4, 3), 10 * k, np.uint8))
    d = FILES["images"](path=tmp_path, folders="client/class")
    assert (d.examples, len(d.test["x"])) == (4, 4)
    assert (d.keys["client"].tolist(), d.train["y"].tolist()) == ([0, 0, 1, 1], [0, 1, 0, 1])
    assert d.test["x"][:, 0, 0, 0].tolist() == [0, 10, 0, 10]


def test_a_list_of_labels_tells_ages_and_who_holds_each_image(tmp_path):
    first = save(tmp_path / "faces" / "a.png", pictures(8, 8))
    save(tmp_path / "faces" / "b.png", pictures(4, 6, 3))
    (tmp_path / "ages.csv").write_text("image,age,site\na.png,31.5,x\nb.png,40,y\n")
    d = FILES["images"](
        path=tmp_path / "faces",
        labels=tmp_path / "ages.csv",
        file="image",
        label="age",
        client="site",
        size=(8, 8),
        grey=True,
        test_share=0.0,
    )
    assert (d.kind, d.inputs, d.train["y"].tolist(), d.keys["site"].tolist()) == (
        "regression",
        (1, 8, 8),
        [[31.5], [40]],
        [0, 1],
    )
    assert np.array_equal(d.train["x"][0, 0], first)
    listed = FILES["images"](
        path=tmp_path / "faces", labels=tmp_path / "ages.csv", file="image", label="site", size=4, test_share=0.0
    )
    assert (listed.kind, listed.inputs, listed.classes) == ("classification", (3, 4, 4), ("x", "y"))


def test_images_that_cannot_be_used_are_refused_by_name(tmp_path):
    save(tmp_path / "cat" / "a.png", pictures(6, 5, 3))
    save(tmp_path / "dog" / "b.png", pictures(6, 7, 3))
    with pytest.raises(DataError, match=r"b\.png: has 6 x 7 pixels, a\.png 6 x 5\. Set size, e\.g\. size = 64"):
        FILES["images"](path=tmp_path, test_share=0.0)
    whole = (tmp_path / "cat" / "a.png").read_bytes()
    for content in (b"", b"GIF89a nonsense", whole[: len(whole) // 2]):
        (tmp_path / "dog" / "b.png").write_bytes(content)
        with pytest.raises(DataError, match=r"b\.png: is no image, or damaged"):
            FILES["images"](path=tmp_path, size=8, test_share=0.0)
    save(tmp_path / "dog" / "b.png", np.zeros((4, 4), np.uint16))
    with pytest.raises(DataError, match=r"b\.png: has more than 8 bits for each pixel"):
        FILES["images"](path=tmp_path, size=8, test_share=0.0)


def test_an_image_far_too_large_is_not_decoded(tmp_path, monkeypatch):
    save(tmp_path / "cat" / "a.png", pictures(6, 5, 3))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    for width in (30, 50):  # Pillow warns of 1,500 pixels and refuses 2,500
        save(tmp_path / "dog" / "b.png", pictures(50, width, 3))
        with pytest.raises(DataError, match=r"b\.png: is suspiciously large"):
            FILES["images"](path=tmp_path, size=8, test_share=0.0)


def test_a_folder_that_is_laid_out_otherwise_is_refused_with_advice(tmp_path):
    save(tmp_path / "a.png", pictures(6, 5, 3))
    with pytest.raises(DataError, match=r"has no images in <class>/\. Give labels = 'labels\.csv'"):
        FILES["images"](path=tmp_path)
    (tmp_path / "l.csv").write_text("file,label\na.png,x\nb.png,y\n")
    with pytest.raises(
        DataError, match=r"l\.csv: row 2 names 'b\.png', which .* does not have\. Did you mean 'a\.png'\?"
    ):
        FILES["images"](path=tmp_path, labels=tmp_path / "l.csv")
    with pytest.raises(DataError, match=r"data\.label: l\.csv has no column 'lable'\. Did you mean 'label'\?"):
        FILES["images"](path=tmp_path, labels=tmp_path / "l.csv", label="lable")
    (tmp_path / "l.csv").write_text("file,label\na.png,x\n,y\n")
    with pytest.raises(DataError, match=r"1 of 2 rows have nothing in column 'file'"):
        FILES["images"](path=tmp_path, labels=tmp_path / "l.csv")
    with pytest.raises(DataError, match=r"folders are classes\. For numbers such as ages give labels"):
        FILES["images"](path=tmp_path, kind="regression")
