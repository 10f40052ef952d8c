"""Data files with something wrong in them: one sample of every format, and what can happen to the bytes of a file."""

import gzip
import io
import json
import random
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image
from scipy.io import savemat

from atoll.data import DATA, SAMPLERS
from atoll.data.formats.leaf_shakespeare import ALPHABET
from atoll.errors import AtollError, UnforeseenError

_DRAW = np.random.default_rng(0)


@dataclass(frozen=True)
class Sample:
    """A small data set that is well: its files by name, the builder that reads it, and its options.

    Options that are named in `paths` are places below the folder that the files are written to.
    """

    builder: Callable[..., Any]
    files: dict[str, bytes]
    paths: dict[str, str] = field(default_factory=lambda: {"path": ""})
    options: dict[str, Any] = field(default_factory=dict)

    def read(self, folder: Path, changed: dict[str, bytes]) -> str:
        """Write the files and read them; anything but an AtollError raises.

        "read", "refused" in words of ours, "unforeseen" where a parser of others failed; "OURS": a bug called damage.
        """
        for name, content in {**self.files, **changed}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        places = {
            k: folder / v if self.builder is not SAMPLERS["available"] else str(folder / v)
            for k, v in self.paths.items()
        }
        try:
            self.builder(**places, **self.options)
        except UnforeseenError as e:
            return f"OURS {e.accident.error} at {e.accident.place}" if e.accident.ours else "unforeseen"
        except AtollError as e:
            return "refused" if len(str(e)) > 20 else "REFUSED WITHOUT A REASON"
        return "read"

    def mutated(self, draw: random.Random) -> dict[str, bytes]:
        """One of the files, spoiled."""
        name = draw.choice(sorted(self.files))
        content = self.files[name]
        for _ in range(draw.choice([1, 1, 2, 4])):
            some = [*MUTATIONS, *TEXT_MUTATIONS] if name.endswith(_TEXTS) else MUTATIONS
            content = draw.choice(some)(draw, content)
        return {name: content}


_TEXTS = (".csv", ".json", ".svm", ".txt")


def samples() -> dict[str, Sample]:
    """Of every format one or two."""
    return {**_tables(), **_pictures(), **_leaf(), **_tff()}


def _tables() -> dict[str, Sample]:
    rows = [f"{i},{i * 0.5:.2f},{'ab'[i % 2]},{'yes' if i % 3 else 'no'},s{i % 4}" for i in range(24)]
    table = ("age,dose,group,label,site\n" + "\n".join(rows) + "\n").encode()
    roles = {"label": "label", "client": "site"}
    lines = "\n".join(f"{(-1) ** i} 1:{i} 3:0.5 {4 + i % 3}:1" for i in range(24)).encode()
    trace = io.BytesIO()
    np.save(trace, _DRAW.integers(0, 2, (6, 5)))
    return {
        "csv": Sample(DATA["csv"], {"a.csv": table}, {"path": "a.csv"}, roles),
        "csv.gz": Sample(DATA["csv"], {"a.csv.gz": gzip.compress(table, mtime=0)}, {"path": "a.csv.gz"}, roles),
        "csv, filled": Sample(DATA["csv"], {"a.csv": table}, {"path": "a.csv"}, {**roles, "missing": "mean"}),
        "parquet": Sample(DATA["parquet"], {"a.parquet": _parquet()}, {"path": "a.parquet"}, roles),
        "libsvm": Sample(DATA["libsvm"], {"a.svm": lines}, {"path": "a.svm"}),
        "trace.npy": Sample(SAMPLERS["available"], {"t.npy": trace.getvalue()}, {"trace": "t.npy"}),
        "trace.csv": Sample(SAMPLERS["available"], {"t.csv": b"1,0,1\n0,1,1\n"}, {"trace": "t.csv"}),
    }


def _parquet() -> bytes:
    import tempfile

    import duckdb

    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as base:
        path = Path(folder) / "a.parquet"
        columns = "i AS age, i / 2.0 AS dose, CASE i % 2 WHEN 0 THEN 'a' ELSE 'b' END AS \"group\""
        base.execute(f"COPY (SELECT {columns}, i % 3 AS label, 's' || i % 4 AS site FROM range(24) t(i)) TO '{path}'")
        return path.read_bytes()


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def _bytes(*shape: int, below: int = 256) -> np.ndarray:
    return _DRAW.integers(0, below, shape, dtype=np.uint8)


def _mat(**arrays: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays, do_compression=bool(_DRAW.integers(2)))
    return b"MATLAB 5.0 MAT-file".ljust(116) + file.getvalue()[116:]  # without the date


def _image(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(_bytes(6, 6, 3)).save(file, kind)
    return file.getvalue()


def _pictures() -> dict[str, Sample]:
    idx = {f"{p}-{what}": _idx(a) for p in ("train", "t10k") for what, a in _idx_pair().items()}
    letters = {f"emnist-digits-{p}-{what}": _idx(a) for p in ("train", "test") for what, a in _idx_pair().items()}
    part = {"images": _bytes(6, 784), "labels": _bytes(6, 1, below=10), "writers": np.arange(6.0)[:, None]}
    emnist = _mat(dataset={"train": part, "test": part, "mapping": np.zeros((10, 2))})
    svhn = {
        f"{p}_32x32.mat": _mat(X=_bytes(32, 32, 3, 4), y=np.array([[1], [10], [3], [2]])) for p in ("train", "test")
    }
    folders = {f"{c}/{i}.{kind}": _image(kind) for c in "ab" for i, kind in enumerate(("png", "bmp", "gif", "tiff"))}
    labels = "file,label\n" + "".join(f"{name},{name[0]}\n" for name in folders)
    ten = [np.concatenate([_bytes(3, 1, below=10), _bytes(3, 3072)], 1).tobytes() for _ in range(6)]
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    hundred = np.concatenate([_bytes(3, 2, below=20), _bytes(3, 3072)], 1).tobytes()
    return {
        "idx": Sample(DATA["idx"], idx),
        "emnist.mat": Sample(DATA["emnist"], {"emnist-digits.mat": emnist}, options={"split": "digits"}),
        "emnist idx": Sample(DATA["emnist"], letters, options={"split": "digits"}),
        "svhn": Sample(DATA["svhn"], svhn),
        "images": Sample(DATA["images"], folders, options={"size": 4}),
        "images, listed": Sample(
            DATA["images"], {**folders, "l.csv": labels.encode()}, {"path": "", "labels": "l.csv"}, {"size": 4}
        ),
        "cifar10_binary": Sample(DATA["cifar10_binary"], dict(zip(names, ten, strict=True))),
        "cifar100": Sample(DATA["cifar100"], {"train.bin": hundred, "test.bin": hundred}),
    }


def _idx_pair() -> dict[str, np.ndarray]:
    return {"images-idx3-ubyte": _bytes(6, 28, 28), "labels-idx1-ubyte": _bytes(6, below=10)}


def _leaf() -> dict[str, Sample]:
    def both(x: list[Any], y: list[Any]) -> dict[str, bytes]:
        users = {"users": ["a", "b"], "num_samples": [len(y)] * 2, "user_data": {u: {"x": x, "y": y} for u in "ab"}}
        return {f"{part}/all.json": json.dumps(users).encode() for part in ("train", "test")}

    tweets = [["1", "today", "no", "me", text, "x"] for text in ("so good !", "not so good")]
    comment = [["a", "b", *["<PAD>"] * 8]]
    goal = {"target_tokens": [["b", *["<PAD>"] * 9]], "count_tokens": [[1] + [0] * 9]}
    faces = {f"faces/{i}.jpg": _image("jpeg") for i in range(2)}
    marks = b"2\nBald Smiling\n0.jpg -1 1\n1.jpg 1 -1\n"
    listed = {"path": "", "images": "faces", "attributes": "marks.txt"}
    return {
        "leaf": Sample(DATA["leaf"], both([[1.0, 2.0], [3.0, 4.5]], [0, 1])),
        "femnist": Sample(DATA["femnist"], both((_bytes(2, 784) / 255).tolist(), [3, 61])),
        "sent140": Sample(DATA["sent140"], both(tweets, [0, 1])),
        "reddit": Sample(DATA["reddit"], both([comment, comment], [goal, goal])),
        "leaf_shakespeare": Sample(DATA["leaf_shakespeare"], both([ALPHABET, ALPHABET[::-1]], ["a", "b"])),
        "celeba": Sample(
            DATA["celeba"], {**both(["0.jpg", "1.jpg"], [0, 1]), **faces, "marks.txt": marks}, listed, {"size": 8}
        ),
    }


def _tff() -> dict[str, Sample]:
    def h5(stem: str, fields: dict[str, Any]) -> dict[str, bytes]:
        file = io.BytesIO()
        with h5py.File(file, "w") as h:
            for client in ("u1", "u2"):
                for name, values in fields.items():
                    h.create_dataset(f"examples/{client}/{name}", data=values)
        return {f"{stem}_{part}.h5": file.getvalue() for part in ("train", "test")}

    characters = {"pixels": (_bytes(2, 28, 28) / 255).astype(np.float32), "label": np.array([3, 9], np.int32)}
    images = {"image": _bytes(2, 32, 32, 3), "label": np.array([99, 5]), "coarse_label": np.array([19, 0])}
    posts = {"tokens": np.array([b"use a list", b"a b c"], dtype=h5py.string_dtype())}
    return {
        "tff_emnist": Sample(DATA["tff_emnist"], h5("fed_emnist", characters)),
        "tff_cifar100": Sample(DATA["tff_cifar100"], h5("fed_cifar100", images)),
        "tff_stackoverflow": Sample(DATA["tff_stackoverflow"], h5("stackoverflow", posts), options={"length": 4}),
    }


# ------------------------------------------------------------------------------------------------------ what happens


def _part(draw: random.Random, content: bytes) -> tuple[int, int]:
    begin = draw.randrange(len(content) + 1)
    return begin, min(len(content), begin + draw.choice([1, 2, 4, 8, 64, 1024]))


def _flip(draw: random.Random, content: bytes) -> bytes:
    """A few bits; half of the time near the beginning, where headers are."""
    spoiled = bytearray(content)
    for _ in range(draw.choice([1, 2, 8])):
        if spoiled:
            near = min(len(spoiled), 600) if draw.random() < 0.5 else len(spoiled)
            spoiled[draw.randrange(near)] ^= 1 << draw.randrange(8)
    return bytes(spoiled)


def _cut(draw: random.Random, content: bytes) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _behead(draw: random.Random, content: bytes) -> bytes:
    return content[draw.randrange(min(len(content), 40) + 1) :]


def _double(draw: random.Random, content: bytes) -> bytes:
    begin, end = _part(draw, content)
    return content[:end] + content[begin:end] * draw.choice([1, 2, 50]) + content[end:]


def _remove(draw: random.Random, content: bytes) -> bytes:
    begin, end = _part(draw, content)
    return content[:begin] + content[end:]


def _overwrite(draw: random.Random, content: bytes) -> bytes:
    """With the numbers that sizes and offsets must not be."""
    extreme = draw.choice(
        [b"\xff" * 4, b"\0" * 4, b"\0" * 8, b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\0\0\0\x80", b"\x01"]
    )
    begin = draw.randrange(len(content) + 1) if draw.random() < 0.5 else draw.randrange(min(len(content), 200) + 1)
    return content[:begin] + extreme + content[begin + len(extreme) :]


def _random(draw: random.Random, content: bytes) -> bytes:
    begin, end = _part(draw, content)
    return content[:begin] + draw.randbytes(end - begin) + content[end:]


def _another(draw: random.Random, content: bytes) -> bytes:
    """The head of another format, or nothing of the file at all."""
    heads = [
        b"",
        b"\x1f\x8b\x08\0",
        b"BZh9",
        b"\xfd7zXZ\0",
        b"PK\x03\x04",
        b"MATLAB 5.0",
        b"MATLAB 7.3",
        b"PAR1",
        b"\x89PNG\r\n\x1a\n",
    ]
    heads += [
        b"\x89HDF\r\n\x1a\n",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"GIF89a",
        b"\x93NUMPY",
        b"{",
        b"[" * 3000,
        b"\0" * 100,
    ]
    head = draw.choice(heads)
    return draw.choice([head, head + content, head + content[len(head) :]])


def _pack(draw: random.Random, content: bytes) -> bytes:
    packed = gzip.compress(content, mtime=0)
    return packed if draw.random() < 0.5 else packed[: draw.randrange(len(packed))]


MUTATIONS = [_flip, _flip, _cut, _behead, _double, _remove, _overwrite, _overwrite, _random, _another, _pack]

_TOKENS = [
    b"nan",
    b"NaN",
    b"inf",
    b"-1",
    b"1e400",
    b"1e308",
    b"9" * 25,
    b"-9223372036854775809",
    b"",
    b'"',
    b"''",
    b"\0",
    b"null",
]
_TOKENS += [
    b"{}",
    b"[]",
    b"[[1]]",
    b"true",
    b"\xff",
    "é".encode(),
    b"\\ud800",
    b"\n",
    b"\r",
    b",",
    b";",
    b":",
    b"qid:3",
    b"0x10",
    b"_1",
]


def _token(draw: random.Random, content: bytes) -> bytes:
    """One word or number becomes another."""
    words = list(re.finditer(rb"[\w.\-]+", content))
    if not words:
        return content
    word = draw.choice(words)
    return content[: word.start()] + draw.choice(_TOKENS) + content[word.end() :]


def _value(draw: random.Random, content: bytes) -> bytes:
    """A whole list, table or text in JSON becomes something else."""
    values = list(re.finditer(rb'\[[^\[\]]*\]|"[^"]*"|\{[^{}]*\}', content))
    if not values:
        return _line(draw, content)
    value = draw.choice(values)
    return (
        content[: value.start()] + draw.choice([*_TOKENS, b"1", b'"x"', b'["x"]', b"[1, [2]]"]) + content[value.end() :]
    )


def _line(draw: random.Random, content: bytes) -> bytes:
    """Lines out of place, twice, or gone."""
    lines = content.split(b"\n")
    i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[i : i + 1] = draw.choice([[], [lines[i]] * 2, [lines[j]], [b""], [lines[i] + lines[j]]])
    return b"\n".join(lines)


TEXT_MUTATIONS = [_token, _token, _token, _value, _value, _line]
